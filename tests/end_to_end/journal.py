"""What happened in a world, in order and with times: the only way to read a run of many threads."""

import logging
import time
from collections.abc import Collection
from threading import Lock

from linkwise.kube.objects import Node, Pod
from linkwise.topology.names import DEFAULT_RESOURCE

_QUIET = ("linkwise.plugin.device_plugin.server",)  # each advice: the pods' own lines say enough


class Journal(logging.Handler):
    """While it is attached it also takes the lines that the programs log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._began = time.monotonic()
        self._lines: list[str] = []
        self._writing = Lock()
        self._pods: dict[str, str] = {}  # uid -> the state last noted
        self._nodes: dict[str, str] = {}
        self._level_before = logging.NOTSET

    def attach(self) -> None:
        programs = logging.getLogger("linkwise")
        self._level_before = programs.level
        programs.setLevel(logging.INFO)
        programs.addHandler(self)

    def detach(self) -> None:
        programs = logging.getLogger("linkwise")
        programs.removeHandler(self)
        programs.setLevel(self._level_before)

    def say(self, who: str, what: str) -> None:
        with self._writing:
            self._lines.append(f"{time.monotonic() - self._began:7.3f} {who:>18}  {what}")

    def emit(self, record: logging.LogRecord) -> None:
        if record.name in _QUIET and record.levelno < logging.WARNING:
            return
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self.say(record.name.removeprefix("linkwise."), text)

    def pods(self, listed: Collection[Pod]) -> None:
        for pod in listed:
            self.pod("LISTED", pod)

    def pod(self, kind: str, pod: Pod) -> None:
        """Note what the API server now says of a pod, where that is news."""
        state = "gone" if kind == "DELETED" else _state(pod)
        if self._pods.get(pod.metadata.uid) != state:
            self._pods[pod.metadata.uid] = state
            self.say("pod", f"{pod.metadata.name} ({pod.metadata.uid[:8]}): {state}")

    def nodes(self, listed: Collection[Node]) -> None:
        for node in listed:
            self.node("LISTED", node)

    def node(self, kind: str, node: Node) -> None:
        state = "gone" if kind == "DELETED" else _state_of_node(node)
        if self._nodes.get(node.metadata.name) != state:
            self._nodes[node.metadata.name] = state
            self.say("node", f"{node.metadata.name}: {state}")

    @property
    def pods_seen(self) -> int:
        return len(self._pods)

    def text(self) -> str:
        with self._writing:
            return "\n".join(self._lines)


def _state(pod: Pod) -> str:
    words = [pod.status.phase]
    if pod.status.nominated_node_name:
        words.append(f"nominated to {pod.status.nominated_node_name}")
    if pod.spec.node_name:
        words.append(f"on {pod.spec.node_name}")
    if pod.is_leaving:
        words.append("ending")
    words += [
        f"{key.rpartition('/')[2]} {text}"
        for key, text in sorted(pod.metadata.annotations.items())
        if key in ("linkwise.dev/gpus", "linkwise.dev/plan", "linkwise.dev/gang-started")
    ]
    return ", ".join(words)


def _state_of_node(node: Node) -> str:
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), "not said")
    words = [f"Ready {ready}", f"{node.status.allocatable.get(DEFAULT_RESOURCE, 'no')} GPUs"]
    words += [f"taint {taint.key}" for taint in node.spec.taints]
    return ", ".join(words + ["cordoned"] * node.spec.unschedulable)
