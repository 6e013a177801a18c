"""A small cluster on the API server's stand-in, as those around the extender see and change it."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from werkzeug.test import TestResponse

from linkwise.extender.run.ports.dispatch import Verbs
from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node, Pod
from linkwise.replay.gpu_objects import GPU as GPU
from linkwise.replay.gpu_objects import node_of
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.machine.recorded import recorded_machine


def wait_for(predicate: Callable[[], object], timeout_seconds: float = 10.0) -> None:
    """Poll until *predicate* holds."""
    deadline = time.monotonic() + timeout_seconds
    while not predicate():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def as_json(kind: str, it: Node | Pod) -> dict[str, Any]:
    """The object as the API server sends it."""
    return {"apiVersion": "v1", "kind": kind, **msgspec.to_builtins(it)}


def body(reply: TestResponse) -> Any:
    """What a route answered, as JSON."""
    return json.loads(reply.get_data())


def asked(verbs: Verbs, verb: str, **members: Any) -> tuple[int, Any]:
    """The answer to a call of kube-scheduler: status, and the body as JSON."""
    reply = verbs.answer(verb, json.dumps(members).encode())
    assert reply is not None
    return reply.status, json.loads(reply.body)


class ApiObjects:
    """Nodes and pods in one namespace, `ml`."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.client = KubeClient.load(kubeconfig=None, server=server.url)

    def add_node(self, name: str, machine: str = "hgx-h100") -> None:
        node = node_of(name, recorded_machine(machine, node=name), cpu="128")
        self.client.post("/api/v1/nodes", as_json("Node", node))

    def add_pod(
        self,
        name: str,
        gpus: int = 8,
        *,
        node: str = "",
        said: Mapping[str, str] | None = None,
        **annotations: str,
    ) -> dict[str, Any]:
        """Create a pod, on *node* past every scheduler; `gang_size="2"` is the annotation
        linkwise.dev/gang-size, beside those that are *said*."""
        words = {names.PREFIX + key.replace("_", "-"): text for key, text in annotations.items()}
        main = {"name": "main", "image": "x", "resources": {"limits": {GPU: str(gpus)}}}
        self.client.post(
            "/api/v1/namespaces/ml/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": {**words, **(said or {})}},
                "spec": {"containers": [main]} | ({"nodeName": node} if node else {}),
            },
        )
        return self.pod(name)

    def add_gang(
        self, name: str, size: int, gpus: int = 8, *, least: int | None = None
    ) -> list[str]:
        members = [f"{name}-{rank}" for rank in range(size)]
        for rank, member in enumerate(members):
            words = {"gang": name, "gang-size": str(size), "rank": str(rank)}
            words |= {} if least is None else {"gang-min": str(least)}
            self.add_pod(member, gpus, said={names.PREFIX + key: words[key] for key in words})
        return members

    def pod(self, name: str) -> dict[str, Any]:
        """The pod as JSON, for a call of kube-scheduler."""
        return self.client.get(f"/api/v1/namespaces/ml/pods/{name}", dict[str, Any])

    def read(self, name: str) -> Pod:
        return self.client.get(f"/api/v1/namespaces/ml/pods/{name}", Pod)

    def delete(self, name: str) -> None:
        self.client.delete(f"/api/v1/namespaces/ml/pods/{name}", grace_seconds=0)

    def is_planned(self, name: str) -> bool:
        pod = self.read(name)
        return bool(pod.status.nominated_node_name) and names.PLAN in pod.metadata.annotations
