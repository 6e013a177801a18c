"""The part of an object that the rules read. The cache drops the rest, which is most of it.

Of pod templates this is what they request; and where they are, for owners that may create some
pods only once others run: the extender keeps places for these.

An owner contains whole pod templates with their environments, volumes and probes. The extender
caches thousands of owners, and compares them to see whether a change concerns any pod.
"""

import re

from linkwise.kube.fields import Fields, at, group_of, items, mapping, text
from linkwise.pods.podgrouper.workloads.kinds import (
    DEPLOYMENT,
    EXCLUSIVE_GROUPS,
    EXCLUSIVE_JOBS,
    EXCLUSIVE_SUBGROUPS,
    JOB_SET,
    LEADER_WORKER_SET,
    MPI_JOB,
    NODE_SELECTOR_STRATEGY,
    STATEFUL_SET,
    VOLCANO_JOB,
)
from linkwise.pods.podgrouper.workloads.marks import PRIORITIES, QUEUES
from linkwise.topology import names

_DEPTH = 12  # levels of a spec; RayClusters and JobSets have their templates at level 5
_LONGEST = 1024  # characters; names and words are shorter
_OF_CONTAINER = ("name", "resources", "restartPolicy")
_OF_POD_SPEC = ("subdomain", "overhead", "resourceClaims", "resources")
_CONTAINERS = ("containers", "initContainers")
# Of owners in `_WITH_LATE_PODS`, too.
_OF_PLACE = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "schedulerName",
    "priorityClassName",
    "hostNetwork",
    "runtimeClassName",
)
_OF_VOLUME = ("persistentVolumeClaim", "ephemeral")
_WITH_LATE_PODS = frozenset(
    kind.qualified
    for kind in (DEPLOYMENT, JOB_SET, LEADER_WORKER_SET, MPI_JOB, STATEFUL_SET, VOLCANO_JOB)
)
_ANNOTATIONS = frozenset(
    (
        *QUEUES,
        *PRIORITIES,
        EXCLUSIVE_JOBS,
        NODE_SELECTOR_STRATEGY,
        EXCLUSIVE_GROUPS,
        EXCLUSIVE_SUBGROUPS,
    )
)
# The number of nodes, as vLLM's script that starts Ray on several nodes takes it, which KAITO runs
# (kaito-project/kaito, pkg/model/interface.go), and as SGLang, vLLM and torchrun do. torchrun takes
# the fewest and the most, too.
_NODES = re.compile(
    r"""--(?:ray_cluster_size|nnodes)[ =]["']?([0-9]{1,7})(?::([0-9]{1,7}))?(?=[\s"';]|$)"""
)

_OF_METADATA = ("name", "namespace", "uid", "deletionTimestamp")


def essence(found: Fields) -> Fields:
    """Reduce an object of the API server. The rules treat objects with equal results alike."""
    metadata = mapping(found, "metadata")
    kind = f"{text(found, 'kind')}.{group_of(text(found, 'apiVersion'))}"
    kept = {key: metadata[key] for key in _OF_METADATA if key in metadata}
    owners = metadata.get("ownerReferences")
    if owners:
        kept["ownerReferences"] = owners
    said = _annotations(metadata)
    if said:
        kept["annotations"] = said
    slim: dict[str, object] = {
        "apiVersion": text(found, "apiVersion"),
        "kind": text(found, "kind"),
        "metadata": kept,
        "spec": _slim(found.get("spec"), _DEPTH, place=kind in _WITH_LATE_PODS),
    }
    counts = {key: at(found, f"status.{key}") for key in ("succeeded", "failed")}
    if status := {key: count for key, count in counts.items() if count is not None}:
        slim["status"] = status
    return slim


def template_essence(template: Fields) -> Fields:
    """The part of a pod template from which the extender makes the pods that come later."""
    return {
        "metadata": _metadata(template.get("metadata"), place=True),
        "spec": _pod_spec(mapping(template, "spec"), place=True),
    }


def _slim(value: object, depth: int, *, place: bool) -> object:
    if isinstance(value, dict):
        if depth == 0:
            return {}
        if "containers" in value:
            return _pod_spec(value, place=place)
        return {
            key: _metadata(below, place=place)
            if key == "metadata"
            else _slim(below, depth - 1, place=place)
            for key, below in value.items()
        }
    if isinstance(value, list):
        return [_slim(item, depth - 1, place=place) for item in value] if depth else []
    return value if not isinstance(value, str) or len(value) <= _LONGEST else ""


def _pod_spec(spec: Fields, *, place: bool) -> Fields:
    slim = {key: spec[key] for key in _OF_POD_SPEC if key in spec}
    if place:
        slim |= {key: _slim(spec[key], _DEPTH, place=False) for key in _OF_PLACE if key in spec}
        volumes = [_volume(item) for item in items(spec, "volumes")]
        if any(volumes):
            slim["volumes"] = [volume for volume in volumes if volume]
    for key in _CONTAINERS:
        listed = spec.get(key)
        if isinstance(listed, list):
            slim[key] = [_container(item, place=place) for item in listed]
        elif key in spec:
            slim[key] = listed
    return slim


def _volume(volume: Fields) -> Fields:
    kept = {key: volume[key] for key in _OF_VOLUME if key in volume}
    if "ephemeral" in kept:  # its claim has a name of its own, whatever it requests
        kept["ephemeral"] = {}
    return {"name": text(volume, "name"), **kept} if kept else {}


def _container(item: object, *, place: bool) -> object:
    if not isinstance(item, dict):
        return item
    kept = {key: item[key] for key in _OF_CONTAINER if key in item}
    ports = [port for port in items(item, "ports") if at(port, "hostPort")] if place else []
    if ports:
        kept["ports"] = ports
    nodes = nodes_in(item.get("command"), item.get("args"))
    return {**kept, "args": [f"--nnodes={nodes[0]}:{nodes[1]}"]} if nodes else kept


def nodes_of(template: Fields) -> tuple[int, int] | None:
    """On how many nodes the commands of a pod template say that their process runs: the fewest and
    the most. None if they say none, or different numbers."""
    each = items(template, "spec.containers")
    found = {nodes for item in each if (nodes := nodes_in(item.get("command"), item.get("args")))}
    return found.pop() if len(found) == 1 else None


def nodes_in(command: object, args: object) -> tuple[int, int] | None:
    """The same of one container's command."""
    words = " ".join((*_words(command), *_words(args)))
    found = {(int(least), int(most or least)) for least, most in _NODES.findall(words)}
    return found.pop() if len(found) == 1 else None


def _words(listed: object) -> list[str]:
    return [word for word in listed if isinstance(word, str)] if isinstance(listed, list) else []


def _metadata(metadata: object, *, place: bool) -> Fields:
    """Of a template; everything else is read from its pods."""
    if not isinstance(metadata, dict):
        return {"annotations": {}}
    kept = {"annotations": _annotations(metadata)}
    labels = mapping(metadata, "labels") if place else {}
    return {**kept, "labels": _slim(labels, 1, place=False)} if labels else kept


def _annotations(metadata: Fields) -> Fields:
    said = mapping(metadata, "annotations")
    return {key: said[key] for key in said if key.startswith(names.PREFIX) or key in _ANNOTATIONS}
