"""Watches on all objects of a kind, with metrics and logs; the shell passes them to the core."""

import logging
from collections.abc import Callable
from typing import TypeVar

from linkwise.extender.runtime.metrics import ExtenderMetrics
from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node, Pod, PodDisruptionBudget
from linkwise.kube.reflector import Reflector

log = logging.getLogger(__name__)
T = TypeVar("T", Node, Pod, PodDisruptionBudget)

_PATHS = {"poddisruptionbudgets": "/apis/policy/v1/poddisruptionbudgets"}


def watch(
    client: KubeClient,
    metrics: ExtenderMetrics,
    plural: str,
    kind: type[T],
    *,
    replace: Callable[[list[T]], None],
    change: Callable[[str, T], None],
) -> Reflector[T]:
    """A Reflector that calls *replace* with each full list, and *change* with each change."""
    seen = metrics.watch_events
    lists = 0

    def on_replace(objects: list[T]) -> None:
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
        _PATHS.get(plural, f"/api/v1/{plural}"),
        kind,
        on_replace=on_replace,
        on_event=on_event,
        on_skipped=on_skipped,
    )
