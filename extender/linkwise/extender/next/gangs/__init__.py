"""A gang's members, phases, gates and repair, and the search for its GPUs."""
