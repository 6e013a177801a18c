"""Whatever happens in whatever order, the cache stays sound, and a restart finds the same one.

The cluster of `cluster.py` is driven at random: nodes come and go, pods are made, bound, swapped by
the kubelet, killed; writes get lost; the extender restarts in between.
"""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from linkwise.extender.state.actions import Action, Evict
from linkwise.extender.state.extender_calls import BindOrder, FilterCall, Outcome
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from tests.extender.cluster import Cluster

NODES = ("n0", "n1", "n2")
MACHINES = ("dgx1-v100", "a100-pcie-8-bridged", "p100-pcie-8")
LINKS = st.sampled_from(["node", "numa", "switch", "nvlink"])
OUTCOMES = st.sampled_from(["done", "done", "done", "refused", "lost", "late"])


@dataclass
class _Flight:
    order: BindOrder
    pod: str


class ClusterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.number = 0
        self.flights: list[_Flight] = []
        self.whole: set[str] = set()  # gangs that have had enough members bound
        for node, machine in zip(NODES, MACHINES, strict=True):
            self.cluster.add_node(node, machine)

    # What people and controllers do.

    @rule(gpus=st.integers(0, 8), link=LINKS, prefer=LINKS)
    def add_pod(self, gpus: int, link: str, prefer: str) -> None:
        self.number += 1
        self.cluster.add_pod(f"p{self.number}", gpus, require_link=link, prefer_link=prefer)

    @rule(
        size=st.integers(1, 4),
        gpus=st.integers(0, 8),
        priority=st.integers(0, 1),
        least=st.integers(1, 4),
        missing=st.sampled_from([0, 0, 1]),
        preemptible=st.booleans(),
    )
    def add_gang(
        self, size: int, gpus: int, priority: int, least: int, missing: int, preemptible: bool
    ) -> None:
        self.number += 1
        gang = f"g{self.number}"
        words = {"gang_min": str(min(size, least))} | (
            {"preemptible": "true"} if preemptible else {}
        )
        for rank in range(size - missing):
            self._add_member(gang, size, gpus, rank, priority, **words)

    @precondition(lambda self: self._gangs())
    @rule(data=st.data())
    def add_member(self, data: st.DataObject) -> None:
        gang = data.draw(st.sampled_from(self._gangs()))
        size = data.draw(st.sampled_from([2, 2, 3]))
        self.number += 1
        self._add_member(gang, size, 2, 100 + self.number, 0)

    @precondition(lambda self: self._members())
    @rule(data=st.data(), dies=st.booleans())
    def make_member_again(self, data: st.DataObject, dies: bool) -> None:
        """What an operator does about a member that failed, or that it wants elsewhere."""
        pod = self.cluster.pod(data.draw(st.sampled_from(self._members())))
        ours = (names.GPUS, names.PLAN, names.STARTED)
        said = {
            key.removeprefix(names.PREFIX): text
            for key, text in pod.metadata.annotations.items()
            if key not in ours
        }
        if dies:
            self.cluster.set_phase(pod.metadata.name, "Failed")
        else:
            self.cluster.delete(pod.metadata.name)
        self.number += 1
        gpus = int(pod.spec.containers[0].resources.limits.get("nvidia.com/gpu", 0))
        self.cluster.add_pod(f"again-{self.number}", gpus, said=said)

    def _add_member(
        self, gang: str, size: int, gpus: int, rank: int, priority: int, **said: str
    ) -> None:
        self.number += 1
        name = f"{gang}-{self.number}"
        words = {"gang": gang, "gang_size": str(size), "rank": str(rank), "gang_timeout": "5m"}
        if not priority:
            words |= {"preemptible": "true", "expected_duration": "2m"}
        words |= said
        self.cluster.add_pod(name, gpus, priority=priority, said=words)

    @precondition(lambda self: self.cluster.pods)
    @rule(data=st.data(), force=st.booleans())
    def delete_pod(self, data: st.DataObject, force: bool) -> None:
        pod = data.draw(st.sampled_from(self._names()))
        if force or not self.cluster.pod(pod).spec.node_name:
            self.cluster.delete(pod)
        else:
            self.cluster.terminate(pod)

    @rule(data=st.data(), gpus=st.integers(1, 4))
    def bind_past_us(self, data: st.DataObject, gpus: int) -> None:
        self.number += 1
        node = data.draw(st.sampled_from(NODES))
        if node in self.cluster.nodes:
            self.cluster.add_pod(f"f{self.number}", gpus, node=node)

    @rule(node=st.sampled_from(NODES), machine=st.sampled_from(MACHINES))
    def change_node(self, node: str, machine: str) -> None:
        if node not in self.cluster.nodes:
            self.cluster.add_node(node, machine)
        else:
            self.cluster.remove_node(node)
            for pod in self._names():
                if self.cluster.pod(pod).spec.node_name == node:
                    self.cluster.delete(pod)

    @rule(node=st.sampled_from(NODES), ready=st.booleans())
    def set_ready(self, node: str, ready: bool) -> None:
        if node in self.cluster.nodes:
            self.cluster.set_ready(node, ready=ready)

    @rule(node=st.sampled_from(NODES), unhealthy=st.sets(st.integers(0, 7), max_size=3))
    def set_health(self, node: str, unhealthy: set[int]) -> None:
        text = self.cluster.nodes[node].metadata.annotations if node in self.cluster.nodes else {}
        if "{" in text.get(names.TOPOLOGY, ""):
            self.cluster.set_health(node, *unhealthy)

    @rule(node=st.sampled_from(NODES), key=st.sampled_from([names.TOPOLOGY, names.IN_USE]))
    def mangle_annotation(self, node: str, key: str) -> None:
        if node in self.cluster.nodes:
            before = self.cluster.nodes[node].metadata.annotations.get(key)
            self.cluster.annotate_node(node, key, "mangled")
            self.cluster.sound()
            self.cluster.annotate_node(node, key, before)

    # What kube-scheduler does.

    @precondition(lambda self: self._unbound())
    @rule(data=st.data(), outcome=OUTCOMES)
    def try_pod(self, data: st.DataObject, outcome: str) -> None:
        pod = data.draw(st.sampled_from(self._unbound()))
        nominated = self.cluster.pod(pod).status.nominated_node_name
        asked = [nominated] if nominated in self.cluster.nodes else None
        passed = self.cluster.filter(pod, asked).node_names
        if not passed:
            return
        order = self.cluster.begin_bind(pod, data.draw(st.sampled_from(sorted(passed))))
        if not isinstance(order, BindOrder):
            return
        if outcome == "late":
            self.flights.append(_Flight(order, pod))
        else:
            self._land(order, outcome)

    @precondition(lambda self: self.flights)
    @rule(outcome=OUTCOMES)
    def land(self, outcome: str) -> None:
        self._land(self.flights.pop(0).order, outcome)

    def _land(self, order: BindOrder, outcome: str) -> None:
        if outcome in ("refused", "late"):
            self.cluster.core.end_bind(order, Outcome.REFUSED, self.cluster.now)
            return
        self._no_gpu_is_bound_twice(order)
        posted = self.cluster.post_binding(order)
        told = Outcome.UNKNOWN if outcome == "lost" else Outcome.DONE
        self.cluster.core.end_bind(order, told if posted else Outcome.REFUSED, self.cluster.now)

    def _no_gpu_is_bound_twice(self, order: BindOrder) -> None:
        """The promise itself, checked on what is written and not in the cache."""
        pod = self.cluster.pods.get(order.uid)
        if not order.annotations or pod is None or pod.spec.node_name:
            return
        mine = {u for share in read_gpus(order.annotations[names.GPUS]).values() for u in share}
        for pod in self.cluster.pods.values():
            annotations = pod.metadata.annotations
            ended = pod.status.phase in ("Succeeded", "Failed")
            if pod.spec.node_name != order.node or ended or names.PLAN not in annotations:
                continue
            if pod.metadata.name in self._real(order.node):
                continue  # the kubelet's word counts, below
            theirs = {u for share in read_gpus(annotations[names.GPUS]).values() for u in share}
            assert not mine & theirs, f"{order.name} and {pod.metadata.name}"
        for name, real in self._real(order.node).items():
            assert not mine & real, f"{order.name} gets what {name} has"

    @precondition(lambda self: self._unbound())
    @rule(data=st.data())
    def refuse_nomination(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(self._unbound()))
        nominated = self.cluster.pod(pod).status.nominated_node_name
        others = tuple(node for node in sorted(self.cluster.nodes) if node != nominated)
        self.cluster.core.filter(FilterCall(self.cluster.pod(pod), others), self.cluster.now)

    @rule(outcome=OUTCOMES)
    def try_all_pods(self, outcome: str) -> None:
        """What mostly happens, so that gangs get far; one of the bindings may go wrong."""
        self.cluster.settle(rounds=60)
        for position, pod in enumerate(self._unbound()):
            nominated = self.cluster.pod(pod).status.nominated_node_name
            asked = [nominated] if nominated in self.cluster.nodes else None
            for node in self.cluster.filter(pod, asked).node_names[:1]:
                order = self.cluster.begin_bind(pod, node)
                if isinstance(order, BindOrder):
                    self._land(order, outcome if position == 1 else "done")

    # What the kubelet does.

    @precondition(lambda self: self._bound())
    @rule(data=st.data(), swap=st.booleans())
    def start_pod(self, data: st.DataObject, swap: bool) -> None:
        name = data.draw(st.sampled_from(self._bound()))
        pod = self.cluster.pod(name)
        node = pod.spec.node_name
        wanted = int(pod.spec.containers[0].resources.limits.get("nvidia.com/gpu", 0))
        if (
            not wanted
            or node not in self.cluster.nodes
            or name in self._real(node)
            or pod.status.phase != "Pending"
        ):
            return
        taken = {uuid for gpus in self._real(node).values() for uuid in gpus}
        free = [
            g.uuid for g in self.cluster.machine(node).gpus if g.healthy and g.uuid not in taken
        ]
        planned = self._planned(name)
        if planned and not swap and set(planned) <= set(free):
            self.cluster.start(name, {"main": planned})
        elif len(free) >= wanted:
            self.cluster.start(name, {"main": tuple(data.draw(st.permutations(free))[:wanted])})
        else:
            self.cluster.set_phase(name, "Failed")

    @precondition(lambda self: self._bound())
    @rule(data=st.data(), phase=st.sampled_from(["Succeeded", "Failed"]))
    def end_pod(self, data: st.DataObject, phase: str) -> None:
        self.cluster.set_phase(data.draw(st.sampled_from(self._bound())), phase)

    @precondition(lambda self: self.cluster.nodes)
    @rule(data=st.data())
    def clean_up_node(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.cluster.nodes)))
        for name in self._real(node):
            pod = self.cluster.find(name)
            if pod is None or pod.metadata.deletion_timestamp or pod.status.phase != "Running":
                self.cluster.stop(name, node)
                if pod is not None and pod.metadata.deletion_timestamp:
                    self.cluster.delete(name)

    # What the loop does.

    @rule(outcomes=st.lists(OUTCOMES, max_size=6))
    def decide(self, outcomes: list[str]) -> None:
        actions = self.cluster.core.decide(self.cluster.now)
        for position, action in enumerate(actions):
            outcome = outcomes[position] if position < len(outcomes) else "done"
            self._carry_out(action, outcome)

    def _carry_out(self, action: Action, outcome: str) -> None:
        if isinstance(action, Evict):
            pod = self.cluster.pods.get(action.pod.uid)
            said = pod.metadata.annotations if pod else {}
            gang = said.get(names.GANG, "")
            if gang in self.whole and self._still_marked(gang):
                # It may only be given up where all its members agree to that.
                assert said.get(names.PREEMPTIBLE) == "true", "a gang that runs is evicted"
        told = {"refused": Outcome.REFUSED, "lost": Outcome.UNKNOWN, "late": Outcome.UNKNOWN}
        if outcome in ("refused", "late"):
            self.cluster.core.done(action, told[outcome], self.cluster.now)
            return
        real = self.cluster.carry_out(action)
        self.cluster.core.done(action, told.get(outcome, real), self.cluster.now)

    def _still_marked(self, gang: str) -> bool:
        return any(
            pod.metadata.annotations.get(names.GANG) == gang
            and names.STARTED in pod.metadata.annotations
            and pod.status.phase not in ("Succeeded", "Failed")
            and pod.metadata.deletion_timestamp is None
            for pod in self.cluster.pods.values()
        )

    @rule(seconds=st.sampled_from([1, 15, 130, 301, 700]))
    def pass_time(self, seconds: int) -> None:
        self.cluster.now += seconds

    @rule()
    def restart(self) -> None:
        for flight in self.flights:
            self.cluster.post_binding(flight.order)  # sent already, so it may land
        self.flights.clear()
        self.cluster.restart()

    @rule()
    def restart_finds_the_same_books(self) -> None:
        while self.flights:
            self._land(self.flights.pop().order, "done")
        self.cluster.now += 200  # doubts end
        self.cluster.settle(rounds=60)
        assert self.cluster.is_at_rest()
        for gang in self.cluster.core.gangs(self.cluster.now):
            assert gang.deadline is None or gang.deadline > self.cluster.now, gang
        before = self._accounts()
        self.cluster.restart()
        assert self._accounts() == before

    @invariant()
    def books_are_sound(self) -> None:
        self.cluster.sound()
        for gang in self._gangs():
            if self._still_marked(gang):
                self.whole.add(gang)

    # What there is.

    def _accounts(self) -> object:
        """Which pod has which GPU. A new extender decides on reservations again."""
        return [
            (
                node.name,
                node.usable,
                [(g.state.replace("reserved", "free"), g.holder) for g in node.gpus],
            )
            for node in self.cluster.core.nodes(self.cluster.now)
        ]

    def _names(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self.cluster.pods.values())

    def _gangs(self) -> list[str]:
        said = (pod.metadata.annotations.get(names.GANG) for pod in self.cluster.pods.values())
        return sorted({gang for gang in said if gang})

    def _members(self) -> list[str]:
        return [n for n in self._names() if names.GANG in self.cluster.pod(n).metadata.annotations]

    def _unbound(self) -> list[str]:
        flying = {flight.pod for flight in self.flights}
        return [
            name
            for name in self._names()
            if not self.cluster.pod(name).spec.node_name and name not in flying
        ]

    def _bound(self) -> list[str]:
        return [name for name in self._names() if self.cluster.pod(name).spec.node_name]

    def _real(self, node: str) -> dict[str, set[str]]:
        return {
            key.removeprefix("ml/"): {u for share in containers.values() for u in share}
            for key, containers in self.cluster.in_use(node).pods.items()
        }

    def _planned(self, name: str) -> tuple[str, ...]:
        pod = self.cluster.pod(name)
        annotations = pod.metadata.annotations
        if names.PLAN not in annotations:
            return ()
        if read_plan(annotations[names.PLAN]).node != pod.spec.node_name:
            return ()
        return read_gpus(annotations[names.GPUS])["main"]


TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
