"""What happens in a random world: a list of steps that a seed decides, and how each is done.

The steps are the same for a seed every time; what the threads make of them is not.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import urllib3

from linkwise.kube.client import ApiError
from linkwise.topology.names import GANG
from tests.end_to_end import manifests
from tests.end_to_end.clients import Death, Pace
from tests.end_to_end.waves import workload_of
from tests.end_to_end.world import JOBS, PODS, World

MACHINES = (
    "dgx1-v100",
    "hgx-h100",
    "a100-pcie-8-bridged",
    "a100-pcie-4-bridged",
    "h200-nvl-2x4",
    "p100-pcie-8",
    "mixed-5",
)
STEPS = 34
_PAUSE_SECONDS = 0.06  # between two steps, on average

Do = Callable[[World], None]


@dataclass(frozen=True, slots=True)
class Step:
    pause_seconds: float  # before it
    what: str
    do: Do


@dataclass(frozen=True, slots=True)
class Workload:
    machines: tuple[str, ...]
    pace: Pace
    steps: tuple[Step, ...]


def workload(seed: int) -> Workload:
    return _Author(seed).write()


class _Author:
    """Draws one step after the other; each method named in `_LIKELY` draws one of its kind."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._machines = tuple(self._random.sample(MACHINES, 3))
        writes, watches = self._random.choice(PACES)
        self._pace = Pace(writes, watches, seed)
        self._nodes = [f"n{number}" for number in range(1, len(self._machines) + 1)]
        self._bodies: dict[str, dict[str, Any]] = {}  # pods by name, as first submitted
        self._jobs: list[str] = []
        self._waves: list[str] = []  # workloads whose owners create some pods later
        self._late: list[dict[str, Any]] = []  # members of gangs that have begun without them
        self._number = 0

    def write(self) -> Workload:
        kinds, weights = zip(*_LIKELY, strict=True)
        drawn = self._random.choices(kinds, weights, k=STEPS)
        first = self._step(self._submits)
        rest = [self._step(partial(kind, self)) for kind in drawn]
        return Workload(self._machines, self._pace, (first, *rest))

    def _step(self, kind: Callable[[], tuple[str, Do]]) -> Step:
        pause = self._random.expovariate(1 / _PAUSE_SECONDS)
        what, do = kind()
        return Step(min(pause, 6 * _PAUSE_SECONDS), what, do)

    # Users

    def _submits(self) -> tuple[str, Do]:
        bodies = self._random.choice(
            [
                self._single,
                self._equals,
                self._several_containers,
                self._gang,
                self._gang,
                self._elastic_gang,
            ]
        )()
        for body in bodies:
            self._bodies[body["metadata"]["name"]] = body
        names = ", ".join(body["metadata"]["name"] for body in bodies)

        def do(world: World) -> None:
            for body in bodies:
                _submit(world, body)

        return f"submits {names}", do

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"

    def _single(self) -> list[dict[str, Any]]:
        gpus = self._random.choice([1, 1, 2, 2, 3, 4, 5, 8])
        said = self._random.choice([{}, {}, {"require-link": "nvlink"}, {"prefer-link": "node"}])
        return [
            manifests.pod(
                self._name("single"),
                gpus,
                said=said,
                run_seconds=self._runs(),
                priority=self._random.choice([0] * 7 + [10]),  # for which others are evicted
                gated=self._gated(),
            )
        ]

    def _equals(self) -> list[dict[str, Any]]:
        gpus, count = self._random.choice([1, 2, 2, 4]), self._random.randint(3, 5)
        gated = self._gated()
        return [manifests.pod(self._name("equal"), gpus, gated=gated) for _ in range(count)]

    def _several_containers(self) -> list[dict[str, Any]]:
        sizes = [self._random.randint(0, 2) for _ in range(4)]
        container = manifests.container
        init = [container("init", sizes[0]), container("side", sizes[1], sidecar=True)]
        main = [container("main", 1 + sizes[2]), container("other", sizes[3])]
        name = self._name("several")
        runs, gated = self._runs(), self._gated()
        return [manifests.pod(name, containers=main, init=init, run_seconds=runs, gated=gated)]

    def _gang(self) -> list[dict[str, Any]]:
        size = self._random.randint(2, 5)
        gpus = self._random.choice([1, 2, 2, 4, 8])
        missing = self._random.random() < 0.2
        timeout = self._random.choice(["", "30s", "60s"])
        members = size - 1 if missing else size
        return manifests.gang(
            self._name("gang"), size, gpus, timeout=timeout, members=members, gated=self._gated()
        )

    def _elastic_gang(self) -> list[dict[str, Any]]:
        """It begins with fewer members than it may have; some of the others come later."""
        size = self._random.randint(2, 6)
        least = self._random.randint(1, size)
        members = manifests.gang(
            self._name("elastic"),
            size,
            self._random.choice([1, 2, 2, 4, 8]),
            least=least,
            timeout=self._random.choice(["", "60s"]),
            gated=self._gated(),
        )
        there = self._random.randint(least, size)
        self._late += members[there:]
        return members[:there]

    def _member_joins(self) -> tuple[str, Do]:
        if not self._late:
            return self._submits()
        body = self._late.pop(self._random.randrange(len(self._late)))
        name = body["metadata"]["name"]
        self._bodies[name] = body
        return f"submits {name}, which joins its gang", lambda world: _submit(world, body)

    def _member_dies(self) -> tuple[str, Do]:
        """An operator makes another pod of the same rank."""
        members = [body for body in self._bodies.values() if _is_member(body)]
        if not members:
            return self._submits()
        body = self._random.choice(members)
        old, new = body["metadata"]["name"], self._name("again")
        grace = self._random.choice([None, 0, 0])
        made_again = {**body, "metadata": {**body["metadata"], "name": new}}
        self._bodies[new] = made_again

        def do(world: World) -> None:
            _delete(world, f"{PODS}/{old}", grace)
            _submit(world, made_again)

        return f"member {old} dies, and {new} is made in its place", do

    def _submits_past_us(self) -> tuple[str, Do]:
        """A user puts a pod on a node directly, past every scheduler."""
        name, node = self._name("foreign"), self._random.choice(self._nodes)
        body = manifests.pod(name, self._random.randint(1, 3), node=node)
        self._bodies[name] = body
        return f"submits {name} to no scheduler", lambda world: _submit(world, body)

    def _gated(self) -> bool:
        return self._random.random() < 0.4

    def _runs(self) -> float | None:
        return self._random.choice([None, None, round(self._random.uniform(0.1, 1.5), 2)])

    def _submits_job(self) -> tuple[str, Do]:
        name = self._name("job")
        self._jobs.append(name)
        size, gpus = self._random.randint(2, 4), self._random.choice([1, 2, 4])
        runs, gated = self._runs(), self._gated()
        body = manifests.gang_job(name, size, gpus, timeout="60s", run_seconds=runs, gated=gated)
        return f"submits Job {name}", lambda world: _submit(world, body)

    def _submits_waves(self) -> tuple[str, Do]:
        name = self._name("wave")
        self._waves.append(name)
        size, gpus = self._random.randint(2, 4), self._random.choice([1, 1, 2, 4])
        first, gated = self._random.randint(1, size - 1), self._gated()
        body = self._random.choice(
            [
                manifests.in_order(name, first, size - first, gpus, gated=gated),
                manifests.leader_ready(name, size, gpus, gated=gated),
            ]
        )

        def do(world: World) -> None:
            _patiently(lambda: world.submit_waves(body, size))

        return f"submits {body['kind']} {name}", do

    def _wave_loses_a_pod(self) -> tuple[str, Do]:
        if not self._waves:
            return self._submits_waves()
        name, which = self._random.choice(self._waves), self._random.random()
        grace = self._random.choice([None, 0])

        def do(world: World) -> None:
            pods = [pod for pod in world.read_pods_patiently() if workload_of(pod) == name]
            if pods:
                lost = pods[int(which * len(pods))].metadata.name
                _delete(world, f"{PODS}/{lost}", grace)

        return f"deletes a pod of {name}", do

    def _lifts_a_gate(self) -> tuple[str, Do]:
        name = self._random.choice(list(self._bodies))
        body = {"spec": {"schedulingGates": None}}
        what = f"lifts the gate of {name} by hand"
        return what, lambda world: _patiently(lambda: world.client.patch(f"{PODS}/{name}", body))

    def _deletes(self) -> tuple[str, Do]:
        name = self._random.choice(list(self._bodies))
        grace = self._random.choice([None, None, 0])
        what = f"deletes pod {name}" + (" by force" if grace == 0 else "")
        return what, lambda world: _delete(world, f"{PODS}/{name}", grace)

    def _recreates(self) -> tuple[str, Do]:
        name = self._random.choice(list(self._bodies))
        body = self._bodies[name]
        grace = self._random.choice([None, 0])

        def do(world: World) -> None:
            _delete(world, f"{PODS}/{name}", grace)
            world.errand(lambda: _submit(world, body, patience_seconds=3.0))

        return f"deletes pod {name} and creates it again", do

    def _deletes_job(self) -> tuple[str, Do]:
        if not self._jobs:
            return self._submits_job()
        name = self._random.choice(self._jobs)
        return f"deletes Job {name}", lambda world: _delete(world, f"{JOBS}/{name}", None)

    # Nodes

    def _node_is_lost(self) -> tuple[str, Do]:
        name = self._random.choice(self._nodes)
        how = self._random.choice(["for a moment", "not ready", "deleted"])
        seconds = self._random.uniform(0.2, 1.0)

        def do(world: World) -> None:
            node = world.nodes[name]
            node.happens(node.die)
            if how == "not ready":
                node.happens(lambda: mark_lost(world, name))
            elif how == "deleted":
                node.happens(lambda: delete_node(world, name))
            node.happens(lambda: time.sleep(seconds))
            node.happens(lambda: bring_back(world, name))

        return f"node {name} is lost, {how}", do

    def _node_restarts_something(self) -> tuple[str, Do]:
        name = self._random.choice(self._nodes)
        what = self._random.choice(
            ["restart_plugin", "restart_kubelet", "restart_kubelet_after_advice", "swap_next"]
        )

        def do(world: World) -> None:
            node = world.nodes[name]
            node.happens(getattr(node, what))

        return f"node {name}: {what}", do

    def _node_is_cordoned(self) -> tuple[str, Do]:
        name, cordoned = self._random.choice(self._nodes), self._random.random() < 0.5
        word = "cordoned" if cordoned else "uncordoned"
        return f"node {name} is {word}", lambda world: cordon(world, name, cordoned=cordoned)

    def _gpu_breaks(self) -> tuple[str, Do]:
        name = self._random.choice(self._nodes)
        faults = {str(i): "XID 79" for i in range(4) if self._random.random() < 0.3}
        return f"node {name}: GPUs {list(faults)} break", lambda world: world.nodes[
            name
        ].set_faults(faults)

    # The extender

    def _extender_dies(self) -> tuple[str, Do]:
        when, death = self._random.choice(DEATHS)
        absent = self._random.uniform(0.0, 0.5)

        def do(world: World) -> None:
            world.replace_extender(death, absent_seconds=absent)

        return f"the extender dies {when}", do

    def _stray_calls(self) -> tuple[str, Do]:
        """Filter, prioritize and bind calls that kube-scheduler did not send, or that come late."""
        names = self._random.sample(list(self._bodies), min(3, len(self._bodies)))
        bodies = [self._bodies[name] for name in names]
        nodes = self._random.sample(self._nodes, self._random.randint(1, len(self._nodes)))

        def call(world: World) -> None:
            for body in bodies:
                call_astray(world, body, nodes)

        return f"stray calls for {', '.join(names)}", lambda world: world.errand(
            partial(call, world)
        )

    # Others

    def _scheduler_restarts(self) -> tuple[str, Do]:
        return "kube-scheduler restarts", World.restart_scheduler

    def _api_fails(self) -> tuple[str, Do]:
        method, part, status, carried_out = self._random.choice(FAULTS)
        times = self._random.randint(1, 4)
        fate = "is carried out unheard" if carried_out else "fails"

        def do(world: World) -> None:
            world.server.fail_next(method, part, status, times=times, carry_out=carried_out)

        return f"API server: {method} …{part} {fate} with {status}, {times} times", do

    def _patches_conflict(self) -> tuple[str, Do]:
        times = self._random.randint(1, 4)
        return (
            f"{times} patches of the extender conflict",
            lambda world: world.extender.client.conflict_next(times),
        )

    def _watches_break(self) -> tuple[str, Do]:
        too_old = self._random.random() < 0.5

        def do(world: World) -> None:
            if too_old:
                world.server.compact()
            world.server.cut_watches()

        return f"all watches break{', history forgotten' if too_old else ''}", do

    def _api_pauses(self) -> tuple[str, Do]:
        seconds = self._random.uniform(0.05, 0.3)

        def do(world: World) -> None:
            world.server.pause()
            time.sleep(seconds)
            world.server.resume()

        return f"API server away for {seconds:.2f} s", do


