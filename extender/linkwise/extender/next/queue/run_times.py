"""Remembers how long GPU pods ran, and estimates how long those continue that do not declare it.

The estimate for a pod comes from pods that ended: of the same namespace, owner's kind and number of
GPUs; if too few of those ran as long as this pod already has, of its namespace, and then of the
cluster. The estimate is the median of the time that they had left. If nothing is known, a pod is
expected to run as long again as it already has: run times of GPU jobs spread over orders of
magnitude, and for such a distribution (a Pareto tail) the time left grows with the age. The order
of pods that wait goes by `means`. The times are in memory only. A standby learns them too, and
keeps them when it leads; a new process starts without any.

Tenants share this memory. Where it is full, the namespace that has the most entries loses its
oldest one, so no namespace takes away what was learnt of another.

Pods that end soon may use GPUs that are reserved for others, so these times must not deceive. Pods
that still run count too: those that ended are mostly the short ones. And a declared time is a word
that a namespace keeps or breaks: if too many of its pods ran longer, its words do not count.

Reservations depend on when the GPUs of a node come free (`RunningPods`):

- A pod declares with `linkwise.dev/expected-duration` how long it runs, counted from its plan.
- If a pod runs longer than it declared, or declares nothing, its end is estimated.
- A server, whose containers the kubelet restarts however they end, never ends by itself.
- A pod that is ending is the next to end. If it takes far longer than its grace period, it is
  stuck.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.records import PodRecord, ResourceList

# After the grace period of a pod, or its end, the kubelet and the plugin return its GPUs within
# seconds. A pod that takes longer is stuck: a dead node, a process in the driver, a finalizer.
STUCK_SECONDS = 60.0
_FRESH_SECONDS = 30.0  # how long an estimate is reused
_NOTHING = ResourceList()
# For a pod that has just started, if nothing is known: a GPU job takes this long to be worth it.
LEAST_SECONDS = 600.0
ENOUGH = 3  # pods that ran for longer
MANY = 8  # pods that ended: the chance that the next one outlasts them all is one in nine
_MOST_TIMES = 64  # remembered of each kind
_MOST_KINDS = 4096
_LONGEST_KIND = 63  # letters, of a custom resource; the API server lets a pod's owner have any kind

# A word is broken by a pod that runs for a tenth longer, and for longer than pods take to start and
# end. So many broken words, and more than one of ten, and a namespace's words do not count.
_LATE, _LATE_SECONDS = 1.1, 60.0
_MOST_BROKEN, _BROKEN_SHARE = 2, 0.1

PodKind = tuple[str, ...]
"""Namespace, owner's kind and number of GPUs; or the namespace alone; or empty for all pods."""


class RunTimesOf(Protocol):
    """What depends on how long pods run asks this."""

    def of(self, pod: PodRecord) -> float | None:
        """See `RunTimes.of`."""


