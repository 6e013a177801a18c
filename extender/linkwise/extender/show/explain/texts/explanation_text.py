"""An explanation as text for a terminal: why a pod is where it is, or why it waits.

The reader may not know Linkwise. Each line has one fact with its name in front, so that `grep`
finds it.
"""

from collections.abc import Callable, Iterator, Sequence

from linkwise.drawing.words import (
    alike,
    counted,
    duration,
    fact,
    facts,
    gpus_in_words,
    moment,
    pods_in_words,
    some,
)
from linkwise.extender.show.explain.levels import SHARES
from linkwise.extender.show.explain.texts import worth_text
from linkwise.extender.show.explain.texts.format import (
    closed_in_words,
    resources_in_words,
)
from linkwise.extender.state.views import (
    ClusterExplanation,
    EndSource,
    Explanation,
    GangExplanation,
    GangView,
    Holder,
    HolderState,
    LevelView,
    MemberView,
    NearestMiss,
    PodState,
    RequestView,
    ReservationView,
    SearchView,
)
from linkwise.pods.spans import NODE, domain_in_words

_MOST_MEMBERS = 40
_MOST_RANKS = 16


def pod(it: Explanation, at: float) -> str:
    """Several lines, without a last line feed."""
    return "\n".join(_pod(it, at))


def gang(it: GangExplanation, at: float) -> str:
    return "\n".join(_gang(it, at))


def all_that_waits(it: ClusterExplanation, namespace: str = "") -> str:
    """All waiting gangs and pods; pods with equal explanations appear once. *namespace* only
    changes the sentence that says that nothing waits."""
    return "\n".join(_cluster(it, namespace))


def in_short(it: GangExplanation | Explanation, at: float) -> str:
    """Why it waits, without its members, as in `all_that_waits`."""
    lines = _in_short(it, at) if isinstance(it, GangExplanation) else _pod_in_short(it, 0, at)
    return "\n".join(lines)


def _pod(it: Explanation, at: float) -> Iterator[str]:
    waits = it.state is PodState.WAITING and it.since is not None
    state = f"has waited {duration(at - it.since)}" if waits and it.since else it.state
    yield f"{it.namespace}/{it.name}: {state}"
    if it.summary:
        yield f"  {it.summary}"
    if it.wanted is not None:
        yield fact("wanted", _wanted(it.wanted))
    if it.because:
        yield fact("rule", it.because)
    if it.node:
        yield fact("node", it.node)
    yield from _devices(it)
    yield from worth_text.of_pod(it)
    if it.gang is not None and it.gang.waits:
        yield ""
        yield from _gang(it.gang, at)
        return
    if it.search is not None:
        yield from _search(it.search, at)
    yield from _place(it)
    yield from _reclaim(it, at)
    yield from _advised(it)
    if it.gang is not None:
        yield from _gang_facts(it.gang.gang, at)


def _gpu(it: Explanation, uuid: str) -> str:
    return f"{it.indices[uuid]} ({uuid})" if uuid in it.indices else uuid


def _by_index(it: Explanation) -> Callable[[str], int]:
    return lambda uuid: it.indices.get(uuid, 0)


def _devices(it: Explanation) -> Iterator[str]:
    for container, uuids in it.gpus.items():
        gets = it.wanted.containers.get(container, 0) if it.wanted is not None else 0
        if 0 < gets < len(uuids):  # which of them, the kubelet decides
            which = ", ".join(_gpu(it, uuid) for uuid in sorted(uuids, key=_by_index(it)))
            yield fact("GPU", f"{container}: {gets} of {which}")
            continue
        for uuid in sorted(uuids, key=_by_index(it)):
            yield fact("GPU", f"{container}: {_gpu(it, uuid)}")
    named = {uuid for uuids in it.gpus.values() for uuid in uuids}
    for claim, uuids in it.claims.items():
        if named.issuperset(uuids):
            yield fact("claim", claim)
            continue
        for uuid in sorted(uuids, key=_by_index(it)):
            yield fact("GPU", f"claim {claim}: {_gpu(it, uuid)}")
    for container, shares in it.shares.items():
        for resource, ids in shares.items():
            yield from (fact("share", f"{container}: {each} ({resource})") for each in ids)


