"""Builds what a test cluster runs: Kubernetes' programs and the images of its nodes."""
