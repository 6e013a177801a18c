"""The real kube-scheduler and extender on nodes that are only objects."""