def _gang(it: GangExplanation, at: float) -> Iterator[str]:
    view = it.gang
    waits = it.waits and view.since is not None
    state = f"has waited {duration(at - view.since)}" if waits and view.since else view.phase
    yield f"gang {view.namespace}/{view.name}: {state}"
    if it.summary:
        yield f"  {it.summary}"
    if it.levels:
        yield from _levels("pods", it.levels)
    for search in it.searches:
        yield fact("wanted", f"by {_by(search.pods)}: {_wanted(search.wanted)}")
        yield from _search(search, at)
    yield from _nearest(it.nearest, at)
    yield from _order(it, at)
    yield from _gang_facts(view, at)


def _place(it: GangExplanation | Explanation) -> Iterator[str]:
    if it.ahead:
        one = it.ahead == 1
        ahead = "1 gang or pod" if one else f"{it.ahead} gangs or pods"
        last = f": {it.behind}" if one else f", the last is {it.behind}"
        yield fact("order", f"{ahead} ahead of it {'has' if one else 'have'} no room either{last}")
    if it.seniority is not None:
        seniority, name = it.seniority, "" if it.ahead else "order"
        which = "older" if seniority.shift_seconds < 0 else "younger"
        shift = f"{duration(abs(seniority.shift_seconds))} {which}"
        runs = "never ends by itself"
        if seniority.expected_seconds is not None:
            runs = f"its run counts as {duration(seniority.expected_seconds)}"
        yield fact(name, f"counts as {shift} than it is: {gpus_in_words(seniority.gpus)}, {runs}")


def _order(it: GangExplanation, at: float) -> Iterator[str]:
    yield from _place(it)
    reservation = it.reservation
    if reservation is None and it.rests_until is not None:
        until = f"until {_time(it.rests_until)} ({_from_now(it.rests_until, at)})"
        why = "the reservations of its namespace idled for too long"
        yield fact("reserved", f"nothing {until}: {why}")
    if reservation is not None:
        if reservation.evicts:
            start = "the pods on the others are being evicted for it"
        elif reservation.start is None:
            start = (
                "a pod that never ends (restartPolicy: Always) has some of the others"
                if reservation.sure
                else "when all will be free is unknown"
            )
        elif reservation.sure or reservation.start <= at:
            start = _starts(reservation, at)
        else:
            start = f"all free {_from_now(reservation.start, at)}, by an estimate"
        gpus = f"{gpus_in_words(reservation.gpus)} on {some(reservation.nodes)}"
        yield fact("reserved", f"{gpus}: {reservation.free} free now, {start}")
        if any(holder.pod not in _named(it) for holder in reservation.holders):
            yield from _holders("waits for", reservation.holders, at)
    yield from _reclaim(it, at)
    yield from _advised(it)


def _reclaim(it: GangExplanation | Explanation, at: float) -> Iterator[str]:
    if it.reclaim is None:
        return
    begins = "now"
    if it.reclaim.at > at:
        begins = f"from {_time(it.reclaim.at)} on ({_from_now(it.reclaim.at, at)})"
    gone = f"without {some(it.reclaim.units)} it would start"
    yield fact("idle", f"{gone}: Linkwise evicts idle pods {begins}")


def _advised(it: GangExplanation | Explanation) -> Iterator[str]:
    if it.advised:
        moved = f"{pods_in_words(len(it.advised))} moved: {some(it.advised)}"
        yield fact("moves", f"it would start if {moved} (kubectl linkwise moves)")


def _named(it: GangExplanation) -> set[str]:
    """The pods that the text already lists as holders of the nearest misses."""
    nearest = (it.nearest, *(search.nearest for search in it.searches))
    return {holder.pod for each in nearest if each is not None for holder in each.holders}


def _starts(it: ReservationView, at: float) -> str:
    if it.start is not None and it.start > at:
        return f"all expected to be free {_from_now(it.start, at)}"
    return "all of them" if it.free >= it.gpus else "the others should be free by now"


def _gang_facts(view: GangView, at: float) -> Iterator[str]:
    yield fact("gang", f"{view.name}: {view.phase}, a gang of {view.size}")
    if view.reason:
        yield fact("", view.reason)
    if view.missing_ranks:
        ranks = ", ".join(map(str, view.missing_ranks[:_MOST_RANKS]))
        more = ", …" if len(view.missing_ranks) > _MOST_RANKS else ""
        yield fact("missing", f"rank {ranks}{more}")
    if view.plan:
        made = f" made {_time(view.made)}" if view.made is not None else ""
        yield fact("plan", f"{view.plan}{made}")
    if view.deadline is not None:
        when = f"{_time(view.deadline)} ({_from_now(view.deadline, at)})"
        then = "a partial gang gives its GPUs back"
        then = "others may have the kept GPUs" if view.started else then
        yield fact("deadline", f"{when}; then {then}")
    if view.refusals:
        yield fact("refused", f"{counted(view.refusals, 'plan')} so far")
    yield from worth_text.of_gang(view)
    longest = max((len(member.pod) for member in view.members), default=0)
    yield from facts("", [_member(member, longest) for member in view.members], _MOST_MEMBERS)


