"""`linkwise choose` and `linkwise machines`: the best GPUs of one machine, and why."""
