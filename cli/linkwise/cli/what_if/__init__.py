"""Where a job would go, when, and what would make room: asked of a cluster's listing."""
