"""A simulated cluster that runs the real programs and cleans up after them.

The API server and the kubelets are threads of this process. The plugins and the extender are
processes, started as an operator would start them; they reach the threads over sockets.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import urllib3

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.objects import Node
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.kubelet import Kubelet, KubeletSettings
from linkwise.simulator.processes.child_process import Child, ChildError
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_in_use
from linkwise.topology.errors import AnnotationError
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.vendors.known import RESOURCES, resource_of_machine

_LOOK_SECONDS = 0.03  # between two polls
_READY_SECONDS = 60.0
# Shared by all programs, from the request to end. Gives up on gRPC's own shutdown, which takes
# seconds after a program is done, because no output of the programs outlives the cluster.
_END_SECONDS = 1.0
_LONGEST_TEMP = 60  # of TMPDIR; a unix socket's path has room for 107 bytes
_HASTE = KubeletSettings(status_seconds=0.1, stop_seconds=0.02)
# A pod that has run for ten times as long may move, and one that has waited for as long has others
# moved for it.
_MOVE_COST = "1ms"
_CALLS, _STATUS = "serving kube-scheduler on ", "serving probes, metrics and views on "

_NAMESPACE = "kube-system"  # where `kubectl linkwise` looks for the extender
_CONTEXT = "linkwise-simulator"

T = TypeVar("T")


class ClusterTimeoutError(Exception):
    """The cluster did not reach a state in time. The text names the state and what is missing."""


class _NodeItems(msgspec.Struct):
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A node to simulate: its name, and the recorded machine it is."""

    name: str
    machine_name: str

    @property
    def machine(self) -> Machine:
        return recorded_machine(self.machine_name, node=self.name)

    @property
    def resource(self) -> str:
        """The resource of its vendor's device plugin."""
        return resource_of_machine(self.machine, RESOURCES)


