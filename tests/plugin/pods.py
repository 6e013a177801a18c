"""Pods as the API server sends them, bound to node n1 unless said otherwise."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from linkwise.kube.objects import Pod

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
