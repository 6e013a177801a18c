"""The network between the nodes of a communicator, by the nearest level that they share."""

from collections.abc import Sequence
from dataclasses import dataclass

from linkwise.pods.spans import FABRICS, ZONE

# The share of the NICs' bandwidth that is left past each level that the nodes do not share. An
# assumption: no label says how far a network is oversubscribed (docs/topology.md).
_PAST_A_SWITCH, _PAST_A_ZONE = 0.9, 0.5


@dataclass(frozen=True, slots=True)
class Reach:
    """A *share* of the NICs' bandwidth, or an NVLink *fabric*. *apart*: each member is a
    communicator of its own, so neither counts."""

    share: float = 1.0
    fabric: bool = False
    apart: bool = False


ONE_NODE = Reach(share=float("inf"))
APART = Reach(apart=True)


def reach_of(levels: Sequence[str], shared: int) -> Reach:
    """The reach of nodes whose nearest shared level is `levels[shared]`; len(levels): they share
    none."""
    if shared < len(levels) and levels[shared] in FABRICS:
        return Reach(fabric=True)
    share = 1.0
    for key in levels[:shared]:
        if key not in FABRICS:
            share *= _PAST_A_ZONE if key == ZONE else _PAST_A_SWITCH
    return Reach(round(share, 6))
