"""How far apart the members of a gang may be: the node labels that name the domains they share.

A *level* is the key of a node label. Each value of it is a *domain*: nodes that are closer to each
other than to the rest, such as those of one NVLink clique, one leaf switch or one zone. Levels are
always listed from the nearest to the widest.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

NODE = "node"
CLIQUE = "nvidia.com/gpu.clique"
# The form that Kubernetes accepts; `node` and `clique` match it too.
LABEL_KEY = re.compile(
    r"([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
)
_WORDS = {"clique": CLIQUE}
_HOSTNAME = "kubernetes.io/hostname"
# Separates levels, as in the annotation, and domains (one for each level). Neither the key nor the
# value of a label can contain it.
SEPARATOR = ","

ZONE = "topology.kubernetes.io/zone"
# NVLinks join the nodes of one domain of these.
FABRICS = (
    CLIQUE,
    # Topograph 1.0 and newer, then what older versions write for the same level.
    "accelerator.topograph.run/sub-domain",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
)
DEFAULT_LEVELS = (
    *FABRICS,
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/block",
    "fabric.topograph.run/tier-1",
    "network.topology.nvidia.com/spine",
    "fabric.topograph.run/tier-2",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/datacenter",
    ZONE,
)


def required_of(keys: Iterable[str]) -> tuple[str, ...]:
    """The levels of node labels that an object names; what cannot be a label is left out."""
    return tuple(NODE if key == _HOSTNAME else key for key in keys if LABEL_KEY.fullmatch(key))


@dataclass(frozen=True, slots=True)
class Spans:
    """What the members of a gang want to share: `node`, `clique`, or keys of node labels."""

    require: tuple[str, ...] = ()  # one domain at each of these levels
    prefer: tuple[str, ...] = ()  # one domain at the first of these levels that allows it
    apart: bool = False  # members do not communicate: each pod is a communicator of its own


ANYWHERE = Spans()


def levels_of(words: Iterable[str]) -> tuple[str, ...]:
    """The levels that *words* name, without repeats; `clique` stands for the key of its label."""
    return tuple(dict.fromkeys(_WORDS.get(word, word) for word in words))


def spans_of(asked: Iterable[Spans]) -> Spans:
    """Merge the spans of a gang's members, given in the order of their ranks.

    The gang requires every level that any member requires. It prefers what the first member with
    a preference prefers. Its members are apart only if all of them say so.
    """
    all_of_them = tuple(asked)
    required = levels_of(chain.from_iterable(spans.require for spans in all_of_them))
    preferred = next((spans.prefer for spans in all_of_them if spans.prefer), ())
    apart = bool(all_of_them) and all(spans.apart for spans in all_of_them)
    return Spans(required, levels_of(preferred), apart)


def in_words(levels: str) -> str:
    """`one X and one Y` for the levels `X,Y`."""
    return " and ".join(f"one {level}" for level in levels.split(SEPARATOR))


def domain_in_words(levels: str, domains: str) -> str:
    """`X a and Y b` for the levels `X,Y` and the domains `a,b`."""
    both = zip(levels.split(SEPARATOR), domains.split(SEPARATOR), strict=True)
    return " and ".join(f"{level} {domain}" for level, domain in both)


def ordered(known: Sequence[str], spans: Spans) -> tuple[str, ...]:
    """All levels that matter to a gang, nearest first.

    The width of a level that only the gang names is unknown. The wide levels are usually known, so
    it counts as nearer than those.
    """
    own = (level for level in (*spans.require, *spans.prefer) if level not in (NODE, *known))
    return (*dict.fromkeys(own), *known)
