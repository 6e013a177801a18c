"""One scheduling round: it plans, reserves and evicts, and publishes what it decided."""
