"""Pods of training jobs as people write them: other resources than GPUs, anti-affinity, volumes.

Nodes are only objects here, so a test says what they offer, and plays the provisioner of volumes.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from linkwise.kube.errors import ApiError
from linkwise.topology import names
from tests.all_or_nothing import AllOrNothing
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import GPU
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, PODS, SchedulingWorld

HOSTNAME = "kubernetes.io/hostname"
_CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
_VOLUMES = "/api/v1/persistentvolumes"
_SLOW = "slow"  # the storage class whose volumes come when the test says so
_RELEASE_SECONDS = 3.0  # between the first and the last Binding of a gang, on a busy machine
_LOOK_SECONDS = 0.1


def pod_spec(
    gpus: int,
    *,
    more: Mapping[str, str] | None = None,
    apart_from: Mapping[str, str] | None = None,
    claim: str = "",
    gated: bool = False,
) -> dict[str, Any]:
    """Return a pod's spec. *more*: amounts of other resources; *apart_from*: labels of pods with
    which it shares no node."""
    amounts = {"cpu": "1", GPU: str(gpus), **(more or {})}
    container: dict[str, Any] = {
        "name": "main",
        "image": "none",
        "resources": {"limits": amounts, "requests": amounts},
    }
    spec: dict[str, Any] = {"containers": [container], "restartPolicy": "Never"}
    if claim:
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    if apart_from:
        term = {"labelSelector": {"matchLabels": dict(apart_from)}, "topologyKey": HOSTNAME}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        spec["affinity"] = {"podAntiAffinity": required}
    if gated:
        spec["schedulingGates"] = [{"name": names.GATE}]
    return spec


def create_pod(
    world: SchedulingWorld,
    name: str,
    spec: Mapping[str, Any],
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    node: str = "",
) -> str:
    """*node*: put there past every scheduler."""
    metadata = {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
    placed = {"nodeName": node} if node else {}
    world.client.post(PODS, {"metadata": metadata, "spec": {**spec, **placed}})
    return name


def create_members(
    world: SchedulingWorld,
    gang: str,
    specs: Sequence[Mapping[str, Any]],
    *,
    size: int = 0,
    first: int = 0,
    annotations: Mapping[str, str] | None = None,
) -> list[str]:
    """Create a pod for each spec, with ranks from *first* on. They have the gang's label `app`."""
    said = {names.GANG: gang, names.GANG_SIZE: str(size or len(specs)), **(annotations or {})}
    return [
        create_pod(
            world,
            f"{gang}-{rank}",
            spec,
            annotations={**said, names.RANK: str(rank)},
            labels={"app": gang},
        )
        for rank, spec in enumerate(specs, first)
    ]


def offer(world: SchedulingWorld, nodes: Sequence[str], amounts: Mapping[str, str]) -> None:
    """Let the nodes have these resources."""
    status = {"status": {"capacity": dict(amounts), "allocatable": dict(amounts)}}
    for node in nodes:
        world.client.patch(f"/api/v1/nodes/{node}/status", status)


# Volumes


def local_volume(world: SchedulingWorld, claim: str, node: str) -> str:
    """Create a claim that is bound to a volume on one node."""
    on_node = {"key": HOSTNAME, "operator": "In", "values": [node]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}}
    world.client.post(_CLAIMS, _claim(claim, "local"))
    _bind(world, claim, {"storageClassName": "local", "nodeAffinity": affinity})
    return claim


