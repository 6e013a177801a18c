"""What the kubelet reads from a pod. PURE, except for a warning in the log."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite

from linkwise.kube.objects import Pod

log = logging.getLogger(__name__)


def listed_containers(pod: Pod) -> Iterable[str]:
    """Yield the containers that podresources lists; of the init containers, only sidecars."""
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            yield container.name
    for container in pod.spec.containers:
        yield container.name


def seconds_in(pod: Pod, key: str) -> float | None:
    """Return the seconds in an annotation of the pod; None if it is absent or not a number."""
    text = pod.metadata.annotations.get(key)
    if text is None:
        return None
    with suppress(ValueError):
        if isfinite(seconds := float(text)):
            return seconds
    log.warning("pod %s: %s: %r: expected seconds", pod.metadata.name, key, text)
    return None


def age_of(pod: Pod) -> tuple[datetime, str]:
    """A sort key: the oldest pod first; a pod without a creation time last."""
    created = pod.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC)
    return created, pod.metadata.name
