"""Which nodes can take one pod, which is best, and why the others cannot."""
