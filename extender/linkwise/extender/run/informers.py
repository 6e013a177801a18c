"""Watches on all objects of a kind, with metrics and logs; the loop passes them to the core."""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from linkwise.extender.core import Core
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.state.cache.cache import Surrounding
from linkwise.kube import device_claims
from linkwise.kube.client import KubeClient
from linkwise.kube.device_claims import ResourceClaim, ResourceSlice
from linkwise.kube.objects import (
    CSINode,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    StorageClass,
)
from linkwise.kube.reflector import HasMetadata, Reflector

log = logging.getLogger(__name__)
T = TypeVar("T", bound=HasMetadata)

CLAIMS = ("resourceslices", "resourceclaims")  # the API server serves them from 1.34 on
_PATHS = {
    **{plural: f"{device_claims.ROOT}/{plural}" for plural in CLAIMS},
    "poddisruptionbudgets": "/apis/policy/v1/poddisruptionbudgets",
    "storageclasses": "/apis/storage.k8s.io/v1/storageclasses",
    "csinodes": "/apis/storage.k8s.io/v1/csinodes",
}
SURROUNDINGS: Mapping[str, type[Surrounding]] = {
    "namespaces": Namespace,
    "persistentvolumes": PersistentVolume,
    "persistentvolumeclaims": PersistentVolumeClaim,
    "storageclasses": StorageClass,
    "csinodes": CSINode,
}


def path_of(plural: str) -> str:
    """Where all objects of a kind are."""
    return _PATHS.get(plural, f"/api/v1/{plural}")


def watch(
    client: KubeClient,
    metrics: ExtenderMetrics,
    plural: str,
    kind: type[T],
    *,
    replace: Callable[[Collection[T]], None],
    change: Callable[[str, T], None],
) -> Reflector[T]:
    """A Reflector that calls *replace* with each full list, and *change* with each change."""
    seen = metrics.watch_events
    lists = 0

    def on_replace(objects: Collection[T]) -> None:
        nonlocal lists
        lists += 1
        if lists > 1:
            metrics.watch_restarts.labels(plural).inc()
        seen.labels(plural, "LISTED").inc()
        log.info("%d %s listed", len(objects), plural)
        replace(objects)

    def on_event(what: str, changed: T) -> None:
        seen.labels(plural, what).inc()
        change(what, changed)

    def on_skipped(where: str, why: str) -> None:
        metrics.unreadable_objects.labels(plural).inc()
        log.warning("%s: %s left out: %s", plural, where, why)

    return Reflector(
        client,
        path_of(plural),
        kind,
        on_replace=on_replace,
        on_event=on_event,
        on_skipped=on_skipped,
        optional=plural in CLAIMS,
    )


class Informers:
    """The watches that feed the core. *tell* passes it a change: (plural, what to do at a time)."""

    def __init__(
        self,
        client: KubeClient,
        metrics: ExtenderMetrics,
        core: Core,
        tell: Callable[[str, Callable[[float], None]], None],
        clock: Callable[[], float],
    ) -> None:
        def feed(
            plural: str,
            kind: type[T],
            replace: Callable[[Collection[T], float], None],
            change: Callable[[str, T, float], None],
            prepare: Callable[[T], None] = lambda _: None,
        ) -> Reflector[T]:
            def on_change(what: str, one: T) -> None:
                prepare(one)
                tell(plural, lambda now: change(what, one, now))

            return watch(
                client,
                metrics,
                plural,
                kind,
                replace=lambda objects: tell(plural, lambda now: replace(objects, now)),
                change=on_change,
            )

        self.nodes = feed(
            "nodes",
            Node,
            core.replace_nodes,
            core.node_event,
            lambda node: core.prepare(node, clock()),
        )
        self.pods = feed("pods", Pod, core.replace_pods, core.pod_event)
        self._budgets = feed(
            "poddisruptionbudgets", PodDisruptionBudget, core.replace_budgets, core.budget_event
        )
        claims = (
            feed("resourceslices", ResourceSlice, core.replace_slices, core.slice_event),
            feed("resourceclaims", ResourceClaim, core.replace_claims, core.claim_event),
        )
        surroundings = (
            feed(
                plural,
                kind,
                partial(core.replace_surroundings, kind),
                core.surrounding_event,
            )
            for plural, kind in SURROUNDINGS.items()
        )
        self._all: tuple[Reflector[Any], ...] = (
            self.nodes,
            self.pods,
            self._budgets,
            *claims,
            *surroundings,
        )

    def start(self) -> None:
        for reflector in self._all:
            reflector.start()

    def stop(self, timeout_seconds: float) -> None:
        for reflector in self._all:
            reflector.stop(timeout_seconds)

    def missing(self) -> list[str]:
        """What has not been listed yet and must be, before the core may decide."""
        needed = (("nodes", self.nodes), ("pods", self.pods))
        return [plural for plural, reflector in needed if not reflector.synced.is_set()]

    def failing_seconds(self) -> Mapping[str, float]:
        """By plural, for how long its watch has failed."""
        return {"nodes": self.nodes.failing_seconds, "pods": self.pods.failing_seconds}
