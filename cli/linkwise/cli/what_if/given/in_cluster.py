"""Finds the listing's pods that wait as the job does, and the job's own pods in it."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from linkwise.cli.documents import Fields
from linkwise.cli.errors import BadInputError
from linkwise.cli.what_if.given.job import Job, takes, takes_devices
from linkwise.cli.what_if.given.listing import Listing
from linkwise.drawing.words import some
from linkwise.kube.fields import group_of
from linkwise.kube.objects import OwnerReference, Pod, SchedulingGate
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.topology import names

change = msgspec.structs.replace
_DEFAULT_SCHEDULER = "default-scheduler"
_GATE = SchedulingGate(name=names.GATE)
_OF_DEPLOYMENT = re.compile(r"-[a-z0-9]{5,10}$")
_Maker = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class There:
    job: Job
    notes: tuple[str, ...]


def schedulers_of(pods: Iterable[Pod]) -> frozenset[str]:
    """Return the schedulers that ask Linkwise, as far as their pods show it."""
    asked = (pod.spec.scheduler_name for pod in pods if names.PLAN in pod.metadata.annotations)
    return frozenset({_DEFAULT_SCHEDULER, *asked})


def gated(pod: Pod, resources: Collection[str], schedulers: frozenset[str]) -> Pod:
    """Put a pod that waits for GPUs behind Linkwise's gate. So the core plans it in its turn,
    without a kube-scheduler."""
    if (
        pod.spec.node_name
        or pod.has_ended
        or pod.is_leaving
        or pod.spec.scheduler_name not in schedulers
        or names.PLAN in pod.metadata.annotations
        or _GATE in pod.spec.scheduling_gates
        or not takes(pod, resources)
    ):
        return pod
    return change(pod, spec=change(pod.spec, scheduling_gates=(*pod.spec.scheduling_gates, _GATE)))


def those_there(listing: Listing, job: Job) -> There:
    """Return the job with those of its objects that wait in the cluster as they are there. Raises
    BadInputError if one of them runs there, or if another pod has the name of one of its pods."""
    made_by: dict[str, list[Pod]] = {title: [] for title in job.titles}
    for pod in job.pods:
        made_by[job.title_of[pod.metadata.uid]].append(pod)
    waiting: dict[str, list[Pod]] = {}
    for title, made in made_by.items():
        there = _those_of(listing, made)
        running = sum(bool(pod.spec.node_name) for pod in there)
        if running:
            raise BadInputError(
                f"--submit: {title}: in the cluster already, where {running} of its {len(there)} "
                "pods have a node: expected another name"
            )
        if there:
            waiting[title] = [_behind_our_gate_alone(pod) for pod in there]
    if not waiting:
        return There(job, ())
    count = sum(map(len, waiting.values()))
    is_one = len(waiting) == 1
    note = (
        f"{some(tuple(waiting))} {'is' if is_one else 'are'} in the cluster already and "
        f"{'waits' if is_one else 'wait'}: this is for {'its' if is_one else 'their'} {count} pods "
        "there, as old as they are"
    )
    if any(job.order.get(pod.metadata.uid) for title in waiting for pod in made_by[title]):
        note += ", without those that are created after others"
    pods = [pod for title, made in made_by.items() for pod in waiting.get(title, made)]
    return There(
        replace(job, pods=tuple(pods), objects=_without_uids(job.objects)),
        (note,),
    )


def _those_of(listing: Listing, made: Sequence[Pod]) -> list[Pod]:
    """Return the listing's pods of the object whose pods would be *made*."""
    makers = {_maker(pod) for pod in made if _maker(pod)[0]}
    there = [pod for pod in listing.pods.values() if pod.is_live and _maker(pod) in makers]
    for pod in made:
        known = listing.pods.get(_key(pod))
        if known is None or not known.is_live or _maker(known) in makers:
            continue
        if _maker(pod)[0] or _maker(known)[0]:
            raise BadInputError(
                f"--submit: pod {'/'.join(_key(pod))} is in the cluster already and belongs to "
                "another owner; rename the job"
            )
        there.append(known)
    return there


def _key(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.name


def _maker(pod: Pod) -> _Maker:
    """Return a pod's controller; a Deployment's ReplicaSet without the hash in its name."""
    none = OwnerReference(kind="", name="", uid="")
    owners = pod.metadata.owner_references
    owner = next((each for each in owners if each.controller), none)
    name = owner.name.removesuffix("-what-if")
    if owner.kind == "ReplicaSet" and name == owner.name:
        name = _OF_DEPLOYMENT.sub("", name)
    return owner.kind, group_of(owner.api_version), pod.metadata.namespace, name


def _behind_our_gate_alone(pod: Pod) -> Pod:
    said = {k: v for k, v in pod.metadata.annotations.items() if k not in names.BY_EXTENDER}
    status = change(pod.status, nominated_node_name="")
    return change(
        pod,
        metadata=change(pod.metadata, annotations=said),
        spec=change(pod.spec, scheduling_gates=(_GATE,) if takes_devices(pod) else ()),
        status=status,
    )


def _without_uids(objects: Mapping[ObjectRef, Fields]) -> dict[ObjectRef, Fields]:
    """Drop uids: existing pods refer to real uids, which are unknown here."""
    return {
        ref: {
            **fields,
            "metadata": {k: v for k, v in fields.get("metadata", {}).items() if k != "uid"},
        }
        for ref, fields in objects.items()
    }
