"""The pure search for the place where a pod, or a whole gang, fits best."""
