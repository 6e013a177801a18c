"""Reads the user's YAML files into checked objects to create."""
