"""What each kind of workload says of its pods: one module for each family of operators."""
