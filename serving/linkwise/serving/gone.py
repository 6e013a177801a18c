"""The error of a call whose caller no longer waits."""

from linkwise.topology.errors import LinkwiseError


class GoneError(LinkwiseError):
    """The caller has hung up or given up: nothing was done."""
