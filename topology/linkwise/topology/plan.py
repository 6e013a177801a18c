"""What the extender and the plugin write for each other: the plan of a pod, and what is in use.

On a Pod, `linkwise.dev/gpus`: container -> GPU uuids, {"main":["GPU-a","GPU-b"]}
On a Pod, `linkwise.dev/plan`: which plan, and what it is worth, {"v":1,"id":"x","node":"n1",...}
On a Node, `linkwise.dev/in-use`: from podresources, {"v":1,"pods":{"ns/name":{"main":["GPU-a"]}}}

Unknown fields are ignored, so a field can be added without a new version.
"""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from linkwise.topology import names
from linkwise.topology.errors import AnnotationError, VersionError

VERSION = 1
Text = Annotated[str, msgspec.Meta(min_length=1)]
ContainerGpus = Mapping[str, tuple[str, ...]]


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision for one pod. It counts only while the pod is on `node`, or not yet bound."""

    v: int = VERSION
    id: Text  # the same for all members placed together
    node: Text
    epoch: int = 0  # rises by one whenever the plan of this pod is made anew
    made: float = 0.0  # seconds since 1970; a gang's timeout counts from here
    link: str = ""  # closest link class that a ring through the pod's GPUs keeps to
    gbytes_per_s: float = 0.0  # estimated all-reduce bus bandwidth of the pod's GPUs
    refusals: int = 0  # how often kube-scheduler has refused a plan of this gang


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """Which container really holds which GPUs, as the kubelet says; pods are `namespace/name`."""

    v: int = VERSION
    pods: dict[str, dict[str, tuple[str, ...]]] = {}


class _Versioned(msgspec.Struct):
    v: int = VERSION


_Decoded = TypeVar("_Decoded")


def _check_version(key: str, text: str) -> None:
    """A newer version may have any shape, so this is asked before the rest is read."""
    found = _decode(key, text, _Versioned).v
    if found > VERSION:
        raise VersionError(key, found, VERSION)


def _decode(key: str, text: str, kind: type[_Decoded]) -> _Decoded:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise AnnotationError(key, text, f"JSON as Linkwise writes it ({error})") from None


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def write_gpus(gpus: ContainerGpus) -> str:
    return _encode(gpus)


def read_gpus(text: str) -> dict[str, tuple[str, ...]]:
    """Raises AnnotationError where *text* is not container -> GPU uuids."""
    return _decode(names.GPUS, text, dict[str, tuple[Text, ...]])


def write_plan(plan: Plan) -> str:
    return _encode(plan)


def read_plan(text: str) -> Plan:
    """Raises AnnotationError (of a newer version: VersionError)."""
    _check_version(names.PLAN, text)
    return _decode(names.PLAN, text, Plan)


def write_in_use(in_use: InUse) -> str:
    return _encode(in_use)


def read_in_use(text: str) -> InUse:
    """Raises AnnotationError (of a newer version: VersionError)."""
    _check_version(names.IN_USE, text)
    return _decode(names.IN_USE, text, InUse)
