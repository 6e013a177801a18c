"""The plugin put together: which thread tells which other what."""

import logging
from threading import Event, Thread

from waitress.server import create_server

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Pod
from linkwise.kube.reflector import Reflector
from linkwise.plugin.advisor import Advisor
from linkwise.plugin.allocate import POLICIES, Pick
from linkwise.plugin.app import create_app
from linkwise.plugin.caretaker import Caretaker, first_reading, warn
from linkwise.plugin.containers import Granting
from linkwise.plugin.devices import DeviceBook, Devices
from linkwise.plugin.errors import ListenError
from linkwise.plugin.in_use import InUsePoller, PodResources
from linkwise.plugin.inventory import Inventory, Snapshot
from linkwise.plugin.leaving import clean_up_if_removed
from linkwise.plugin.metrics import Metrics
from linkwise.plugin.publish import NodePublisher
from linkwise.plugin.registration import Registrar
from linkwise.plugin.server import DevicePlugin
from linkwise.plugin.settings import CDI_KIND, Settings
from linkwise.topology.model import LinkClass, Machine
from linkwise.topology.plan import InUse

log = logging.getLogger(__name__)

_FIRST_PODS_SECONDS = 5.0  # then we register all the same: GPUs without plans beat no GPUs
_WATCH_DEAD_SECONDS = 10.0  # the API server not heard for so long: waiting for a pod is in vain


class Program:
    """Raises ListenError where HTTP cannot be served."""

    def __init__(self, settings: Settings, inventory: Inventory, client: KubeClient) -> None:
        self._settings, self._inventory, self._client = settings, inventory, client
        self._metrics = Metrics()
        self._missing = "no GPUs read yet"
        self._stopping = Event()
        self._node: Node | None = None
        app = create_app(self._metrics.registry, self.not_ready)
        try:
            # Few threads: scrapes and probes are all that comes.
            self._http = create_server(
                app, host=settings.listen_address, port=settings.listen_port, threads=2
            )
        except (OSError, ValueError) as error:
            where = f"--listen-address {settings.listen_address} --listen-port"
            raise ListenError(f"{where} {settings.listen_port}: {error}") from error
        self._http_thread = Thread(target=self._serve_http, name="http", daemon=True)

    @property
    def port(self) -> int:
        """Where HTTP listens; useful when it was told port 0."""
        # An address with several sockets ("localhost" of both IP versions) has no one port 0.
        return int(getattr(self._http, "effective_port", self._settings.listen_port))

    def not_ready(self) -> str:
        """What is missing until all is well; empty then."""
        return self._node.not_ready() if self._node else self._missing

    def run(self) -> None:
        """Serve until `stop`, then leave nothing behind that nobody will keep true."""
        self._http_thread.start()
        log.info("node %s: HTTP on port %d", self._settings.node_name, self.port)
        try:
            snapshot = first_reading(
                self._inventory, stopping=self._stopping, on_waiting=self._waiting_for_gpus
            )
            if snapshot is not None:
                self._node = Node(
                    self._settings, self._inventory, self._client, self._metrics, snapshot
                )
                self._node.start(self._stopping)
                self._stopping.wait()
        finally:
            self._stopping.set()
            if self._node is not None:
                self._node.stop()
            if self._settings.daemonset:
                clean_up_if_removed(
                    self._client, self._settings.node_name, self._settings.daemonset
                )
            self._inventory.close()
            self._http.close()
            # No longer: a scraper's open connection keeps this thread, a daemon, for minutes.
            self._http_thread.join(0.5)
            log.info("stopped")

    def _serve_http(self) -> None:
        try:
            self._http.run()
        except (OSError, ValueError):  # its sockets were closed while it waited for them
            if not self._stopping.is_set():
                raise

    def stop(self) -> None:
        """Safe to call from a signal handler."""
        self._stopping.set()

    def discover(self) -> None:
        """Read the GPUs anew; safe to call from a signal handler."""
        if self._node is not None:
            self._node.discover()

    def _waiting_for_gpus(self, why: str) -> None:
        self._missing = f"no GPUs: {why}"


