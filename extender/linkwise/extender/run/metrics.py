"""Every metric of the extender: its name, what it counts and its labels, in one place.

The code that handles an event feeds counters and histograms. The content of the cache is counted
at each scrape (`Census`), so these metrics always agree with the cache.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from linkwise.extender.run.leadership import Lead
from linkwise.extender.state.views import Counts, MoveCounts, Spread

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class Census:
    """The content of the cache at one moment, and how reliable it is."""

    counts: Counts
    broken: int  # invariants that do not hold; anything but 0 is a defect
    silent_seconds: Mapping[str, float]  # watched kind -> seconds for which its watch has failed
    kept_idle: int = 0  # nodes that are idle for a gang that the cluster cannot hold


NOTHING = Census(Counts(gangs={}, gpus={}, nodes={}, swaps=0, refusals=0), 0, {})


class ExtenderMetrics:
    """The extender's registry; `text()` is the body of `/metrics`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.requests = Counter(
            "linkwise_extender_requests",
            "Calls of kube-scheduler by verb and result: ok, refused (answered with a reason), "
            "malformed (the body), failed (a defect), gone (not carried out: the caller had hung "
            "up, or the call was too old).",
            ("verb", "result"),
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "linkwise_extender_request_seconds",
            "Time to answer a call of kube-scheduler, from its body to the reply.",
            ("verb",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._connections = Counter(
            "linkwise_extender_connections",
            "Connections by port and result: served; or refused: handshake (it failed), name (of a "
            "caller who may not call), crowded, late, not-ready, sent-off (another connection got "
            "its place).",
            ("port", "result"),
            registry=self.registry,
        )
        self.decide_seconds = Histogram(
            "linkwise_extender_decide_seconds",
            "Time of one round of planning, all waiting gangs together.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.actions = Counter(
            "linkwise_extender_actions",
            "Writes to the API server by kind and outcome: done, refused, unknown.",
            ("action", "outcome"),
            registry=self.registry,
        )
        self.action_seconds = Histogram(
            "linkwise_extender_action_seconds",
            "Time of one write to the API server.",
            ("action",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.watch_events = Counter(
            "linkwise_extender_watch_events",
            "Changes seen on a watch, by kind of object; a full list counts as LISTED.",
            ("kind", "type"),
            registry=self.registry,
        )
        self.watch_restarts = Counter(
            "linkwise_extender_watch_restarts",
            "Times a watch had to list everything again after its first list.",
            ("kind",),
            registry=self.registry,
        )
        self.unreadable_objects = Counter(
            "linkwise_extender_unreadable_objects",
            "Objects from the API server that could not be read and were left out.",
            ("kind",),
            registry=self.registry,
        )
        self.owner_reads = Counter(
            "linkwise_extender_owner_reads",
            "Reads of objects that pods depend on, by kind and result: found, missing, forbidden "
            "(a right is missing), unserved (no such kind), failed (no answer).",
            ("kind", "result"),
            registry=self.registry,
        )
        self.errors = Counter(
            "linkwise_extender_errors",
            "Defects caught, by place; the log has the traceback.",
            ("where",),
            registry=self.registry,
        )

    def watch_lead(self, lead: Lead) -> None:
        """Read *lead* at every scrape."""
        gauge = partial(Gauge, registry=self.registry)
        gauge("linkwise_extender_leader", "1 if this process leads, else 0.").set_function(
            lambda: lead.act_seconds() > 0
        )
        gauge(
            "linkwise_extender_lease_term",
            "The term in which this process leads or led; 0 if it never did.",
        ).set_function(lambda: lead.term)
        gauge(
            "linkwise_extender_lease_switches",
            "Changes of the leader that this process has seen.",
        ).set_function(lambda: lead.switches)

    def connection(self, port: str, result: str) -> None:
        """Count a connection to *port* (`calls` or `status`) with its result."""
        self._connections.labels(port, result).inc()

    def watch_certificates(self, ends: Callable[[], Mapping[str, float]]) -> None:
        """Call *ends* at every scrape: when the server's certificate and those of callers end, by
        name, in seconds since 1970."""
        self.registry.register(_CertificateEnds(ends))

    def watch_books(self, census: Callable[[], Census]) -> None:
        """Count the cache with *census* at every scrape."""
        self.registry.register(_Books(census))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _CertificateEnds(Collector):
    def __init__(self, ends: Callable[[], Mapping[str, float]]) -> None:
        self._ends = ends

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "linkwise_extender_certificate_ends_seconds",
            "When a certificate ends, in seconds since 1970: the server's own, and by caller the "
            "first to end of those that the caller presented in the last day.",
            labels=("of",),
        )
        for name, ends in sorted(self._ends().items()):
            family.add_metric((name,), ends)
        yield family


class _Books(Collector):
    def __init__(self, census: Callable[[], Census]) -> None:
        self._census = census

    def describe(self) -> list[Metric]:
        """Without this, registering would take a census before the cache is complete."""
        return list(_families(NOTHING))

    def collect(self) -> Iterator[Metric]:
        yield from _families(self._census())


def _families(census: Census) -> Iterator[Metric]:
    for name, text, label, counts in (
        ("gangs", "Gangs by phase.", "phase", census.counts.gangs),
        ("gpus", "GPUs by state: free, held, used, unhealthy.", "state", census.counts.gpus),
        (
            "nodes",
            "GPU nodes by state: usable, unusable, emptied, by-count (pods are placed by count), "
            "claims (a DRA driver gives out their GPUs).",
            "state",
            census.counts.nodes,
        ),
        (
            "watch_silent_seconds",
            "For how long a watch has failed, so that the cache may be outdated; 0 if it works.",
            "kind",
            census.silent_seconds,
        ),
    ):
        family = GaugeMetricFamily(f"linkwise_extender_{name}", text, labels=(label,))
        for value, count in sorted(counts.items()):
            family.add_metric((value,), count)
        yield family
    yield CounterMetricFamily(
        "linkwise_extender_swaps",
        "Times a pod got other GPUs from the kubelet than planned; the plan was corrected.",
        value=census.counts.swaps,
    )
    yield CounterMetricFamily(
        "linkwise_extender_refusals",
        "Times kube-scheduler refused a planned node, so that the gang got another plan.",
        value=census.counts.refusals,
    )
    yield GaugeMetricFamily(
        "linkwise_extender_waiting",
        "Gangs and pods in the scheduling queue that found no room.",
        value=census.counts.waiting,
    )
    yield GaugeMetricFamily(
        "linkwise_extender_longest_wait_seconds",
        "How long the oldest of these has waited since it was created; 0 if none waits.",
        value=census.counts.longest_wait_seconds,
    )
    yield GaugeMetricFamily(
        "linkwise_extender_nodes_kept_idle",
        "Nodes that are idle for a gang that the cluster cannot hold.",
        value=census.kept_idle,
    )
    yield GaugeMetricFamily(
        "linkwise_extender_pods_by_count",
        "Pods with GPUs on nodes where pods are placed by count.",
        value=census.counts.by_count,
    )
    yield GaugeMetricFamily(
        "linkwise_extender_places_kept",
        "Places that gangs keep for members that do not exist yet.",
        value=census.counts.kept,
    )
    yield from _moves(census.counts.moves)
    placed = census.counts.placed
    yield _histogram(
        "gang_gbytes_per_s",
        "Gangs that were planned, by the estimated all-reduce bandwidth of their GPUs, in GB/s.",
        placed.gbytes_per_s,
    )
    yield _histogram(
        "gang_share_of_idle",
        "The same gangs, by their share of the best bandwidth on idle machines of the same kinds.",
        placed.shares,
    )
    yield GaugeMetricFamily(
        "linkwise_extender_broken_invariants",
        "Invariants of the cache that do not hold now; anything but 0 is a defect.",
        value=census.broken,
    )


def _moves(counts: MoveCounts) -> Iterator[Metric]:
    for name, text, value in (
        ("begun", "Moves for which a target was reserved.", counts.begun),
        ("arrived", "Replacements that were planned on their target.", counts.arrived),
        ("given_back", "Targets that no replacement got.", counts.given_back),
        (
            "lost_gpu_seconds",
            "The cost of moves whose pods have begun to leave, times their GPUs.",
            counts.lost_gpu_seconds,
        ),
        ("helped", "Gangs and pods placed in room that moves made.", counts.helped),
        (
            "saved_gpu_seconds",
            "How long these were expected to wait without the moves, times their GPUs.",
            counts.saved_gpu_seconds,
        ),
    ):
        yield CounterMetricFamily(f"linkwise_extender_moves_{name}", text, value=value)


def _histogram(name: str, text: str, spreads: Mapping[str, Spread]) -> Metric:
    family = HistogramMetricFamily(f"linkwise_extender_{name}", text, labels=("nodes",))
    for nodes, spread in sorted(spreads.items()):
        bounds = (*map(floatToGoString, spread.bounds), "+Inf")
        buckets = list(zip(bounds, accumulate(spread.counts), strict=True))
        family.add_metric((nodes,), buckets, spread.total)
    return family
