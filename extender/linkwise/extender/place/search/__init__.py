"""The search for a gang's GPUs: which domains, which nodes, which GPUs on each."""
