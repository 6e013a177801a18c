"""Everything that runs once the GPUs are known: which thread passes what to which other."""

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from threading import Event, Lock

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node as KubeNode
from linkwise.kube.objects import Pod
from linkwise.kube.reflector import Reflector
from linkwise.plugin.device_plugin.advisors import Advisors
from linkwise.plugin.device_plugin.allocate import POLICIES, Pick
from linkwise.plugin.device_plugin.cdi import Cdi
from linkwise.plugin.device_plugin.containers import Granting
from linkwise.plugin.device_plugin.observer import Observer
from linkwise.plugin.device_plugin.preferred_allocation import Advisor
from linkwise.plugin.device_plugin.registration import Registrar
from linkwise.plugin.device_plugin.server import Advice, DevicePlugin
from linkwise.plugin.ending import end
from linkwise.plugin.gpus.inventory import Inventory, Load, Stock, Xid
from linkwise.plugin.health.book import DeviceBook, Devices
from linkwise.plugin.health.conditions import read_treatments
from linkwise.plugin.health.faults import Policy
from linkwise.plugin.health.health_loop import Caretaker, Listeners
from linkwise.plugin.in_front.front import Front
from linkwise.plugin.in_front.sharing import is_share, read_otherwise
from linkwise.plugin.metrics import Metrics
from linkwise.plugin.node.activity import ActivityBook, Reports, holders_of
from linkwise.plugin.node.in_use import InUsePoller, PodResources
from linkwise.plugin.node.own_slices import DeviceName, OwnSlices
from linkwise.plugin.node.publish import NodePublisher
from linkwise.plugin.node.topology_manager import KubeletReader, TopologyManagerWatch
from linkwise.plugin.settings import Settings
from linkwise.topology.annotations.plan import InUse
from linkwise.topology.machine.model import LinkClass, Machine

log = logging.getLogger(__name__)

_FIRST_PODS_SECONDS = 5.0  # then the plugin registers anyway: GPUs without plans beat no GPUs
_WATCH_DEAD_SECONDS = 10.0  # if the watch fails for longer, the advisor does not wait for a pod