class Node:
    """Everything that runs once the GPUs are known."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        client: KubeClient,
        metrics: Metrics,
        snapshot: Snapshot,
    ) -> None:
        self._metrics = metrics
        pick = POLICIES[settings.policy]
        warn(snapshot.warnings)
        self._book = DeviceBook(snapshot, clean_probes_needed=settings.clean_probes)
        warm_up(pick, self._book.now.machine)
        self._publisher = NodePublisher(
            client, settings.node_name, on_error=metrics.publish_errors.inc
        )
        self._advisor = Advisor(
            node=settings.node_name,
            resource=settings.resource_name,
            pick=pick,
            pod_wait_seconds=settings.pod_wait_seconds,
            watching=lambda: self._pods.failing_seconds < _WATCH_DEAD_SECONDS,
        )
        self._pods: Reflector[Pod] = Reflector(
            client,
            "/api/v1/pods",
            Pod,
            field_selector=f"spec.nodeName={settings.node_name}",
            on_replace=self._advisor.replace_pods,
            on_event=self._advisor.pod_event,
        )
        self._in_use = InUsePoller(
            PodResources(settings.pod_resources_socket, settings.resource_name),
            every_seconds=settings.in_use_seconds,
            on_reading=self._in_use_read,
            on_change=self._in_use_changed,
            on_error=metrics.pod_resources_errors.inc,
        )
        granting = Granting(
            cdi_kind=CDI_KIND if settings.cdi else None, device_specs=settings.pass_device_specs
        )
        self._registrar = Registrar(
            kubelet_socket=settings.kubelet_socket,
            resource=settings.resource_name,
            make_service=lambda: DevicePlugin(
                self._book, self._advisor, granting, metrics, on_allocated=self._in_use.poke
            ),
            metrics=metrics,
            on_lost=self._advisor.kubelet_restarted,
        )
        self._caretaker = Caretaker(
            inventory,
            self._book,
            health_seconds=settings.health_seconds,
            discovery_seconds=settings.discovery_seconds,
            on_devices=lambda devices: self._devices_changed(devices, pick),
            warned=snapshot.warnings,
        )

    def start(self, stopping: Event) -> None:
        """Registers last, when plans and what was allocated before us are known."""
        self._devices_changed(self._book.now, None)
        self._publisher.start()
        self._pods.start()
        waited = 0.0
        while not self._pods.synced.wait(0.1) and waited < _FIRST_PODS_SECONDS:
            waited += 0.1
            if stopping.is_set():
                return
        self._in_use.poll()
        self._in_use.start()
        self._caretaker.start()
        self._registrar.start()

    def stop(self) -> None:
        self._registrar.stop()
        self._caretaker.stop()
        self._in_use.stop()
        self._pods.stop()
        self._publisher.stop()

    def discover(self) -> None:
        self._caretaker.discover()

    def not_ready(self) -> str:
        if not self._registrar.ready:
            return _because(
                "not registered with the kubelet, or it does not listen", self._registrar.trouble
            )
        if not self._publisher.published:
            return _because("topology not published on the node", self._publisher.trouble)
        return ""

    def _devices_changed(self, devices: Devices, pick: Pick | None) -> None:
        if pick is not None:
            warm_up(pick, devices.machine)
        self._publisher.machine(devices.machine)
        healthy = sum(gpu.healthy for gpu in devices.machine.gpus)
        self._metrics.devices.labels("healthy").set(healthy)
        self._metrics.devices.labels("unhealthy").set(len(devices.machine.gpus) - healthy)
        self._metrics.device_unhealthy.clear()
        for uuid, fault in devices.faults.items():
            self._metrics.device_unhealthy.labels(uuid, fault.reason).set(1)

    def _in_use_read(self, in_use: InUse) -> None:
        """At each reading, as a pod may show in our watch only after it has got its GPUs."""
        self._advisor.account_for(in_use.pods)
        for judgement in self._advisor.judge(in_use.pods):
            outcome = "kept" if judgement.as_planned else "swapped"
            self._metrics.planned_containers.labels(outcome).inc()
            if not judgement.as_planned:
                log.warning(
                    "%s/%s holds other GPUs than planned", judgement.pod, judgement.container
                )

    def _in_use_changed(self, in_use: InUse) -> None:
        self._publisher.in_use(in_use)
        self._metrics.allocated.clear()
        for key, containers in in_use.pods.items():
            namespace, _, name = key.partition("/")
            for container, gpus in containers.items():
                self._metrics.allocated.labels(namespace, name, container).set(len(gpus))


def _because(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def warm_up(pick: Pick, machine: Machine) -> None:
    """Compute the tables now: the kubelet must not wait for them."""
    for size in range(1, len(machine.gpus) + 1):
        pick(machine, machine.all_gpus, size, 0, LinkClass.NVLINK)
