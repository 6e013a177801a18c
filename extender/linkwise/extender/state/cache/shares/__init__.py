"""Shares of divided GPUs: which ones a node has, and which pod has them."""
