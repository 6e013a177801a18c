"""Pods of all kinds on nodes with whole GPUs, replicas and MIG devices, in any order: nothing is
given twice, and a pod is refused only if a search that tries every way refuses it too."""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from linkwise.extender.api.extender_calls import BindOrder, Outcome
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from tests.divided import GPU, MIG_1G, MIG_3G, SHARED, all_three, cut, replicas
from tests.extender.shares.brute_force import (
    fits_shares,
    free_gpus,
    free_shares,
    opened,
    parts_of,
)
from tests.extender.shares.cluster import Held, ShareCluster
from tests.machines import DGX_1V, DGX_A100, PCIE_8

NODES = ("n0", "n1", "n2")
RESOURCES = st.sampled_from([SHARED, MIG_1G, MIG_3G])


@dataclass(frozen=True)
class _Asked:
    wants: tuple[tuple[str, int], ...]  # for each container
    share: str


class ShareMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.at = ShareCluster()
        machines = (
            all_three(DGX_1V),
            replicas(DGX_A100, {0: 2, 1: 2}, GPU),
            cut(replicas(PCIE_8, dict.fromkeys((0, 1, 4), 2)), 5, MIG_1G, MIG_3G),
        )
        for node, machine in zip(NODES, machines, strict=True):
            self.at.add_divided(node, machine)
        self.asked: dict[str, _Asked] = {}
        self.flights: list[BindOrder] = []
        self.number = 0

    # What people do.

    @rule(
        wants=st.lists(st.tuples(RESOURCES, st.integers(1, 3)), min_size=1, max_size=2),
        share=st.sampled_from(["", "spread", "pack"]),
    )
    def add_taker(self, wants: list[tuple[str, int]], share: str) -> None:
        self._add(_Asked(tuple(wants), share))

    @rule(count=st.integers(1, 4), share=st.sampled_from(["", "spread", "pack"]))
    def add_managed(self, count: int, share: str) -> None:
        self._add(_Asked(((GPU, count),), share))

    def _add(self, asked: _Asked) -> None:
        self.number += 1
        name = f"p{self.number}"
        self.at.add_taker(name, *({res: count} for res, count in asked.wants), share=asked.share)
        self.asked[name] = asked

    @precondition(lambda self: self._all())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._all()))
        node = self.at.pod(name).spec.node_name
        self.at.delete(name)
        if node:
            self.at.put_in_use(node, f"ml/{name}", None, ())

    @precondition(lambda self: self._bound())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """It ends; what the kubelet still reports stays in use."""
        name = data.draw(st.sampled_from(self._bound()))
        self.at.set_phase(name, "Succeeded")

    @rule(node=st.sampled_from(NODES))
    def clean_up(self, node: str) -> None:
        for key in {**self.at.in_use(node), **self.at.shares_in_use(node)}:
            pod = self.at.find(key.removeprefix("ml/"))
            if pod is None or pod.status.phase == "Succeeded":
                self.at.put_in_use(node, key, None, ())

    # What kube-scheduler does.

    @precondition(lambda self: self._waiting())
    @rule(data=st.data(), flies=st.booleans())
    def place(self, data: st.DataObject, flies: bool) -> None:
        name = data.draw(st.sampled_from(self._waiting()))
        asked = self.asked[name]
        fitting = [node for node in NODES if self._fits(node, asked)]
        passed = self.at.filter(name).node_names
        assert set(passed) <= set(fitting), f"{asked} on {passed}, brute force: {fitting}"
        assert bool(passed) == bool(fitting), f"{asked} refused, brute force: {fitting}"
        if not passed:
            return
        order = self.at.begin_bind(name, data.draw(st.sampled_from(sorted(passed))))
        assert isinstance(order, BindOrder), order
        if flies:
            self.flights.append(order)
        else:
            self.at.land(order)

    @precondition(lambda self: self.flights)
    @rule(outcome=st.sampled_from([Outcome.DONE, Outcome.REFUSED]))
    def land(self, outcome: Outcome) -> None:
        self.at.land(self.flights.pop(0), outcome)

    @rule()
    def restart(self) -> None:
        while self.flights:
            self.at.land(self.flights.pop())
        before = self._books()
        self.at.restart()
        assert self._books() == before

    # What the kubelet does.

    @precondition(lambda self: self._unstarted())
    @rule(data=st.data(), swap=st.booleans())
    def start(self, data: st.DataObject, swap: bool) -> None:
        """It gives the planned devices, or other free ones of the same resources."""
        name = data.draw(st.sampled_from(self._unstarted()))
        node = self.at.pod(name).spec.node_name
        gpus, shares = self._planned(name)
        real = self._real(node)
        if swap:
            machine = self.at.machine(node)
            gpus = tuple(data.draw(st.permutations(free_gpus(machine, real)))[: len(gpus)])
            given: set[str] = set()
            other: Held = {}
            for container, of in shares.items():
                for resource, ids in of.items():
                    free = sorted(free_shares(machine, real | given, resource))
                    chosen = tuple(data.draw(st.permutations(free))[: len(ids)])
                    other.setdefault(container, {})[resource] = chosen
                    given |= set(chosen)
            shares = other
        wanted = sum(count for _, count in self.asked[name].wants)
        got = {*gpus, *(each for of in shares.values() for ids in of.values() for each in ids)}
        if len(got) < wanted or got & real:
            self.at.set_phase(name, "Failed")
            return
        self.at.put_in_use(node, f"ml/{name}", shares, gpus)
        self.at.set_phase(name, "Running")

    @invariant()
    def sound(self) -> None:
        self.at.sound()
        for node in NODES:
            self._nothing_is_given_twice(node)

    # The judge.

    def _nothing_is_given_twice(self, node: str) -> None:
        machine, seen = self.at.machine(node), set[str]()
        for devices in self._devices(node).values():
            assert not devices & seen, f"{node}: {devices & seen} twice"
            seen |= devices
        whole = {gpu.uuid for gpu in machine.gpus} & seen
        assert not opened(machine, seen) & {
            position for position, gpu in enumerate(machine.gpus) if gpu.uuid in whole
        }, f"{node}: a GPU is given whole and shared"

    def _fits(self, node: str, asked: _Asked) -> bool:
        machine = self.at.machine(node)
        taken = frozenset[str]().union(*self._devices(node).values())
        if all(resource == GPU for resource, _ in asked.wants):
            whole = len(free_gpus(machine, taken)) >= sum(count for _, count in asked.wants)
            anywhere = any(self._has_whole(each, asked) for each in NODES)
            if whole or anywhere:  # whole GPUs come first, on every node
                return whole
        return fits_shares(machine, taken, asked.wants, asked.share)

    def _has_whole(self, node: str, asked: _Asked) -> bool:
        taken = frozenset[str]().union(*self._devices(node).values())
        wanted = sum(count for _, count in asked.wants)
        return len(free_gpus(self.at.machine(node), taken)) >= wanted

    def _devices(self, node: str) -> dict[str, set[str]]:
        """Which pod has, or will get, which devices: what the kubelet reports, else the plan."""
        found: dict[str, set[str]] = {}
        for key, containers in self.at.in_use(node).items():
            found.setdefault(key, set()).update(*containers.values())
        for key, held in self.at.shares_in_use(node).items():
            for of in held.values():
                found.setdefault(key, set()).update(*of.values())
        for name in self._bound():
            pod = self.at.pod(name)
            if pod.spec.node_name == node and f"ml/{name}" not in found:
                gpus, shares = self._planned(name)
                ids = {each for of in shares.values() for ids in of.values() for each in ids}
                found[f"ml/{name}"] = {*gpus, *ids}
        for order in self.flights:
            if order.node == node and self.at.find(order.name) is not None:
                whole = read_gpus(order.annotations[names.GPUS])
                plan = read_plan(order.annotations[names.PLAN])
                ids = {each for planned in plan.shares for each in planned.ids}
                found[f"flight {order.name}"] = ids.union(*whole.values())
        return found

    # What there is.

    def _real(self, node: str) -> frozenset[str]:
        whole = self.at.in_use(node).values()
        shares = self.at.shares_in_use(node).values()
        return frozenset(
            [
                *(each for of in whole for ids in of.values() for each in ids),
                *(e for of in shares for held in of.values() for ids in held.values() for e in ids),
            ]
        )

    def _planned(self, name: str) -> tuple[tuple[str, ...], Held]:
        said = self.at.pod(name).metadata.annotations
        gpus = read_gpus(said[names.GPUS]) if names.GPUS in said else {}
        return tuple(each for ids in gpus.values() for each in ids), self.at.planned_shares(name)

    def _books(self) -> object:
        return [(node.name, node.gpus, node.shares) for node in self.at.core.nodes(self.at.now)]

    def _all(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self.at.pods.values())

    def _bound(self) -> list[str]:
        return [
            name
            for name in self._all()
            if self.at.pod(name).spec.node_name
            and self.at.pod(name).status.phase not in ("Succeeded", "Failed")
        ]

    def _unstarted(self) -> list[str]:
        return [name for name in self._bound() if self.at.pod(name).status.phase == "Pending"]

    def _waiting(self) -> list[str]:
        flying = {order.name for order in self.flights}
        return [
            name
            for name in self._all()
            if not self.at.pod(name).spec.node_name and name not in flying
        ]


TestShares = ShareMachine.TestCase
TestShares.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_the_nodes_of_this_test_have_all_three() -> None:
    resources = {part.resource for part in parts_of(all_three(DGX_1V))}
    assert resources == {GPU, SHARED, MIG_1G, MIG_3G}
    assert all_three(DGX_1V).healthy_gpus == 0b111
