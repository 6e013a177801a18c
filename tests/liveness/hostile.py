"""A tenant that writes whatever the API server lets it write, beside the others.

Its seed decides all of it before the day begins: waves of pods, and what is odd about each. The
same waves can be made plain: pods and gangs of as many GPUs, at the same times, for as long.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec

from linkwise.kube.objects import Pod, SchedulingGate
from linkwise.topology import names
from tests.liveness.day import Day
from tests.odd_pods import (
    NAMESPACE,
    ODDITIES,
    Oddity,
    Sight,
    gang_of_others,
    is_honest,
    lie,
    odd_annotations,
    odd_timeout,
)

change = msgspec.structs.replace

Twist = Callable[[Random, Day, Pod], Pod]
_MINUTE, _HOUR = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Wave:
    """Pods that come at the same time."""

    name: str
    at: float
    pods: int
    gpus: int
    seconds: float  # that each runs
    patience: float  # until those that have no node are deleted
    returns: int  # how often those are created again
    priority: int
    is_gang: bool
    twists: tuple[Twist, ...]


class Hostile:
    def __init__(self, day: Day, seed: int, seconds: float, *, through_queue: bool) -> None:
        """*through_queue*: none of its pods takes GPUs past the scheduling queue."""
        self._day = day
        self._twists = _TWISTS + (_REFUSED if through_queue else _PAST_QUEUE)
        draw = self._draw = Random(f"hostile {seed}")
        self._waves = [
            self._wave(f"h{number}", seconds) for number in range(draw.choice([4, 12, 30]))
        ]
        # The names of its pods that got GPUs, or plans, with their priorities.
        self.got: dict[str, int] = {}
        day.on_gpus = self._got

    def _wave(self, name: str, seconds: float) -> Wave:
        draw = self._draw
        gpus = draw.choice([1, 1, 2, 4, 8])
        return Wave(
            name,
            at=draw.uniform(0, 0.8 * seconds),
            pods=draw.choice([1, 2, 4, 8 // gpus + 1, 24 // gpus]),
            gpus=gpus,
            seconds=30.0 * 60 ** draw.random(),
            patience=draw.choice([5.0, 60.0, 10 * _MINUTE, _HOUR]),
            returns=draw.choice([0, 0, 1, 8]),
            priority=draw.choice([-1_000_000, 0, 0, 0, 1]),  # within its quota
            is_gang=draw.random() < 0.5,
            twists=tuple(draw.sample(self._twists, draw.choice([1, 1, 1, 2, 3]))),
        )

    def begin(self, plain: Mapping[str, int] | None = None) -> None:
        """*plain*: the names of the pods that are to be made, all of them plain, with their
        priorities."""
        day, self._plain = self._day, plain or {}
        for wave in self._waves:
            ranks = [
                rank for rank in range(wave.pods) if plain is None or _name(wave, rank) in plain
            ]
            for rank in ranks:
                size = 0 if plain is None else len(ranks)
                day.at(day.now + wave.at, partial(self._come, wave, rank, size, wave.returns))

    def _come(self, wave: Wave, rank: int, plain_size: int, returns: int) -> None:
        """*plain_size*: of its gang, if it is plain; 0: it is as the wave is."""
        day, name = self._day, _name(wave, rank)
        if day.find(name) is not None:
            return
        draw = Random(f"{name} {returns} {day.seed}")
        size = plain_size or wave.pods
        said = {"gang": wave.name, "gang-size": str(size)} if wave.is_gang and size > 1 else {}

        def alter(pod: Pod) -> Pod:
            for twist in () if plain_size else wave.twists:
                pod = twist(draw, day, pod)
            return pod

        made = day.make(
            name,
            wave.gpus,
            namespace=NAMESPACE,
            said=said,
            priority=self._plain.get(name, wave.priority),
            alter=alter,
        )
        day.runs_for[made.metadata.uid] = wave.seconds
        again = partial(self._come, wave, rank, plain_size, returns - 1) if returns else None
        until = day.now + _HOUR if plain_size else 0.0  # a plain one waits for its turn
        day.after(wave.patience, partial(self._go, made.metadata.uid, wave, until, again))

    def _go(self, uid: str, wave: Wave, until: float, again: Callable[[], None] | None) -> None:
        day = self._day
        pod = day.pods.get(uid)
        if pod is not None and pod.status.phase in ("Pending", "Running"):
            stays = wave.seconds if pod.spec.node_name else wave.patience
            if pod.spec.node_name or day.now < until:
                day.after(stays, partial(self._go, uid, wave, until, again))
                return
        if pod is not None:
            day.remove_pod(pod.metadata.uid)
        if again is not None:
            day.after(1.0, again)

    def _got(self, pod: Pod) -> None:
        if not is_honest(pod):
            self.got[pod.metadata.name] = pod.spec.priority


def _name(wave: Wave, rank: int) -> str:
    return f"{wave.name}-{rank}"


# What may be odd about a pod.


def _pinned(draw: Random, day: Day, pod: Pod) -> Pod:
    """No scheduler is asked."""
    return change(pod, spec=change(pod.spec, node_name=_target(draw, day), scheduling_gates=()))


def _pinned_in_vain(draw: Random, day: Day, pod: Pod) -> Pod:
    """On a full node, whose kubelet refuses it."""
    books = day.core._cache.nodes
    full = sorted(name for name in day.nodes if name in books and not books[name].free)
    return change(pod, spec=change(pod.spec, node_name=draw.choice(full))) if full else pod


def _bound_by_none(draw: Random, day: Day, pod: Pod) -> Pod:
    """A gang, or a pod behind our gate, of a scheduler that there is not."""
    pod = change(pod, spec=change(pod.spec, scheduler_name="other"))
    return draw.choice([_gated, _of(odd_timeout)])(draw, day, pod)


def _bound_by_another(draw: Random, day: Day, pod: Pod) -> Pod:
    node = _target(draw, day)
    day.after(draw.uniform(0.1, 20.0), partial(day.bind_past, pod.metadata.uid, node))
    name = draw.choice(["default-scheduler", "other"])
    return change(pod, spec=change(pod.spec, scheduler_name=name))


def _target(draw: Random, day: Day) -> str:
    """A node that is full, or one with GPUs that are planned or reserved."""
    books = day.core._cache.nodes
    kinds = (
        [name for name in day.nodes if name in books and not books[name].free],
        [name for name in day.nodes if name in books and books[name].set_aside],
        [name for name in day.nodes if name in books and books[name].plans],
        [*day.nodes],
    )
    return draw.choice(sorted(draw.choice(kinds)) or sorted(day.nodes))


def _gated(draw: Random, day: Day, pod: Pod) -> Pod:
    """Behind our gate, and behind one that it lifts much later, or never."""
    gates = tuple(map(SchedulingGate, draw.choice([(names.GATE,), (names.GATE, "a.b/c")])))
    uid = pod.metadata.uid

    def lift() -> None:
        known = day.pods.get(uid)
        if known is not None and not known.spec.node_name:
            ours = tuple(g for g in known.spec.scheduling_gates if g.name == names.GATE)
            day.put_pod(change(known, spec=change(known.spec, scheduling_gates=ours)))

    if draw.random() < 0.7:
        day.after(draw.uniform(1.0, 600.0), lift)
    return change(pod, spec=change(pod.spec, scheduling_gates=gates))


def _changing(draw: Random, day: Day, pod: Pod) -> Pod:
    """It changes what it says, again and again."""
    uid = pod.metadata.uid

    def say(times: int) -> None:
        known = day.pods.get(uid)
        if known is not None and not known.is_leaving:
            oddity = draw.choice([odd_annotations, gang_of_others, lie])
            day.put_pod(oddity(draw, _sight(day), known))
            if times:
                day.after(draw.uniform(0.1, 30.0), partial(say, times - 1))

    day.after(draw.uniform(0.1, 30.0), partial(say, draw.choice([2, 20])))
    return pod


def _lingering(draw: Random, day: Day, pod: Pod) -> Pod:
    """It is deleted soon, and its processes stay until its time is over."""
    name, uid = pod.metadata.name, pod.metadata.uid

    def delete() -> None:
        known = day.pods.get(uid)
        if known is not None and known.spec.node_name:
            day.stuck.add(name)
            day.terminate(name)
            day.after(day.runs_for[uid], partial(day.stuck.discard, name))

    day.after(draw.uniform(1.0, 300.0), delete)
    return pod


def _sight(day: Day) -> Sight:
    machines = {name: day.machine(name) for name in day.nodes}
    uuids = {name: [gpu.uuid for gpu in machine.gpus] for name, machine in machines.items()}
    return Sight(uuids, tuple(day.pods.values()), day.now)


def _of(oddity: Oddity) -> Twist:
    return lambda draw, day, pod: oddity(draw, _sight(day), pod)


_TWISTS: tuple[Twist, ...] = (
    *map(_of, ODDITIES),
    _bound_by_none,
    _gated,
    _changing,
    _lingering,
)
_REFUSED: tuple[Twist, ...] = (_pinned_in_vain,)
_PAST_QUEUE: tuple[Twist, ...] = (_pinned, _bound_by_another)
