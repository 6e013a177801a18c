"""Pods that hold GPUs and do nothing, and what could start without them."""
