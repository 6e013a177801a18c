"""A first table takes longer than hypothesis allows an example on a busy machine."""

from hypothesis import settings

settings.register_profile("laws", deadline=None)
settings.load_profile("laws")
