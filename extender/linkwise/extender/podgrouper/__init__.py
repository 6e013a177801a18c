"""Which pods are one gang, from their annotations or from what their operators put on them."""