class _Crowd:
    """How many entries each namespace has in a memory that is shared."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}  # by namespace
        # number of entries -> namespaces; that of which nothing was heard for longest is first
        self._having: dict[int, OrderedDict[str, None]] = {}

    def hear(self, namespace: str, more: int) -> None:
        """Something of the namespace came or changed; it has so many *more* entries now."""
        had = self._entries.pop(namespace, 0)
        if had:
            del self._having[had][namespace]
            if not self._having[had]:
                del self._having[had]
        if had + more:
            self._entries[namespace] = had + more
            self._having.setdefault(had + more, OrderedDict())[namespace] = None

    def take_from_most(self) -> str:
        """The namespace that loses an entry, as it has the most."""
        loser = next(iter(self._having[max(self._having)]))
        self.hear(loser, -1)
        return loser


class _Times:
    """The latest run times of one kind of pods."""

    def __init__(self) -> None:
        self._latest: dict[str, deque[float]] = {}  # by namespace
        self._crowd = _Crowd()
        self._rising: list[float] = []

    def add(self, seconds: float, namespace: str) -> None:
        self._latest.setdefault(namespace, deque()).append(seconds)
        self._crowd.hear(namespace, 1)
        insort(self._rising, seconds)
        if len(self._rising) > _MOST_TIMES:
            loser = self._crowd.take_from_most()
            oldest = self._latest[loser].popleft()
            del self._rising[bisect_right(self._rising, oldest) - 1]
            if not self._latest[loser]:
                del self._latest[loser]

    def left(self, age: float) -> float | None:
        """The expected seconds left at *age*; None: too few pods ran that long."""
        first = bisect_right(self._rising, age)
        longer = len(self._rising) - first
        return None if longer < ENOUGH else self._rising[first + longer // 2] - age

    def mean(self, most: float) -> float | None:
        """The mean seconds, where a longer run counts as *most*; None: too few pods ended."""
        known = len(self._rising)
        return None if known < ENOUGH else sum(min(each, most) for each in self._rising) / known

    def half(self, running: Callable[[float], int] = lambda _: 0) -> float | None:
        """The seconds within which half of the pods end; None: too few have ended, or too many are
        *running* for longer."""
        known = len(self._rising)
        if known < MANY:
            return None
        for number in range(known // 2, known):
            seconds = self._rising[number]
            if 2 * (number + 1) >= known + running(seconds):
                return seconds
        return None


class _Running:
    """The pods of one kind that run, by when each began."""

    def __init__(self) -> None:
        self._began: list[float] = []  # rising

    def __len__(self) -> int:
        return len(self._began)

    def add(self, began: float) -> None:
        insort(self._began, began)

    def remove(self, began: float) -> None:
        del self._began[bisect_right(self._began, began) - 1]

    def before(self, moment: float) -> int:
        """How many began before that."""
        return bisect_left(self._began, moment)


class _Words:
    """Whether the pods of a namespace ran for as long as they declared."""

    def __init__(self) -> None:
        self.kept: deque[bool] = deque(maxlen=_MOST_TIMES)  # of pods that ended
        self.due = _Running()  # of those that run: by when the word will be broken

    def counts(self, now: float) -> bool:
        late = self.due.before(now)
        broken = self.kept.count(False) + late
        return broken <= max(_MOST_BROKEN, _BROKEN_SHARE * (len(self.kept) + late))


@dataclass(frozen=True, slots=True)
class KnownRunTimes:
    """A copy of what `RunTimes.of` depends on."""

    half: Mapping[PodKind, float]
    broken: frozenset[str]  # namespaces whose words do not count

    def of(self, pod: PodRecord) -> float | None:
        """See `RunTimes.of`."""
        word_counts = pod.ref.namespace not in self.broken
        return _run_time(pod, self.half.get, word_counts=word_counts)


class RunTimes:
    def __init__(self) -> None:
        self._of_kind: dict[PodKind, _Times] = {}
        # namespace -> its kinds, the last heard of is last; empty: the kind of all pods
        self._kinds: dict[str, OrderedDict[PodKind, None]] = {}
        self._crowd = _Crowd()
        self._running: dict[PodKind, _Running] = {}
        # Of those that run, by uid: kind, namespace, declared seconds, and when it began.
        self._began: dict[str, tuple[PodKind, str, float | None, float]] = {}
        # By namespace; that of the pod that ended last is last.
        self._words: OrderedDict[str, _Words] = OrderedDict()
        self._now = 0.0

    def __len__(self) -> int:
        """The number of kinds of pods with remembered times."""
        return len(self._of_kind)

    def at(self, now: float) -> None:
        """The time for which the answers are from now on."""
        self._now = now

    def runs(self, pod: PodRecord, began: float) -> None:
        """Record that *pod* has had its GPUs since *began*; only the first call counts."""
        if pod.uid in self._began or pod.endless:
            return
        kind, namespace = next(_kinds(pod)), pod.ref.namespace
        said = pod.declared_seconds(pod.plan_for(pod.node))
        self._began[pod.uid] = kind, namespace, said, began
        self._running.setdefault(kind, _Running()).add(began)
        if said is not None:
            self._words.setdefault(namespace, _Words()).due.add(began + broken_after(said))

    def ended(self, pod: PodRecord, seconds: float) -> None:
        """Record that *pod* ended *seconds* after it got its GPUs."""
        self._forget(pod.uid, seconds)
        for kind in _kinds(pod):
            self._of_kind.setdefault(kind, _Times()).add(seconds, pod.ref.namespace)
            self._heard_of(kind)
        while len(self._of_kind) > _MOST_KINDS:
            self._forget_a_kind()

    def _heard_of(self, kind: PodKind) -> None:
        namespace = kind[0] if kind else ""
        kinds = self._kinds.setdefault(namespace, OrderedDict())
        self._crowd.hear(namespace, int(kind not in kinds))
        kinds[kind] = None
        kinds.move_to_end(kind)

    def _forget_a_kind(self) -> None:
        loser = self._crowd.take_from_most()
        kind, _ = self._kinds[loser].popitem(last=False)
        del self._of_kind[kind]
        if not self._kinds[loser]:
            del self._kinds[loser]

    def _forget(self, uid: str, seconds: float) -> None:
        known = self._began.pop(uid, None)
        if known is None:
            return
        kind, namespace, said, began = known
        self._running[kind].remove(began)
        if not self._running[kind]:
            del self._running[kind]
        if said is not None:
            words = self._words[namespace]
            words.due.remove(began + broken_after(said))
            words.kept.append(seconds <= broken_after(said))
            self._words.move_to_end(namespace)
            if len(self._words) > _MOST_KINDS:
                silent = (each for each, its in self._words.items() if not its.due)
                self._words.pop(next(silent, ""), None)

    def word_counts(self, namespace: str) -> bool:
        """Whether the pods of this namespace mostly run no longer than they declare."""
        words = self._words.get(namespace)
        return words is None or words.counts(self._now)

    def of(self, pod: PodRecord, *, is_believed: bool = True) -> float | None:
        """For how many seconds *pod* runs once it has its GPUs: as declared, if it *is believed*
        and the word of its namespace counts, or as half of the pods of its own kind do. None:
        unknown, or it never ends by itself."""
        word_counts = is_believed and self.word_counts(pod.ref.namespace)
        return _run_time(pod, self.half, word_counts=word_counts)

    def expected(self, pod: PodRecord) -> float:
        """The same, but as `learnt` if it is not declared. Infinity: nothing is known, or it never
        ends by itself."""
        word_counts = self.word_counts(pod.ref.namespace)
        found = _run_time(pod, lambda _: self.learnt(pod, 0.0), word_counts=word_counts)
        return math.inf if found is None else found

    def has_kept_words(self, namespace: str) -> bool:
        """Whether enough of its pods that ended have run no longer than they declared."""
        words = self._words.get(namespace)
        return words is not None and words.kept.count(True) >= MANY

    def known(self, unproven: Iterable[str] = ()) -> KnownRunTimes:
        """A copy for as long as nothing changes. *unproven*: other namespaces whose words count for
        no claimant."""
        return KnownRunTimes(
            self._of_kinds(self.half),
            self.broken().union(unproven),
        )

    def _of_kinds(self, what: Callable[[PodKind], float | None]) -> dict[PodKind, float]:
        found = {kind: what(kind) for kind in self._of_kind}
        return {kind: seconds for kind, seconds in found.items() if seconds is not None}

    def broken(self) -> frozenset[str]:
        """The namespaces whose declared times do not count."""
        return frozenset(each for each in self._words if not self.word_counts(each))

    def left(self, pod: PodRecord, age: float) -> float:
        """For how many more seconds *pod*, which has had its GPUs for *age*, is expected to run."""
        learnt = self.learnt(pod, age)
        return max(age, LEAST_SECONDS) if learnt is None else learnt

    def learnt(self, pod: PodRecord, age: float) -> float | None:
        """`left`, as learnt from pods that ended; None: too few like it ran for so long."""
        for kind in _kinds(pod):
            times = self._of_kind.get(kind)
            left = None if times is None else times.left(age)
            if left is not None:
                return left
        return None

    def half(self, kind: PodKind) -> float | None:
        """The seconds within which half of the pods of *kind* end; None: too few have ended, or too
        many run for longer."""
        times, running = self._of_kind.get(kind), self._running.get(kind)
        if times is None:
            return None
        if running is None:
            return times.half()
        return times.half(lambda seconds: running.before(self._now - seconds))

    def means(self, most: float) -> dict[PodKind, float]:
        """The mean run time in seconds, where a longer run counts as *most*, for all kinds of which
        enough pods have ended.

        The mean, and not the median: those behind a pod wait for its whole run. If the shortest
        expected run goes first (SEPT), one machine's mean wait is the least (Rothkopf 1966). The
        limit is no part of that rule: it keeps one run of weeks from outweighing all others.
        """
        return self._of_kinds(lambda kind: self._of_kind[kind].mean(most))


def _run_time(
    pod: PodRecord, learnt: Callable[[PodKind], float | None], *, word_counts: bool
) -> float | None:
    """`RunTimes.of`, where it is known of kinds, and of the pod's namespace, what to believe."""
    if pod.ask.expected_seconds is not None and word_counts:
        return pod.ask.expected_seconds
    return None if pod.endless else learnt(next(_kinds(pod)))


