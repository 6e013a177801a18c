"""Renders the report for a terminal: a table of all pods, a drawing of every node, and why pods
wait.

Readable at 80 columns and without colour (a CI log): a letter stands for each workload, and colour
only repeats it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import geometric_mean
from textwrap import wrap

from rich.text import Text

from linkwise.drawing.layout import Island, islands, numa_runs
from linkwise.drawing.tables import aligned
from linkwise.drawing.words import counted, indices
from linkwise.simulator.report.model import (
    FREE,
    GpuTenant,
    MovedPod,
    PodPlace,
    PodReport,
    Report,
    Rival,
    WorkloadReport,
    tenants,
)
from linkwise.simulator.report.timeline import MEASURED, time_words
from linkwise.topology.machine.model import Machine
from linkwise.topology.vendors.known import vendor_of

WIDTH = 79
_CELL = 4  # columns for one GPU
_BROKEN = "×"
_SHORTEST_NODE = 9  # columns of the table that the node's name always gets
_LONGEST = 24  # columns of a workload's name beside its times
_IN_A_ROW = 8  # GPUs in one row of an island
WHY_HERE = "Why pods are where they are"
MOVED = "Pods that were moved"
_COLOURS = ("cyan", "yellow", "green", "magenta", "bright_blue", "red", "white")


def render(report: Report) -> Text:
    """Return the whole report."""
    blocks = [_table(report), *_pictures(report), _legend(report)]
    chosen = [_chosen(workload) for workload in report.workloads if workload.chosen]
    if chosen:
        blocks.append(_lines([_title(WHY_HERE), *chosen]))
    if report.moved:
        moved = map(_moved, report.moved)
        blocks.append(_lines([_title(MOVED), *moved]))
    waiting = [_waiting(workload) for workload in report.workloads if workload.waiting]
    waiting += [Text(f"  {line}") for line in other_waits(report)]
    if waiting:
        blocks.append(_lines([_title("Why pods wait"), *waiting]))
    if report.workloads:
        blocks.append(_times(report))
    if report.draws > 1:
        blocks.append(_draws(report))
    if figures := gain_figures(report):
        blocks.append(Text("Gain: " + "; ".join(f"{f} {words}" for f, words in figures) + "."))
    if report.draws:
        blocks.append(_about_the_baseline(report))
    blocks.append(_verdict(report))
    return Text("\n\n").join(blocks)


def other_waits(report: Report) -> tuple[str, ...]:
    """Say why pods without GPUs wait, and what is not created yet."""
    return (
        *(
            f"{workload.name}, {member.pod}, without GPUs: {member.why}"
            for workload in report.workloads
            for member in workload.without_gpus
        ),
        *report.to_come,
    )


def place_words(place: PodPlace) -> tuple[str, str, str, str]:
    """Return node, GPUs, link and GB/s; a lone GPU has no link and no bandwidth."""
    gpus = indices(place.gpus)
    if not place.talks:
        return place.node, gpus, "", ""
    return place.node, gpus, place.link, f"{place.gbytes_per_s:.1f}"


def workload_words(workload: WorkloadReport, draws: int) -> str:
    """Describe a workload's result in one line."""
    pods, one = len(workload.pods), _is_one(workload)
    kind = (
        f"gang of {max(pods, workload.needed)}"
        if workload.needed
        else f"{pods} pods"
        if pods > 1
        else "pod"
    )
    parts = [f"{kind} {_running(workload.running, pods, one=one)}"]
    if over := _over(workload):
        parts = [f"{kind}: {workload.running} run, {over}" if pods > 1 else f"{kind} has {over}"]
    if workload.gbytes_per_s is not None and pods > 1:
        how = "together" if workload.needed else "slowest"
        parts.append(f"{how} {workload.gbytes_per_s:.1f} GB/s")
    if draws:
        parts.append(f"alone: {_stock_words(workload)}")
    return "; ".join(parts)


def _over(workload: WorkloadReport) -> str:
    """Say how many pods have ended or failed; of a lone pod, whether."""
    counts = {"ended": workload.ended, "failed": workload.failed}
    if len(workload.pods) == 1:
        return "".join(word for word, count in counts.items() if count)
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def _is_one(workload: WorkloadReport) -> bool:
    return bool(workload.needed) or len(workload.pods) == 1


