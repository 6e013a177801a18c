"""How long the front waits for a vendor's plugin, and for its own knowledge."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Times in seconds. If the kubelet has such a time, the default equals it."""

    look: float = 0.25
    dial: float = 10.0  # the kubelet's, inside Register
    first_list: float = 10.0
    probe: float = 10.0  # between questions whether a vendor's plugin answers
    grace: float = 300.0  # the kubelet's, until it forgets a plugin that is gone
    renewal: float = 5.0  # for a vendor's plugin to begin again with a new kubelet
    own_knowledge: float = 30.0  # then the vendor's list goes out without Linkwise's knowledge
    tell: float = 0.1  # until the cluster hears of a change: the kubelet hears of it first