def _cluster(it: ClusterExplanation, namespace: str) -> Iterator[str]:
    count = it.gpus
    total = sum(count.values())
    gangs, pods = len(it.gangs), len(it.pods)
    held = f", {count['held']} planned for pods about to start" if count["held"] else ""
    held += (
        f", {count['reserved']} reserved for waiting gangs and pods" if count["reserved"] else ""
    )
    broken = f", {count['divided']} divided" if count.get("divided") else ""
    broken += f", {count['unhealthy']} unhealthy" if count["unhealthy"] else ""
    yield (
        f"{count['free']} of {gpus_in_words(total)} on {counted(it.nodes, 'node')} are free, "
        f"{count['used']} in use{held}{broken}."
    )
    yield from closed_in_words(it.closed)
    for each in it.broken_off:
        many = pods_in_words(len(each.pods))
        yield f"{each.scheduler} cannot try {many}, such as {each.pods[0]}: {each.error}"
    if not gangs and not pods:
        if it.broken_off:
            return
        yield f"Nothing waits for GPUs{f' in namespace {namespace}' if namespace else ''}."
        return
    yield (
        f"{counted(gangs, 'gang')} and {pods_in_words(pods)} in no gang wait, "
        "the most urgent first."
    )
    next_gang, next_pod = iter(it.gangs), iter(it.pods)
    others = {first.uid: count for first, count in alike(it.pods, _why)}
    for title in it.order:
        if title.startswith("gang "):
            yield ""
            yield from _in_short(next(next_gang), it.at)
        elif (pod := next(next_pod)).uid in others:
            yield ""
            yield from _pod_in_short(pod, others[pod.uid], it.at)


def _in_short(it: GangExplanation, at: float) -> Iterator[str]:
    view = it.gang
    since = view.since if view.lost_since is None else view.lost_since
    waits = f"has waited {duration(at - since)}" if since is not None else view.phase
    yield f"gang {view.namespace}/{view.name}: {waits}"
    yield f"  {it.summary}"
    failing = [level for level in it.levels if level.have < level.of]
    yield from _levels("pods", failing[-1:])
    if failing and failing[-1].level == "members":
        return
    for search in it.searches:
        yield fact("wanted", f"by {_by(search.pods)}: {_wanted(search.wanted)}")
        yield from _where_it_fails(search)
        yield from _nearest(search.nearest, at)
    yield from _nearest(it.nearest, at)
    yield from _order(it, at)


def _by(pods: int) -> str:
    return f"{pods_in_words(pods)}{', each' if pods > 1 else ''}"


def _pod_in_short(it: Explanation, others: int, at: float) -> Iterator[str]:
    waits = f"has waited {duration(at - it.since)}" if it.since is not None else it.state
    and_others = f", and {others} more like it" if others else ""
    yield f"pod {it.namespace}/{it.name}{and_others}: {waits}"
    yield f"  {it.summary}"
    if it.search is not None:
        yield fact("wanted", _wanted(it.search.wanted))
        yield from _where_it_fails(it.search)
        yield from _nearest(it.search.nearest, at)


def _why(pod: Explanation) -> object:
    """Equal for pods of which the texts differ only in the name."""
    search = id(pod.search) if pod.search is not None else pod.name
    return pod.namespace, pod.summary, search


def _where_it_fails(search: SearchView) -> Iterator[str]:
    failing = [level for level in search.levels if not level.have and not search.room]
    if failing:
        shares = [level for level in failing[1:] if level.level == SHARES]
        yield from _levels("nodes", [failing[0], *shares])
    elif search.levels:
        yield fact("nodes", _room(search))


def _search(search: SearchView, at: float) -> Iterator[str]:
    yield from _levels("nodes", search.levels)
    if search.room or search.pods > 1:
        yield fact("", f"so {'' if search.pods == 1 else 'there is '}{_room(search)}")
    yield from _nearest(search.nearest, at)


def _room(search: SearchView) -> str:
    if search.pods == 1:
        have = search.levels[-1].have
        return f"{have} node{' has' if have == 1 else 's have'} room for it by itself"
    return f"room for {search.room} of {pods_in_words(search.pods)} by themselves"


