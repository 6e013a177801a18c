"""Both ports of the extender: kube-scheduler's calls, and probes, metrics and views."""
