"""What joins the nodes of a communicator, by the nearest level that they share."""

from collections.abc import Sequence
from dataclasses import dataclass

from linkwise.extender.api.spans import FABRICS, ZONE

# What is left of the NICs' bandwidth for each level that a gang does not share. An assumption, as
# no label tells how far a network is oversubscribed (docs/topology.md).
_PAST_A_SWITCH, _PAST_A_ZONE = 0.9, 0.5


@dataclass(frozen=True, slots=True)
class Reach:
    """This *share* of the nodes' NICs' bandwidth, or an NVLink *fabric*. *apart*: each member is a
    communicator of its own, so nothing of that counts."""

    share: float = 1.0
    fabric: bool = False
    apart: bool = False


ONE_NODE = Reach(share=float("inf"))
APART = Reach(apart=True)


def reach_of(levels: Sequence[str], shared: int) -> Reach:
    """Of nodes that share a domain at this one of the *levels*, and none at those before it;
    len(levels): at none."""
    if shared < len(levels) and levels[shared] in FABRICS:
        return Reach(fabric=True)
    share = 1.0
    for key in levels[:shared]:
        if key not in FABRICS:
            share *= _PAST_A_ZONE if key == ZONE else _PAST_A_SWITCH
    return Reach(round(share, 6))
