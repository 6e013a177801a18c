"""Certificates of our own: made, kept in the cluster, renewed without a person."""
