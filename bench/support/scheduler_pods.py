"""The nodes and pods of `bench.scheduler`: 8-GPU machines, and pods that take a whole machine or no
GPU.

A bare pod has one container and nothing else. A training pod also has the environment, volumes and
tolerations of a real one. Each of its updates costs the API server more, because `managedFields`
makes it walk through the whole pod.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from linkwise.extender.run.claim_body import claim_body
from linkwise.extender.state.actions import CreateClaim, PodRef
from linkwise.pods.claims import ClaimAsk, write_claims
from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, write_gpus, write_plan
from tests.cluster.support.scheduling import dra
from tests.cluster.support.scheduling.extender_process import GPU, gpu_node

NAMESPACE = "ml"
MACHINE = "hgx-h100"
TEMPLATE = "whole-machine"
GANG_SIZE = 4


class Length(Enum):
    BARE = "bare"
    TRAINING = "training"


class Kind(Enum):
    SINGLE = "single pods"
    GANGS = f"gangs of {GANG_SIZE}"
    GATED = "gated pods"
    NATIVE = f"native gangs of {GANG_SIZE}"  # PodGroups of kube-scheduler's own
    ONE_GANG = "one gang"  # of all the pods
    ONE_NATIVE = "one native gang"
    NO_GPUS = "pods without GPUs"

    def gang_size(self, pods: int) -> int | None:
        """Of *pods* pods; None: they form no gangs."""
        if self in (Kind.ONE_GANG, Kind.ONE_NATIVE):
            return pods
        return GANG_SIZE if self in (Kind.GANGS, Kind.NATIVE) else None

    @property
    def is_native(self) -> bool:
        return self in (Kind.NATIVE, Kind.ONE_NATIVE)


def nodes(count: int, *, claims: bool = False) -> Iterator[bytes]:
    """*claims*: a DRA driver gives out their GPUs."""
    for number in range(count):
        name, zone = node_name(number), {"topology.kubernetes.io/zone": f"eu-west-{number % 3}"}
        made = dra.node_of_driver(name, zone) if claims else gpu_node(name, MACHINE, zone)
        yield msgspec.json.encode(made)


def slices(count: int) -> Iterator[bytes]:
    """What the driver publishes of the nodes."""
    for number in range(count):
        yield msgspec.json.encode(dra.slice_of(node_name(number)))


def template() -> bytes:
    """Of the claims of the pods that request a whole machine from a DRA driver."""
    return msgspec.json.encode(dra.template(TEMPLATE, count=8))


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}.eu-west.example.internal"


def groups(kind: Kind, count: int, prefix: str) -> Iterator[bytes]:
    """The PodGroups of *count* pods; none if the kind has none."""
    size = kind.gang_size(count)
    if size is None or not kind.is_native:
        return
    for first in range(0, count, size):
        policy = {"gang": {"minCount": min(size, count - first)}}
        name = f"{prefix}-{first // size}"
        yield msgspec.json.encode(
            {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy}}
        )


def waiting(
    kind: Kind,
    length: Length,
    count: int,
    prefix: str,
    scheduler: str = "default-scheduler",
    *,
    claims: bool = False,
) -> dict[str, bytes]:
    """*count* pods, name -> body. Each except NO_GPUS requests a whole machine; *claims*: by
    a claim of the template."""
    bodies = {}
    size = kind.gang_size(count)
    for number in range(count):
        gang = f"{prefix}-{number // size}" if size else ""
        said = {}
        if size and not kind.is_native:
            members = min(size, count - number // size * size)
            said = {names.GANG: gang, names.GANG_SIZE: str(members)}
        name = f"{prefix}-{number}"
        pod = pod_body(name, length, 0 if claims or kind is Kind.NO_GPUS else 8, said)
        if claims:
            entry = {"name": "gpus", "resourceClaimTemplateName": TEMPLATE}
            pod["spec"]["resourceClaims"] = [entry]
            pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
        pod["spec"]["schedulingGates"] = [{"name": names.GATE}] if kind is Kind.GATED else []
        pod["spec"]["schedulerName"] = scheduler
        if kind.is_native:
            pod["spec"]["schedulingGroup"] = {"podGroupName": gang}
        bodies[name] = msgspec.json.encode(pod)
    return bodies


def running(nodes: int, pods: int, *, claims: bool = False) -> Iterator[bytes]:
    """Running pods with 2 GPUs each, spread over the nodes in turn; a pod on a full node takes
    none. Their plans are as older extenders wrote them: they name no pod. *claims*: those of
    `allocated`."""
    for number in range(pods):
        name, (node, uuids) = _tenant(number), _place(number, nodes)
        said = {
            names.GPUS: write_gpus({"main": uuids}),
            names.PLAN: write_plan(Plan(id=name, node=node, epoch=1)),
        }
        pod = pod_body(name, Length.TRAINING, 0 if claims else len(uuids), said if uuids else {})
        pod["spec"]["nodeName"] = node
        if claims and uuids:
            ask = ClaimAsk("gpus", _claim(number), {"main": len(uuids)})
            pod["metadata"]["annotations"][names.CLAIMS] = write_claims(ask)
            pod["spec"]["resourceClaims"] = [{"name": ask.entry, "resourceClaimName": ask.claim}]
            use = {"name": ask.entry, "request": "main"}
            pod["spec"]["containers"][0]["resources"]["claims"] = [use]
        yield msgspec.json.encode(pod)


def allocated(nodes: int, pods: int, uids: Mapping[str, str]) -> Iterator[tuple[str, bytes, bytes]]:
    """The claims of the running pods, whose *uids* the API server has drawn: name, body as the
    extender creates it, and status as kube-scheduler writes it."""
    for number in range(pods):
        pod, claim, (node, uuids) = _tenant(number), _claim(number), _place(number, nodes)
        if uuids:
            ref = PodRef(NAMESPACE, pod, uids[pod])
            action = CreateClaim(ref, claim, {"main": uuids}, dra.DRIVER, edition="1")
            first = number // nodes * len(uuids)
            device = {"request": "main", "driver": dra.DRIVER, "pool": node}
            results = [{**device, "device": f"gpu-{first + n}"} for n in range(len(uuids))]
            status = {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": pod, "uid": ref.uid}],
            }
            body = claim_body(action, dra.DRIVER, None)
            yield claim, msgspec.json.encode(body), msgspec.json.encode({"status": status})


def _tenant(number: int) -> str:
    return f"tenant-{number}"


def _claim(number: int) -> str:
    return f"linkwise-{number:020}"


def _place(number: int, nodes: int) -> tuple[str, tuple[str, ...]]:
    """The node and the GPUs of a running pod."""
    node, place = node_name(number % nodes), number // nodes
    return node, dra.uuids(node)[2 * place : 2 * place + 2]


def pod_body(
    name: str, length: Length, gpus: int, annotations: Mapping[str, str]
) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "64Gi", **({GPU: str(gpus)} if gpus else {})}
    container: dict[str, Any] = {
        "name": "main",
        "image": "registry.example.internal/research/training@sha256:" + "0" * 64,
        "resources": {"limits": amounts, "requests": amounts},
    }
    spec: dict[str, Any] = {"containers": [container], "restartPolicy": "Never"}
    if length is Length.TRAINING:
        mounts = ("shared-memory", "scratch")
        container |= {
            "command": ["torchrun", "--nproc-per-node", str(gpus), "train.py"],
            "env": [{"name": f"NCCL_SETTING_{n}", "value": f"value-{n}"} for n in range(24)],
            "volumeMounts": [{"name": mount, "mountPath": f"/{mount}"} for mount in mounts],
        }
        spec |= {
            "volumes": [{"name": mount, "emptyDir": {}} for mount in mounts],
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app": "training", "team": "research", "job-name": name},
            "annotations": dict(annotations),
        },
        "spec": spec,
    }
