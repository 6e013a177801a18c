"""Groups pods into gangs, from their annotations or from what their operators put on them."""
