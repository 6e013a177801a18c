"""The tables of `kubectl linkwise`: their columns, and their width."""

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from linkwise.cli.choose.gpu_list import write_indices
from linkwise.cli.table import aligned
from linkwise.extender.api.views import (
    BestSet,
    ClusterUse,
    EmptyingView,
    GangView,
    IdlePod,
    IdleView,
    KindUse,
    MoveState,
    MovesView,
    MoveView,
    NodeView,
    PodState,
)
from linkwise.extender.explain.texts.format import (
    busy_share,
    closed_in_words,
    duration,
    evicted_if_needed,
    idle_for,
)

_NARROWEST = 80
_NAMED = 4  # of many idle pods; JSON has all of them
_GANGS = (
    "NAME",
    "PHASE",
    "BOUND",
    "PLANNED",
    "MIN",
    "SIZE",
    "GB/S",
    "AGE",
    "GIVES BACK",
    "WAITS FOR",
)
_NODES = ("NAME", "GPUS", "USED", "PLANNED", "RESERVED", "FREE", "BEST FREE SET", "KIND", "PROBLEM")
_KINDS = ("KIND", "NODES", "GPUS", "USED", "PLANNED", "RESERVED", "FREE", "LARGEST", "SPLIT")
_NAMESPACES = ("NAMESPACE", "USED", "PLANNED", "PODS", "WAITING PODS", "WAITING GPUS")

_IDLE = (
    *("NAMESPACE", "POD", "GPUS", "IDLE FOR", "BUSY IN 24H", "GPU MEMORY", "NODE", "GANG"),
    "EVICTED IF NEEDED",
)
_MOVE_PLANS = ("FOR", "GPUS", "PODS THAT MOVE", "GPU HOURS LOST", "GPU HOURS SAVED")
_MOVES = ("FOR", "POD", "FROM", "TO", "GPUS THERE", "GPU HOURS LOST", "STATE")
_STAYS = ("STAYS", "ON", "GPUS", "WHY")
_WOULD_START = ("WAITING", "GPUS", "WOULD START WITHOUT")

_LEGEND = """\
PLANNED: for pods that have not started. RESERVED: free, for a gang that waits.
LARGEST: most free GPUs on one node.
SPLIT: the share of bandwidth that later jobs lose because the free GPUs are apart.
FIT n: how many pods of n GPUs would fit now.
"""


def gangs(views: Sequence[GangView], *, namespaces: bool, now: float | None = None) -> str:
    """Return the table of gangs. *now* is for ages."""
    at = time.time() if now is None else now
    rows: list[tuple[str, ...]] = [_GANGS, *(_gang(view, at) for view in views)]
    if namespaces:
        spaces = ("NAMESPACE", *(view.namespace for view in views))
        rows = [(space, *row) for space, row in zip(spaces, rows, strict=True)]
    first = 3 if namespaces else 2
    return fitted(aligned(rows, figures=range(first, first + 5)))


def nodes(views: Sequence[NodeView]) -> str:
    rows: list[tuple[str, ...]] = [_NODES, *(_node(view) for view in views)]
    if any(view.shares for view in views):
        shares = ("FREE SHARES", *(_shares(view) for view in views))
        rows = [(*row[:6], of, *row[6:]) for of, row in zip(shares, rows, strict=True)]
    if any(view.topology_manager for view in views):
        managers = ("TOPOLOGY MANAGER", *(view.topology_manager or "unknown" for view in views))
        rows = [(*row[:-1], of, row[-1]) for of, row in zip(managers, rows, strict=True)]
    return fitted(aligned(rows, figures=range(1, 6)))


