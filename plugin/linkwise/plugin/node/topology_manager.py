"""Reads what the kubelet's Topology Manager demands, from the first source that says so:

1. `/configz` of the kubelet: what it really does, whatever its flags and files say
2. its configuration file, if it is mounted
3. the NodeResourceTopology object of the node, which another agent writes

The plugin asks the kubelet itself, and not through the API server: a right to the proxy of nodes is
a right to run commands in every container. docs/decisions/devices.md#39-the-topology-manager says
why in this order.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from linkwise.kube.client import KubeClient
from linkwise.kube.documents import DocumentError, read_value
from linkwise.kube.errors import ApiError
from linkwise.plugin.later import Later
from linkwise.topology.machine.topology_manager import Policy, Scope, Source, TopologyManager

log = logging.getLogger(__name__)

_EVERY_SECONDS = 60.0
_AFTER_RESTART_SECONDS = 2.0  # a kubelet that starts does not answer at once
_ANSWER_SECONDS = 3.0
# The attributes of a NodeResourceTopology that node feature discovery writes.
_POLICY, _SCOPE = "topologyManagerPolicy", "topologyManagerScope"


class _Configuration(msgspec.Struct, rename="camel"):
    """A KubeletConfiguration; what a file leaves out has the kubelet's defaults."""

    topology_manager_policy: str = Policy.NONE
    topology_manager_scope: str = Scope.CONTAINER
    topology_manager_policy_options: dict[str, str] | None = None


class _Configz(msgspec.Struct):
    kubeletconfig: _Configuration


class _Address(msgspec.Struct):
    type: str
    address: str


class _Endpoint(msgspec.Struct, rename={"port": "Port"}):
    port: int = 10250


class _Endpoints(msgspec.Struct, rename="camel"):
    kubelet_endpoint: _Endpoint = msgspec.field(default_factory=_Endpoint)


class _Status(msgspec.Struct, rename="camel"):
    addresses: list[_Address] = []
    daemon_endpoints: _Endpoints = msgspec.field(default_factory=_Endpoints)


class _Node(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class _Attribute(msgspec.Struct):
    name: str
    value: str


class _NodeResourceTopology(msgspec.Struct):
    attributes: list[_Attribute] = []


class NotSaidError(Exception):
    """A source does not say what the Topology Manager demands, and why."""


class KubeletReader:
    """*file*: where the kubelet's configuration file is mounted, if it is."""

    def __init__(self, client: KubeClient, node_name: str, file: Path | None) -> None:
        self._client, self._node_name, self._file = client, node_name, file
        self._kubelet: KubeClient | None = None

    def read(self) -> TopologyManager:
        """Raises NotSaidError, which says why each source says nothing."""
        why = []
        for source in (self._configz, self._of_file, self._of_node_resource_topology):
            try:
                return source()
            except NotSaidError as error:
                why.append(str(error))
            except (ApiError, msgspec.MsgspecError, OSError, DocumentError) as error:
                why.append(f"{source.__name__.strip('_')}: {' '.join(str(error).split())}")
        raise NotSaidError("; ".join(filter(None, why)))

    def _configz(self) -> TopologyManager:
        if not self._client.url.startswith("https://"):
            raise NotSaidError("")  # an API server that asks for no credentials: a stand-in
        with self._client.within(_ANSWER_SECONDS):
            status = self._client.get(f"/api/v1/nodes/{self._node_name}", _Node).status
        address = next((a.address for a in status.addresses if a.type == "InternalIP"), None)
        if address is None:
            raise NotSaidError("configz: the Node has no InternalIP")
        host = f"[{address}]" if ":" in address else address
        url = f"https://{host}:{status.daemon_endpoints.kubelet_endpoint.port}"
        if self._kubelet is None or self._kubelet.url != url:
            self._kubelet = self._client.of_server(url)
        with self._kubelet.within(_ANSWER_SECONDS):
            found = self._kubelet.get("/configz", _Configz).kubeletconfig
        return _manager(found, Source.CONFIGZ)

    def _of_file(self) -> TopologyManager:
        if self._file is None:
            raise NotSaidError("")
        content = read_value(self._file.read_bytes())
        if not isinstance(content, Mapping) or content.get("kind") != "KubeletConfiguration":
            raise NotSaidError(f"{self._file}: expected a KubeletConfiguration")
        return _manager(msgspec.convert(content, _Configuration), Source.FILE)

    def _of_node_resource_topology(self) -> TopologyManager:
        path = f"/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{self._node_name}"
        try:
            with self._client.within(_ANSWER_SECONDS):
                found = self._client.get(path, _NodeResourceTopology)
        except ApiError as error:
            if error.status == 404:
                raise NotSaidError("") from None
            raise
        said = {attribute.name: attribute.value for attribute in found.attributes}
        if _POLICY not in said:
            raise NotSaidError(f"NodeResourceTopology {self._node_name}: no {_POLICY}")
        return _manager(
            _Configuration(said[_POLICY], said.get(_SCOPE, Scope.CONTAINER)),
            Source.NODE_RESOURCE_TOPOLOGY,
        )


def _manager(found: _Configuration, source: Source) -> TopologyManager:
    try:
        # An empty value is the kubelet's default.
        policy = Policy(found.topology_manager_policy or Policy.NONE)
        scope = Scope(found.topology_manager_scope or Scope.CONTAINER)
    except ValueError as error:
        raise NotSaidError(f"{source}: {error}") from None
    options = tuple(sorted((found.topology_manager_policy_options or {}).items()))
    return TopologyManager(policy, scope, options, source)


class TopologyManagerWatch:
    """Reads again every minute, and soon after the kubelet has restarted. What was read stays until
    a source says something else: a kubelet that does not answer has not changed its mind."""

    def __init__(self, reader: KubeletReader, *, on_change: Callable[[], None]) -> None:
        self._reader, self._on_change = reader, on_change
        self.now: TopologyManager | None = None
        self._trouble = ""
        self._later = Later(
            "reading the Topology Manager's settings",
            self.look,
            seconds=_AFTER_RESTART_SECONDS,
            every_seconds=_EVERY_SECONDS,
        )

    def start(self) -> None:
        self._later.start()

    def poke(self) -> None:
        """The kubelet has restarted."""
        self._later.ask()

    def stop(self) -> None:
        self._later.stop()

    def look(self) -> None:
        try:
            found = self._reader.read()
        except NotSaidError as error:
            if str(error) != self._trouble:
                log.info("Topology Manager: unknown: %s", error)
            self._trouble = str(error)
            return
        self._trouble = ""
        if found != self.now:
            log.info(
                "Topology Manager: policy %s, scope %s, by %s",
                *(found.policy, found.scope, found.source),
            )
            self.now = found
            self._on_change()