class SimulatedCluster:
    """Inside `with SimulatedCluster(nodes) as cluster:` all nodes are ready.

    `look` calls *tell* with the name of a program and each new line of its log.
    """

    def __init__(
        self, nodes: Sequence[SimulatedNode], *, tell: Callable[[str, str], None] | None = None
    ) -> None:
        self.nodes = tuple(nodes)
        self.machines: Mapping[str, Machine] = {node.name: node.machine for node in nodes}
        self.server = ApiServer()
        self.kubelets: tuple[Kubelet, ...] = ()
        self.extender_url = self.status_url = ""  # for kube-scheduler; for people
        self._tell = tell
        self._children: list[Child] = []
        self._http = urllib3.PoolManager(retries=False, timeout=5.0)
        self._things = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as things:
            temp = gettempdir()
            self.directory = Path(
                things.enter_context(
                    TemporaryDirectory(
                        prefix="lw-",
                        dir="/tmp" if len(temp) > _LONGEST_TEMP else temp,
                        # A program that is ending may still write its log.
                        ignore_cleanup_errors=True,
                    )
                )
            )
            things.enter_context(self.server)
            self.client = KubeClient.load(kubeconfig=None, server=self.server.url)
            things.callback(self._stop)
            self._start_kubelets()
            self._start_plugins()
            self.wait_for(self._nodes_lack, "the nodes")
            self._things = things.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._things.close()

    # Start and stop

    def _start_kubelets(self) -> None:
        for number, node in enumerate(self.nodes, 1):
            kubelet = Kubelet(
                node.name, self.directory / f"n{number}", self.client, settings=_HASTE
            )
            kubelet.start()
            self.kubelets += (kubelet,)

    def _start_plugins(self) -> None:
        for node, kubelet in zip(self.nodes, self.kubelets, strict=True):
            arguments = {
                "node-name": node.name,
                "machine": node.machine_name,
                "resource-name": node.resource,
                "kubelet-dir": kubelet.device_plugin_directory,
                "pod-resources-socket": kubelet.pod_resources_socket,
                "api-server": self.server.url,
                "listen-address": "127.0.0.1",
                "listen-port": 0,
                "in-use-seconds": 0.2,
            }
            self._start_child(f"linkwise-plugin on {node.name}", "linkwise.plugin", arguments)

    def start_extender(self, *, moves: bool) -> None:
        """Return when the extender is ready. *moves*: it moves pods that consent. Raises
        ChildError, ClusterTimeoutError."""
        arguments: dict[str, object] = {
            "api-server": self.server.url,
            "listen-address": "127.0.0.1",
            "listen-port": 0,
            "status-port": 0,
            "plain-http": True,
            "resource-name": RESOURCES,
        }
        if moves:
            arguments |= {"moves": "consent", "move-cost": _MOVE_COST}
        extender = self._start_child("linkwise-extender", "linkwise.extender", arguments)
        self.wait_for(lambda: self._extender_lacks(extender), "the extender")
        urls = {"https": self.extender_url, "http": self.status_url}
        for port, url in urls.items():
            self.server.forward(_NAMESPACE, f"linkwise-extender:{port}", url)

    def write_kubeconfig(self) -> Path:
        """Write a kubeconfig for this cluster into its directory, and return its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": _CONTEXT,
            "clusters": [{"name": _CONTEXT, "cluster": {"server": self.server.url}}],
            "users": [{"name": _CONTEXT, "user": {}}],
            "contexts": [{"name": _CONTEXT, "context": {"cluster": _CONTEXT, "user": _CONTEXT}}],
        }
        path = self.directory / "kubeconfig"
        path.write_bytes(msgspec.json.encode(config))  # JSON is YAML too
        return path

    def _start_child(self, name: str, module: str, arguments: Mapping[str, object]) -> Child:
        log_file = self.directory / f"{name.replace(' ', '-')}.log"
        flags = [
            word
            for flag, value in arguments.items()
            for each in (value if isinstance(value, tuple) else (value,))
            for word in (f"--{flag}", str(each))
        ]
        # The user's environment may configure another plugin or extender; do not pass that on.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LINKWISE_")}
        child = Child(name, module, flags, log_file, environment)
        self._children.append(child)
        return child

    def _stop(self) -> None:
        for child in self._children:
            child.ask_to_end()
        deadline = time.monotonic() + _END_SECONDS
        for child in self._children:
            child.end(max(0.0, deadline - time.monotonic()))
        for kubelet in self.kubelets:  # after the plugins, which may be calling them
            kubelet.stop()
        self._http.clear()

    # Waiting

    def look(self) -> None:
        """Pass on new log lines. Raises ChildError if a program has ended."""
        if self._tell is not None:
            for child in self._children:
                for line in child.new_lines():
                    self._tell(child.name, line)
        for child in self._children:
            child.check()

    def dead(self) -> tuple[Child, ...]:
        return tuple(child for child in self._children if not child.runs)

    def wait_for(
        self, lacks: Callable[[], str], what: str, seconds: float = _READY_SECONDS
    ) -> None:
        """Poll until *lacks* returns "", and check that all programs run. Raises
        ClusterTimeoutError."""
        deadline = time.monotonic() + seconds
        while lacking := lacks():
            self.look()
            if time.monotonic() > deadline:
                raise ClusterTimeoutError(f"{what}: out of time: {lacking}")
            time.sleep(_LOOK_SECONDS)

    def _nodes_lack(self) -> str:
        known = {node.metadata.name: node for node in self.read_nodes()}
        for simulated in self.nodes:
            name, machine = simulated.name, self.machines[simulated.name]
            node = known.get(name)
            if node is None:
                return f"{name} is not registered"
            count = str(node.status.allocatable.get(simulated.resource, 0))
            if count != str(len(machine.gpus)):
                return f"{name} has {count} of {len(machine.gpus)} GPUs"
            if names.TOPOLOGY not in node.metadata.annotations:
                return f"{name} has not published its topology"
        return ""

    def holders(self) -> str:
        """Name a node that still lists pods as users of its GPUs; "" if there is none."""
        for node in self.read_nodes():
            text = node.metadata.annotations.get(names.IN_USE)
            try:
                pods = read_in_use(text).pods if text else {}
            except AnnotationError as error:
                return f"{node.metadata.name}: {error}"
            if pods:
                return f"{node.metadata.name} lists {', '.join(sorted(pods))}"
        return ""

    def _extender_lacks(self, extender: Child) -> str:
        if not self.status_url:
            said = extender.log()
            if _STATUS not in said:
                return "it does not listen yet"
            self.extender_url = said.partition(_CALLS)[2].partition("\n")[0]
            self.status_url = said.partition(_STATUS)[2].partition("\n")[0]
        try:
            status, body = self._get("/readyz")
        except ApiError as error:
            return str(error)
        return "" if status == 200 else body.decode(errors="replace").strip()

    # Queries

    def read_nodes(self) -> tuple[Node, ...]:
        return self.client.get("/api/v1/nodes", _NodeItems).items

    def ask_extender(self, path: str, kind: type[T]) -> T | None:
        """Return the extender's JSON answer, or None if it answers 404.

        Raises ChildError if the answer has another status or does not decode.
        """
        status, body = self._get(path)
        if status == 404:
            return None
        try:
            if status == 200:
                return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise ChildError(f"linkwise-extender: GET {path}: {error}") from error
        raise ChildError(f"linkwise-extender: GET {path}: status {status}: {body[:200]!r}")

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            answer = self._http.request("GET", f"{self.status_url}{path}")
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, "Unreachable", f"GET {path}: {error}") from error
        return answer.status, answer.data
