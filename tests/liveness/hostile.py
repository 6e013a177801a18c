"""A tenant that writes whatever the API server lets it write, beside the others.

Its seed decides all of it before the day begins: waves of pods, and what is odd about each. The
same waves can be made plain: pods and gangs of as many GPUs, at the same times, for as long.

Left out is what would harm others in any cluster, whatever places the pods: anti-affinity to the
pods of other namespaces, and more CPUs than a node has.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec

from linkwise.kube.objects import (
    Affinity,
    Container,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
    Resources,
    SchedulingGate,
    Toleration,
    TopologySpreadConstraint,
)
from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, write_gpus, write_plan
from tests.extender.cluster import GPU, container
from tests.liveness.world import World

change = msgspec.structs.replace

NAMESPACE = "hostile"
Twist = Callable[[Random, World, Pod], Pod]
_MINUTE, _HOUR = 60.0, 3600.0
_HOSTNAME = "kubernetes.io/hostname"
_TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "1",
    "4096",
    "4097",
    "2147483648",
    "9223372036854775808",
    "1e9",
    "0x10",
    "NaN",
    "inf",
    "null",
    "[]",
    "{}",
    "true",
    "١٢",
    "²",
    "j1x0\n\x00\x1b]0;title\a",
    "\u202egang",
    "gäng 😀",
    "x" * 253,
    "x" * 1025,
    "9" * 5000,
)
_DURATIONS = ("1ms", "1s", "10s", "8760h", "8761h", "999999999h", "0s", "-1s", "1.5h", "1h1h")
_NUMBERS = ("9999999999", "-9223372036854775808", "one", "")
_AMOUNTS = ("0", "65", "128", "2147483648", "9223372036854775807", "1k", "8E")
_BY_PODS = (
    names.GANG,
    names.GANG_SIZE,
    names.GANG_MIN,
    names.GANG_TIMEOUT,
    names.RANK,
    names.REQUIRE_LINK,
    names.PREFER_LINK,
    names.REQUIRE_SPAN,
    names.PREFER_SPAN,
    names.COMMUNICATOR,
    names.GPU_MODEL,
    names.GPU_MEMORY,
    names.PREEMPTIBLE,
    names.EXPECTED_DURATION,
    names.SHARE,
    names.RECLAIM,
    names.PREFIX + "priority",  # there is no such annotation
)


def is_honest(pod: Pod) -> bool:
    return pod.metadata.namespace != NAMESPACE


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
    def __init__(self, world: World, seed: int, seconds: float, *, through_queue: bool) -> None:
        """*through_queue*: none of its pods takes GPUs past the scheduling queue."""
        self._world = world
        self._twists = _TWISTS + (_REFUSED if through_queue else _PAST_QUEUE)
        draw = self._draw = Random(f"hostile {seed}")
        self._waves = [
            self._wave(f"h{number}", seconds) for number in range(draw.choice([4, 12, 30]))
        ]
        # The names of its pods that got GPUs, or plans, with their priorities.
        self.got: dict[str, int] = {}
        world.on_gpus = self._got

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
        world, self._plain = self._world, plain or {}
        for wave in self._waves:
            ranks = [
                rank for rank in range(wave.pods) if plain is None or _name(wave, rank) in plain
            ]
            for rank in ranks:
                size = 0 if plain is None else len(ranks)
                world.at(world.now + wave.at, partial(self._come, wave, rank, size, wave.returns))

    def _come(self, wave: Wave, rank: int, plain_size: int, returns: int) -> None:
        """*plain_size*: of its gang, if it is plain; 0: it is as the wave is."""
        world, name = self._world, _name(wave, rank)
        if world.find(name) is not None:
            return
        draw = Random(f"{name} {returns} {world.seed}")
        size = plain_size or wave.pods
        said = {"gang": wave.name, "gang-size": str(size)} if wave.is_gang and size > 1 else {}

        def alter(pod: Pod) -> Pod:
            for twist in () if plain_size else wave.twists:
                pod = twist(draw, world, pod)
            return pod

        made = world.make(
            name,
            wave.gpus,
            namespace=NAMESPACE,
            said=said,
            priority=self._plain.get(name, wave.priority),
            alter=alter,
        )
        world.runs_for[made.metadata.uid] = wave.seconds
        again = partial(self._come, wave, rank, plain_size, returns - 1) if returns else None
        until = world.now + _HOUR if plain_size else 0.0  # a plain one waits for its turn
        world.after(wave.patience, partial(self._go, made.metadata.uid, wave, until, again))

    def _go(self, uid: str, wave: Wave, until: float, again: Callable[[], None] | None) -> None:
        world = self._world
        pod = world.pods.get(uid)
        if pod is not None and pod.status.phase in ("Pending", "Running"):
            stays = wave.seconds if pod.spec.node_name else wave.patience
            if pod.spec.node_name or world.now < until:
                world.after(stays, partial(self._go, uid, wave, until, again))
                return
        if pod is not None:
            world.remove(pod)
        if again is not None:
            world.after(1.0, again)

    def _got(self, pod: Pod) -> None:
        if not is_honest(pod):
            self.got[pod.metadata.name] = pod.spec.priority


def _name(wave: Wave, rank: int) -> str:
    return f"{wave.name}-{rank}"


# What may be odd about a pod.


def _says(pod: Pod, **said: str) -> Pod:
    own = {names.PREFIX + key.replace("_", "-"): text for key, text in said.items()}
    return _annotated(pod, own)


def _annotated(pod: Pod, said: dict[str, str]) -> Pod:
    meta = pod.metadata
    return change(pod, metadata=change(meta, annotations={**meta.annotations, **said}))


def _odd_annotations(draw: Random, world: World, pod: Pod) -> Pod:  # noqa: ARG001
    keys = draw.sample(_BY_PODS, draw.randint(1, 4))
    return _annotated(pod, {key: draw.choice(_TEXTS + _DURATIONS) for key in keys})


def _gang_of_others(draw: Random, world: World, pod: Pod) -> Pod:
    gangs = [p.metadata.annotations.get(names.GANG) for p in world.pods.values() if is_honest(p)]
    name = draw.choice(sorted({gang for gang in gangs if gang}) or ["j0x0"])
    return _says(pod, gang=name, gang_size=draw.choice(["1", "2", "3", "4096"]), gang_min="1")


def _members_missing(draw: Random, world: World, pod: Pod) -> Pod:  # noqa: ARG001
    gang, size = pod.metadata.name.partition("-")[0], draw.choice(["2", "9", "4096"])
    return _says(pod, gang=gang, gang_size=size, gang_min=draw.choice(["1", "2", size]))


def _odd_timeout(draw: Random, world: World, pod: Pod) -> Pod:  # noqa: ARG001
    gang = pod.metadata.name.partition("-")[0]
    said = pod.metadata.annotations.get(names.GANG_SIZE, "2")
    return _says(pod, gang=gang, gang_size=said, gang_timeout=draw.choice(["1ms", "8760h"]))


def _lie(draw: Random, world: World, pod: Pod) -> Pod:  # noqa: ARG001
    return _says(pod, expected_duration=draw.choice(_DURATIONS[:4]))


def _odd_amount(draw: Random, world: World, pod: Pod) -> Pod:  # noqa: ARG001
    amount = draw.choice(_AMOUNTS)
    return _with_containers(pod, _taking("main", {GPU: amount}))


def _many_containers(draw: Random, world: World, pod: Pod) -> Pod:  # noqa: ARG001
    limits = draw.choice([{GPU: "1"}, {f"{GPU}.shared": "3"}, {"nvidia.com/mig-1g.10gb": "2"}])
    many = draw.choice([2, 8, 13, 64, 100])
    return _with_containers(pod, *(_taking(f"c{number}", limits) for number in range(many)))


def _taking(name: str, limits: dict[str, str]) -> Container:
    resources = Resources(limits={**limits}, requests={"cpu": "10m", **limits})
    return change(container(name, 0), resources=resources)


def _with_containers(pod: Pod, *containers: Container) -> Pod:
    return change(pod, spec=change(pod.spec, containers=containers))


def _many_terms(draw: Random, world: World, pod: Pod) -> Pod:
    nodes = tuple(world.nodes)
    most = draw.choice([1, 40, 600])
    terms = tuple(
        NodeSelectorTerm(
            match_expressions=(
                draw.choice(
                    [
                        Requirement(_HOSTNAME, "In", (*nodes, *map(str, range(number % 100)))),
                        Requirement(f"label-{number}", "Gt", (draw.choice(_NUMBERS),)),
                        Requirement(f"label-{number}", "DoesNotExist"),
                    ]
                ),
            )
        )
        for number in range(most)
    )
    affinity = Affinity(
        node_affinity=NodeAffinity(NodeSelector(terms)),
        pod_affinity=PodAffinity(_pod_terms(draw, most // 20)),
        pod_anti_affinity=PodAffinity(_pod_terms(draw, most // 20)),
    )
    spread = tuple(
        TopologySpreadConstraint(topology_key=f"label-{number}", when_unsatisfiable=how)
        for number, how in enumerate(draw.choices(["DoNotSchedule", "ScheduleAnyway"], k=most // 9))
    )
    tolerations = tuple(Toleration(key=f"taint-{number}") for number in range(most))
    return change(
        pod,
        spec=change(
            pod.spec,
            affinity=affinity if draw.random() < 0.7 else None,
            tolerations=tolerations,
            topology_spread_constraints=spread if draw.random() < 0.3 else (),
            node_selector={_HOSTNAME: draw.choice(nodes)} if draw.random() < 0.3 else {},
        ),
    )


def _pod_terms(draw: Random, most: int) -> tuple[PodAffinityTerm, ...]:
    """Of its own namespace."""
    return tuple(
        PodAffinityTerm(
            topology_key=draw.choice([_HOSTNAME, "zone", f"label-{number}"]),
            label_selector=LabelSelector(
                match_labels={f"label-{number}": draw.choice(["", "a", "x" * 63])}
            ),
        )
        for number in range(most)
    )


def _pinned(draw: Random, world: World, pod: Pod) -> Pod:
    """No scheduler is asked."""
    return change(pod, spec=change(pod.spec, node_name=_target(draw, world), scheduling_gates=()))


def _pinned_in_vain(draw: Random, world: World, pod: Pod) -> Pod:
    """On a full node, whose kubelet refuses it."""
    books = world.core._cache.nodes
    full = sorted(name for name in world.nodes if name in books and not books[name].free)
    return change(pod, spec=change(pod.spec, node_name=draw.choice(full))) if full else pod


def _bound_by_none(draw: Random, world: World, pod: Pod) -> Pod:
    """A gang, or a pod behind our gate, of a scheduler that there is not."""
    pod = change(pod, spec=change(pod.spec, scheduler_name="other"))
    return draw.choice([_gated, _odd_timeout])(draw, world, pod)


def _bound_by_another(draw: Random, world: World, pod: Pod) -> Pod:
    node = _target(draw, world)
    world.after(draw.uniform(0.1, 20.0), partial(world.bind_past, pod.metadata.uid, node))
    name = draw.choice(["default-scheduler", "other"])
    return change(pod, spec=change(pod.spec, scheduler_name=name))


def _target(draw: Random, world: World) -> str:
    """A node that is full, or one with GPUs that are planned or reserved."""
    books = world.core._cache.nodes
    kinds = (
        [name for name in world.nodes if name in books and not books[name].free],
        [name for name in world.nodes if name in books and books[name].set_aside],
        [name for name in world.nodes if name in books and books[name].plans],
        [*world.nodes],
    )
    return draw.choice(sorted(draw.choice(kinds)) or sorted(world.nodes))


def _forged(draw: Random, world: World, pod: Pod) -> Pod:
    """Decisions that the pod is created with: of others, or made up. Its uid is not known yet."""
    ours = [
        {key: text for key, text in p.metadata.annotations.items() if key in names.BY_EXTENDER}
        for p in world.pods.values()
    ]
    node = draw.choice(sorted(world.nodes))
    uuids = world.uuids(node, *range(draw.choice([1, 4, 8])))
    plan = Plan(id="p", node=node, uid=draw.choice(["", "*"]), made=world.now)
    if draw.random() < 0.5:  # for as long as it waits
        pod = change(pod, spec=change(pod.spec, scheduling_gates=(SchedulingGate("a.b/c"),)))
    return _annotated(
        pod,
        draw.choice(
            [
                draw.choice([each for each in ours if each] or [{}]),
                {names.PLAN: write_plan(plan), names.GPUS: write_gpus({"main": uuids})},
                dict.fromkeys(names.BY_EXTENDER, draw.choice(_TEXTS)),
                {names.STARTED: "true", names.QUEUE: '{"v":1,"uid":"","since":-1e300}'},
            ]
        ),
    )


def _odd_priority(draw: Random, world: World, pod: Pod) -> Pod:  # noqa: ARG001
    """One important pod beside unimportant ones; its quota is of one."""
    is_first = pod.metadata.name.endswith("-0")
    return change(pod, spec=change(pod.spec, priority=2 if is_first else -(2**31)))


def _gated(draw: Random, world: World, pod: Pod) -> Pod:
    """Behind our gate, and behind one that it lifts much later, or never."""
    gates = tuple(map(SchedulingGate, draw.choice([(names.GATE,), (names.GATE, "a.b/c")])))
    uid = pod.metadata.uid

    def lift() -> None:
        known = world.pods.get(uid)
        if known is not None and not known.spec.node_name:
            ours = tuple(g for g in known.spec.scheduling_gates if g.name == names.GATE)
            world.put_pod(change(known, spec=change(known.spec, scheduling_gates=ours)))

    if draw.random() < 0.7:
        world.after(draw.uniform(1.0, 600.0), lift)
    return change(pod, spec=change(pod.spec, scheduling_gates=gates))


def _changing(draw: Random, world: World, pod: Pod) -> Pod:
    """It changes what it says, again and again."""
    uid = pod.metadata.uid

    def say(times: int) -> None:
        known = world.pods.get(uid)
        if known is not None and known.metadata.deletion_timestamp is None:
            twist = draw.choice([_odd_annotations, _gang_of_others, _lie])
            world.put_pod(twist(draw, world, known))
            if times:
                world.after(draw.uniform(0.1, 30.0), partial(say, times - 1))

    world.after(draw.uniform(0.1, 30.0), partial(say, draw.choice([2, 20])))
    return pod


def _lingering(draw: Random, world: World, pod: Pod) -> Pod:
    """It is deleted soon, and its processes stay until its time is over."""
    name, uid = pod.metadata.name, pod.metadata.uid

    def delete() -> None:
        known = world.pods.get(uid)
        if known is not None and known.spec.node_name:
            world.stuck.add(name)
            world.terminate(name)
            world.after(world.runs_for[uid], partial(world.stuck.discard, name))

    world.after(draw.uniform(1.0, 300.0), delete)
    return pod


_TWISTS: tuple[Twist, ...] = (
    _odd_annotations,
    _gang_of_others,
    _members_missing,
    _odd_timeout,
    _lie,
    _odd_amount,
    _many_containers,
    _many_terms,
    _bound_by_none,
    _forged,
    _odd_priority,
    _gated,
    _changing,
    _lingering,
)
_REFUSED: tuple[Twist, ...] = (_pinned_in_vain,)
_PAST_QUEUE: tuple[Twist, ...] = (_pinned, _bound_by_another)
