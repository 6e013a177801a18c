"""Tracks what kubelets refuse: all pods with GPUs, more GPUs than they have, or the pods of a
template.

A refused pod has failed for good, and the next one like it would too. Only pods that the extender
placed count: others may ask for what is not there. Nor does it count if pods that it did not place
took the GPUs first: it shows nothing of the kubelet.

A kubelet refuses *all pods with GPUs* while no plugin is registered. After the first refusal the
extender places no other pod on that node until its allocatable GPUs rise, as they do when a plugin
registers. If they do not fall in the first place, the extender places one pod there after a pause,
as a trial.

A kubelet refuses *more GPUs* than it says it has: it lost count of one (kubernetes#130145), or
still counts those of pods that have ended. The extender leaves as many of the node's GPUs free as
the kubelet lacks, until the allocatable GPUs change. After a pause it does without that, until the
next refusal.

A kubelet refuses *pods of a template* for what the extender cannot see: CPUs or memory of a NUMA
node (TopologyAffinityError), devices of another plugin, pods that the extender has not seen yet
(OutOfcpu). So does a vendor's plugin that is asked for what it never gives. After the first refusal
the extender places no other pod of that template on that node. It tries one after a pause, or when
a pod has left the node; a single pod only where no other node takes it. A refusal that no pod has
tested for an hour is forgotten: there may be no such pods any more.

Once the pod that is tried runs, the node is normal again. If it is refused too, the pause doubles.
The state is in memory only; a new extender learns it again.

A pod that was already running is refused when its kubelet has restarted. That kubelet has reported
by then that the node has no GPUs at present, and its refusal may arrive when they are back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_info import NO_TOPOLOGY, NodeInfo
from linkwise.extender.state.records import PodRecord, Refusal, Refuses, Template
from linkwise.extender.state.timers import Agenda

# After a plugin is gone, the kubelet's next status no longer counts its GPUs as allocatable. It
# writes its status every 10 s.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 600.0
_FORGOTTEN_SECONDS = 3600.0
_MOST = 4096  # nodes that refuse some template


@dataclass(slots=True)
class _Refusing:
    said: str
    least: int  # the fewest allocatable GPUs since the refusal
    pause: float
    try_at: float


@dataclass(slots=True)
class _Lacking:
    offers: int  # the allocatable GPUs at the refusal
    pause: float
    try_at: float
    tried: bool = False  # since the last refusal


@dataclass(slots=True)
class _OfTemplate:
    said: str
    pause: float
    try_at: float
    tried: bool = False  # since the last refusal


class KubeletAdmission:
    def __init__(self, cache: Cache, agenda: Agenda) -> None:
        agenda.ask(self._times)
        self._cache = cache
        self._refusing: dict[str, _Refusing] = {}
        self._lacking: dict[str, _Lacking] = {}
        self._templates: dict[tuple[Template, str], _OfTemplate] = {}

    def changed(self, before: PodRecord | None, record: PodRecord, now: float) -> None:
        """A pod was created or changed; the cache already has *record*."""
        node = record.node
        if before is not None and before.running and record.ended:
            self._left(before, now)
        if not node or not (record.demand.gpus or record.shares):
            return
        refusal = record.refusal
        if refusal is not None and before is not None and not (before.ended or before.running):
            self._refused(record, refusal, now)
        elif record.running:
            if node in self._refusing and self._is_tried_on(record):
                self._admits(node)
            self._admits_such(record)

    def gone(self, record: PodRecord, now: float) -> None:
        """A pod was deleted; *record* is what was known of it."""
        if record.running and not record.ended:
            self._left(record, now)

    def look(self, now: float) -> None:
        for node, refusing in list(self._refusing.items()):
            info = self._cache.nodes.get(node)
            if info is None or info.record is None:
                self._admits(node)
                continue
            offers = info.record.offers.gpus
            if offers > refusing.least:
                self._admits(node)
                continue
            refusing.least = offers
            if now >= refusing.try_at:
                refusing.try_at = now + refusing.pause  # if the trial pod is deleted
                # One that is planned there, and not bound yet, is still to be tried.
                beside = info.there - (info.plans.keys() - info.assumed.keys())
                self._cache.set_refusing(node, refusing.said, tried_beside=beside)
        for node, lacking in list(self._lacking.items()):
            self._look_at(node, lacking, now)
        for (template, node), refusing_such in list(self._templates.items()):
            info = self._cache.nodes.get(node)
            if info is None or info.record is None:
                self._forget(template, node)
            elif now >= refusing_such.try_at:
                self._try(template, node, refusing_such, now)

    def _times(self) -> Iterable[float]:
        yield from (refusing.try_at for refusing in self._refusing.values())
        yield from (lacking.try_at for lacking in self._lacking.values())
        yield from (refusing.try_at for refusing in self._templates.values())

    def _look_at(self, node: str, lacking: _Lacking, now: float) -> None:
        info = self._cache.nodes.get(node)
        offers = info.record.offers.gpus if info is not None and info.record is not None else None
        if offers != lacking.offers:
            del self._lacking[node]
        elif now < lacking.try_at:
            return
        elif lacking.tried:
            del self._lacking[node]
        else:
            lacking.tried, lacking.try_at = True, now + _FORGOTTEN_SECONDS
        self._cache.set_lacking(node, 0)

    def _refused(self, record: PodRecord, refusal: Refusal, now: float) -> None:
        info = self._cache.nodes.get(record.node)
        if info is None or info.record is None:
            return
        # Where pods are placed by count, there are no plans.
        if record.plan_for(record.node) is None and info.no_topology != NO_TOPOLOGY:
            return
        if refusal.of is not Refuses.SUCH and _is_crowded_out(record, info):
            return
        said = f"{record.key}: {refusal.said}" if refusal.said else record.key
        lacks = info.beside_bound - refusal.available
        if refusal.of is Refuses.ALL or record.template is None:
            self._refuses_all(record.node, said, now)
        elif refusal.of is Refuses.MORE and lacks > 0:
            self._refuses_more(record.node, lacks, now)
        else:
            self._refuses_such(record.template, record.node, said, now)

    def _refuses_more(self, node: str, lacks: int, now: float) -> None:
        info, before = self._cache.nodes[node], self._lacking.get(node)
        assert info.record is not None, "_refused() checked it"
        pause = _next_pause(before)
        self._lacking[node] = _Lacking(info.record.offers.gpus, pause, now + pause)
        self._cache.set_lacking(node, lacks)

    def _refuses_all(self, node: str, said: str, now: float) -> None:
        info = self._cache.nodes[node]
        assert info.record is not None, "_refused() checked it"
        before = self._refusing.get(node)
        pause = FIRST_PAUSE_SECONDS
        if before is not None:
            # Bindings of other pods may have been in flight at the first refusal.
            pause = 2 * before.pause if info.tried_beside is not None else before.pause
        pause = min(pause, LONGEST_PAUSE_SECONDS)
        self._refusing[node] = _Refusing(said, info.record.offers.gpus, pause, now + pause)
        self._cache.set_refusing(node, said)

    def _refuses_such(self, template: Template, node: str, said: str, now: float) -> None:
        before = self._templates.pop((template, node), None)
        if before is None and len(self._templates) >= _MOST:
            self._forget(*next(iter(self._templates)))
        pause = _next_pause(before)
        self._templates[template, node] = _OfTemplate(said, pause, now + pause)
        self._cache.turn_away(template, node, said, trial=False)

    def _try(self, template: Template, node: str, refusing: _OfTemplate, now: float) -> None:
        if refusing.tried and not self._cache.turned_away.takes_none(template, node):
            self._forget(template, node)
            return
        refusing.try_at = now + _FORGOTTEN_SECONDS
        if not refusing.tried:
            refusing.tried = True
            self._cache.turn_away(template, node, refusing.said, trial=True)

    def _left(self, record: PodRecord, now: float) -> None:
        """A pod that ran has left its node: what it used may be what others lacked. The members of
        a gang that is refused leave together, and tell nothing."""
        for (template, node), refusing in self._templates.items():
            is_own = template is record.template and record.gang
            if node == record.node and not (refusing.tried or is_own):
                refusing.try_at = min(refusing.try_at, now)

    def _admits(self, node: str) -> None:
        del self._refusing[node]
        self._cache.set_refusing(node, "")

    def _admits_such(self, record: PodRecord) -> None:
        template = record.template
        if template is None or (template, record.node) not in self._templates:
            return
        if self._cache.turned_away.is_tried(template, record.node, record.uid):
            self._forget(template, record.node)

    def _forget(self, template: Template, node: str) -> None:
        del self._templates[template, node]
        self._cache.turn_away(template, node, "", trial=None)

    def _is_tried_on(self, record: PodRecord) -> bool:
        """Whether the pod is on its node to test whether the kubelet refuses it."""
        info = self._cache.nodes.get(record.node)
        beside = None if info is None else info.tried_beside
        return beside is not None and record.uid not in beside


def _next_pause(before: _Lacking | _OfTemplate | None) -> float:
    """Twice as long where a pod was refused that was to test it; others were on their way."""
    if before is None:
        return FIRST_PAUSE_SECONDS
    return min(2 * before.pause if before.tried else before.pause, LONGEST_PAUSE_SECONDS)


def _is_crowded_out(record: PodRecord, info: NodeInfo) -> bool:
    """Whether the node had too few GPUs for the pod beside those that named the node themselves, or
    that another scheduler placed there."""
    assert info.record is not None, "_refused() checked it"
    others = (p for p in info.bound.values() if p.live and p.plan_for(info.name) is None)
    strange = sum(pod.demand.gpus for pod in others if pod.uid != record.uid)
    return bool(strange) and strange + record.demand.gpus > info.record.offers.gpus
