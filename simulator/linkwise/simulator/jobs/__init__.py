"""Turns Jobs and other workloads into Pods, as their controllers do."""
