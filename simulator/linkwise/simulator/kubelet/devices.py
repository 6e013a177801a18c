"""Which devices a container gets: the kubelet's device manager, rule by rule.

Read in the kubelet's `devicemanager/manager.go` and seen in v1.36.3 (docs/simulator.md). Topology
Manager policy `none`, the default: the plugin is asked on every allocation that needs a new
device, with all free ones, in random order. PURE but for the plugin it is handed: chance comes
from a seed.

Its state is shared with the threads that serve gRPC, so each step takes a lock; the plugin is
never called under it.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from linkwise.kube.objects import Container, Pod, whole


class AdmissionError(Exception):
    """The pod cannot have its devices; the text is the kubelet's own."""


class DevicePluginEndpoint(Protocol):
    """What the device manager asks of the plugin behind a resource. Each raises AdmissionError."""

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """The plugin's advice; empty where it gives none."""

    def allocate(self, devices: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Device:
    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """A container in the kubelet's order. `ends` says that it runs to its end before the next
    one starts (an ordinary init container)."""

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
    listed: bool = False  # ever: until then nobody has heard of this resource

    def healthy(self) -> set[str]:
        return {device.id for device in self.devices.values() if device.healthy}


def container_requests(pod: Pod, resources: Iterable[str]) -> tuple[ContainerRequest, ...]:
    """What each container of *pod* wants of *resources*: init containers first, as the kubelet
    goes through them. Limits count, as in the kubelet."""
    wanted = set(resources)
    init = ((c, c.restart_policy != "Always") for c in pod.spec.init_containers)
    main = ((c, False) for c in pod.spec.containers)
    return tuple(
        ContainerRequest(container.name, ends, _counts(container, wanted))
        for container, ends in (*init, *main)
    )


def _counts(container: Container, wanted: set[str]) -> dict[str, int]:
    limits = container.resources.limits
    return {name: whole(limits[name]) for name in limits if name in wanted}


class DeviceManager:
    """*meddle* may change what was chosen, after the plugin's advice and before it is told: the
    kubelet is free to (CPU manager, Topology Manager), and tests make it do so. It is handed the
    chosen devices and those that are free beside them."""

    def __init__(self, seed: int, *, meddle: Meddle = lambda chosen, _: chosen) -> None:
        self._random = random.Random(seed)
        self._meddle = meddle
        self._lock = Lock()
        self._resources: dict[str, _Resource] = {}
        self._held: dict[str, Held] = {}  # pod uid -> what its containers hold

    def reseed(self, seed: int) -> None:
        """Begin the random orders anew, from *seed*."""
        with self._lock:
            self._random = random.Random(seed)

    # What the plugins say

    def set_plugin(self, resource: str, plugin: DevicePluginEndpoint) -> None:
        """A plugin has registered; its devices come with its first ListAndWatch message."""
        with self._lock:
            self._resources.setdefault(resource, _Resource()).plugin = plugin

    def set_devices(self, resource: str, devices: Iterable[Device]) -> None:
        """A ListAndWatch message: it replaces the whole list."""
        with self._lock:
            self._resources[resource].devices = {device.id: device for device in devices}
            self._resources[resource].listed = True

    def set_unhealthy(self, resource: str) -> None:
        """The stream has ended: the devices are still known and none may be allocated."""
        with self._lock:
            known = self._resources[resource]
            known.devices = {
                device.id: Device(device.id, False, device.numa_nodes)
                for device in known.devices.values()
            }

    def forget_resource(self, resource: str) -> None:
        """The plugin has been gone for too long."""
        with self._lock:
            self._resources[resource] = _Resource(listed=True)

    def restart(self) -> None:
        """The kubelet has restarted: who holds what comes back from its checkpoint, but the
        devices count as none until their plugin registers again."""
        with self._lock:
            self._resources = {n: _Resource(listed=r.listed) for n, r in self._resources.items()}

    # What others ask

    def capacity(self) -> dict[str, tuple[int, int]]:
        """resource -> (capacity: all devices, allocatable: the healthy ones)."""
        with self._lock:
            return {
                name: (len(resource.devices), len(resource.healthy()))
                for name, resource in self._resources.items()
                if resource.listed
            }

    def held(self, uid: str) -> Held:
        """What the containers of a pod hold."""
        with self._lock:
            return {
                container: dict(resources)
                for container, resources in self._held.get(uid, {}).items()
            }

    def devices(self) -> dict[str, tuple[Device, ...]]:
        """resource -> its devices, as last listed."""
        with self._lock:
            return {name: tuple(r.devices.values()) for name, r in self._resources.items()}

    def release(self, uid: str) -> None:
        """The pod's containers have ended."""
        with self._lock:
            self._held.pop(uid, None)

    # Admission

    def admit(self, uid: str, containers: Sequence[ContainerRequest]) -> None:
        """Give every container of a pod its devices, or raise AdmissionError and give none."""
        reusable: dict[str, set[str]] = {}
        try:
            for container in containers:
                for resource, count in container.devices.items():
                    if count:
                        self._allocate(uid, container, resource, count, reusable)
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
    ) -> None:
        from_init = reusable.setdefault(resource, set())
        devices = self._choose(resource, count, from_init)
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

    def _choose(self, resource: str, count: int, reusable: set[str]) -> set[str]:
        """`devicesToAllocate`: reusable ones first, then the plugin's advice, then any."""
        with self._lock:
            known = self._resources.get(resource, _Resource())
            healthy, plugin = known.healthy(), known.plugin
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
        advice: Sequence[str] = ()
        if plugin is not None:
            advice = plugin.preferred(self._shuffled(free | chosen), self._shuffled(chosen), count)
        # A short, long or wrong answer is no error: its free ones count, chance gives the rest.
        for source in (set(advice) & free, free):
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
        """In random order, as the kubelet's sets have none; sorted first, so a seed repeats."""
        ordered = sorted(devices)
        self._random.shuffle(ordered)
        return ordered
