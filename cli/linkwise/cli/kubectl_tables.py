"""The tables of `kubectl linkwise`: their columns, and their width."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from linkwise.cli.choose.gpu_list import write_indices
from linkwise.cli.printed import terminal_width
from linkwise.drawing.tables import Column, T, Table, figure
from linkwise.drawing.words import counted, duration, gpus_in_words, named_gpus, some
from linkwise.extender.show.explain.texts.format import closed_in_words
from linkwise.extender.show.explain.texts.tables import (
    gpu_hours,
    idle_columns,
    kept_waiting_columns,
    plan_columns,
    why_no_moves,
)
from linkwise.extender.state.views import (
    ClusterUse,
    EmptyingView,
    GangView,
    IdlePod,
    IdleView,
    KeptWaitingView,
    KindUse,
    MemberView,
    MovePlanView,
    MoveState,
    MovesView,
    MoveView,
    NamespaceUse,
    NodeView,
    PodState,
    StaysView,
    WouldStartView,
)

_NAMED = 4  # of many idle pods; JSON has all of them

_LEGEND = """\
PLANNED: for pods that have not started. RESERVED: free, for a gang that waits.
LARGEST: most free GPUs on one node.
SPLIT: the share of bandwidth that later jobs lose because the free GPUs are apart.
FIT n: how many pods of n GPUs would fit now.
"""
KEPT_WAITING = """\
Moves of these pods would have made room. GPU HOURS WAITED: their part of the wait, times the GPUs
that wait, since the leader's term began.
"""


def shown(columns: Sequence[Column[T]], rows: Iterable[T]) -> str:
    """Write a table with kubectl's capitals, that fits a terminal."""
    capitals = [replace(column, heading=column.heading.upper()) for column in columns]
    return Table.of(capitals, rows).fitted(terminal_width())


def gangs(views: Sequence[GangView], *, namespaces: bool, now: float | None = None) -> str:
    """Return the table of gangs. *now* is for ages."""
    at = time.time() if now is None else now
    columns: list[Column[GangView]] = [
        Column("name", lambda it: it.name),
        Column("phase", lambda it: it.phase),
        figure("bound", lambda it: sum(m.state is PodState.BOUND for m in it.members)),
        figure("planned", lambda it: sum(map(_is_planned, it.members))),
        figure("min", lambda it: it.minimum),
        figure("size", lambda it: it.size),
        figure("GB/s", _gbytes),
        Column("age", lambda it: None if it.since is None else duration(at - it.since)),
        Column("gives back", lambda it: _gives_back(it, at)),
        Column("waits for", lambda it: it.reason),
    ]
    if namespaces:
        columns.insert(0, Column("namespace", lambda it: it.namespace))
    return shown(columns, views)


def _gbytes(gang: GangView) -> str:
    return "" if gang.communicator is None else f"{gang.communicator.gbytes_per_s:.0f}"


def _is_planned(member: MemberView) -> bool:
    return member.state is PodState.PLANNED or (
        member.state is PodState.TO_COME and bool(member.node)
    )


def _gives_back(gang: GangView, at: float) -> str:
    if gang.deadline is None or gang.started:
        return ""
    return f"in {duration(gang.deadline - at)}"


def nodes(views: Sequence[NodeView]) -> str:
    columns: list[Column[NodeView]] = [
        Column("name", lambda it: it.name),
        figure("GPUs", lambda it: it.by_count.gpus if it.by_count else len(it.gpus)),
        figure("used", lambda it: it.by_count.used if it.by_count else _gpus(it, "used")),
        figure("planned", lambda it: _gpus(it, "held")),
        figure("reserved", lambda it: _gpus(it, "reserved")),
        figure("free", _free),
        Column("best free set", _best),
        Column("kind", lambda it: it.kind.replace("NVIDIA ", "")),
        Column("problem", _problem),
    ]
    if any(view.shares for view in views):
        columns.insert(6, Column("free shares", _shares))
    if any(view.topology_manager for view in views):
        managers: Column[NodeView] = Column(
            "topology manager", lambda it: it.topology_manager or "unknown"
        )
        columns.insert(-1, managers)
    return shown(columns, views)


