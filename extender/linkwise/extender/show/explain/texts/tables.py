"""The columns and sentences that `kubectl linkwise` and the live page share."""

from collections.abc import Sequence

from linkwise.drawing.tables import Column, figure
from linkwise.drawing.words import duration, some
from linkwise.extender.state.views import IdlePod, KeptWaitingView, MovePlanView, MovesView

_NODES_NAMED = 3


def idle_columns(at: float, *, busy: str = "busy in 24 h") -> Sequence[Column[IdlePod]]:
    """All but the pod's name."""
    return (
        figure("GPUs", lambda it: it.gpus, "gpus"),
        Column("idle for", lambda it: idle_for(it, at), name="idle"),
        Column(busy, lambda it: busy_share(it.day_percent), name="busy"),
        Column("GPU memory", _memory, name="memory"),
        Column("node", lambda it: it.node, name="on"),
        Column("gang", _gang, name="gang"),
        Column("evicted if needed", lambda it: _evicted(it.reclaim_from, at), name="evicted"),
    )


def idle_for(pod: IdlePod, at: float) -> str:
    return f"{'at least ' if pod.at_least else ''}{duration(at - pod.since)}"


def busy_share(percent: int | None) -> str:
    """*percent*: at most so much of a day's time; None: unknown."""
    if percent is None:
        return ""
    return f"{percent} % or less" if percent else "0 %"


def _memory(pod: IdlePod) -> str:
    return "" if pod.memory_gib is None else f"{pod.memory_gib} GiB"


def _gang(pod: IdlePod) -> str:
    return f"{pod.gang}, which works" if pod.gang_works else pod.gang


def _evicted(begins: float | None, at: float) -> str:
    """When an idle pod may be evicted for others, from *begins* on; None: never."""
    if begins is None:
        return "never"
    return f"in {duration(begins - at)}" if begins > at else "now"


def plan_columns(for_whom: Column[MovePlanView]) -> Sequence[Column[MovePlanView]]:
    return (
        for_whom,
        figure("GPUs", lambda it: it.gpus or None),
        figure("pods that move", lambda it: len(it.moves)),
        figure("GPU hours lost", lambda it: gpu_hours(it.lost_gpu_seconds)),
        figure("GPU hours saved", lambda it: _saved(it.saved_gpu_seconds)),
    )


def kept_waiting_columns(waits: Column[KeptWaitingView]) -> Sequence[Column[KeptWaitingView]]:
    """*waits*: the column of what waits."""
    return (
        Column("do not consent", lambda it: f"{it.namespace}/{it.name}", name="refuses"),
        Column("kind", lambda it: it.kind),
        figure("GPUs", lambda it: it.gpus, "gpus"),
        Column("node", lambda it: some(it.nodes, _NODES_NAMED), name="on"),
        waits,
        figure("its GPUs", lambda it: it.waits_gpus, "wanted"),
        figure("GPU hours waited", lambda it: rough_gpu_hours(it.gpu_seconds), "waited"),
        Column("still", lambda it: "yes" if it.now else "no"),
    )


def gpu_hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}"


def rough_gpu_hours(seconds: float) -> str:
    """With two digits, as they grow all the time."""
    hours = seconds / 3600
    return f"{hours:.1f}" if hours < 9.95 else f"{float(f'{hours:.2g}'):,.0f}"


def _saved(seconds: float | None) -> str:
    if seconds is None:
        return "no end"
    return gpu_hours(seconds) if seconds else ""


def why_no_moves(view: MovesView) -> str:
    """Empty: there are some."""
    if any(plan.moves for plan in view.plans):
        return ""
    if view.allowed == "never":
        return "Moves are off: the extender runs with --moves=never."
    return "Nothing to move: no gang or pod waits for which moves are found that are worth it."
