"""How far apart the members of a gang may be: which labels of nodes name the domains they share.

A *level* is the key of a node label, and every value of it a *domain*: nodes that are closer to
each other than to the rest, as those of one NVLink clique, one leaf switch or one zone. Levels are
always named from the nearest to the widest.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

NODE = "node"
CLIQUE = "nvidia.com/gpu.clique"
_WORDS = {"clique": CLIQUE}
_LABEL_KEY = re.compile(
    r"(?=.{1,317}$)"
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
)
ALLOWED = "node, clique or the key of a node label, more than one with `,` between, nearest first"

DEFAULT_LEVELS = (
    CLIQUE,
    # Topograph 1.0 and newer, then what it wrote before for the same level.
    "accelerator.topograph.run/sub-domain",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/block",
    "fabric.topograph.run/tier-1",
    "network.topology.nvidia.com/spine",
    "fabric.topograph.run/tier-2",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/datacenter",
    "topology.kubernetes.io/zone",
)


@dataclass(frozen=True, slots=True)
class Spans:
    """What the members of a gang want to have in common."""

    require: tuple[str, ...] = ()  # one domain at every one of these levels
    prefer: tuple[str, ...] = ()  # one domain at the first of these levels at which that can be


ANYWHERE = Spans()


def read_levels(text: str) -> tuple[str, ...]:
    """Read `clique,topology.kubernetes.io/zone`. Raises ValueError; `ALLOWED` says what may be."""
    levels = tuple(_WORDS.get(word, word) for word in (part.strip() for part in text.split(",")))
    if len(set(levels)) < len(levels) or not all(map(_LABEL_KEY.fullmatch, levels)):
        raise ValueError(text)
    return levels


def spans_of(asked: Iterable[Spans]) -> Spans:
    """What a gang wants whose members, in the order of their ranks, say this."""
    required = dict.fromkeys(level for spans in asked for level in spans.require)
    preferred = next((spans.prefer for spans in asked if spans.prefer), ())
    return Spans(tuple(required), preferred)
