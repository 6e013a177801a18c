"""What the cluster learns of this node: its Node object, its pods, and the GPUs in use."""
