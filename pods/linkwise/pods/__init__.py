"""What a pod asks for, and which pods are one gang; for the extender and the webhook."""
