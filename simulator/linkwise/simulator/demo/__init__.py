"""Runs the user's manifests on a simulated cluster, with and without Linkwise."""
