"""Linkwise's own certificates: created, stored in the cluster and renewed automatically."""