def use(it: ClusterUse) -> str:
    total = sum(it.gpus.values())
    used = it.gpus["used"]
    share = f" ({100 * used / total:.0f} %)" if total else ""
    divided = f", {it.gpus['divided']} divided" if it.gpus.get("divided") else ""
    unhealthy = f", {it.gpus['unhealthy']} unhealthy" if it.gpus["unhealthy"] else ""
    reserved = f", {it.gpus['reserved']} reserved" if it.gpus["reserved"] else ""
    lines = (
        f"{total} GPUs on {it.nodes} node{'' if it.nodes == 1 else 's'}: {used} in use{share}, "
        f"{it.gpus['held']} planned, {it.gpus['free']} free{reserved}{divided}{unhealthy}\n"
    )
    parts = [lines + "".join(f"{each}\n" for each in closed_in_words(it.closed))]
    if it.kinds:
        sizes = sorted({size for kind in it.kinds for size in kind.room})
        room = tuple(f"FIT {size}" for size in sizes)
        rows = [(*_KINDS, *room), *(_kind(kind, sizes) for kind in it.kinds)]
        parts.append(fitted(aligned(rows, figures=range(1, len(rows[0])))))
    if it.namespaces:
        rows = [_NAMESPACES]
        rows += [
            (
                each.namespace,
                *map(str, (each.used, each.held, each.pods, each.waiting, each.waiting_gpus)),
            )
            for each in it.namespaces
        ]
        parts.append(fitted(aligned(rows, figures=range(1, len(_NAMESPACES)))))
    if it.kinds:
        parts.append(_LEGEND)
    return "\n".join(parts)


def idle(it: IdleView) -> str:
    parts = [_idle_counts(it)]
    if it.pods:
        rows: list[tuple[str, ...]] = [_IDLE, *(_idle(pod, it.at) for pod in it.pods)]
        parts.append(fitted(aligned(rows, figures=(2,))))
    if it.would_start:
        rows = [_WOULD_START]
        rows += [(each.who, str(each.gpus), _some(each.without)) for each in it.would_start]
        parts.append(fitted(aligned(rows, figures=(1,))))
        parts.append("Each is tried by itself, as if the others did not wait.\n")
    elif it.pods and it.waiting:
        parts.append(f"{_waiting(it.waiting)}; none would start without the idle pods.\n")
    if it.untried:
        parts.append(f"Not tried, because the queue is long: {it.untried}.\n")
    return "\n".join(parts)


def moves(it: MovesView) -> str:
    plans: list[tuple[str, ...]] = [_MOVE_PLANS]
    rows: list[tuple[str, ...]] = [_MOVES]
    for plan in it.plans:
        saved = plan.saved_gpu_seconds
        plans.append(
            (
                plan.for_whom,
                str(plan.gpus or "-"),
                str(len(plan.moves)),
                _hours(plan.lost_gpu_seconds),
                "no end" if saved is None else _hours(saved) if saved else "-",
            )
        )
        rows += [(plan.for_whom, *_move(move, it.at)) for move in plan.moves]
    parts = [
        fitted(aligned(plans, figures=range(1, len(_MOVE_PLANS)))),
        fitted(aligned(rows, figures=(5,))),
    ]
    states = {move.state for plan in it.plans for move in plan.moves}
    if MoveState.ADVISED in states:
        parts.append(
            "Advice: nothing is moved without --moves=consent. Each that waits is tried by itself, "
            "as if the others did not wait.\n"
        )
    return "\n".join(parts)


def emptying(it: EmptyingView, *, begins: bool) -> str:
    """*begins*: the nodes are being emptied from now on."""
    if not it.nodes:
        return "No node is being emptied.\n"
    parts = []
    if it.moves:
        rows: list[tuple[str, ...]] = [_MOVES[1:], *(_emptied_move(move, it) for move in it.moves)]
        parts.append(fitted(aligned(rows, figures=(4,))))
    if it.stays:
        rows = [_STAYS, *((pod.pod, pod.node, str(pod.gpus), pod.why) for pod in it.stays)]
        parts.append(fitted(aligned(rows, figures=(2,))))
    parts.append("".join(f"{line}\n" for line in _emptying_in_words(it, begins=begins)))
    return "\n".join(parts)


def _emptied_move(move: MoveView, it: EmptyingView) -> tuple[str, ...]:
    *before, state = _move(move, it.at)
    return *before, "would move" if move.state is MoveState.ADVISED else state


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
        yield f"Nothing is changed. With --yes, these are emptied: {', '.join(others)}."


def no_moves(it: MovesView) -> str:
    if it.allowed == "never":
        return "Moves are off: the extender runs with --moves=never."
    return "Nothing to move: no gang or pod waits for which moves are found that are worth it."


