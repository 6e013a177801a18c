"""A tenant of a random world that writes whatever the API server accepts, beside the others.

Its pods are in a namespace of its own. A seed decides what it does, whatever the others do.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import msgspec

from linkwise.extender.state.cache.pending_writes import OTHERS_EVICTED
from linkwise.kube.client import ApiError
from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.end_to_end import manifests
from tests.end_to_end.live_extender import hurried_clock
from tests.end_to_end.world import World
from tests.odd_pods import (
    NAMESPACE,
    ODDITIES,
    Sight,
    gang_of_others,
    is_honest,
    lie,
    odd_annotations,
)

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
Do = Callable[[World], None]
_ACTS = 10
_QUOTA = 0  # the highest priority that it may have: that of most others
_REFUSED = (400, 403, 404, 409, 422)  # what a client does not try again


@dataclass(frozen=True, slots=True)
class Act:
    what: str
    do: Do


class Hostile:
    """Draws one act after the other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(f"hostile {seed}")
        self._names: list[str] = []

    def acts(self) -> list[Act]:
        kinds = [self._comes, self._changes, self._lifts, self._goes, self._is_bound_past_us]
        drawn = self._random.choices(kinds, [6, 2, 1, 2, 1], k=_ACTS)
        return [self._comes(), *(kind() for kind in drawn)]

    def _comes(self) -> Act:
        draw = self._random
        wave = f"h{len(self._names)}"
        gpus = draw.choice([1, 1, 2, 4, 8])
        pods = draw.choice([1, 2, 4, 8 // gpus + 1])
        priority = draw.choice([-1_000_000, 0, 0, 0])
        said = {"gang": wave, "gang-size": str(pods)} if draw.random() < 0.5 and pods > 1 else {}
        runs = draw.choice([None, 0.1, 1.0])
        oddities = draw.sample(ODDITIES, draw.choice([1, 1, 1, 2, 3]))
        # Past every scheduler, behind gates that it lifts or does not, or of another scheduler.
        places: list[dict[str, Any]] = [
            *([{}] * 4),
            {"nodeName": "n1"},
            {"nodeName": "n2"},
            {"schedulingGates": [{"name": names.GATE}]},
            {"schedulingGates": [{"name": names.GATE}, {"name": "a.b/c"}]},
            {"schedulerName": "other"},
        ]
        where = draw.choice(places)
        each = [f"{wave}-{rank}" for rank in range(pods)]
        self._names += each

        def do(world: World) -> None:
            sight = _sight(world)
            for name in each:
                body = manifests.pod(name, gpus, said=said, run_seconds=runs, priority=priority)
                body["metadata"]["namespace"] = NAMESPACE
                odd = msgspec.convert(body, Pod, strict=False)
                own = Random(f"{name} {self._seed}")
                for oddity in oddities:
                    odd = oddity(own, sight, odd)
                made = _merged(body, odd, where)
                _try(partial(world.client.post, PODS, made))

        twisted = ", ".join(oddity.__name__.strip("_") for oddity in oddities)
        return Act(f"hostile: {pods} pods {wave} of {gpus} GPUs: {twisted}, {where}", do)

    def _changes(self) -> Act:
        name, own = self._random.choice(self._names), Random(self._random.random())
        oddity = own.choice([odd_annotations, gang_of_others, lie])

        def do(world: World) -> None:
            changed = oddity(own, _sight(world), Pod())
            said = {"metadata": {"annotations": dict(changed.metadata.annotations)}}
            _try(lambda: world.client.patch(f"{PODS}/{name}", said))

        return Act(f"hostile: {name} says something else", do)

    def _lifts(self) -> Act:
        name = self._random.choice(self._names)
        lifted = {"spec": {"schedulingGates": None}}
        return Act(
            f"hostile: lifts the gates of {name}",
            lambda world: _try(lambda: world.client.patch(f"{PODS}/{name}", lifted)),
        )

    def _goes(self) -> Act:
        name, grace = self._random.choice(self._names), self._random.choice([None, 0])
        return Act(
            f"hostile: deletes {name}",
            lambda world: _try(lambda: world.client.delete(f"{PODS}/{name}", grace_seconds=grace)),
        )

    def _is_bound_past_us(self) -> Act:
        name, node = self._random.choice(self._names), self._random.choice(["n1", "n2", "n3"])
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "target": target,
        }
        return Act(
            f"hostile: binds {name} to {node} past the scheduler",
            lambda world: _try(lambda: world.client.post(f"{PODS}/{name}/binding", binding)),
        )


def leave(world: World) -> None:
    """Delete all its pods at once, after what it did to others was noted."""
    world.broken += evictions_of_others(world.events())
    for pod in world.read_pods_patiently():
        if not is_honest(pod):
            _delete(world, pod.metadata.name)


def _delete(world: World, name: str) -> None:
    _try(lambda: world.client.delete(f"{PODS}/{name}", grace_seconds=0))


def evictions_of_others(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """For its pods, none of which is more important than any of theirs."""
    return [
        f"for {event['involvedObject']['name']}: {event['message']}"
        for event in events
        if event["reason"] == OTHERS_EVICTED
        and event["involvedObject"]["namespace"] == NAMESPACE
        and f"pod {NAMESPACE}/" not in event["message"]
    ]


def _merged(body: Mapping[str, Any], odd: Pod, where: Mapping[str, Any]) -> dict[str, Any]:
    """*body* with what is odd about it. A `Pod` has only those fields that Linkwise reads."""
    read = msgspec.to_builtins(odd)
    metadata = {**body["metadata"], "annotations": dict(odd.metadata.annotations)}
    spec = {**body["spec"], **read["spec"], "priority": min(odd.spec.priority, _QUOTA), **where}
    return {**body, "metadata": metadata, "spec": spec}


def _sight(world: World) -> Sight:
    gpus = {name: [g.uuid for g in node.machine.gpus] for name, node in world.nodes.items()}
    return Sight(gpus, world.read_pods_patiently(), hurried_clock())


def _try(request: Callable[[], object], seconds: float = 1.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            request()
        except ApiError as error:
            if error.status in _REFUSED or time.monotonic() > deadline:
                return
            time.sleep(0.02)
        else:
            return
