"""Nodes whose kubelet's credentials somebody else uses, beside honest nodes.

The seed decides which nodes, when they act, and what they write: whatever the API server accepts of
a kubelet's account (docs/operating/security.md). At the end the nodes are honest again.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

import msgspec

from linkwise.extender.core import Core
from linkwise.extender.state.records import NotedMove, QueueNote, write_queue_note
from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import Pod, Taint
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.annotations.plan import (
    InUse,
    Plan,
    read_gpus,
    write_gpus,
    write_in_use,
    write_plan,
)
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from tests.extender import claimed
from tests.extender.cluster import GPU, container
from tests.extender.remembered import remembered
from tests.liveness.day import Day, owner_of
from tests.odd_pods import ODD_TEXTS, is_honest

change = msgspec.structs.replace

Act = Callable[[Random, Day, str], object]
_AMOUNTS = ("0", "1", "7", "8", "64", "1k", "9223372036854775807")
_PLENTY = {"cpu": "96", "memory": "1Ti", "pods": "110"}
_MODELS = ("NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB", "NVIDIA A100-SXM4-80GB", "odd")
_BOUND_SECONDS = 60.0
_REST_SECONDS = 3 * 3600.0  # longer than anything is kept for pods to come
_REMEMBERED = 2000  # things, such as run times
_MOST_KINDS = 50  # numbers that the core gave out
_MOST_MIRRORS = 12  # at the same time
_ENDED = ("Succeeded", "Failed")


class HostileNodes:
    def __init__(self, day: Day, seed: int, seconds: float) -> None:
        self._day, self._seconds = day, seconds
        draw = self._draw = Random(f"hostile nodes {seed}")
        self._names = draw.sample(sorted(day.nodes), draw.choice([1, 1, 2]))
        acts = [*_ACTS, *([_other_pool] * 2 if day.by_claims else ())]
        self._acts = draw.sample(acts, draw.choice([1, 2, 4, len(acts)]))
        self._times = draw.choice([20, 80, 300])
        self.acts = 0  # that there were

    def begin(self) -> None:
        draw, day = self._draw, self._day
        for node in self._names:
            day.taken[node] = day.machine(node)
            for _ in range(self._times):
                act, times = draw.choice(self._acts), draw.choice([1, 1, 1, 8])
                at = draw.uniform(0, self._seconds)
                for _ in range(times):
                    at += draw.uniform(0.0, 15.0)
                    day.at(day.now + at, partial(self._act, act, node, draw.random()))

    def close(self) -> None:
        """Instead of beginning: a person has cordoned them."""
        for node in self._names:
            self._day.cordon(node)

    def _act(self, act: Act, node: str, seed: float) -> None:
        if node in self._day.taken:
            self.acts += 1
            act(Random(seed), self._day, node)

    def many_writes(self, beside: int) -> list[str]:
        """What is wrong with how often the extender wrote, which was *beside* on a plain day."""
        most, writes = 2 * beside + self.acts, self._day.writes
        return [f"{writes} writes, expected {most}"] if writes > most else []

    def end(self) -> None:
        """Their owner has them back, and their kubelet, plugin and driver publish the truth."""
        day = self._day
        for pod in [*day.pods.values()]:
            if MIRROR_POD in pod.metadata.annotations:
                day.remove_pod(pod.metadata.uid)
        for node in [*day.taken]:
            day.annotate_node(node, names.TOPOLOGY, write_topology(day.taken.pop(node)))
            day.annotate_node(node, names.IN_USE, None)
            known = day.nodes[node]
            day.put_node(change(known, status=change(known.status, allocatable={**_PLENTY})))
            day.set_ready(node, ready=True)
            day.uncordon(node)
            for name in [key for key, one in day.slices.items() if one.spec.node_name == node]:
                claimed.withdraw(day, name)
            day.set_plugin(node, there=True)
            day.publish_soon(node)


class HostileNodeLaws:
    """Of the others: no GPU of an honest node is given twice. The kinds of machines are bounded.
    Once no pods come any more, nothing is planned, kept or reserved, and little is remembered."""

    def __init__(self, day: Day) -> None:
        self._day = day
        self._since: dict[tuple[str, ...], float] = {}  # when GPUs were first given twice

    def look(self) -> None:
        day, trouble = self._day, self._day.trouble
        if not day.taken or trouble.no_leader or trouble.writes_lost:
            self._since.clear()
            return
        of: dict[str, set[str]] = {}
        for uuid, title in self._given():
            of.setdefault(uuid, set()).add(title)
        twice = [(uuid, *sorted(who)) for uuid, who in of.items() if len(who) > 1]
        self._since = {each: self._since.get(each, day.now) for each in twice}
        day.failures += [
            f"{uuid} is of {' and '.join(who)} from {since:.0f} to {day.now:.0f}"
            for (uuid, *who), since in self._since.items()
            if day.now - max(since, day.faults_at) > _BOUND_SECONDS
        ]

    def _given(self) -> Iterator[tuple[str, str]]:
        """The GPUs of honest nodes, and who has each by its kubelet's word, or by its plan."""
        day = self._day
        for node in _others(day):
            held = day.held.get(node, {})
            for title, given in held.items():
                yield from ((uuid, title) for gpus in given.values() for uuid in gpus)
            for pod in day.pods.values():
                title = pod.key
                is_there = pod.spec.node_name == node and not pod.has_ended
                if is_there and is_honest(pod) and title not in held:
                    said = read_gpus(pod.metadata.annotations.get(names.GPUS, "{}"))
                    yield from ((uuid, title) for gpus in said.values() for uuid in gpus)

    def look_at_kinds(self) -> None:
        day, cache = self._day, self._day.core._cache
        if len(cache._kind_of) > len(day.nodes) or len(cache.kinds) > _MOST_KINDS:
            day.failures.append(f"{len(cache.kinds)} kinds of machines at {day.now:.0f}")

    def take_pods_away(self) -> None:
        day = self._day
        day.takes_pods = False
        while day.pods:  # an owner may delete its other pods too
            pod = next(iter(day.pods.values()))
            day.give_back(pod)
            day.remove_pod(pod.metadata.uid)
        day.live(day.now + _REST_SECONDS, lambda _: None)

    def nothing_stays(self, fresh: Core) -> None:
        """*fresh*: a core that starts now."""
        day = self._day
        day.failures += [f"audit: {text}" for text in day.core.audit()]
        day.failures += [
            f"{book.name} has {book.reserved} reserved, {book.set_aside:x} set aside, "
            f"{book.plans} planned, {book.owned} owned"
            for book in day.core._cache.nodes.values()
            if book.set_aside or book.reserved or book.plans or book.owned
        ]
        many, few = remembered(day.core), remembered(fresh)
        if many > few + _REMEMBERED:
            day.failures.append(f"{many} things are remembered, {few} by a core that starts")


