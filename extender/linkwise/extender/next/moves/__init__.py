"""Planned moves: running pods that consent go elsewhere, so that a waiting gang or pod fits."""
