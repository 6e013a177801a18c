"""The settings of kube-scheduler that the stand-in supports. PURE."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from linkwise.kube.objects import Pod

OtherFilter = Callable[[Pod, str, Sequence[Pod], float], str | None]
"""A filter plugin beside kube-scheduler's own: (pod, node, the pods that count there, time) -> why
the node refuses the pod, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Defaults are kube-scheduler's; tests and the demo shorten the back-off."""

    scheduler_name: str = "default-scheduler"
    managed_resources: tuple[str, ...] = ("nvidia.com/gpu",)
    extender_weight: int = 1
    extender_timeout_seconds: float = 15.0
    initial_backoff_seconds: float = 1.0
    max_backoff_seconds: float = 10.0
    max_unschedulable_seconds: float = 300.0
    percentage_of_nodes_to_score: int = 0  # 0: the default rule, see scoring.nodes_to_find
    bind_threads: int = 1024  # each bind is a goroutine of its own, and may wait for others
    other_filters: Sequence[OtherFilter] = ()