def slow_volume(world: SchedulingWorld, claim: str) -> str:
    """Create a claim whose volume is provisioned for the node of its first pod, by `provision`.
    Until then kube-scheduler keeps the pod in PreBind, past all filters and before `bind`."""
    storage_class = {
        "metadata": {"name": _SLOW},
        "provisioner": "linkwise.test/slow",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    try:
        world.client.post("/apis/storage.k8s.io/v1/storageclasses", storage_class)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
    world.client.post(_CLAIMS, _claim(claim, _SLOW))
    return claim


def provision(world: SchedulingWorld, claim: str) -> None:
    _bind(world, claim, {"storageClassName": _SLOW})


def wait_in_pre_bind(world: SchedulingWorld, claim: str) -> None:
    """Wait until kube-scheduler has a node for the claim's pod, and waits for its volume."""

    def has_node() -> bool:
        found = world.client.get(f"{_CLAIMS}/{claim}", dict[str, Any])
        said = found["metadata"].get("annotations", {})
        return "volume.kubernetes.io/selected-node" in said

    # Of 512 members, it may be the last one that kube-scheduler tries.
    wait_for(has_node, f"the pod of {claim} waits for its volume", 240.0)


def _claim(name: str, storage_class: str) -> dict[str, Any]:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return {"metadata": {"name": name}, "spec": spec}


def _bind(world: SchedulingWorld, claim: str, more: Mapping[str, Any]) -> None:
    """As the volume controller does."""
    found = world.client.get(f"{_CLAIMS}/{claim}", dict[str, Any])
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": NAMESPACE,
        "name": claim,
        "uid": found["metadata"]["uid"],
    }
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": "/data"},
        "claimRef": reference,
        **more,
    }
    if "nodeAffinity" not in volume:
        del volume["local"]
        volume["nfs"] = {"server": "nfs.example", "path": "/data"}
    world.client.post(_VOLUMES, {"metadata": {"name": f"pv-{claim}"}, "spec": volume})
    world.client.patch(f"{_VOLUMES}/pv-{claim}/status", {"status": {"phase": "Bound"}})
    complete = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    bound = {"metadata": complete, "spec": {"volumeName": f"pv-{claim}"}}
    world.client.patch(f"{_CLAIMS}/{claim}", bound)
    world.client.patch(f"{_CLAIMS}/{claim}/status", {"status": {"phase": "Bound"}})


def create_held(
    world: SchedulingWorld,
    gang: str,
    claim: str,
    *,
    size: int = 4,
    gpus: int = 4,
    annotations: Mapping[str, str] | None = None,
    apart_from: Mapping[str, str] | None = None,
) -> list[str]:
    """Create a gang whose last member waits in PreBind for *claim*; return when it does."""
    slow_volume(world, claim)
    plain = pod_spec(gpus, apart_from=apart_from)
    slow = pod_spec(gpus, claim=claim, apart_from=apart_from)
    specs = [plain] * (size - 1) + [slow]
    members = create_members(world, gang, specs, annotations=annotations)
    wait_in_pre_bind(world, claim)
    return members


# What a test sees


class Look:
    """Looks at all pods again and again, and holds gangs to the law of all or nothing."""

    def __init__(self, world: SchedulingWorld, grace_seconds: float = _RELEASE_SECONDS) -> None:
        self._world = world
        self.law = AllOrNothing(grace_seconds)
        self.broken: list[str] = []

    def once(self) -> set[str]:
        """Return the names of the pods that are bound."""
        pods = self._world.pods()
        self.broken += self.law.look(pods, time.monotonic())
        assert not self.broken, self.broken
        return {pod.metadata.name for pod in pods if pod.spec.node_name}

    def none_bound(self, pods: Sequence[str], seconds: float) -> None:
        ends, looks, partial = time.monotonic() + seconds, 0, 0
        while time.monotonic() < ends:
            looks += 1
            partial += not self.once().isdisjoint(pods)
            time.sleep(_LOOK_SECONDS)
        assert partial == 0, (
            f"part of {pods[0]} … {pods[-1]} was bound at {partial} of {looks} looks"
        )

    def until_bound(self, pods: Sequence[str], seconds: float) -> float:
        """Return after how many seconds all are bound."""
        began = time.monotonic()
        while not (bound := self.once()).issuperset(pods):
            took = time.monotonic() - began
            missing = sorted(set(pods) - bound)
            assert took < seconds, f"after {took:.0f} s {len(missing)} not bound: {missing[:8]}"
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - began