_A = _Author
_LIKELY: Sequence[tuple[Callable[[_Author], tuple[str, Do]], float]] = (
    (_A._submits, 10),
    (_A._submits_job, 2),
    (_A._submits_waves, 3),
    (_A._wave_loses_a_pod, 1),
    (_A._submits_past_us, 0.7),
    (_A._lifts_a_gate, 1),
    (_A._member_joins, 2),
    (_A._member_dies, 2),
    (_A._deletes, 5),
    (_A._recreates, 3),
    (_A._deletes_job, 0.5),
    (_A._node_is_lost, 1.5),
    (_A._node_restarts_something, 3),
    (_A._node_is_cordoned, 1),
    (_A._gpu_breaks, 1),
    (_A._extender_dies, 2),
    (_A._stray_calls, 2),
    (_A._scheduler_restarts, 0.5),
    (_A._api_fails, 3),
    (_A._patches_conflict, 1),
    (_A._watches_break, 1.5),
    (_A._api_pauses, 0.5),
)

# How late writes are, and watches, in seconds: a quick cluster, and busy ones.
PACES = ((0.0, 0.0), (0.003, 0.003), (0.02, 0.0), (0.0, 0.008), (0.02, 0.008))

DEATHS: Sequence[tuple[str, Death | None]] = (
    ("at once", None),
    ("before it writes a plan", Death("PATCH", "/status")),
    ("between two plans of a gang", Death("PATCH", "/status", at=2)),
    ("as it has written the first plan of a gang", Death("PATCH", "/status", carried_out=True)),
    ("as it has nominated three", Death("PATCH", "/status", at=3, carried_out=True)),
    ("before it lifts a gate", Death("PATCH", "/pods/[^/]+")),
    ("when the second gate is lifted", Death("PATCH", "/pods/[^/]+", at=2, carried_out=True)),
    ("before a Binding", Death("POST", "/binding")),
    ("before the third Binding", Death("POST", "/binding", at=3)),
    ("when a Binding is done", Death("POST", "/binding", carried_out=True)),
    ("when the second Binding is done", Death("POST", "/binding", at=2, carried_out=True)),
)

