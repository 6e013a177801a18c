"""The answers to kube-scheduler's calls: filter, prioritize, bind, preempt."""
