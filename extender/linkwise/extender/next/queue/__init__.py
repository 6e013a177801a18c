"""The order of the gangs and pods that wait for GPUs, and the GPUs that are reserved for them."""