# method, part of the path, status (0: no answer), whether it is carried out in spite of it.
# A 409 after a write that was carried out is left out: the API server does not say that.
FAULTS: Sequence[tuple[str, str, int, bool]] = (
    ("PATCH", "/status", 500, False),
    ("PATCH", "/status", 500, True),
    ("PATCH", "/status", 0, False),
    ("PATCH", "/pods/", 500, False),
    ("PATCH", "/pods/", 500, True),
    ("PATCH", "/pods/", 0, True),
    ("PATCH", "/api/v1/nodes/", 500, False),
    ("PATCH", "/api/v1/nodes/", 409, False),
    ("POST", "/binding", 500, False),
    ("POST", "/binding", 500, True),
    ("POST", "/binding", 409, False),
    ("POST", "/binding", 0, False),
    ("POST", "/binding", 0, True),
    ("POST", "/eviction", 429, False),
    ("POST", "/events", 500, False),
    ("GET", "/api/v1/pods", 500, False),
    ("GET", "/api/v1/nodes", 500, False),
)


def _is_member(body: Mapping[str, Any]) -> bool:
    return GANG in body["metadata"]["annotations"]


def _patiently(request: Callable[[], object], seconds: float = 3.0) -> None:
    """As a user or a controller would: again, until the API server has taken it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            request()
        except ApiError as error:
            if error.status in (403, 404, 422) or time.monotonic() > deadline:
                return
            time.sleep(0.02)
        else:
            return


def _submit(world: World, body: Mapping[str, Any], *, patience_seconds: float = 1.0) -> None:
    def create() -> None:
        try:
            world.submit(body)
        except ApiError as error:
            # If an earlier try was carried out and its answer was lost, the pod is there.
            if error.reason != "AlreadyExists" or patience_seconds > 1.0:
                raise

    _patiently(create, patience_seconds)


def _delete(world: World, path: str, grace_seconds: int | None) -> None:
    _patiently(lambda: world.delete(path, grace_seconds=grace_seconds))


def mark_lost(world: World, name: str) -> None:
    """What the node controller writes of a node it does not hear of."""
    path = f"/api/v1/nodes/{name}"
    condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    body = {"status": {"conditions": [condition]}}
    _patiently(lambda: world.client.patch(f"{path}/status", body))
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    _patiently(lambda: world.client.patch(path, {"spec": {"taints": [taint]}}))
    for pod in world.read_pods_patiently():
        if pod.spec.node_name == name and pod.metadata.uid < "8":  # others tolerate it for longer
            _delete(world, f"{PODS}/{pod.metadata.name}", None)


def delete_node(world: World, name: str) -> None:
    """As an administrator does, and what the garbage collector does then."""
    _delete(world, f"/api/v1/nodes/{name}", None)
    for pod in world.read_pods_patiently():
        if pod.spec.node_name == name:
            _delete(world, f"{PODS}/{pod.metadata.name}", 0)


def bring_back(world: World, name: str) -> None:
    world.nodes[name].come_back()
    body = {"spec": {"taints": None}}
    _patiently(lambda: world.client.patch(f"/api/v1/nodes/{name}", body))


def cordon(world: World, name: str, *, cordoned: bool) -> None:
    body = {"spec": {"unschedulable": cordoned or None}}
    _patiently(lambda: world.client.patch(f"/api/v1/nodes/{name}", body))


def call_astray(world: World, body: Mapping[str, Any], nodes: Sequence[str]) -> None:
    """Calls about a pod as it is now, and as one that never was; all must be answered."""
    made_up = {**body, "metadata": {**body["metadata"], "uid": "never-was"}}
    known = [pod for pod in world.read_pods_patiently() if pod.metadata.name == _name(body)]
    for pod in (made_up, *map(msgspec.to_builtins, known)):
        asked = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        _call(world, "filter", asked)
        _call(world, "prioritize", asked)
    # Not of the made-up one: its bind verb waits for the pod to appear.
    uids = [pod.metadata.uid for pod in known if pod.spec.node_name]
    for uid, node in zip(uids, nodes, strict=False):
        target = {"PodName": _name(body), "PodNamespace": "ml", "PodUID": uid, "Node": node}
        _call(world, "bind", target)


def _call(world: World, verb: str, body: object) -> None:
    try:
        answer = urllib3.request(
            "POST",
            f"{world.extender.url}/{verb}",
            body=msgspec.json.encode(body),
            headers={"content-type": "application/json"},
            timeout=5.0,
            retries=False,
        )
    except urllib3.exceptions.HTTPError:
        return  # it is away, or died meanwhile
    if answer.status not in (200, 503):  # 503: it has only just started
        world.broken.append(f"a stray {verb} call got {answer.status}: {answer.data!r}")


def _name(body: Mapping[str, Any]) -> str:
    name: str = body["metadata"]["name"]
    return name
