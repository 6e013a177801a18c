"""What must be true of a world once it has come to rest, and once everything is deleted.

Each check reads what the kubelets hold, what the API server says and what the extender believes,
and says in a line what does not agree. Nothing here knows how the extender works: its cache is
compared with that of a second extender, which starts from the API server alone.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

from linkwise.extender.core import Core
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.reads import OwnerReads
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.usage import view_nodes
from linkwise.extender.state.actions import WritePlan
from linkwise.extender.state.extender_calls import FilterCall
from linkwise.extender.state.views import GangView, NodeView
from linkwise.kube.objects import Node, Pod
from linkwise.simulator.scheduler.cache import SchedulerCache
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_in_use, read_plan
from linkwise.topology.names import DEFAULT_RESOURCE
from tests.all_or_nothing import minimum_of
from tests.end_to_end.live_extender import HURRIED, hurried_clock
from tests.end_to_end.world import World
from tests.other_filters import go_together, room_of
from tests.owner_reads import read_owners

PAST_US = "foreign"  # how pods are called that are put on a node without asking
_FREE, _RESERVED = "free", "reserved"


def _nodes(world: World) -> Sequence[NodeView]:
    """As the extender believes them to be; it goes on deciding meanwhile."""
    return view_nodes(world.extender.loop.snapshot())


def _gangs(world: World) -> Sequence[GangView]:
    return Explainer(world.extender.loop.snapshot()).gangs()


def unsettled(world: World) -> list[str]:
    """What is still on its way, or wrong; empty once all is as it should be."""
    if missing := world.extender.loop.waits_for():
        return [f"the extender waits for {missing}"]
    pods, nodes = world.read_pods(), world.read_nodes()
    return [
        *_broken(world),
        *_on_their_way(pods),
        *_not_as_planned(world, pods),
        *_partial_gangs(pods),
        *world.waves.at_rest(world.waves.notes(), pods),
        *world.extender.loop.audit(),
        *_books_differ(world, pods, nodes),
        *_could_be_placed(world, pods, nodes),
    ]


def leaks(world: World) -> list[str]:
    """What is left although every pod was deleted."""
    if missing := world.extender.loop.waits_for():
        return [f"the extender waits for {missing}"]
    pods, nodes = world.read_pods(), world.read_nodes()
    found = [f"pod {pod.metadata.name} is still there" for pod in pods]
    for live in world.nodes.values():
        found += [f"{live.name}: kubelet: {key} holds GPUs" for key in live.held()]
    for node in nodes:
        listed = read_in_use(node.metadata.annotations.get(names.IN_USE, '{"v":1}')).pods
        found += [f"{node.metadata.name}: listed in use by {key}" for key in listed]
    loop = world.extender.loop
    for view in _nodes(world):
        found += [
            f"{view.name}: GPU {gpu.index} is {gpu.state}, by {gpu.holder}"
            for gpu in view.gpus
            if gpu.state not in (_FREE, "unhealthy")
        ]
    found += [f"gang still known: {gang}" for gang in _gangs(world)]
    found += [f"place still noted: {text}" for text in world.waves.notes().values()]
    return [*_broken(world), *found, *loop.audit()]


def _broken(world: World) -> list[str]:
    """What was seen to go wrong meanwhile."""
    return [*world.broken, *(text for node in world.nodes.values() for text in node.failures)]


def _on_their_way(pods: Sequence[Pod]) -> Iterator[str]:
    for pod in pods:
        if pod.is_leaving:
            yield f"pod {pod.metadata.name} is still ending"
        elif pod.spec.node_name and pod.status.phase == "Pending":
            yield f"pod {pod.metadata.name} is on {pod.spec.node_name} and does not run"
        elif pod.spec.node_name and pod.status.nominated_node_name:
            yield f"pod {pod.metadata.name} is bound and still nominated"


def _not_as_planned(world: World, pods: Sequence[Pod]) -> Iterator[str]:
    """Pods whose GPUs, by the kubelet, are not those that their annotation names."""
    running = {pod.key: pod for pod in pods if pod.status.phase == "Running" and _gpus_of(pod)}
    for node in world.nodes.values():
        held = node.held()
        for key in held.keys() - running.keys():
            yield f"{node.name}: {key} holds GPUs and does not run"
        for key, pod in running.items():
            if pod.spec.node_name != node.name:
                continue
            shares = held.get(key, {})
            if not shares:
                yield f"{node.name}: {key} runs without GPUs"
            if names.GPUS not in pod.metadata.annotations and pod.metadata.name.startswith(PAST_US):
                continue
            plan = read_gpus(pod.metadata.annotations.get(names.GPUS, "{}"))
            for container, gpus in shares.items():
                if frozenset(plan.get(container, ())) != gpus:
                    wanted = sorted(plan.get(container, ()))
                    yield f"{node.name}: {key}: {container} has {sorted(gpus)}, plan {wanted}"


def _partial_gangs(pods: Sequence[Pod]) -> Iterator[str]:
    gangs: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        if names.GANG in pod.metadata.annotations:
            gangs[pod.metadata.annotations[names.GANG]].append(pod)
    for name, members in gangs.items():
        bound = [pod for pod in members if pod.spec.node_name and not pod.has_ended]
        started = any(names.STARTED in pod.metadata.annotations for pod in bound)
        done = sum(pod.status.phase == "Succeeded" for pod in members)
        least = minimum_of(members[0])
        if bound and not started and len(bound) + done < least:
            yield f"gang {name}: {len(bound)} members run, {least} are wanted, it never started"


def _books_differ(world: World, pods: Sequence[Pod], nodes: Sequence[Node]) -> Iterator[str]:
    """Between the extender that has lived through it all, and one that starts now."""
    now = hurried_clock()
    fresh = _fresh(world, pods, nodes, now)
    old, new = _nodes(world), fresh.nodes(now)
    for had, has in zip(old, new, strict=False):
        if _account(had) != _account(has):
            yield f"books of {had.name}: {had}, from the start {has}"
    if len(old) != len(new):
        yield f"books of {len(old)} nodes, from the start {len(new)}"
    fresh.decide(now)
    kept = _kept(world)
    before, after = (
        {gang.name: _lasting(gang) for gang in gangs if gang.phase != "released"}
        for gangs in (_gangs(world), fresh.gangs(now))
    )
    for name in sorted(before.keys() | after.keys()):
        if (
            before.get(name) != after.get(name)
            and not _goes_where_room_is_kept(after.get(name), kept)
            and not _is_refused(world, after.get(name), pods, nodes)
        ):
            yield f"gang {name}: {before.get(name)}, from the start {after.get(name)}"


def _account(node: NodeView) -> object:
    """Which pod has which GPU. A new extender decides on reservations again."""
    gpus = [
        (gpu.uuid, _FREE if gpu.state == _RESERVED else gpu.state, gpu.holder) for gpu in node.gpus
    ]
    return node.name, node.usable, node.reason, gpus


def _lasting(gang: GangView) -> GangView:
    """What of a gang is on the API server; the rest is remembered and may be forgotten."""
    return replace(gang, reason="", refusals=0, made=None, deadline=None, plan="", lost_since=None)


def _could_be_placed(world: World, pods: Sequence[Pod], nodes: Sequence[Node]) -> Iterator[str]:
    """Pods that wait although a fresh extender finds them a place. It may reserve the free GPUs
    for others than the extender that has lived through it all."""
    now = hurried_clock()
    fresh = _fresh(world, pods, nodes, now)
    kept = _kept(world)
    plans = [action for action in fresh.decide(now) if isinstance(action, WritePlan)]
    by_gang: defaultdict[str, list[WritePlan]] = defaultdict(list)
    for action in plans:  # a gang is one decision
        by_gang[read_plan(action.annotations[names.PLAN]).id].append(action)
    placed = {pod.metadata.uid: pod for pod in pods}
    for actions in by_gang.values():
        if any(action.node in kept for action in actions):
            continue
        if not go_together(
            _room(world, pods, nodes), ((placed[a.pod.uid], a.node) for a in actions)
        ):
            continue
        for action in actions:
            yield f"pod {action.pod.name} waits, and a fresh extender plans it on {action.node}"
    node_names = tuple(
        node.metadata.name for node in nodes if _takes_pods(node) and node.metadata.name not in kept
    )
    for pod in pods:
        if (
            pod.spec.node_name
            or pod.has_ended
            or names.GANG in (pod.metadata.annotations)
            or world.waves.covers(pod)
        ):
            continue
        room = _room(world, pods, nodes)
        open_to_it = tuple(name for name in node_names if room.rejection(pod, name) is None)
        passed = fresh.filter(FilterCall(pod, open_to_it), now).node_names if open_to_it else ()
        if passed:
            yield f"pod {pod.metadata.name} waits, and would do on {', '.join(passed)}"


def _room(world: World, pods: Sequence[Pod], nodes: Sequence[Node]) -> SchedulerCache:
    return room_of(world.other_filters, nodes, pods, time.monotonic())


def _kept(world: World) -> frozenset[str]:
    """The nodes where free GPUs are reserved for a pod or gang that waits."""
    return frozenset(
        view.name for view in _nodes(world) if any(g.state == _RESERVED for g in view.gpus)
    )


def _goes_where_room_is_kept(gang: GangView | None, kept: frozenset[str]) -> bool:
    members = gang.members if gang is not None else ()
    return any(member.state == "planned" and member.node in kept for member in members)


def _is_refused(
    world: World, gang: GangView | None, pods: Sequence[Pod], nodes: Sequence[Node]
) -> bool:
    """Whether filters that the extender does not know refuse the nodes that a new one planned."""
    by_name = {pod.metadata.name: pod for pod in pods}
    members = gang.members if gang is not None and world.other_filters else ()
    planned = [(by_name[m.pod.rpartition("/")[2]], m.node) for m in members if m.state == "planned"]
    return bool(planned) and not go_together(_room(world, pods, nodes), planned)


def _takes_pods(node: Node) -> bool:
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
    return ready and not node.spec.unschedulable and not node.spec.taints


def _fresh(world: World, pods: Sequence[Pod], nodes: Sequence[Node], now: float) -> Core:
    core = Core(HURRIED)
    core.replace_nodes(nodes, now)
    core.replace_pods(pods, now)
    core.restore_places(world.waves.notes(), now)
    # No leader writes down which namespaces keep no places for a while.
    running = world.extender.core._planner.to_come.for_nothing
    core._planner.to_come.for_nothing._pauses = deepcopy(dict(running._pauses))
    read_owners(core, OwnerReads(world.client, ExtenderMetrics()).read, now)
    return core


def _gpus_of(pod: Pod) -> bool:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any(DEFAULT_RESOURCE in container.resources.limits for container in containers)
