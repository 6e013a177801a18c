"""Separates a test cluster from the machine it runs on, and runs its programs."""
