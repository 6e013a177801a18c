"""What the tests of the reflector share: an owner that remembers all calls, and nodes to watch."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Lock

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node
from linkwise.kube.reflector import Reflector

NODES = "/api/v1/nodes"


def wait_for(predicate: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


class Owner:
    """Records every call as one word: =a,b for a list, +a ~a -a for an event."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.skipped: list[str] = []
        self.labels: dict[str, str] = {}
        self.failures: list[Exception] = []  # raised by the next events
        self._lock = Lock()

    def replace(self, nodes: Collection[Node]) -> None:
        with self._lock:
            self.told.append("=" + ",".join(node.metadata.name for node in nodes))
            self.labels = {n.metadata.name: n.metadata.labels.get("step", "") for n in nodes}

    def event(self, kind: str, node: Node) -> None:
        signs = {"ADDED": "+", "MODIFIED": "~", "DELETED": "-"}
        if self.failures:
            raise self.failures.pop()
        with self._lock:
            self.told.append(signs[kind] + node.metadata.name)
            self.labels[node.metadata.name] = node.metadata.labels.get("step", "")

    def skip(self, where: str, why: str) -> None:
        self.skipped.append(f"{where}: {why}")


@contextmanager
def reflecting(client: KubeClient, owner: Owner, **options: object) -> Iterator[Reflector[Node]]:
    settings: dict[str, object] = {"longest_wait_seconds": 0.05, "on_skipped": owner.skip}
    reflector = Reflector(
        client,
        NODES,
        Node,
        on_replace=owner.replace,
        on_event=owner.event,
        **(settings | options),  # type: ignore[arg-type]
    )
    reflector.start()
    try:
        assert reflector.synced.wait(5)
        yield reflector
    finally:
        reflector.stop()


def add(client: KubeClient, *names: str) -> None:
    for name in names:
        client.post(NODES, {"metadata": {"name": name}})


def label(client: KubeClient, name: str, step: int) -> None:
    client.patch(f"{NODES}/{name}", {"metadata": {"labels": {"step": str(step)}}})