def another_machine(
    draw: Random, day: Day, node: str, sizes: Sequence[int] = (1, 4, 8, 9, 16)
) -> None:
    uuids = draw.sample(_gpus(draw, day, node), draw.choice(sizes))
    model = draw.choice(_MODELS)
    gpus = tuple(
        Gpu(uuid, index, model, 81920, healthy=draw.random() < 0.9)
        for index, uuid in enumerate(uuids)
    )
    pairs = range(len(gpus) * (len(gpus) - 1) // 2)
    links = tuple(Link(draw.choice([*LinkClass][:-1]), draw.randint(0, 18)) for _ in pairs)
    text = write_topology(Machine(gpus=gpus, links=links))
    day.annotate_node(node, names.TOPOLOGY, text if draw.random() < 0.9 else draw.choice(ODD_TEXTS))


def _gpus(draw: Random, day: Day, node: str) -> list[str]:
    """UUIDs of its GPUs, of another node's and made-up ones."""
    other = draw.choice(_others(day))
    known = [gpu.uuid for name in (node, other) for gpu in day.machine(name).gpus]
    return list(dict.fromkeys([*known, *(f"GPU-{number}" for number in range(16))]))


def _others(day: Day) -> list[str]:
    return sorted(day.nodes.keys() - day.taken.keys())


def _lie_of_use(draw: Random, day: Day, node: str) -> None:
    honest = sorted(p.key for p in day.pods.values())
    who = draw.sample([*honest, "red/made-up", "odd", ""], draw.randint(0, 3) % (len(honest) + 3))
    uuids = _gpus(draw, day, node)
    pods = {each: {"main": tuple(draw.sample(uuids, draw.randint(1, 8)))} for each in who}
    share: dict[str, tuple[str, ...]] = {f"{GPU}.shared": (f"{uuids[0]}::0",)}
    shares = {each: {"main": share} for each in who if draw.random() < 0.2}
    text = write_in_use(InUse(pods=pods, shares=shares))
    day.annotate_node(node, names.IN_USE, text if draw.random() < 0.9 else draw.choice(ODD_TEXTS))


def _mirror(draw: Random, day: Day, node: str) -> None:
    """A mirror pod that looks like another pod, in the same namespace or in another one."""
    there = [pod for pod in day.pods.values() if MIRROR_POD in pod.metadata.annotations]
    if len(there) > _MOST_MIRRORS:
        day.remove_pod(draw.choice(there).metadata.uid)
    others = [pod for pod in day.pods.values() if is_honest(pod)]
    like = draw.choice(others) if others else Pod()
    said = {**like.metadata.annotations, MIRROR_POD: "x"}
    if draw.random() < 0.5:
        said |= {names.GANG_SIZE: draw.choice(ODD_TEXTS), names.STARTED: like.metadata.uid}

    def alter(pod: Pod) -> Pod:
        namespace = draw.choice([like.metadata.namespace or "red", "red", "kube-system"])
        owners = like.metadata.owner_references
        meta = change(
            pod.metadata,
            namespace=namespace,
            labels=like.metadata.labels,
            annotations=said,
            owner_references=owners,
        )
        priority = draw.choice([0, 2_000_001_000, -1])
        scheduler = like.spec.scheduler_name
        spec = change(pod.spec, node_name=node, priority=priority, scheduler_name=scheduler)
        phase = draw.choice(["Pending", "Running", "Running", *_ENDED])
        return change(pod, metadata=meta, spec=spec, status=change(pod.status, phase=phase))

    gpus = draw.choice([0, 1, 8, 10**6])
    made = day.add_pod(f"mirror-{day.made}", containers=[container("main", gpus)], alter=alter)
    uid = made.metadata.uid

    def go_on(phase: str) -> None:
        if uid in day.pods and phase:
            day.put_pod(change(day.pods[uid], status=change(made.status, phase=phase)))
        elif uid in day.pods:
            day.remove_pod(uid)

    for _ in range(draw.choice([0, 2])):
        phase = draw.choice(["Running", "Succeeded", "Failed", ""])
        day.after(draw.uniform(0.1, 600.0), partial(go_on, phase))


def _there(draw: Random, day: Day, node: str) -> list[Pod]:
    """Some of the pods that run there."""
    pods = [pod for pod in day.pods.values() if pod.spec.node_name == node and is_honest(pod)]
    pods = [pod for pod in pods if not pod.has_ended]
    return draw.sample(pods, draw.randint(min(1, len(pods)), len(pods)))


def _refuse(draw: Random, day: Day, node: str) -> None:
    for pod in _there(draw, day, node):
        asked, has = draw.choice(["1", "8", "9" * 30, "-1"]), draw.choice(["0", "7", "9" * 30])
        why, said = draw.choice(
            [
                ("UnexpectedAdmissionError", f"requested number of devices unavailable for {GPU}. "
                 f"Requested: {asked}, Available: {has}"),
                ("UnexpectedAdmissionError", f"cannot allocate unregistered device {GPU}"),
                ("UnexpectedAdmissionError", "no healthy devices present; cannot allocate "
                 f"unhealthy devices {draw.choice([GPU, 'a.b/c'])}"),
                (f"OutOf{GPU}", f"requested: {asked}, used: {has}, capacity: {has}"),
                ("TopologyAffinityError", "Resources cannot be allocated with Topology locality"),
                (draw.choice(ODD_TEXTS), draw.choice(ODD_TEXTS)),
            ]
        )  # fmt: skip
        if why == "UnexpectedAdmissionError":
            said = f"Pod was rejected: Allocate failed due to {said}, which is unexpected"
        day.end(pod.metadata.uid, "Failed", why, said)


def _succeed(draw: Random, day: Day, node: str) -> None:
    for pod in _there(draw, day, node)[:2]:
        day.end(pod.metadata.uid, "Succeeded")


def _offer(draw: Random, day: Day, node: str) -> None:
    known = day.nodes[node]
    many = draw.choice([1, 20, 200])
    made_up = {f"r{draw.randint(0, 10**6)}.odd/n": draw.choice(_AMOUNTS) for _ in range(many)}
    given = {key: n for key, n in known.status.allocatable.items() if "odd/" not in key}
    given |= {GPU: draw.choice(_AMOUNTS), f"{GPU}.shared": draw.choice(_AMOUNTS), **made_up}
    standard = draw.choice(["cpu", "memory", "pods"])
    given |= {**_PLENTY, standard: draw.choice(["0", "9223372036854775807", *_PLENTY.values()])}
    day.put_node(change(known, status=change(known.status, allocatable=given)))


def _note(draw: Random, day: Day, node: str) -> None:
    """Decisions about its pods: moves to other nodes, places in the queue, plans."""
    pods = sorted(day.pods.values(), key=lambda pod: pod.metadata.name)
    for pod in _there(draw, day, node):
        uid, moved = pod.metadata.uid, draw.choice([pod, pod, draw.choice(pods)])
        to = draw.choice([*_others(day), node])
        move = NotedMove(
            pod=moved.key,
            uid=moved.metadata.uid,
            owner=owner_of(moved) or "o",
            node=to,
            gpus=draw.choice(["1", "f", "ff", "f" * 40]),
            gang=moved.metadata.annotations.get(names.GANG, ""),
            rank=draw.choice([None, 0, 10**9]),
        )
        note = QueueNote(
            uid=uid,
            since=draw.choice([None, -1e300, day.now, 1e300]),
            spots=((to, ("ff", "f" * 40)),),
            rests_until=draw.choice([None, 1e300]),
            moves=(move,) * draw.choice([0, 1, 1, 50]),
            moves_at=draw.choice([day.now, day.now, -1e300, 1e300]),
            turn=draw.choice([None, 1e300]),
        )
        plan = Plan(
            uid=uid, id="p", node=to, leader=draw.choice([0, 10**9]), epoch=10**9, made=day.now
        )
        uuids = draw.sample(_gpus(draw, day, node), draw.choice([1, 8]))
        said = draw.choice(
            [
                {"queue": write_queue_note(note)},
                {"queue": write_queue_note(note)},
                {"plan": write_plan(plan), "gpus": write_gpus({"main": tuple(uuids)})},
                {"gang-started": uid},
                dict.fromkeys(("plan", "gpus", "queue"), draw.choice(ODD_TEXTS)),
            ]
        )
        day.annotate(pod.metadata.name, **said)


def _flip(draw: Random, day: Day, node: str) -> None:
    day.set_ready(node, ready=draw.random() < 0.6)
    effect = draw.choice(["NoSchedule", "NoExecute", "PreferNoSchedule"])
    taint = Taint(key=draw.choice(["odd", "node.kubernetes.io/unreachable"]), effect=effect)
    flips: list[Callable[[], object]] = [
        partial(day.uncordon, node),
        partial(day.cordon, node),
        partial(day.cordon, node, taint),
    ]
    draw.choice(flips)()


def _other_pool(draw: Random, day: Day, node: str) -> None:
    """A slice of its devices, in a pool that is named like that of another node."""
    pool = draw.choice([*_others(day), node])
    uuids = draw.sample(_gpus(draw, day, node), 8)
    name = f"{node}-odd-{draw.randint(0, 4)}"
    generation = draw.choice([0, 1, 2, 2**62])
    one = claimed.slice_of(node, uuids, name=name, generation=generation)
    spec = change(one.spec, pool=change(one.spec.pool, name=pool))
    if name in day.slices and draw.random() < 0.3:
        claimed.withdraw(day, name)
    else:
        claimed.publish(day, change(one, spec=spec))


_ACTS: tuple[Act, ...] = (
    another_machine,
    another_machine,
    _lie_of_use,
    _mirror,
    _refuse,
    _succeed,
    _offer,
    _note,
    _flip,
)