class NodeProgram:
    """Everything that runs once the GPUs are known."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        client: KubeClient,
        metrics: Metrics,
        snapshot: Stock,
        front: Front | None = None,
    ) -> None:
        self._metrics, self._front, self._client = metrics, front, client
        self._cdi = Cdi(settings.cdi, settings.cdi_directories)
        self._vendor_stays = settings.in_front or settings.observe
        self._showing = Lock()
        pick = POLICIES[settings.policy]
        policy = Policy(
            probe_seconds=settings.health_seconds,
            probation_seconds=settings.probation_seconds,
            treatments=read_treatments(settings.treatments),
        )
        self._book = DeviceBook(snapshot, policy, now=time.monotonic())
        warm_up(pick, self._book.now.machine)
        self._publisher = NodePublisher(
            client, settings.node_name, on_error=metrics.publish_errors.inc
        )
        self._advisors = Advisors(
            settings.resource_name,
            lambda resource: Advisor(
                node=settings.node_name,
                resource=resource,
                pick=pick,
                managed=resource == settings.resource_name,
                pod_wait_seconds=settings.pod_wait_seconds,
                watching=lambda: self._pods.failing_seconds < _WATCH_DEAD_SECONDS,
            ),
            metrics,
        )
        self._pods: Reflector[Pod] = Reflector(
            client,
            "/api/v1/pods",
            Pod,
            field_selector=f"spec.nodeName={settings.node_name}",
            on_replace=self._advisors.replace_pods,
            on_event=self._advisors.pod_event,
        )
        self._own_node: Reflector[KubeNode] = Reflector(
            client,
            "/api/v1/nodes",
            KubeNode,
            field_selector=f"metadata.name={settings.node_name}",
            on_replace=self._nodes_listed,
            on_event=self._node_changed,
        )
        self._own_slices = OwnSlices(client, settings.node_name)
        self._in_use = InUsePoller(
            PodResources(
                settings.pod_resources_socket,
                settings.resource_name,
                self._counts,
                self._is_share,
                self._claimed,
            ),
            every_seconds=settings.in_use_seconds,
            on_reading=self._in_use_read,
            on_change=self._in_use_changed,
            on_error=metrics.pod_resources_errors.inc,
        )
        self._caretaker = Caretaker(
            inventory,
            self._book,
            snapshot,
            health_seconds=settings.health_seconds,
            discovery_seconds=settings.discovery_seconds,
            listeners=Listeners(
                devices=lambda devices: self._devices_changed(devices, pick),
                xid=self._xid,
                loads=self._loads_read,
            ),
        )
        self._topology_manager = TopologyManagerWatch(
            KubeletReader(client, settings.node_name, settings.kubelet_config),
            on_change=self._show,
        )
        self._holders: Mapping[str, frozenset[str]] | None = None  # None: the kubelet has not said
        self._activity = ActivityBook(gap_seconds=settings.gap_seconds)
        self._reports = Reports(idle_seconds=settings.idle_seconds)
        self._read_otherwise: frozenset[str] = frozenset()
        advice = Advice(self._advisors.managed, metrics)
        self._registrar: Registrar | Front | Observer
        if front is not None:
            front.know(self._book.now.machine)
            front.advise(
                advice,
                on_allocated=self._in_use.poke,
                on_lost=self._kubelet_restarted,
                on_change=self._show,
                shares=self._advisors.on_shares,
            )
            self._registrar = front
        elif settings.observe:
            self._registrar = Observer()
        else:
            granting = Granting(
                self._cdi,
                device_specs=settings.pass_device_specs,
                host_dev=settings.host_dev,
            )
            self._registrar = Registrar(
                kubelet_socket=settings.kubelet_socket,
                resource=settings.resource_name,
                make_service=lambda: DevicePlugin(
                    self._book, advice, granting, metrics, on_allocated=self._in_use.poke
                ),
                metrics=metrics,
                on_lost=self._kubelet_restarted,
            )
        self._silent_seconds = settings.silent_seconds

    def start(self, stopping: Event) -> None:
        """Register last, when the plans and the earlier allocations are known."""
        self._devices_changed(self._book.now, None)
        self._publisher.start()
        self._topology_manager.start()
        self._own_node.start()
        self._own_slices.start()
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

    @property
    def probe_age_seconds(self) -> float:
        return self._caretaker.probe_age_seconds

    def stop(self) -> None:
        end(
            *(self._registrar, self._caretaker, self._in_use, self._topology_manager),
            *(self._pods, self._own_node, self._own_slices, self._publisher),
        )

    def discover(self) -> None:
        self._caretaker.discover()

    def not_ready(self) -> str:
        if not self._registrar.ready:
            return _because(
                "not registered with the kubelet, or it does not listen", self._registrar.trouble
            )
        if not self._publisher.published:
            return _because("topology not published on the node", self._publisher.trouble)
        if self.probe_age_seconds > self._silent_seconds:
            return (
                f"the last complete probe of the GPUs is {self.probe_age_seconds:.0f} s old: "
                f"expected {self._silent_seconds:g} s at most; the driver may hang"
            )
        return ""

    def _devices_changed(self, devices: Devices, pick: Pick | None) -> None:
        if pick is not None:
            warm_up(pick, devices.machine)
        if self._front is not None:
            self._front.know(devices.machine)
        self._show()

    def _show(self) -> None:
        """Show the GPUs to the cluster, on the Node and in the metrics."""
        with self._showing:  # the caretaker and vendors' plugins have threads of their own
            devices, front = self._book.now, self._front
            machine = front.seen(devices.machine) if front else devices.machine
            machine = replace(machine, topology_manager=self._topology_manager.now)
            healths = devices.healths.items()
            unhealthy = [(uuid, health.reason) for uuid, health in healths if health.reason]
            if front:
                unhealthy += front.not_offered(machine).items()
            noted = [(uuid, note) for uuid, health in healths for note in health.notes]
            self._publisher.machine(machine)
            self._metrics.show_gpus(machine, unhealthy, noted, devices.left_out)
            before = self._read_otherwise
            if front:
                self._read_otherwise = read_otherwise(devices.machine, front.lists)
        if self._read_otherwise - before:
            self._caretaker.discover()  # the MIG layout has changed since the last reading

    def _kubelet_restarted(self) -> None:
        self._advisors.managed.kubelet_restarted()
        self._topology_manager.poke()

    def _counts(self, device_id: str) -> bool:
        """Where a vendor's plugin stays, not every device is a whole GPU."""
        now = self._book.now
        whole = device_id in now.known and not is_share(device_id, now.machine)
        return whole or not self._vendor_stays

    def _claimed(self, device: DeviceName) -> str:
        uuid = self._own_slices.uuid(device)
        return uuid if uuid in self._book.now.known else ""

    def _is_share(self, device_id: str) -> bool:
        return self._front is not None and is_share(device_id, self._book.now.machine)

    def _xid(self, xid: Xid) -> None:
        self._metrics.xids.labels(xid.uuid, str(xid.number)).inc()

    def _loads_read(self, loads: Mapping[str, Load]) -> None:
        if self._holders is None:
            return
        now = self._client.clock()
        pods = self._activity.looked(loads, self._holders, now)
        self._metrics.show_activity(pods, now)
        report = self._reports.due(pods, now)
        if report is not None:
            self._publisher.activity(report)

    def _nodes_listed(self, nodes: Collection[KubeNode]) -> None:
        for node in nodes:
            self._node_seen(node)

    def _node_changed(self, kind: str, node: KubeNode) -> None:
        if kind != "DELETED":
            self._node_seen(node)

    def _node_seen(self, node: KubeNode) -> None:
        self._cdi.runtime_seen(node.status.node_info.container_runtime_version)
        self._publisher.node_seen(node.metadata.uid)

    def _in_use_read(self, in_use: InUse) -> None:
        """Account for the pods at each reading, as the watch may show a pod only after the pod has
        received its GPUs."""
        self._advisors.account_for(in_use)
        for judgement in self._advisors.judge(in_use):
            outcome = "kept" if judgement.as_planned else "swapped"
            self._metrics.planned_containers.labels(outcome).inc()
            if not judgement.as_planned:
                log.warning(
                    "%s/%s holds other GPUs than planned",
                    judgement.pod,
                    judgement.container,
                    extra={"pod": judgement.pod},
                )

    def _in_use_changed(self, in_use: InUse) -> None:
        self._publisher.in_use(in_use)
        self._holders = holders_of(in_use)
        self._metrics.show_allocated(in_use.pods)


def _because(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def warm_up(pick: Pick, machine: Machine) -> None:
    """Compute the tables now: the kubelet must not wait for them."""
    for size in range(1, len(machine.gpus) + 1):
        pick(machine, machine.all_gpus, size, 0, LinkClass.NVLINK)