def _move(move: MoveView, at: float) -> tuple[str, ...]:
    state: str = move.state
    if move.kept_until is not None:
        state += f", target kept for {duration(max(move.kept_until - at, 0.0))}"
    gpus = write_indices(move.gpus) if move.gpus else "-"
    return move.pod, move.node, move.target, gpus, _hours(move.lost_gpu_seconds), state


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}"


def _idle_counts(it: IdleView) -> str:
    gpus = sum(pod.gpus for pod in it.pods)
    held = f", with {gpus} GPU{'' if gpus == 1 else 's'}" if gpus else ""
    unknown = f", {it.unknown} unknown" if it.unknown else ""
    return f"Pods with GPUs: {len(it.pods)} idle{held}, {it.not_idle} not idle{unknown}.\n"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _waiting(count: int) -> str:
    return "1 gang or pod waits" if count == 1 else f"{count} gangs and pods wait"


def _idle(pod: IdlePod, at: float) -> tuple[str, ...]:
    namespace, _, name = pod.pod.partition("/")
    return (
        namespace,
        name,
        str(pod.gpus),
        idle_for(pod.since, at, at_least=pod.at_least),
        busy_share(pod.day_percent),
        "-" if pod.memory_gib is None else f"{pod.memory_gib} GiB",
        pod.node,
        f"{pod.gang}, which works" if pod.gang_works else pod.gang or "-",
        evicted_if_needed(pod.reclaim_from, at),
    )


def fitted(table: str) -> str:
    """Cut each line at the terminal's width; leave it whole for a pipe."""
    if not sys.stdout.isatty():
        return table
    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    return "".join(
        f"{line if len(line) <= width else f'{line[: width - 1]}…'}\n"
        for line in table.splitlines()
    )


def _gang(view: GangView, at: float) -> tuple[str, ...]:
    states = Counter(member.state for member in view.members)
    back = view.deadline is not None and not view.started
    return (
        view.name,
        view.phase,
        str(states[PodState.BOUND]),
        str(
            states[PodState.PLANNED]
            + sum(m.state is PodState.TO_COME and bool(m.node) for m in view.members)
        ),
        str(view.minimum),
        str(view.size),
        "-" if view.communicator is None else f"{view.communicator.gbytes_per_s:.0f}",
        "-" if view.since is None else duration(at - view.since),
        f"in {duration(view.deadline - at)}" if back and view.deadline is not None else "-",
        view.reason or "-",
    )


def _node(view: NodeView) -> tuple[str, ...]:
    states = Counter(gpu.state for gpu in view.gpus)
    problem = view.reason
    if (counted := view.by_count) is not None:
        free = str(counted.gpus - counted.used)
        figures = (str(counted.gpus), str(counted.used), "0", "0", free)
        return view.name, *figures, "-", "-", f"{problem}: placed by count"
    if not problem and states["unhealthy"]:
        broken = [gpu.index for gpu in view.gpus if gpu.state == "unhealthy"]
        problem = f"GPU{'' if len(broken) == 1 else 's'} {write_indices(broken)} unhealthy"
    return (
        view.name,
        str(len(view.gpus)),
        *(str(states[state]) for state in ("used", "held", "reserved", "free")),
        _best(view.best),
        view.kind.replace("NVIDIA ", "") or "-",
        problem or "-",
    )


def _shares(view: NodeView) -> str:
    """Such as `gpu.shared 3/8`: 3 of 8 are free."""
    uses = (f"{use.resource.partition('/')[2]} {use.free}/{use.all}" for use in view.shares)
    return ", ".join(uses) or "-"


def _best(best: BestSet | None) -> str:
    if best is None:
        return "-"
    if best.gpus == 1:
        return "1"
    return f"{best.gpus} by {best.link}, {best.gbytes_per_s:.0f} GB/s"


def _kind(kind: KindUse, sizes: Sequence[int]) -> tuple[str, ...]:
    return (
        kind.kind.replace("NVIDIA ", ""),
        str(kind.nodes),
        str(sum(kind.gpus.values())),
        *(str(kind.gpus[state]) for state in ("used", "held", "reserved", "free")),
        str(kind.largest_free),
        f"{100 * kind.fragmented:.0f} %",
        *(_fit(kind.room, size) for size in sizes),
    )


def _fit(room: Mapping[int, int], size: int) -> str:
    return str(room[size]) if size in room else "-"
