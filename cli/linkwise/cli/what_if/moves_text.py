"""Moves in words: what they make room for, which pods go where, and what that loses."""

from collections.abc import Iterator, Sequence

from linkwise.cli.choose.gpu_list import write_indices
from linkwise.cli.what_if.answer import (
    JobMoves,
    JobPart,
    MovedPod,
    Verdict,
    WholeNodes,
    WholeNodesAnswer,
)
from linkwise.cli.what_if.cluster_text import about_cluster
from linkwise.drawing.tables import aligned
from linkwise.drawing.words import counted, duration, fact, gpus_in_words, some

_MOST_PODS = 40
_HEADER = ("POD", "FROM", "GPUS", "TO", "GPUS", "COST")
_LEGEND = "COST: GPU seconds of its run that the pod loses."


def moves_of_part(part: JobPart, title: str) -> Iterator[str]:
    if part.moves is None:
        return
    yield f"{title} would start at once if {_those(part.moves.pods)} moved:"
    yield from _table(part.moves.pods, part.moves.lost_gpu_seconds)
    yield _LEGEND
    yield _verdict(part.moves)


def write_whole_nodes(answer: WholeNodesAnswer) -> str:
    return "".join(f"{line}\n" for line in _lines(answer))


def _lines(answer: WholeNodesAnswer) -> Iterator[str]:
    yield from about_cluster(answer)
    for note in answer.notes:
        yield fact("note", note)
    for size in answer.sizes:
        yield ""
        yield from _of_size(size, answer.wanted)
    if not answer.sizes:
        yield ""
        yield "There is no node with GPUs that pods can use."
    if any(size.moves for size in answer.sizes):
        yield ""
        yield _LEGEND


def _of_size(size: WholeNodes, wanted: int) -> Iterator[str]:
    now, then = len(size.whole), len(size.whole) + len(size.emptied)
    names = f": {some(size.whole)}" if size.whole else ""
    of = f"Of {counted(size.nodes, 'node')} with {gpus_in_words(size.gpus)},"
    yield f"{of} {now} {'is' if now == 1 else 'are'} whole now{names}."
    if now >= wanted:
        return
    if then < wanted:
        yield f"No moves were found that give {wanted}; {then} is the most that was found."
    if size.moves:
        yield f"{then} would be whole if {_those(size.moves)} moved:"
        yield from _table(size.moves, size.lost_gpu_seconds)


def _those(pods: Sequence[MovedPod]) -> str:
    return "this pod" if len(pods) == 1 else f"these {len(pods)} pods"


def _table(pods: Sequence[MovedPod], lost: float) -> Iterator[str]:
    rows = [_HEADER, *(_row(pod) for pod in pods[:_MOST_PODS])]
    if len(pods) > _MOST_PODS:
        rows.append((f"and {len(pods) - _MOST_PODS} more; -o json has all", "", "", "", "", ""))
    rows.append(("total", "", "", "", "", f"{lost:,.0f}"))
    yield from aligned(rows, (5,)).splitlines()


def _row(pod: MovedPod) -> tuple[str, ...]:
    here, there = write_indices(pod.gpus), write_indices(pod.target_gpus)
    return pod.pod, pod.node, here, pod.target, there, f"{pod.lost_gpu_seconds:,.0f}"


def _verdict(moves: JobMoves) -> str:
    saved = moves.saved_gpu_seconds
    if moves.verdict is Verdict.NOT_FIRST:
        return "The extender would not do this now: it is not among the first in the queue."
    if moves.verdict is Verdict.SHORT_WAIT:
        return "The extender would not do this: it expects room within --move-cost."
    does = "With --moves=consent, the extender does this"
    if moves.verdict is Verdict.LATER:
        return f"{does} once it has waited for {duration(moves.after_seconds)}."
    if saved is None:
        return f"{does}: only the end of servers would make room too."
    of = f"the wait that it saves is {saved:,.0f} GPU seconds"
    if moves.verdict is Verdict.LOSES:
        return f"The extender would not do this: {of}, less than it loses."
    return f"{does}: {of}."
