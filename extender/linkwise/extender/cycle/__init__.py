"""One scheduling round: what is planned, what is reserved, what is evicted, what is written."""
