"""Nodes and pods as the API server has them, with the decisions that it does not show yet."""
