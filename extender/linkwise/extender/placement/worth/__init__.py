"""What GPUs are worth together: the all-reduce bandwidth of a communicator."""
