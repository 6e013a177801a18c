"""Turns Jobs into Pods, as kube-controller-manager's job controller does."""
