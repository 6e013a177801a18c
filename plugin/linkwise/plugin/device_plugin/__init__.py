"""What the kubelet meets: registration, the list of devices, preferences and allocations."""
