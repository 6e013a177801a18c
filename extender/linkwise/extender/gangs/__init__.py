"""A gang's members, its phases, its gates, its repair, and the GPUs that are sought for it."""
