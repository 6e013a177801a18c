"""The annotations that the extender and the plugin write for each other: plans and GPUs in use.

On a Pod, `linkwise.dev/gpus`: container -> GPU uuids, {"main":["GPU-a","GPU-b"]}
On a Pod, `linkwise.dev/plan`: which plan, for which Pod, and its value,
{"v":1,"uid":"8f0c…","id":"x","node":"n1",...}
On a Node, `linkwise.dev/in-use`: from podresources, {"v":1,"pods":{"ns/name":{"main":["GPU-a"]}}}

Shares of divided GPUs, left out if there are none:
in a plan, "shares":[["main","nvidia.com/gpu.shared",["GPU-b::0"]]]
in `in-use`, "shares":{"ns/name":{"main":{"nvidia.com/gpu.shared":["GPU-b::0"]}}}

Readers ignore unknown fields, so a field can be added without a new version.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from linkwise.topology import names
from linkwise.topology.annotations.annotation_json import check_version, decode
from linkwise.topology.errors import AnnotationError

VERSION = 1
_GPUS = 'JSON like {"main":["GPU-8f…"]}'
_PLAN = 'JSON like {"v":1,"uid":"8f0c…","id":"7c1e","node":"gpu-3"}'
_IN_USE = 'JSON like {"v":1,"pods":{"ml/train-0":{"main":["GPU-8f…"]}}}'
Text = Annotated[str, msgspec.Meta(min_length=1)]
ContainerGpus = Mapping[str, tuple[str, ...]]
ContainerShares = Mapping[str, Mapping[str, tuple[str, ...]]]
"""container -> resource -> ids"""


_Speed = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_COMMUNICATOR = "communicator"


class CommunicatorEstimate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All-reduce bandwidth of a whole gang in GB/s, estimated when its plan was made
    (docs/topology.md). For people: no decision depends on it."""

    together: _Speed
    inside: _Speed  # the ring through all of the gang's GPUs on this pod's node
    between: _Speed | None = None  # from node to node; None: the gang is on one node


class PlannedShares(msgspec.Struct, frozen=True, array_like=True):
    """The shares of one resource that one container gets."""

    container: str
    resource: str
    ids: tuple[Text, ...]


class PlannedMember(msgspec.Struct, frozen=True, array_like=True):
    """The place of another member of the gang, whose own pod does not name it yet."""

    uid: Text
    node: Text
    gpus: Annotated[int, msgspec.Meta(ge=1)]  # bitmask


class Plan(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="v", tag=VERSION
):
    """A decision for one pod. It counts only on the pod that it names, while that pod is on `node`
    or not bound yet.

    The API server chooses the uid of a pod as it creates the pod. So a plan that a pod was created
    with, by a copied manifest or a restored backup, names another pod.
    """

    uid: str = ""  # of the pod; empty in the extender's memory
    id: Text  # the same for all members placed together
    node: Text
    leader: int = 0  # the term of the leader that made it; 0: there was no election
    epoch: int = 0  # rises by one with each new plan of this pod
    made: float = 0.0  # seconds since 1970; a gang's timeout counts from here
    link: str = ""  # closest link class that a ring through the pod's GPUs keeps to
    gbytes_per_s: float = 0.0  # estimated all-reduce bus bandwidth of the pod's GPUs
    refusals: int = 0  # how often kube-scheduler has refused a plan of this gang
    span: str = ""  # what all members share, `<level>=<domain>` of the nearest level there is
    communicator: CommunicatorEstimate | None = None  # of a gang with two GPUs or more
    shares: tuple[PlannedShares, ...] = ()
    moved: float = 0.0  # seconds since 1970; when the pod got the place of one that was evicted
    expected: _Seconds | None = None  # how long it would run, as it declared then
    passes: bool = False  # by that word, it got GPUs that are reserved for others
    others: tuple[PlannedMember, ...] = ()  # left out once the plan is on each member

    @property
    def edition(self) -> tuple[int, int]:
        """Of two plans of a pod the one with the higher edition counts; a later leader's is
        higher."""
        return self.leader, self.epoch


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """Which container holds which GPUs and shares, by the kubelet's list; pods are
    `namespace/name`."""

    v: int = VERSION
    pods: dict[str, dict[str, tuple[str, ...]]] = {}
    shares: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}


def held_of(
    in_use: Mapping[str, ContainerGpus],
    key: str,
    planned: ContainerGpus,
    *,
    by_claim: bool = False,
) -> ContainerGpus:
    """The GPUs that the kubelet keeps for the pod *key*, which is *in_use*: those that it lists,
    and the *planned* ones of containers that it does not list, such as init containers that have
    ended, unless other pods are known to have them. *by_claim*: the plan names the claim's
    requests. The kubelet lists all GPUs of the claim for each container, so the plan, if it has
    these GPUs, says more."""
    listed = in_use[key]
    if by_claim:
        return planned if _all_of(listed) <= _all_of(planned) else listed
    ended = [container for container in planned if container not in listed]
    if not ended:
        return listed
    others = {
        uuid
        for other, containers in in_use.items()
        if other != key
        for gpus in containers.values()
        for uuid in gpus
    }
    kept = {each: tuple(uuid for uuid in planned[each] if uuid not in others) for each in ended}
    return {**{container: gpus for container, gpus in kept.items() if gpus}, **listed}


def _all_of(gpus: ContainerGpus) -> set[str]:
    return {uuid for uuids in gpus.values() for uuid in uuids}


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def write_gpus(gpus: ContainerGpus) -> str:
    return _encode(gpus)


def read_gpus(text: str) -> dict[str, tuple[str, ...]]:
    """Raises AnnotationError if *text* is not container -> GPU uuids."""
    return decode(names.GPUS, text, dict[str, tuple[Text, ...]], _GPUS)


def write_plan(plan: Plan) -> str:
    return _encode(plan)


def read_plan(text: str) -> Plan:
    """Read a plan. A wrong `communicator` counts as absent, since nothing depends on it.

    Raises AnnotationError (VersionError for a newer version).
    """
    check_version(names.PLAN, text, VERSION, _PLAN)
    try:
        return decode(names.PLAN, text, Plan, _PLAN)
    except AnnotationError:
        fields = decode(names.PLAN, text, dict[str, msgspec.Raw], _PLAN)
        if _COMMUNICATOR not in fields:
            raise
        del fields[_COMMUNICATOR]
        return decode(names.PLAN, _encode(fields), Plan, _PLAN)


def write_in_use(in_use: InUse) -> str:
    shares = {"shares": in_use.shares} if in_use.shares else {}
    return _encode({"v": in_use.v, "pods": in_use.pods, **shares})


def read_in_use(text: str) -> InUse:
    """Raises AnnotationError (VersionError for a newer version)."""
    check_version(names.IN_USE, text, VERSION, _IN_USE)
    return decode(names.IN_USE, text, InUse, _IN_USE)