def _running(running: int, pods: int, *, one: bool) -> str:
    """Choose the verb for *one* thing (a pod, a gang) or for several pods."""
    if 0 < running < pods:
        return f"{'runs' if one else 'run'} {running} of them"
    verb = "run" if running else "wait"
    return f"{verb}s" if one else verb


def alone_words(report: Report) -> str:
    """Return the heading of the places without Linkwise, which are those of one draw."""
    return f"alone, {report.rival.words}, draw 1 of {report.draws}"


def _stock_words(workload: WorkloadReport) -> str:
    """Describe the draw that the table shows."""
    pods, running = len(workload.pods), workload.stock_running[0]
    if 0 < running < workload.needed:
        return f"only {running} of {pods} run"
    speed = workload.stock_gbytes_per_s[0]
    if running >= max(workload.needed, 1) and speed is not None:
        return f"{speed:.1f} GB/s"
    return _running(running, pods, one=_is_one(workload))


def draw_rows(report: Report) -> list[tuple[str, ...]]:
    """Return, for each workload that communicates, what all draws without Linkwise gave it: name,
    GB/s with Linkwise, mean, lowest and highest GB/s of the draws that ran it whole, and how many
    did."""
    rows = []
    for workload in report.workloads:
        speeds = workload.stock_speeds
        if workload.gbytes_per_s is None and not speeds:
            continue
        figures = (workload.stock_mean, min(speeds, default=None), max(speeds, default=None))
        shown = ["-" if f is None else f"{f:.1f}" for f in (workload.gbytes_per_s, *figures)]
        rows.append((workload.name, *shown, f"{workload.stock_wholes} of {report.draws}"))
    return rows


def gain_figures(report: Report) -> tuple[tuple[str, str], ...]:
    """Return three figures, each with its words; none without a gain."""
    gain = report.gain
    if not gain:
        return ()
    mean, workloads = geometric_mean(gain.values()), counted(len(gain), "workload")
    faster = sum(ratio > 1 for ratio in gain.values())
    worst, best = min(gain, key=gain.__getitem__), max(gain, key=gain.__getitem__)
    return (
        (f"{mean:.1f}×", f"the GB/s of the scheduler alone, geometric mean of {workloads}"),
        (f"{faster} of {len(gain)}", "workloads have more GB/s than alone"),
        (
            f"{gain[worst]:.1f}× to {gain[best]:.1f}×",
            f"from the worst, {worst}, to the best, {best}",
        ),
    )


DRAW_HEADS = ("", "Linkwise", "mean", "lowest", "highest", "ran whole")


