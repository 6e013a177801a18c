"""The worth of GPUs together: the estimated all-reduce bandwidth of a communicator."""
