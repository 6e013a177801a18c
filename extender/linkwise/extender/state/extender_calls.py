"""kube-scheduler's calls and the extender's answers as values, independent of the wire form.

`linkwise.extender.calls.wire` parses and writes them; `linkwise.extender.core` answers them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from linkwise.extender.state.records import GangKey
from linkwise.kube.objects import Pod


class Outcome(Enum):
    """How a write to the API server ended, as far as its client can know."""

    DONE = "done"
    REFUSED = "refused"  # it has not happened and will not: 403, 404, 409, 422
    DENIED = "denied"  # a plan or a Binding: admission or validation will refuse it again
    UNKNOWN = "unknown"  # no response: it may have happened, or may still happen


@dataclass(frozen=True, slots=True)
class FilterCall:
    """A pod, and the nodes that passed kube-scheduler's own filters. `prioritize` gets the same
    arguments."""

    pod: Pod
    node_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """Every node of the call is in exactly one of the first three fields. There are two exceptions:
    if `error` is set, it ends the scheduling cycle; and the answer may name one passing node and
    leave out the others.

    Equal reasons have equal texts on all nodes, without numbers that change: kube-scheduler counts
    equal texts, and rewrites the pod's condition whenever the whole text changes.
    """

    node_names: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # preemption may help
    unresolvable: Mapping[str, str] = field(default_factory=dict)  # nothing on this node helps
    error: str = ""
    passing: bool = False  # a retry in a moment is likely to get another answer
    is_partial: bool = False  # some of the failed nodes have not been looked at


@dataclass(frozen=True, slots=True)
class PriorityAnswer:
    """Two columns: 5,000 pairs would take longer to make than to rate."""

    names: Sequence[str] = ()
    of_names: Sequence[int] = ()  # 0 to 100

    @property
    def scores(self) -> dict[str, int]:
        """node -> score"""
        return dict(zip(self.names, self.of_names, strict=True))


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
    """The nodes on which the pod fits once their victims have terminated."""

    victims: Mapping[str, Victims] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BindCall:
    """*let_through* names the scheduler for whose pod `filter` returned this node. It is empty if
    this process does not know of such an answer."""

    namespace: str
    name: str
    uid: str
    node: str
    let_through: str = ""


@dataclass(frozen=True, slots=True)
class BindOrder:
    """Post this Binding. The GPUs stay assumed until `end_bind` reports its outcome."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AlreadyBound:
    """The pod is already bound to that very node: nothing to write, and no error."""


@dataclass(frozen=True, slots=True)
class BindRefusal:
    reason: str
    passing: bool = False  # a retry after a short wait may succeed


@dataclass(frozen=True, slots=True)
class BindWaits:
    """The Binding has to wait for other members of this gang: ask again when the gang is released,
    or report that the call was given up."""

    gang: GangKey
