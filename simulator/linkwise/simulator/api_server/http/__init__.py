"""Serves the store over HTTP: routes, watches, faults on demand."""
