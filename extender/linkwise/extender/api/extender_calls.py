"""kube-scheduler's questions and our answers as values, free of any wire form.

`linkwise.extender.verbs.wire` reads and writes them; `linkwise.extender.core` answers them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from linkwise.kube.objects import Pod


class Outcome(Enum):
    """How a write to the API server ended, as far as anyone can know."""

    DONE = "done"
    REFUSED = "refused"  # it has not happened and will not: 403, 404, 409, 422
    UNKNOWN = "unknown"  # no answer: it may have happened, or may still happen


@dataclass(frozen=True, slots=True)
class FilterCall:
    """A pod, and the nodes that passed everything else. `prioritize` is asked with the same."""

    pod: Pod
    node_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """Every asked node is in exactly one of the three, unless `error` ends the scheduling cycle; or
    one node that passes is named, and of the others nothing is said.

    Texts are the same for all nodes with the same reason and hold no numbers that change: kube-
    scheduler counts equal ones, and writes the pod's condition anew whenever the whole changes.
    """

    node_names: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # preemption may help
    unresolvable: Mapping[str, str] = field(default_factory=dict)  # nothing on this node helps
    error: str = ""
    passing: bool = False  # a moment later it is likely another


@dataclass(frozen=True, slots=True)
class PriorityAnswer:
    scores: tuple[tuple[str, int], ...] = ()  # node, 0 to 100


@dataclass(frozen=True, slots=True)
class Victims:
    uids: tuple[str, ...] = ()
    pdb_violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptCall:
    pod: Pod
    victims: Mapping[str, Victims]  # by node


@dataclass(frozen=True, slots=True)
class PreemptAnswer:
    """The nodes on which the pod fits once its victims are gone."""

    victims: Mapping[str, Victims] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BindCall:
    """*let_through* is the scheduler whose pod `filter` let through to the node; empty where it did
    not, as far as this process knows."""

    namespace: str
    name: str
    uid: str
    node: str
    let_through: str = ""


@dataclass(frozen=True, slots=True)
class BindOrder:
    """Post this Binding; the GPUs are held until `end_bind` tells how it went."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AlreadyBound:
    """The pod is on that very node already: nothing to write, and no error."""


@dataclass(frozen=True, slots=True)
class BindRefusal:
    reason: str
    passing: bool = False  # in a moment the answer may be another: worth a short wait