def _draws(report: Report) -> Text:
    rows = [DRAW_HEADS, *draw_rows(report)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    longest = WIDTH - sum(widths[1:]) - 2 * len(widths)
    table = aligned([(_clipped(name, longest), *row) for name, *row in rows], range(1, len(widths)))
    title = f"All {report.draws} draws alone, GB/s"
    return _lines([_title(title), *(Text(f"  {line}") for line in table.splitlines())])


def _table(report: Report) -> Text:
    places = [p for _, pod in report.pods for p in (pod.place, *pod.stock[:1]) if p]
    words = [place_words(place) for place in places]
    words += [(pod.state, "", "", "") for _, pod in report.pods if not pod.place]
    widths = tuple(
        max([len(head), *(len(row[column]) for row in words)])
        for column, head in enumerate(("node", "GPUs", "NVLINK", "GB/s"))
    )
    sides = 2 if report.draws else 1
    room = (WIDTH - 4) // sides - sum(widths[1:]) - 8  # 6 before the first, 2 between all others
    widths = (min(widths[0], max(room, _SHORTEST_NODE)), *widths[1:])
    heads = _row(("node", "GPUs", "link", "GB/s"), widths)
    lines = [
        Text(f"{'':6}{'Linkwise':{len(heads)}}" + f"  {alone_words(report)}")
        if report.draws
        else Text(),
        Text(f"{'':6}{heads}" + (f"  {heads}" if report.draws else "")),
    ]
    for line in lines:
        line.stylize("bold")
    for workload in report.workloads:
        lines.append(
            Text.assemble(
                (f" {workload.letter} ", colour_of(report, workload)),
                (f" {workload.name}", "bold"),
                f"  {workload_words(workload, report.draws)}",
            )
        )
        lines += [_pod_line(workload, pod, widths, report.draws) for pod in workload.pods]
    return _lines(lines)


def _pod_line(workload: WorkloadReport, pod: PodReport, widths: Sequence[int], draws: int) -> Text:
    ours = _row(place_words(pod.place) if pod.place else (pod.state,), widths)
    line = f"  {GpuTenant(workload, pod).short:<3} {ours}"
    if draws:
        stock = pod.stock[0] if pod.stock else None
        line += "  " + (_row(place_words(stock), widths) if stock else "waits")
    return Text(line.rstrip())


def _row(words: Sequence[str], widths: Sequence[int]) -> str:
    padded = [*words, *[""] * (len(widths) - len(words))]
    node, gpus, link, speed = padded
    node = _clipped(node, widths[0])
    return f"{node:<{widths[0]}}  {gpus:<{widths[1]}}  {link:<{widths[2]}}  {speed:>{widths[3]}}"


def _clipped(name: str, width: int) -> str:
    """Shorten a long name but keep both ends, as names may differ in either."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[-end:]}"


def _pictures(report: Report) -> Iterator[Text]:
    for node in report.nodes:
        holders = tenants(report, node.name)
        free = sum(gpu.healthy and gpu.index not in holders for gpu in node.machine.gpus)
        head = Text.assemble((node.name, "bold"), f"  {node.title}  ({free} free)")
        styles = {index: colour_of(report, t.workload) for index, t in holders.items()}
        yield _lines([head, *picture(node.machine, holders, styles)])


def picture(
    machine: Machine, holders: Mapping[int, GpuTenant], styles: Mapping[int, str]
) -> list[Text]:
    """Draw one node: a box for every island, with each GPU's index and its holder below."""
    rows: list[list[list[Text]]] = [[]]
    for island in islands(machine):
        box = _box(machine, island, holders, styles)
        if sum(len(other[0]) + 1 for other in rows[-1]) + len(box[0]) > WIDTH:
            rows.append([])
        rows[-1].append(box)
    return [Text(" ").join(parts) for row in rows for parts in zip(*_same_height(row), strict=True)]


def _box(
    machine: Machine, island: Island, holders: Mapping[int, GpuTenant], styles: Mapping[int, str]
) -> list[Text]:
    left, right, bottom_left, bottom_right, rule = "╭╮╰╯─" if island.nvlinked else "┌┐└┘╌"
    inside: list[Text] = []
    for start in range(0, len(island.positions), _IN_A_ROW):
        inside += _cells(machine, island.positions[start : start + _IN_A_ROW], holders, styles)
    width = max(len(island.title) + 2, *(len(line) for line in inside))
    for line in inside:
        line.pad_right(width - len(line))
    top = f"{left}{f' {island.title} ':{rule}^{width}}{right}"
    side = "│" if island.nvlinked else "╎"
    return [
        Text(top),
        *(Text.assemble(side, line, side) for line in inside),
        Text(f"{bottom_left}{rule * width}{bottom_right}"),
    ]


def _cells(
    machine: Machine,
    positions: Sequence[int],
    holders: Mapping[int, GpuTenant],
    styles: Mapping[int, str],
) -> list[Text]:
    """Return three lines: indices, holders, NUMA nodes; a gap separates NUMA nodes."""
    indices, who, numa = Text(), Text(), Text()
    start = 0
    for title, count in numa_runs(machine, positions):
        gap = "┆" if start else ""
        for line in (indices, who, numa):
            line.append(gap)
        room = max(_CELL * count, len(title) + 2)
        before = (room - _CELL * count) // 2
        for line in (indices, who):
            line.append(" " * before)
        for position in positions[start : start + count]:
            gpu = machine.gpus[position]
            holder = holders.get(gpu.index)
            indices.append(f"{gpu.index:^{_CELL}}")
            who.append(
                f"{holder.short if holder else FREE if gpu.healthy else _BROKEN:^{_CELL}}",
                styles.get(gpu.index, ""),
            )
        for line in (indices, who):
            line.append(" " * (room - _CELL * count - before))
        numa.append(f"{title:^{room}}", "dim")
        start += count
    return [indices, who, numa]


def _same_height(boxes: list[list[Text]]) -> list[list[Text]]:
    height = max(len(box) for box in boxes)
    return [box + [Text(" " * len(box[0]))] * (height - len(box)) for box in boxes]


def _legend(report: Report) -> Text:
    legend = Text("Who: ")
    for workload in report.workloads:
        if workload.running:
            legend.append(f" {workload.letter} ", colour_of(report, workload))
            legend.append(f" {workload.name}  ")
    broken = any(not gpu.healthy for node in report.nodes for gpu in node.machine.gpus)
    legend.append(f"{FREE} free" + (f"  {_BROKEN} unhealthy\n" if broken else "\n"))
    links = " or ".join(dict.fromkeys(vendor_of(node.machine).link for node in report.nodes))
    legend.append(
        f"Boxes: ╭─╮ GPUs joined by {links}, ┌╌┐ GPUs without; ┆ between NUMA nodes.", "dim"
    )
    return legend


def _waiting(workload: WorkloadReport) -> Text:
    return Text.assemble(
        (f"  {workload.name}", "bold"),
        f" ({len(workload.waiting)} of {len(workload.pods)} pods): ",
        # Members of a gang wait for the same reason: print it once.
        "\n    ".join(dict.fromkeys(pod.waits for pod in workload.waiting)),
    )


def _chosen(workload: WorkloadReport) -> Text:
    lines = [f"  {workload.name}"]
    for member, reason in workload.chosen:
        which = f"{workload.letter}{member}: " if len(workload.chosen) > 1 else ""
        lines += wrap(f"{which}{reason}", WIDTH, initial_indent="    ", subsequent_indent="      ")
    return Text("\n".join(lines))


def _moved(moved: MovedPod) -> Text:
    lines = [f"  {moved.pod} was on {moved.was}"]
    lines += wrap(moved.why, WIDTH, initial_indent="    ", subsequent_indent="      ")
    return Text("\n".join(lines))


def _times(report: Report) -> Text:
    rows = [(_clipped(each.name, _LONGEST), time_words(each)) for each in report.workloads]
    lines = [Text(f"  {line}") for line in aligned(rows).splitlines()]
    return _lines([_title("Pods in time"), *lines, Text(f"Times: {MEASURED}", "dim")])


def _about_the_baseline(report: Report) -> Text:
    return Text(f"Alone: {about_the_baseline(report)}", "dim")


def about_the_baseline(report: Report) -> str:
    draws = f"{report.draws} draws" if report.draws > 1 else "one draw"
    nodes = {
        Rival.NVIDIA: "nodes that choose GPUs as NVIDIA's device plugin does (go-gpuallocator, "
        "best effort)",
        Rival.RANDOM: "nodes whose kubelets take random GPUs, as of a plugin without a preference",
    }
    both = " The mean is over the draws that ran a workload whole." if report.draws > 1 else ""
    return (
        f"the same manifests on the same cluster, {draws} (seed {report.seed}), with the "
        f"simulator's kube-scheduler without extender, on {nodes[report.rival]}. Places, and GB/s "
        f"beside them, are those of draw 1.{both}"
    )


def _verdict(report: Report) -> Text:
    if report.problems:
        return _lines([Text("FAILED", "bold red"), *(Text(f"  {p}") for p in report.problems)])
    return Text.assemble(
        ("OK", "bold green"),
        f": {report.compared} of {report.compared} pods hold exactly the GPUs of their plan; "
        "no GPU held twice, no gang runs half.",
    )


def colour_of(report: Report, workload: WorkloadReport) -> str:
    """Return a rich style: the workload's colour while there are enough colours."""
    position = report.workloads.index(workload)
    return f"black on {_COLOURS[position % len(_COLOURS)]}"


def _title(words: str) -> Text:
    return Text(words, "bold")


def _lines(lines: Iterable[Text]) -> Text:
    return Text("\n").join(lines)