def _gpus(node: NodeView, state: str) -> int:
    return sum(gpu.state == state for gpu in node.gpus)


def _free(node: NodeView) -> int:
    counted = node.by_count
    return _gpus(node, "free") if counted is None else counted.gpus - counted.used


def _best(node: NodeView) -> str:
    best = node.best
    if best is None or best.gpus == 1:
        return "1" if best else ""
    return f"{best.gpus} by {best.link}, {best.gbytes_per_s:.0f} GB/s"


def _problem(node: NodeView) -> str:
    if node.by_count is not None:
        return f"{node.reason}: placed by count"
    broken = [gpu.index for gpu in node.gpus if gpu.state == "unhealthy"]
    if node.reason or not broken:
        return node.reason
    return f"{named_gpus(broken, shortest=3)} unhealthy"


def _shares(node: NodeView) -> str:
    """Such as `gpu.shared 3/8`: 3 of 8 are free."""
    uses = (f"{use.resource.partition('/')[2]} {use.free}/{use.all}" for use in node.shares)
    return ", ".join(uses)


def use(it: ClusterUse) -> str:
    parts = ["".join(f"{line}\n" for line in (_use_in_words(it), *closed_in_words(it.closed)))]
    if it.kinds:
        parts.append(shown(_kind_columns(it.kinds), it.kinds))
    if it.namespaces:
        namespaces: list[Column[NamespaceUse]] = [
            Column("namespace", lambda each: each.namespace),
            figure("used", lambda each: each.used),
            figure("planned", lambda each: each.held),
            figure("pods", lambda each: each.pods),
            figure("waiting pods", lambda each: each.waiting),
            figure("waiting GPUs", lambda each: each.waiting_gpus),
        ]
        parts.append(shown(namespaces, it.namespaces))
    if it.kinds:
        parts.append(_LEGEND)
    return "\n".join(parts)


def _use_in_words(it: ClusterUse) -> str:
    total, used = sum(it.gpus.values()), it.gpus["used"]
    share = f" ({100 * used / total:.0f} %)" if total else ""
    others = "".join(
        f", {it.gpus[state]} {state}"
        for state in ("reserved", "divided", "unhealthy")
        if it.gpus.get(state)
    )
    return (
        f"{total} GPUs on {counted(it.nodes, 'node')}: {used} in use{share}, "
        f"{it.gpus['held']} planned, {it.gpus['free']} free{others}"
    )


def _kind_columns(kinds: Iterable[KindUse]) -> Sequence[Column[KindUse]]:
    sizes = sorted({size for kind in kinds for size in kind.room})
    return (
        Column("kind", lambda it: it.kind.replace("NVIDIA ", "")),
        figure("nodes", lambda it: it.nodes),
        figure("GPUs", lambda it: sum(it.gpus.values())),
        figure("used", lambda it: it.gpus["used"]),
        figure("planned", lambda it: it.gpus["held"]),
        figure("reserved", lambda it: it.gpus["reserved"]),
        figure("free", lambda it: it.gpus["free"]),
        figure("largest", lambda it: it.largest_free),
        figure("split", lambda it: f"{100 * it.fragmented:.0f} %"),
        *(figure(f"fit {size}", partial(_fit, size)) for size in sizes),
    )


def _fit(size: int, kind: KindUse) -> int | None:
    return kind.room.get(size)


def idle(it: IdleView) -> str:
    parts = [_idle_counts(it)]
    if it.pods:
        name: list[Column[IdlePod]] = [
            Column("namespace", lambda pod: pod.pod.partition("/")[0]),
            Column("pod", lambda pod: pod.pod.partition("/")[2]),
        ]
        parts.append(shown([*name, *idle_columns(it.at, busy="busy in 24h")], it.pods))
    if it.would_start:
        would_start: list[Column[WouldStartView]] = [
            Column("waiting", lambda each: each.who),
            figure("GPUs", lambda each: each.gpus),
            Column("would start without", lambda each: some(each.without, _NAMED)),
        ]
        parts.append(shown(would_start, it.would_start))
        parts.append("Each is tried by itself, as if the others did not wait.\n")
    elif it.pods and it.waiting:
        parts.append(f"{_waiting(it.waiting)}; none would start without the idle pods.\n")
    if it.untried:
        parts.append(f"Not tried, because the queue is long: {it.untried}.\n")
    return "\n".join(parts)


