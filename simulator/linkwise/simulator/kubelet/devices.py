"""Decides which devices a container gets, as the kubelet's device manager does.

From the kubelet's `devicemanager/manager.go`, and seen in v1.36.3. With the
Topology Manager's policy `none`, the default, every allocation that needs a new device asks the
plugin, with all free devices in random order. With another one (`topology_manager`) it asks with
the free devices of the NUMA nodes that the Topology Manager chose, if there are more than needed.
PURE except for calls to the plugin: the randomness comes from a seed.

The threads that serve gRPC share the state, so each step takes a lock. No step calls the plugin
under it.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from linkwise.kube.objects import Container, Pod, whole
from linkwise.simulator.kubelet.topology_manager import Affinity, Hint, hints_of, merged
from linkwise.topology.machine.topology_manager import Policy, Scope

TOPOLOGY_AFFINITY = "TopologyAffinityError"
NO_LOCALITY = "Resources cannot be allocated with Topology locality"


class AdmissionError(Exception):
    """The pod cannot have its devices; the text is the kubelet's, and so is the *reason*."""

    def __init__(self, text: str, reason: str = "UnexpectedAdmissionError") -> None:
        super().__init__(text)
        self.reason = reason


class DevicePluginEndpoint(Protocol):
    """The device manager's calls to the plugin behind a resource. Each raises AdmissionError."""

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return the plugin's advice; empty if it gives none."""

    def allocate(self, devices: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Device:
    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """A container, in the kubelet's order. `ends`: it ends before the next one starts (an ordinary
    init container)."""

    name: str
    ends: bool
    devices: Mapping[str, int]  # resource -> count


Meddle = Callable[[frozenset[str], frozenset[str]], frozenset[str]]
Held = dict[str, dict[str, tuple[str, ...]]]
"""container -> resource -> device ids."""


@dataclass(slots=True)
class _Resource:
    devices: dict[str, Device] = field(default_factory=dict)
    plugin: DevicePluginEndpoint | None = None
    listed: bool = False  # True once a plugin has listed devices of this resource

    def healthy(self) -> set[str]:
        return {device.id for device in self.devices.values() if device.healthy}


def container_requests(pod: Pod, resources: Iterable[str]) -> tuple[ContainerRequest, ...]:
    """Return what each container of *pod* requests of *resources*, init containers first.

    Limits count, as in the kubelet.
    """
    wanted = set(resources)
    init = ((c, c.restart_policy != "Always") for c in pod.spec.init_containers)
    main = ((c, False) for c in pod.spec.containers)
    return tuple(
        ContainerRequest(container.name, ends, _counts(container, wanted))
        for container, ends in (*init, *main)
    )


def _together(containers: Sequence[ContainerRequest]) -> dict[str, int]:
    """What a pod holds of each resource at its largest moment (KEP-753)."""
    stay: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in containers:
        if container.ends:
            peak |= stay + Counter(container.devices)
        else:
            stay += Counter(container.devices)
    return dict(peak | stay)


def _counts(container: Container, wanted: set[str]) -> dict[str, int]:
    limits = container.resources.limits
    return {name: whole(limits[name]) for name in limits if name in wanted}


class DeviceManager:
    """*meddle* may replace the chosen devices after the plugin's advice.

    The real kubelet may do so too (CPU manager, Topology Manager), and tests use it. It receives
    the chosen devices and the free ones that remain.
    """

    def __init__(
        self,
        seed: int,
        *,
        meddle: Meddle = lambda chosen, _: chosen,
        policy: Policy = Policy.NONE,
        scope: Scope = Scope.CONTAINER,
        numa_nodes: Collection[int] | None = None,
    ) -> None:
        self._policy, self._scope, self._numa_nodes = policy, scope, numa_nodes
        self._random = random.Random(seed)
        self._meddle = meddle
        self._lock = Lock()
        self._resources: dict[str, _Resource] = {}
        self._held: dict[str, Held] = {}  # pod uid -> what its containers hold

    def reseed(self, seed: int) -> None:
        """Restart the random orders from *seed*."""
        with self._lock:
            self._random = random.Random(seed)

    # Messages from the plugins

    def set_plugin(self, resource: str, plugin: DevicePluginEndpoint) -> None:
        """Register a plugin. Its devices come with its first ListAndWatch message."""
        with self._lock:
            self._resources.setdefault(resource, _Resource()).plugin = plugin

    def set_devices(self, resource: str, devices: Iterable[Device]) -> None:
        """Replace the whole list, as a ListAndWatch message does."""
        with self._lock:
            self._resources[resource].devices = {device.id: device for device in devices}
            self._resources[resource].listed = True

    def set_unhealthy(self, resource: str) -> None:
        """The stream has ended: the devices stay known, but none may be allocated."""
        with self._lock:
            known = self._resources[resource]
            known.devices = {
                device.id: Device(device.id, False, device.numa_nodes)
                for device in known.devices.values()
            }

    def forget_resource(self, resource: str) -> None:
        """Remove a resource whose plugin has been away for too long."""
        with self._lock:
            self._resources[resource] = _Resource(listed=True)

    def restart(self) -> None:
        """Act as a restarted kubelet: the checkpoint restores the holders, but the devices count as
        absent until their plugin registers again."""
        with self._lock:
            self._resources = {n: _Resource(listed=r.listed) for n, r in self._resources.items()}

    # Queries

    def capacity(self) -> dict[str, tuple[int, int]]:
        """resource -> (capacity: all devices, allocatable: the healthy ones)."""
        with self._lock:
            return {
                name: (len(resource.devices), len(resource.healthy()))
                for name, resource in self._resources.items()
                if resource.listed
            }

    def held(self, uid: str) -> Held:
        """Return what the containers of a pod hold."""
        with self._lock:
            return {
                container: dict(resources)
                for container, resources in self._held.get(uid, {}).items()
            }

    def devices(self) -> dict[str, tuple[Device, ...]]:
        """Return the devices of each resource, as last listed."""
        with self._lock:
            return {name: tuple(r.devices.values()) for name, r in self._resources.items()}

    def release(self, uid: str) -> None:
        """Free the devices of a pod whose containers have ended."""
        with self._lock:
            self._held.pop(uid, None)

    # Admission

    def admit(self, uid: str, containers: Sequence[ContainerRequest]) -> None:
        """Give every container of a pod its devices. Raises AdmissionError, and then gives none."""
        reusable: dict[str, set[str]] = {}
        try:
            of_pod = None
            if self._scope is Scope.POD:
                of_pod = self._affinity(_together(containers), {})
            for container in containers:
                affinity = of_pod
                if self._scope is Scope.CONTAINER:
                    affinity = self._affinity(container.devices, reusable)
                for resource, count in container.devices.items():
                    if count:
                        self._allocate(uid, container, resource, count, reusable, affinity)
        except AdmissionError:
            self.release(uid)
            raise

    def _allocate(
        self,
        uid: str,
        container: ContainerRequest,
        resource: str,
        count: int,
        reusable: dict[str, set[str]],
        affinity: Affinity | None,
    ) -> None:
        from_init = reusable.setdefault(resource, set())
        devices = self._choose(resource, count, from_init, affinity)
        plugin = self._resources[resource].plugin
        if plugin is None:
            raise AdmissionError(f"unknown Device Plugin {resource}")
        plugin.allocate(self._shuffled(devices))
        with self._lock:
            held = self._held.setdefault(uid, {})
            held.setdefault(container.name, {})[resource] = tuple(sorted(devices))
        if container.ends:
            from_init |= devices
        else:
            from_init -= devices

    def _affinity(
        self, devices: Mapping[str, int], reusable: Mapping[str, set[str]]
    ) -> Affinity | None:
        """The NUMA nodes of so many devices by resource; None: any. Raises AdmissionError."""
        if self._policy is Policy.NONE:
            return None
        hints: list[list[Hint] | None] = []
        with self._lock:
            every = (d for known in self._resources.values() for d in known.devices.values())
            own = {node for device in every for node in device.numa_nodes}
            machine = frozenset(own if self._numa_nodes is None else self._numa_nodes)
            for resource, count in devices.items():
                known = self._resources.get(resource, _Resource())
                free = known.healthy() - self._in_use(resource)
                numa_nodes = {device.id: device.numa_nodes for device in known.devices.values()}
                if count:
                    again = reusable.get(resource, ())
                    hints.append(hints_of(machine, numa_nodes, free, again, count))
        affinity, admits = merged(self._policy, machine, hints)
        if not admits:
            raise AdmissionError(NO_LOCALITY, TOPOLOGY_AFFINITY)
        return affinity

    def _choose(
        self, resource: str, count: int, reusable: set[str], affinity: Affinity | None
    ) -> set[str]:
        """`devicesToAllocate`: reusable devices first, then those of the NUMA nodes of *affinity*,
        by the plugin's advice, then any."""
        with self._lock:
            known = self._resources.get(resource, _Resource())
            healthy, plugin = known.healthy(), known.plugin
            near = {d.id for d in known.devices.values() if {*d.numa_nodes} & (affinity or set())}
            placed = {d.id for d in known.devices.values() if affinity and d.numa_nodes}
            free = healthy - self._in_use(resource)
        if not healthy:
            raise AdmissionError(
                f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        chosen = set(self._shuffled(reusable)[:count])
        if len(chosen) == count:
            return chosen
        needed = count - len(chosen)
        if len(free) < needed:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(free)}"
            )
        aligned = free & near
        if needed < len(aligned):
            asked_of = aligned
        else:
            chosen |= aligned
            if needed == len(aligned):
                return set(self._meddle(frozenset(chosen), frozenset(free - chosen)))
            asked_of = free
        advice: Sequence[str] = ()
        if plugin is not None:
            advice = plugin.preferred(
                self._shuffled(asked_of | chosen), self._shuffled(chosen), count
            )
        # A short, long or wrong answer is not an error: its free devices count, chance adds the
        # rest; devices of no NUMA node come last.
        for source in (set(advice) & asked_of, asked_of & placed, asked_of):
            chosen |= set(self._shuffled(source - chosen)[: count - len(chosen)])
        return set(self._meddle(frozenset(chosen), frozenset(free - chosen)))

    def _in_use(self, resource: str) -> set[str]:
        return {
            device
            for containers in self._held.values()
            for resources in containers.values()
            for device in resources.get(resource, ())
        }

    def _shuffled(self, devices: Iterable[str]) -> list[str]:
        """Return them in random order, as Go's sets have none. Sorted first, so that a seed
        repeats."""
        ordered = sorted(devices)
        self._random.shuffle(ordered)
        return ordered
