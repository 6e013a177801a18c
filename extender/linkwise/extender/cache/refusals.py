"""What the status of a pod that failed says of the kubelet that did not admit it.

Only the kubelet's own words are about the node. A plugin refuses what it was asked for, and its
words, whatever they are, stand behind "rpc error".
"""

import re

from linkwise.extender.api.records import Refusal, Refuses
from linkwise.kube.objects import PodStatus
from linkwise.kube.quoted import one_line
from linkwise.topology import names

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
