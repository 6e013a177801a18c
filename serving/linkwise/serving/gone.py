"""The error of a call that nobody waits for any more."""

from linkwise.topology.errors import LinkwiseError


class GoneError(LinkwiseError):
    """Whoever called has hung up, or given up: nothing was done."""
