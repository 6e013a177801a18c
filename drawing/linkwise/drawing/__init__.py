"""Drawings of machines: which GPUs there are, what joins them, and who has which; and of pods
in time."""
