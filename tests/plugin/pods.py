"""Pods as the API server sends them, bound to node n1 unless said otherwise."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.annotations.plan import (
    ContainerGpus,
    Plan,
    PlannedShares,
    write_gpus,
    write_plan,
)

RESOURCE = "nvidia.com/gpu"


def manifest(
    name: str,
    *containers: tuple[str, object],
    init: Sequence[tuple[str, object] | tuple[str, object, str]] = (),
    node: str = "n1",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Containers are (name, GPUs), init containers too or (name, GPUs, restartPolicy)."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "nodeName": node,
            "containers": [_container(*each) for each in containers],
            "initContainers": [_container(*each) for each in init],
        },
        "status": {"phase": "Pending"},
    }


def _container(name: str, gpus: object, restart_policy: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "image": "registry.example/train:1",
        "restartPolicy": restart_policy,
        "resources": {"limits": {RESOURCE: gpus}} if gpus is not None else {},
    }


def pod(
    name: str,
    *containers: tuple[str, object],
    init: Sequence[tuple[str, object] | tuple[str, object, str]] = (),
    node: str = "n1",
    annotations: Mapping[str, str] | None = None,
    changes: Mapping[str, Mapping[str, object]] | None = None,
) -> Pod:
    """*changes* are merged into the parts that they name: status={"phase": "Failed"}."""
    body = manifest(name, *containers, init=init, node=node, annotations=annotations)
    body["metadata"]["uid"] = f"uid-{name}"
    for part, fields in (changes or {}).items():
        body[part] |= fields
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


def decided(
    uid: str, gpus: ContainerGpus, *shares: PlannedShares, node: str = "n1"
) -> dict[str, str]:
    """What the extender writes on the pod *uid*."""
    plan = Plan(uid=uid, id="p", node=node, shares=shares)
    return {names.GPUS: write_gpus(gpus), names.PLAN: write_plan(plan)}


def bind(
    client: KubeClient,
    body: dict[str, Any],
    gpus: ContainerGpus,
    *shares: PlannedShares,
    said: Mapping[str, str] | None = None,
) -> None:
    """Create the pod and bind it to its node with a plan, as the extender does. The Binding has the
    annotations *said* instead of the plan's."""
    spec = {key: value for key, value in body["spec"].items() if key != "nodeName"}
    pods, node = (
        f"/api/v1/namespaces/{body['metadata']['namespace']}/pods",
        body["spec"]["nodeName"],
    )
    made = client.create(pods, {**body, "spec": spec}, Pod)
    notes = decided(made.metadata.uid, gpus, *shares, node=node) | dict(said or {})
    binding = {
        "metadata": {"name": made.metadata.name, "annotations": notes},
        "target": {"kind": "Node", "name": node},
    }
    client.post(f"{pods}/{made.metadata.name}/binding", binding)
