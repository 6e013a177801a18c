"""The name, help and labels of every metric. A program has one instance, with its own registry."""

from collections.abc import Collection, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from linkwise.plugin.node.activity import Figures
from linkwise.topology.machine.model import Machine

_LATENCY_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._shown: dict[Gauge, frozenset[tuple[str, ...]]] = {}  # labels of each gauge
        self.devices = Gauge(
            "linkwise_plugin_devices",
            "GPUs: healthy, divided (given out in parts), unhealthy, left-out (cannot be offered)",
            ["health"],
            registry=registry,
        )
        self.device_unhealthy = Gauge(
            "linkwise_plugin_device_unhealthy",
            "1 for each GPU that is not given out, with the reason",
            ["gpu", "reason"],
            registry=registry,
        )
        self.device_noted = Gauge(
            "linkwise_plugin_device_noted",
            "1 for each condition of a GPU that does not keep it from being given out",
            ["gpu", "note"],
            registry=registry,
        )
        self.device_left_out = Gauge(
            "linkwise_plugin_device_left_out",
            "1 for each GPU that the driver counts and that cannot be offered, with the reason",
            ["index", "reason"],
            registry=registry,
        )
        self.xids = Counter(
            "linkwise_plugin_xids_total",
            "XIDs that the driver reported, whatever came of them; gpu is empty where unknown",
            ["gpu", "xid"],
            registry=registry,
        )
        self.probe_age = Gauge(
            "linkwise_plugin_probe_age_seconds",
            "Age of the last complete probe of the GPUs; rises while the driver hangs",
            registry=registry,
        )
        self.allocated = Gauge(
            "linkwise_plugin_allocated_gpus",
            "GPUs that a container holds, as the kubelet's podresources says",
            ["namespace", "pod", "container"],
            registry=registry,
        )
        self.pod_busy_share = Gauge(
            "linkwise_plugin_pod_busy_share",
            "Share of a pod's GPU time in which kernels ran, 0 to 1: over 5m, 1h and 24h, or over "
            "as much of them as the pod was watched",
            ["namespace", "pod", "window"],
            registry=registry,
        )
        self.pod_quiet = Gauge(
            "linkwise_plugin_pod_quiet_seconds",
            "Time since one of the pod's GPUs worked, or since the pod is watched",
            ["namespace", "pod"],
            registry=registry,
        )
        self.pod_memory = Gauge(
            "linkwise_plugin_pod_gpu_memory_bytes",
            "Memory in use on the pod's GPUs",
            ["namespace", "pod"],
            registry=registry,
        )
        self.preferred = Counter(
            "linkwise_plugin_preferred_total",
            "GetPreferredAllocation answers: plan, free-choice, free-choice-spoils (too few "
            "unplanned GPUs were left), fallback (nothing could be judged), vendor (in front of a "
            "vendor's plugin: its answer)",
            ["source"],
            registry=registry,
        )
        self.allocations = Counter(
            "linkwise_plugin_allocations_total",
            "Allocate calls: as-preferred, mismatch (other GPUs than preferred), unasked, refused",
            ["outcome"],
            registry=registry,
        )
        self.planned_containers = Counter(
            "linkwise_plugin_planned_containers_total",
            "Containers of planned pods that got GPUs: kept (as planned), swapped (others)",
            ["outcome"],
            registry=registry,
        )
        self.registrations = Counter(
            "linkwise_plugin_registrations_total",
            "Registrations with the kubelet",
            ["outcome"],
            registry=registry,
        )
        self.vendor_registrations = Counter(
            "linkwise_plugin_vendor_registrations_total",
            "Registrations of vendors' plugins with Linkwise: taken, refused",
            ["outcome"],
            registry=registry,
        )
        self.vendor_state = Gauge(
            "linkwise_plugin_vendor_state",
            "1 for the state of each resource's vendor plugin: lists, silent, hangs, lost",
            ["resource", "state"],
            registry=registry,
        )
        self.vendor_devices = Gauge(
            "linkwise_plugin_vendor_devices",
            "Devices as the vendor's plugin listed them last: healthy, unhealthy, or not-read "
            "(Linkwise has not read the GPU: no plan names the device)",
            ["resource", "health"],
            registry=registry,
        )
        self.vendor_calls = Counter(
            "linkwise_plugin_vendor_calls_total",
            "The kubelet's calls that were handed on to a vendor's plugin: done, failed",
            ["resource", "call", "outcome"],
            registry=registry,
        )
        self.publish_errors = Counter(
            "linkwise_plugin_publish_errors_total",
            "Failed writes of this node's annotations and labels",
            registry=registry,
        )
        self.pod_resources_errors = Counter(
            "linkwise_plugin_pod_resources_errors_total",
            "Failed reads of the kubelet's podresources",
            registry=registry,
        )
        self.call_seconds = Histogram(
            "linkwise_plugin_call_seconds",
            "Time to answer the kubelet, the wait for the asking pod included",
            ["call"],
            buckets=_LATENCY_SECONDS,
            registry=registry,
        )

    def show_gpus(
        self,
        machine: Machine,
        unhealthy: Collection[tuple[str, str]],
        noted: Iterable[tuple[str, str]],
        left_out: Mapping[int, str],
    ) -> None:
        """Show the GPUs' state: each (uuid, reason), (uuid, note), index -> reason."""
        sick = dict(unhealthy)
        healthy = machine.healthy_gpus.bit_count()
        parted = (gpu for gpu in machine.gpus if gpu.parts is not None and not gpu.healthy)
        divided = sum(gpu.uuid not in sick for gpu in parted)
        self.devices.labels("healthy").set(healthy)
        self.devices.labels("divided").set(divided)
        self.devices.labels("unhealthy").set(len(machine.gpus) - healthy - divided)
        self.devices.labels("left-out").set(len(left_out))
        self._show(self.device_unhealthy, dict.fromkeys(unhealthy, 1))
        self._show(self.device_noted, dict.fromkeys(noted, 1))
        self._show(self.device_left_out, {(str(index), why): 1 for index, why in left_out.items()})

    def show_allocated(self, pods: Mapping[str, Mapping[str, Collection[str]]]) -> None:
        """Show the GPUs of each container of each pod, by namespace/name."""
        allocated: dict[tuple[str, ...], float] = {}
        for key, containers in pods.items():
            namespace, _, name = key.partition("/")
            for container, gpus in containers.items():
                allocated[namespace, name, container] = len(gpus)
        self._show(self.allocated, allocated)

    def show_activity(self, pods: Mapping[str, Figures], now: float) -> None:
        """Show what each pod, by namespace/name, does with its GPUs."""
        values: dict[Gauge, dict[tuple[str, ...], float]] = {
            self.pod_busy_share: {},
            self.pod_quiet: {},
            self.pod_memory: {},
        }
        for key, pod in pods.items():
            namespace, _, name = key.partition("/")
            values[self.pod_quiet][namespace, name] = now - pod.quiet_since
            if pod.memory_mib is not None:
                values[self.pod_memory][namespace, name] = pod.memory_mib * 2.0**20
            for window, share in pod.shares.items():
                values[self.pod_busy_share][namespace, name, window] = share
        for gauge, of_labels in values.items():
            self._show(gauge, of_labels)

    def _show(self, gauge: Gauge, of_labels: Mapping[tuple[str, ...], float]) -> None:
        """Make the gauge show these values and no others. What stays keeps its series: a scrape in
        between must not miss it."""
        for labels in self._shown.get(gauge, frozenset()) - of_labels.keys():
            gauge.remove(*labels)
        for labels, value in of_labels.items():
            gauge.labels(*labels).set(value)
        self._shown[gauge] = frozenset(of_labels)