def expected_run_time(
    pod: PodRecord, means: Mapping[PodKind, float], broken: frozenset[str]
) -> float:
    """For how many seconds *pod* runs once it has its GPUs: as declared, if its namespace is not in
    *broken*, or the first of `RunTimes.means`, limited as those are, that is known for a kind of
    it. Infinity: it never ends by itself."""
    if pod.ask.expected_seconds is not None and pod.ref.namespace not in broken:
        return pod.ask.expected_seconds
    if pod.endless:
        return math.inf
    return next((means[kind] for kind in _kinds(pod) if kind in means), LEAST_SECONDS)


def broken_after(said: float) -> float:
    """After how many seconds a pod has run longer than it declared."""
    return _LATE * said + _LATE_SECONDS


def _kinds(pod: PodRecord) -> Iterator[PodKind]:
    """The most specific kind first."""
    namespace = pod.ref.namespace
    yield namespace, pod.owner_kind[:_LONGEST_KIND], str(pod.needs.gpus)
    yield (namespace,)
    yield ()


@dataclass(frozen=True, slots=True)
class Tenant:
    uid: str
    gpus: int  # bitmask
    needs: ResourceList  # the resources that come free with the GPUs
    pods: int  # 1; 0 for a pod that has ended, and whose GPUs are not yet returned
    end: float  # when its GPUs come free; infinity: never by itself
    sure: bool  # the pod declares its end, or is ending, or never ends; else it is an estimate
    known: bool = True  # False: the estimate has no ground, as no such pod has ended yet
    late: bool = False  # it runs for longer than it declared

    @property
    def endless(self) -> bool:
        return self.end == math.inf


