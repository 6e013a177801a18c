"""Which shares of divided GPUs a pod gets, and on which node."""
