"""Where a job would go, when, and what would make room, from a listing of a cluster."""
