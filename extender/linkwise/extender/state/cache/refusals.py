"""What kubelets do not admit: what the status of a failed pod says of it, and which kubelets are
known to refuse which pods.

Only the kubelet's own words are about the node. A plugin refuses what it was asked for, and its
words, whatever they are, stand behind "rpc error".
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from linkwise.extender.state.records import Refusal, Refuses, Template
from linkwise.kube.objects import PodStatus
from linkwise.kube.quoted import one_line
from linkwise.topology import names


class _Refused(NamedTuple):
    said: str
    beside: frozenset[str] | None  # None: closed; else the pods there before one may be tried


class TurnedAway:
    """Which kubelets refused pods of which template, and where one more may be tried.

    Every pod of a template asks its kubelet for the same, so what is refused once is refused again
    until something changes there. `place.nodes.kubelet_admission` decides when that may be.
    """

    def __init__(self, theirs: Callable[[Template, str], Iterable[str]]) -> None:
        """*theirs* names the pods of a template, by uid, that are on a node or will be."""
        self._theirs = theirs
        self._nodes: dict[Template, dict[str, _Refused]] = {}

    def put(self, template: Template, node: str, said: str, *, trial: bool) -> None:
        beside = frozenset(self._theirs(template, node)) if trial else None
        self._nodes.setdefault(template, {})[node] = _Refused(said, beside)

    def drop(self, template: Template, node: str) -> None:
        nodes = self._nodes.get(template, {})
        nodes.pop(node, None)
        if not nodes:
            self._nodes.pop(template, None)

    def of(self, template: Template | None) -> frozenset[str]:
        """The nodes that refused pods of this template, those where one may be tried too."""
        return frozenset(self._nodes.get(template, ())) if template is not None else frozenset()

    def is_closed(self, template: Template | None, node: str) -> bool:
        """Whether the node takes no pod of this template, not even as a trial."""
        nodes = self._nodes.get(template) if template is not None else None
        return nodes is not None and node in nodes and nodes[node].beside is None

    def takes_none(self, template: Template | None, node: str) -> bool:
        """Whether the node takes no other pod of this template now: it is closed, or one is being
        tried."""
        nodes = self._nodes.get(template) if template is not None else None
        if nodes is None or template is None or node not in nodes:
            return False
        beside = nodes[node].beside
        return beside is None or any(uid not in beside for uid in self._theirs(template, node))

    def is_tried(self, template: Template, node: str, uid: str) -> bool:
        """Whether this pod is on the node to test whether the kubelet refuses it."""
        refused = self._nodes.get(template, {}).get(node)
        return refused is not None and refused.beside is not None and uid not in refused.beside

    def all(self) -> Mapping[Template, Mapping[str, str]]:
        """template -> node that takes no other pod of it now -> what its kubelet said."""
        found = {
            template: {n: nodes[n].said for n in nodes if self.takes_none(template, n)}
            for template, nodes in self._nodes.items()
        }
        return {template: nodes for template, nodes in found.items() if nodes}


_NOT_ADMITTED = "UnexpectedAdmissionError"
# Kubelets write numbers of 64 bits; Python reads no text of thousands of digits.
# https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/kubelet/cm/devicemanager/manager.go
_DEVICE_MANAGER = re.compile(
    r"(?:Pod was rejected: )?Allocate failed due to (?:"
    r"cannot allocate unregistered device (?P<unregistered>\S+)"
    r"|no healthy devices present; cannot allocate unhealthy devices (?P<unhealthy>\S+)"
    r"|requested number of devices unavailable for (?P<few>\S+)\. "
    r"Requested: (?P<requested>\d{1,19}), Available: (?P<available>\d{1,19})"
    r"), which is unexpected"
)
# https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/kubelet/lifecycle/predicate.go
_BY_COUNT = re.compile(
    r"requested: (?P<requested>\d{1,19}), used: (?P<used>\d{1,19}), "
    r"capacity: (?P<capacity>\d{1,19})"
)
_OUT_OF = "OutOf"
_LONGEST_SAID = 300
_NOT_ADMITTED_SUCH = frozenset(
    {"TopologyAffinityError", "SMTAlignmentError", "EmptyPodSharedPoolError"}
)


def refusal_of(status: PodStatus, gpus: int, managed: str) -> Refusal | None:
    """Return None for a pod that its kubelet admitted. *gpus*: how many whole ones of the resource
    *managed* the pod asks for."""
    if status.phase != "Failed":
        return None
    said = one_line(status.message, _LONGEST_SAID)
    if status.reason.startswith(_OUT_OF):
        counted = _BY_COUNT.search(status.message)
        found = _whole(status.reason.removeprefix(_OUT_OF), managed)
        if counted is not None and found is Refuses.ALL and gpus:
            requested, used, capacity = map(int, counted.groups())
            return _lacking(said, gpus - requested + capacity - used)
        return Refusal(found, said)
    if status.reason == _NOT_ADMITTED:
        if (words := _DEVICE_MANAGER.match(status.message)) is None:
            return Refusal(Refuses.SUCH, said)
        if few := words["few"]:
            if few != managed or not gpus:
                return Refusal(Refuses.SUCH, said)
            # Containers before this one may have got theirs already.
            return _lacking(said, gpus - int(words["requested"]) + int(words["available"]))
        return Refusal(_whole(words["unregistered"] or words["unhealthy"], managed), said)
    return Refusal(Refuses.SUCH, said) if status.reason in _NOT_ADMITTED_SUCH else None


def _lacking(said: str, available: int) -> Refusal:
    return Refusal(Refuses.MORE if available > 0 else Refuses.ALL, said, max(available, 0))


def _whole(resource: str, managed: str) -> Refuses:
    """What a kubelet refuses that has nothing of *resource*."""
    of_gpus = resource == managed or names.is_share(resource, managed)
    return Refuses.ALL if of_gpus else Refuses.SUCH
