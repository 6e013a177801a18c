"""Which gangs and pods are next, and the GPUs that are reserved for those that wait."""
