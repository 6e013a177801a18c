"""The answer of `linkwise what-if` for people. One fact per line, with its name in front."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from linkwise.cli.choose.gpu_list import write_indices
from linkwise.cli.what_if.answer import (
    By,
    HeldPod,
    JobPart,
    LaterPod,
    OtherPod,
    PartState,
    Place,
    WhatIfAnswer,
    Without,
)
from linkwise.cli.what_if.cluster_text import about_cluster
from linkwise.cli.what_if.moves_text import moves_of_part
from linkwise.cli.what_if.other_pods import in_words
from linkwise.drawing.tables import Column, Table, figure
from linkwise.drawing.words import alike, duration, fact, facts, moment, pods_in_words, some
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.views import Explanation, GangExplanation

_MOST_PARTS = 20  # waiting parts that are shown in full
_MOST_OBJECTS = 8  # of the job
_MOST_PODS = 40  # pods that would have to end
_LEGEND = "\nGB/s: estimated all-reduce bus bandwidth of the pod's GPUs.\n"


def write_text(answer: WhatIfAnswer) -> str:
    return "".join(f"{line}\n" for line in _lines(answer)) + (
        _LEGEND if any(place.node for part in answer.parts for place in part.places) else ""
    )


def _lines(answer: WhatIfAnswer) -> Iterator[str]:
    yield from _about(answer)
    yield ""
    yield _verdict(answer)
    yield from _placed(answer.parts)
    yield from _placed_others(answer)
    waiting = alike((part for part in answer.parts if part.state is not PartState.FITS), _why)
    for part, others in waiting[:_MOST_PARTS]:
        yield ""
        yield from _waiting(part, others, answer)
    if len(waiting) > _MOST_PARTS:
        yield ""
        yield f"and {len(waiting) - _MOST_PARTS} more that wait; -o json has all"
    yield from _others(answer)
    moving = [part for part, _ in waiting[:_MOST_PARTS] if part.moves is not None]
    for part in moving:
        yield ""
        is_all = len(answer.parts) == 1 and all(each.node for each in answer.without_gpus)
        yield from moves_of_part(part, "It" if is_all else _title(part))
    for room in answer.room:
        yield ""
        yield from _room(room, answer.at)


def _about(answer: WhatIfAnswer) -> Iterator[str]:
    yield from about_cluster(answer)
    for title in answer.job[:_MOST_OBJECTS]:
        yield fact("job", title)
    if len(answer.job) > _MOST_OBJECTS:
        yield fact("job", f"and {len(answer.job) - _MOST_OBJECTS} more")
    for note in answer.notes:
        yield fact("note", note)


def _verdict(answer: WhatIfAnswer) -> str:
    if answer.fits:
        if any(part.state is PartState.STARTS for part in answer.parts):
            return "It starts now, though not with all of its pods."
        return "All of it fits now."
    if answer.never is not None:
        even = "even if every pod that can end had ended"
        nevers = [f"pod {other.pod}" for other in answer.without_gpus if other.never]
        if nevers or len(answer.parts) > 1:
            nevers += [_title(part) for part in answer.parts if part.never]
        elif any(len(part.hopeless) < len(part.places) for part in answer.parts):
            nevers += [f"pod {pod}" for part in answer.parts for pod in part.hopeless]
        if nevers:
            return f"It can never run whole on these nodes: no room for {some(nevers)}, {even}."
        of = "It" if len(answer.parts) == 1 else "All of it"
        return f"{of} can never start on these nodes, {even}."
    if _is_not_known(answer):
        return "It does not fit on the nodes that are known. The nodes left out may take it."
    return "It does not fit now."


def _is_not_known(answer: WhatIfAnswer) -> bool:
    """Whether it would never start on the nodes that are known, and others were left out."""
    return not answer.fits and not answer.room and answer.never is None


def _placed(parts: Sequence[JobPart]) -> Iterator[str]:
    """Show gangs one by one, and other pods in one table."""
    singles = [place for part in parts if not part.is_gang for place in part.places if place.node]
    if singles:
        yield ""
        yield from _table(singles)
    for part in parts:
        placed = [place for place in part.places if place.node]
        if part.is_gang and placed:
            yield ""
            yield _gang(part)
            yield from _table(placed)
            if part.span:
                yield f"All of them share {part.span}."


def _gang(part: JobPart) -> str:
    few = f", {part.minimum} are enough" if part.minimum < part.size else ""
    return f"{_title(part)}: {pods_in_words(part.size)}{few}"


def _title(part: JobPart) -> str:
    return f"{'gang' if part.is_gang else 'pod'} {part.namespace}/{part.name}"


def _table(places: Sequence[Place]) -> Iterator[str]:
    columns: list[Column[Place]] = [
        Column("POD", lambda it: it.pod),
        Column("NODE", lambda it: it.node),
        Column("GPUS", lambda it: write_indices(it.gpus)),
        Column("LINK", lambda it: it.link),
        figure("GB/s", lambda it: f"{it.gbytes_per_s:.1f}" if it.link else None),
    ]
    if any(place.rank is not None for place in places):
        columns.insert(1, figure("RANK", lambda it: it.rank))
    if any(place.shares for place in places):
        columns.insert(-2, figure("SHARES", lambda it: len(it.shares) or None))
    yield from Table.of(columns, places).text().splitlines()


def _why(part: JobPart) -> object:
    """Equal for parts of which the texts differ only in the name."""
    if not isinstance(part.why, Explanation) or part.why.search is None:
        return part.name
    start = None if part.start is None else part.start.at
    return part.why.summary, part.why.search.levels, start, part.evicts


def _waiting(part: JobPart, others: int, answer: WhatIfAnswer) -> Iterator[str]:
    title = _gang(part) if part.is_gang else _title(part)
    if others:
        title += f", and {others} more like it"
    have = sum(bool(place.node) for place in part.places)
    if part.state is PartState.STARTS:
        yield f"{title}: {have} of {len(part.places)} have GPUs, and the others wait"
    else:
        yield f"{title}: waits"
        yield from _when(part, answer)
    why = part.why
    if answer.never is not None and len(answer.parts) == 1 and answer.never.why:
        (why, *_) = answer.never.why  # what would be in the way even then
    if why is not None:
        if (
            part.start is not None
            and isinstance(why, GangExplanation)
            and why.reservation is not None
        ):
            why = replace(why, reservation=replace(why.reservation, holders=()))  # shown above
        # The first line says how long it has waited.
        yield from explanation_text.in_short(why, answer.at).splitlines()[1:]


def _placed_others(answer: WhatIfAnswer) -> Iterator[str]:
    placed = [f"{each.pod} on {each.node}" for each in answer.without_gpus if each.node]
    if placed:
        yield ""
        yield f"Without GPUs: {some(placed)}."


def _others(answer: WhatIfAnswer) -> Iterator[str]:
    """Show the pods without GPUs that have no node, and the pods that are not created."""
    waiting = (other for other in answer.without_gpus if other.reasons or other.never)
    for first, others in alike(waiting, _why_other):
        yield ""
        more = f", and {others} more like it" if others else ""
        yield f"pod {first.pod}, without GPUs{more}: waits"
        if first.never:
            yield fact("when", "never")
        wanted = ", ".join(in_words(name, amount) for name, amount in first.wanted.items())
        yield fact("wanted", wanted or "a place for a pod")
        yield from facts("too much", first.lacks, len(first.lacks))
        yield fact("nodes", "none fits now")
        for reason, count in first.reasons.items():
            yield fact("", f"- {count}: {reason}")
    later: dict[str, list[LaterPod]] = {}
    for each in answer.to_come:
        later.setdefault(each.after, []).append(each)
    for after, pods in later.items():
        yield ""
        yield f"Not created until {after}: {some([each.pod for each in pods])}"


def _why_other(pod: OtherPod) -> object:
    return (*pod.reasons.items(), *pod.lacks, *pod.wanted.items())


def _when(part: JobPart, answer: WhatIfAnswer) -> Iterator[str]:
    at = answer.at
    if part.never:
        yield fact("when", "never")
        return
    if part.evicts:
        pods = pods_in_words(len(part.evicts))
        yield fact("evicts", f"Linkwise would evict {pods} for it: {some(part.evicts)}")
    if part.start is None and _is_not_known(answer):
        yield fact("when", "not known: nodes with GPUs are left out")
    elif part.start is None:
        yield fact("when", "unknown: it needs GPUs of pods that do not say when they end")
    else:
        when = f"in {duration(part.start.at - at)} ({moment(part.start.at)} UTC)"
        yield fact("when", f"{when}, if no other job comes")
        nodes = dict.fromkeys(place.node for place in part.start.places if place.node)
        yield fact("where", f"then on {some(tuple(nodes))}")
        holders = [explanation_text.holder_in_words(held, at) for held in part.waits_for]
        yield from facts("waits for", holders)


def _room(room: Without, at: float) -> Iterator[str]:
    count = pods_in_words(len(room.pods))
    few = ", and no fewer would do" if room.fewest else ""
    if not room.pods:
        yield "All of it would start if no other pod waited, or once those end that are ending."
        return
    if room.by is By.EVICTION:
        yield f"kube-scheduler may evict {count} of lower priority for it{few}:"
    else:
        yield f"All of it would start if {count} ended and no other pod waited{few}:"
    shown = room.pods[:_MOST_PODS]
    columns: list[Column[HeldPod]] = [
        Column("POD", lambda it: it.pod),
        Column("NODE", lambda it: it.node),
        figure("GPUS", lambda it: it.gpus),
        figure("PRIORITY", lambda it: it.priority),
        Column(
            "ENDS", lambda it: "unknown" if it.until is None else f"in {duration(it.until - at)}"
        ),
    ]
    if any(pod.gang for pod in shown):
        columns.append(Column("GANG", lambda it: it.gang))
    yield from Table.of(columns, shown).text().splitlines()
    if len(room.pods) > _MOST_PODS:
        yield f"and {len(room.pods) - _MOST_PODS} more; -o json has all"
