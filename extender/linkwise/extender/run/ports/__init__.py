"""The extender's two ports: kube-scheduler's calls, and probes, metrics and views."""