def _idle_counts(it: IdleView) -> str:
    gpus = sum(pod.gpus for pod in it.pods)
    held = f", with {gpus_in_words(gpus)}" if gpus else ""
    unknown = f", {it.unknown} unknown, as nothing reports their work" if it.unknown else ""
    return f"Pods with GPUs: {len(it.pods)} idle{held}, {it.not_idle} not idle{unknown}.\n"


def _waiting(count: int) -> str:
    return "1 gang or pod waits" if count == 1 else f"{count} gangs and pods wait"


def moves(it: MovesView) -> str:
    for_whom: Column[MovePlanView] = Column("for", lambda plan: plan.for_whom)
    moved = [(plan.for_whom, move) for plan in it.plans for move in plan.moves]
    columns: list[Column[tuple[str, MoveView]]] = [
        Column("for", lambda row: row[0]),
        *(column.of(lambda row: row[1]) for column in _move_columns(it.at)),
    ]
    nothing = why_no_moves(it)
    parts = [f"{nothing}\n"] if nothing else [shown(plan_columns(for_whom), it.plans)]
    if moved:
        parts.append(shown(columns, moved))
    if any(move.state is MoveState.ADVISED for _, move in moved):
        parts.append(
            "Advice: nothing is moved without --moves=consent. Each that waits is tried by itself, "
            "as if the others did not wait.\n"
        )
    if it.kept_waiting:
        waits: Column[KeptWaitingView] = Column("kept waiting", lambda each: each.waits)
        parts.append(shown(kept_waiting_columns(waits), it.kept_waiting))
        parts.append(KEPT_WAITING)
    return "\n".join(parts)


def _move_columns(at: float, advised: str = MoveState.ADVISED.value) -> Sequence[Column[MoveView]]:
    """*advised*: the state of a move that only would be."""
    return (
        Column("pod", lambda it: it.pod),
        Column("from", lambda it: it.node),
        Column("to", lambda it: it.target),
        Column("GPUs there", lambda it: write_indices(it.gpus) if it.gpus else None),
        figure("GPU hours lost", lambda it: gpu_hours(it.lost_gpu_seconds)),
        Column("state", lambda it: advised if it.state is MoveState.ADVISED else _state(it, at)),
    )


def _state(move: MoveView, at: float) -> str:
    if move.kept_until is None:
        return move.state
    return f"{move.state}, target kept for {duration(move.kept_until - at)}"


def emptying(it: EmptyingView, *, begins: bool) -> str:
    """*begins*: the nodes are being emptied from now on."""
    if not it.nodes:
        return "No node is being emptied.\n"
    parts = []
    if it.moves:
        parts.append(shown(_move_columns(it.at, "would move"), it.moves))
    if it.stays:
        stays: list[Column[StaysView]] = [
            Column("stays", lambda pod: pod.pod),
            Column("on", lambda pod: pod.node),
            figure("GPUs", lambda pod: pod.gpus),
            Column("why", lambda pod: pod.why),
        ]
        parts.append(shown(stays, it.stays))
    parts.append("".join(f"{line}\n" for line in _emptying_in_words(it, begins=begins)))
    return "\n".join(parts)


def _emptying_in_words(it: EmptyingView, *, begins: bool) -> Iterator[str]:
    free = [node.node for node in it.nodes if not node.gpus]
    if free:
        yield f"No pod has GPUs of {', '.join(free)}."
    if it.allowed != "consent":
        yield f"No pod is moved: the extender runs with --moves={it.allowed}."
    others = [node.node for node in it.nodes if not (node.emptied or begins)]
    emptied = [node.node for node in it.nodes if node.emptied or begins]
    if emptied:
        yield f"Being emptied: {', '.join(emptied)}. New pods with GPUs are placed elsewhere."
    if others:
        then = "are emptied" if it.allowed == "consent" else "get no new pods with GPUs"
        yield f"Nothing is changed. With --yes, these {then}: {', '.join(others)}."
