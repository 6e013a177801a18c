"""Which pods are evicted for a more important gang or pod."""