@dataclass(frozen=True, slots=True)
class OnNode:
    """The running pods of one node."""

    all: tuple[Tenant, ...]
    until: float  # when this has to be computed again

    def without(self, uids: Container[str]) -> tuple[Tenant, ...]:
        return tuple(tenant for tenant in self.all if tenant.uid not in uids)


class RunningPods:
    """Computes the running pods of a node again only if the node changed or an estimate is old."""

    def __init__(self, cache: Cache, run_times: RunTimes) -> None:
        self._cache, self._run_times = cache, run_times
        self._known: dict[str, tuple[object, OnNode]] = {}
        # node -> uid -> since when the cache shows that the pod has ended or is gone
        self._ended: dict[str, dict[str, float]] = {}

    def on(self, info: NodeInfo, now: float) -> OnNode:
        state = (info.settled, info.version)
        known = self._known.get(info.name)
        if known is not None and known[0] == state and now < known[1].until:
            return known[1]
        found = self._on_node(info, now)
        self._known[info.name] = (state, found)
        return found

    def tenant(self, record: PodRecord, now: float) -> Tenant:
        """A live pod on its node; one with shares alone has no GPUs."""
        info = self._cache.nodes[record.node]
        known = next((each for each in self.on(info, now).all if each.uid == record.uid), None)
        return self._running(info, record, 0, now) if known is None else known

    def leaving(self, info: NodeInfo, now: float) -> Mapping[str, int]:
        """uid -> GPUs of the pods that are about to return them."""
        return {
            tenant.uid: tenant.gpus
            for tenant in self.on(info, now).all
            if tenant.sure and tenant.end <= now
        }

    def forget_all_but(self, names: Container[str]) -> None:
        for known in (self._known, self._ended):
            for name in [name for name in known if name not in names]:
                del known[name]

    def _on_node(self, info: NodeInfo, now: float) -> OnNode:
        ended = self._note_ended(info, now)
        running_pods, until = [], now + _FRESH_SECONDS
        for uid, gpus in info.owned.items():
            record = self._cache.pods.get(uid)
            since = ended.get(uid)
            if since is None and record is not None and record.leaving:
                since = record.leaving_until
            if since is not None:
                stuck_at = since + STUCK_SECONDS
                tenant = self._ending(record, uid, gpus, since, now)
                until = min(until, stuck_at) if now < stuck_at else until
            else:
                assert record is not None, "a pod that is gone is in *ended*"
                tenant = self._running(info, record, gpus, now)
                until = min(until, tenant.end) if tenant.sure else until
            running_pods.append(tenant)
        return OnNode(tuple(running_pods), until)

    def _note_ended(self, info: NodeInfo, now: float) -> Mapping[str, float]:
        before = self._ended.get(info.name, {})
        ended = {
            uid: before.get(uid, now)
            for uid in info.owned
            if (record := self._cache.pods.get(uid)) is None or record.ended
        }
        if ended:
            self._ended[info.name] = ended
        else:
            self._ended.pop(info.name, None)
        return ended

    @staticmethod
    def _ending(record: PodRecord | None, uid: str, gpus: int, since: float, now: float) -> Tenant:
        is_stuck = now >= since + STUCK_SECONDS
        end = now + (now - since) if is_stuck else now
        if record is None or record.ended:
            return Tenant(uid, gpus, _NOTHING, 0, end, sure=not is_stuck, known=not is_stuck)
        return Tenant(uid, gpus, record.needs, 1, end, sure=not is_stuck, known=not is_stuck)

    def _running(self, info: NodeInfo, record: PodRecord, gpus: int, now: float) -> Tenant:
        written = record.plan_for(info.name) if record.node else self._cache.plans.get(record.uid)
        since = record.created if written is None else written.plan.made
        said = record.declared_seconds(written)
        late = said is not None and now > since + broken_after(said)
        if not self._run_times.word_counts(record.ref.namespace):
            said = None
        if said is not None and written is not None and since + said > now:
            return Tenant(record.uid, gpus, record.needs, 1, since + said, sure=True)
        if record.endless:
            return Tenant(record.uid, gpus, record.needs, 1, math.inf, sure=True)
        age = max(now - since, 0.0)
        end, known = now + self._run_times.left(record, age), self._run_times.learnt(record, age)
        return Tenant(
            record.uid, gpus, record.needs, 1, end, sure=False, known=known is not None, late=late
        )