def _levels(name: str, levels: Sequence[LevelView]) -> Iterator[str]:
    if levels and not any(level.of for level in levels):
        yield fact(name, "none is known to have GPUs: `kubectl linkwise doctor` says why")
    levels = [level for level in levels if level.of]  # a level that no node reaches says nothing
    figures = max((len(str(level.of)) for level in levels), default=0)
    for number, level in enumerate(levels):
        have = f"{level.have:>{figures}} of {level.of:>{figures}}"
        yield fact("" if number else name, f"{have}  {level.wanted}")
        blank = " " * (2 * figures + 6)
        for missing in level.missing:
            yield fact("", f"{blank}- {missing.nodes}: {missing.reason}")
            if missing.example:
                yield fact("", f"{blank}  {missing.example}")


def _nearest(nearest: NearestMiss | None, at: float) -> Iterator[str]:
    if nearest is None:
        return
    place = nearest.place
    if nearest.level != NODE:
        place = domain_in_words(nearest.level, nearest.place)
    yield fact("nearest", f"{place}: {nearest.lacks}")
    yield from _holders("GPUs with", nearest.holders, at)


def _holders(name: str, holders: Sequence[Holder], at: float) -> Iterator[str]:
    return facts(name, [holder_in_words(holder, at) for holder in holders])


def holder_in_words(holder: Holder, at: float) -> str:
    """The holder, its number of GPUs, and until when it has them."""
    whole = holder.gpus - holder.shared
    held = [gpus_in_words(whole)] if whole else []
    if holder.shared:
        share = "a share" if holder.shared == 1 else "shares"
        held.append(f"{share} of {gpus_in_words(holder.shared)}")
    return f"{' and '.join(held)}: {_who_holds(holder, at)}"


def _who_holds(holder: Holder, at: float) -> str:
    who = f"{holder.pod} of gang {holder.gang}" if holder.gang else holder.pod
    match holder.state:
        case HolderState.RESERVED:
            whom = f"gang {holder.gang}" if holder.gang else f"pod {holder.pod}"
            until = holder.until
            start = "" if until is None else f", which can start {_from_now(until, at)}"
            return f"free, but reserved for {whom}{start}"
        case HolderState.USED:
            since = f" for {duration(at - holder.since)}" if holder.since is not None else ""
            return f"{who}, in use{since}{_until(holder, at)}"
        case HolderState.HELD:
            return f"{who}, planned, not started yet{_until(holder, at)}"
        case HolderState.ENDING:
            return f"{who}, is ending{_until(holder, at)}"


def _until(holder: Holder, at: float) -> str:
    if holder.until is None:
        if holder.state is HolderState.ENDING:
            return ""
        server = holder.because is EndSource.ENDLESS
        return ", a server: does not end by itself" if server else ", end unknown"
    if holder.because is not EndSource.EXPECTED:
        return f", given back {_from_now(holder.until, at)} if it cannot start"
    if holder.until < at:
        return f", expected to end {duration(at - holder.until)} ago"
    return f", expected to end {_from_now(holder.until, at)}"


def _member(member: MemberView, width: int) -> str:
    rank = "-" if member.rank is None else str(member.rank)
    where = f" on {member.node}" if member.node else ""
    return f"{rank:>5}  {member.pod:<{width}}  {member.state}{where}"


def _wanted(wanted: RequestView) -> str:
    parts = [gpus_in_words(wanted.gpus)] if wanted.gpus or not wanted.shares else []
    parts += [f"{count} {resource}" for resource, count in wanted.shares.items()]
    if wanted.hardware:
        parts = [f"{part} of {' with '.join(wanted.hardware)}" for part in parts]
    if wanted.share:
        parts.append(f"share {wanted.share}")
    if len(wanted.containers) > 1:
        shares = ", ".join(f"{name} {gpus}" for name, gpus in wanted.containers.items())
        parts[0] += f" ({shares})"
    if wanted.require_link != "node":  # every GPU set meets "node"
        parts.append(f"link {wanted.require_link} required")
    elif wanted.prefer_link and wanted.gpus > 1:
        parts.append(f"link {wanted.prefer_link} preferred")
    parts += resources_in_words(wanted.milli_cpu, wanted.memory, wanted.others.items())
    return ", ".join(parts)


def _from_now(then: float, at: float) -> str:
    return f"in {duration(then - at)}"


def _time(seconds: float) -> str:
    return f"{moment(seconds)} UTC"
