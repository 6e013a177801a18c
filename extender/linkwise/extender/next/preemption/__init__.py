"""The choice of the pods to evict for a more important gang or pod."""
