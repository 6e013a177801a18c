"""The answer of `linkwise what-if` for people. One fact per line, with its name in front."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from linkwise.cli.choose.gpu_list import write_indices
from linkwise.cli.table import aligned
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
from linkwise.cli.what_if.facts import fact, some
from linkwise.cli.what_if.moves_text import moves_of_part
from linkwise.cli.what_if.other_pods import in_words
from linkwise.extender.api.views import Explanation, GangExplanation
from linkwise.extender.explain.texts import explanation_text
from linkwise.extender.explain.texts.format import duration, pods_in_words

_MOST_HOLDERS = 8
_MOST_PARTS = 20  # waiting parts that are shown in full
_MOST_OBJECTS = 8  # of the job
_MOST_PODS = 40  # pods that would have to end
_HEADER = ("POD", "RANK", "NODE", "GPUS", "LINK", "GB/s")
_FIGURES = (1, 5)
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
    waiting = _alike(part for part in answer.parts if part.state is not PartState.FITS)
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


def _table(places: Iterable[Place]) -> Iterator[str]:
    rows = [_HEADER, *(_row(place) for place in places)]
    columns = [0, *([1] if any(row[1] != "-" for row in rows[1:]) else []), 2, 3, 4, 5]
    rows = [tuple(row[column] for column in columns) for row in rows]
    figures = [place for place, column in enumerate(columns) if column in _FIGURES]
    yield from aligned(rows, figures).splitlines()


def _row(place: Place) -> tuple[str, ...]:
    return (
        place.pod,
        "-" if place.rank is None else str(place.rank),
        place.node,
        write_indices(place.gpus),
        place.link or "-",
        f"{place.gbytes_per_s:.1f}" if place.link else "-",
    )


def _alike(parts: Iterable[JobPart]) -> list[tuple[JobPart, int]]:
    """Group parts with equal texts: the first of them, and how many others there are."""
    groups: dict[object, list[JobPart]] = {}
    for part in parts:
        key: object = part.name
        if isinstance(part.why, Explanation) and part.why.search is not None:
            start = None if part.start is None else part.start.at
            key = (part.why.summary, part.why.search.levels, start, part.evicts)
        groups.setdefault(key, []).append(part)
    return [(group[0], len(group) - 1) for group in groups.values()]


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
    alike: dict[object, list[OtherPod]] = {}
    for other in answer.without_gpus:
        if other.reasons or other.never:
            key = (*other.reasons.items(), *other.lacks, *other.wanted.items())
            alike.setdefault(key, []).append(other)
    for first, *rest in alike.values():
        yield ""
        more = f", and {len(rest)} more like it" if rest else ""
        yield f"pod {first.pod}, without GPUs{more}: waits"
        if first.never:
            yield fact("when", "never")
        wanted = ", ".join(in_words(name, amount) for name, amount in first.wanted.items())
        yield fact("wanted", wanted or "a place for a pod")
        for number, lack in enumerate(first.lacks):
            yield fact("" if number else "too much", lack)
        yield fact("nodes", "none fits now")
        for reason, count in first.reasons.items():
            yield fact("", f"- {count}: {reason}")
    later: dict[str, list[LaterPod]] = {}
    for each in answer.to_come:
        later.setdefault(each.after, []).append(each)
    for after, pods in later.items():
        yield ""
        yield f"Not created until {after}: {some([each.pod for each in pods])}"


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
        when = _time(part.start.at)
        yield fact("when", f"in {duration(part.start.at - at)} ({when}), if no other job comes")
        nodes = dict.fromkeys(place.node for place in part.start.places if place.node)
        yield fact("where", f"then on {some(tuple(nodes))}")
        for number, held in enumerate(part.waits_for[:_MOST_HOLDERS]):
            yield fact("" if number else "waits for", explanation_text.holder(held, at))
        if len(part.waits_for) > _MOST_HOLDERS:
            yield fact("", f"and {len(part.waits_for) - _MOST_HOLDERS} more")


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
    rows = [("POD", "NODE", "GPUS", "PRIORITY", "ENDS", "GANG"), *(_held(p, at) for p in shown)]
    if not any(pod.gang for pod in shown):
        rows = [row[:-1] for row in rows]
    yield from aligned(rows, (2, 3)).splitlines()
    if len(room.pods) > _MOST_PODS:
        yield f"and {len(room.pods) - _MOST_PODS} more; -o json has all"


def _held(pod: HeldPod, at: float) -> tuple[str, ...]:
    ends = "unknown" if pod.until is None else f"in {duration(pod.until - at)}"
    return pod.pod, pod.node, str(pod.gpus), str(pod.priority), ends, pod.gang or "-"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
