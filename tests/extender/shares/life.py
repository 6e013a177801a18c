"""Pods of all kinds on nodes with whole GPUs, replicas and MIG devices, in any order: what happens
to them, and the judge of what the extender gives and refuses."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.extender_calls import BindOrder, Outcome
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.annotations.plan import read_gpus, read_plan
from linkwise.topology.machine.parts import Part
from tests.divided import GPU, MIG_1G, MIG_3G, SHARED, all_three, cut, replicas
from tests.extender.shares.brute_force import (
    fits_shares,
    free_gpus,
    free_shares,
    opened,
)
from tests.extender.shares.cluster import Held, ShareCluster
from tests.machines import DGX_1V, DGX_A100, PCIE_8

T = TypeVar("T")
NODES = ("n0", "n1", "n2")
RESOURCES = (SHARED, MIG_1G, MIG_3G)
SETTINGS = CoreSettings()


@dataclass(frozen=True)
class _Asked:
    wants: tuple[tuple[str, int], ...]  # for each container
    share: str


def _gpus(asked: _Asked) -> int:
    return sum(count for resource, count in asked.wants if resource == GPU)


class Life:
    """A cluster, and what happens to it by *chance*."""

    def __init__(self, chance: random.Random, settings: CoreSettings = SETTINGS) -> None:
        self.chance = chance
        self.at = ShareCluster(settings=settings)
        machines = (
            all_three(DGX_1V),
            replicas(DGX_A100, {0: 2, 1: 2}, GPU),
            cut(replicas(PCIE_8, dict.fromkeys((0, 1, 4), 2)), 5, MIG_1G, MIG_3G),
        )
        for node, machine in zip(NODES, machines, strict=True):
            self.at.add_divided(node, machine)
        self.first = dict(zip(NODES, machines, strict=True))
        self.asked: dict[str, _Asked] = {}
        self.flights: list[BindOrder] = []
        self.number = self.placed = 0

    # What people do.

    def add(self) -> None:
        for _ in range(self.chance.randint(2, 6)):
            self.number += 1
            name, asked = f"p{self.number}", self._asks()
            limits = ({resource: count} for resource, count in asked.wants)
            self._make(name, *limits, share=asked.share)
            self.asked[name] = asked

    def _make(self, name: str, *limits: Mapping[str, int], share: str) -> None:
        self.at.add_taker(name, *limits, share=share)

    def _asks(self) -> _Asked:
        chance = self.chance
        share = chance.choice(["", "", "spread", "pack"])
        if chance.random() < 0.4:
            return _Asked(((GPU, chance.randint(1, 4)),), share)
        containers = chance.choice([1, 1, 2])
        wants = [(chance.choice(RESOURCES), chance.randint(1, 3)) for _ in range(containers)]
        return _Asked(tuple(wants), share)

    def delete(self) -> None:
        for name in self._some(self._all(), 6):
            node = self.at.pod(name).spec.node_name
            self.at.delete(name)
            if node:
                self.at.put_in_use(node, f"ml/{name}", None, ())

    def end(self) -> None:
        """Some end; what the kubelet still reports stays in use."""
        for name in self._some(self._bound(), 5):
            self.at.set_phase(name, "Succeeded")

    def clean_up(self) -> None:
        for node in NODES:
            for key in {**self.at.in_use(node).pods, **self.at.in_use(node).shares}:
                pod = self.at.find(key.removeprefix("ml/"))
                if pod is None or pod.status.phase == "Succeeded":
                    self.at.put_in_use(node, key, None, ())

    # What kube-scheduler does.

    def try_all(self) -> None:
        """Try every pod that waits, in some order; a Binding may stay in flight."""
        for name in self._some(self._waiting(), 99):
            order = self._try(name)
            if order is not None and self.chance.random() < 0.1:
                self.flights.append(order)
            elif order is not None:
                self.at.land(order)

    def _try(self, name: str) -> BindOrder | None:
        asked = self.asked[name]
        fitting = [node for node in NODES if self._fits(node, asked)]
        passed = self.at.filter(name).node_names
        assert set(passed) <= set(fitting), f"{asked} on {passed}, brute force: {fitting}"
        assert bool(passed) == bool(fitting), f"{asked} refused, brute force: {fitting}"
        if not passed:
            return None
        order = self.at.begin_bind(name, self.chance.choice(sorted(passed)))
        assert isinstance(order, BindOrder), order
        self._gives_what_is_free(order)
        self.placed += 1
        return order

    def land(self) -> None:
        if self.flights:
            outcome = self.chance.choice([Outcome.DONE, Outcome.REFUSED])
            self.at.land(self.flights.pop(0), outcome)

    def restart(self) -> None:
        while self.flights:
            self.at.land(self.flights.pop())
        before = self._books()
        self.at.restart()
        assert self._books() == before

    # What the kubelet does.

    def start_all(self) -> None:
        for name in self._unstarted():
            if self.chance.random() < 0.7:
                self._start(name)

    def _start(self, name: str) -> None:
        """The kubelet gives the planned devices, or others of the same resources that no plan
        names: the plugin in front of the vendor's prefers no others."""
        node = self.at.pod(name).spec.node_name
        gpus, shares = self._planned(name)
        others = {key: ids for key, ids in self._devices(node).items() if key != f"ml/{name}"}
        real = frozenset[str]().union(*others.values())
        if self.chance.random() < 0.5:
            machine = self.at.machine(node)
            gpus = tuple(self._some(free_gpus(machine, real), len(gpus)))
            given: set[str] = set()
            other: Held = {}
            for container, of in shares.items():
                for resource, ids in of.items():
                    free = sorted(free_shares(machine, real | given, resource))
                    chosen = tuple(self._some(free, len(ids)))
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

    def divide_otherwise(self) -> None:
        """GPUs that no pod uses are divided otherwise, by replicas or not at all."""
        node = self.chance.choice(NODES)
        machine = self.at.machine(node)
        taken = frozenset[str]().union(*self._devices(node).values())
        used = opened(machine, taken) | {
            position for position, gpu in enumerate(machine.gpus) if gpu.uuid in taken
        }
        gpus = [
            gpu
            if position in used or self.chance.random() < 0.7
            else replace(
                gpu,
                healthy=True,
                parts=self.chance.choice(
                    [None, (Part(gpu.uuid, SHARED, 2),), self.first[node].gpus[position].parts]
                ),
            )
            for position, gpu in enumerate(machine.gpus)
        ]
        text = write_topology(replace(machine, gpus=tuple(gpus)))
        self.at.annotate_node(node, names.TOPOLOGY, text)

    def fall_ill(self) -> None:
        """GPUs become unhealthy, whole or divided, and others recover."""
        node = self.chance.choice(NODES)
        machine = self.at.machine(node)
        sick = set(self._some(list(range(8)), 2))
        gpus = tuple(
            replace(gpu, healthy=position not in sick)
            if gpu.parts is None
            else replace(
                gpu,
                parts=tuple(replace(part, healthy=position not in sick) for part in gpu.parts),
            )
            for position, gpu in enumerate(machine.gpus)
        )
        text = write_topology(replace(machine, gpus=gpus))
        self.at.annotate_node(node, names.TOPOLOGY, text)

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

    def _gives_what_is_free(self, order: BindOrder) -> None:
        machine = self.at.machine(order.node)
        taken = frozenset[str]().union(*self._devices(order.node).values())
        gpus = read_gpus(order.annotations[names.GPUS])
        assert {each for ids in gpus.values() for each in ids} <= set(free_gpus(machine, taken))
        for planned in read_plan(order.annotations[names.PLAN]).shares:
            assert set(planned.ids) <= set(free_shares(machine, taken, planned.resource))

    def _fits(self, node: str, asked: _Asked) -> bool:
        is_whole = all(resource == GPU for resource, _ in asked.wants)
        if is_whole and any(self._has_whole(each, asked) for each in NODES):
            return self._has_whole(node, asked)  # whole GPUs come first, on every node
        taken = frozenset[str]().union(*self._devices(node).values())
        return fits_shares(self.at.machine(node), taken, asked.wants, asked.share)

    def _has_whole(self, node: str, asked: _Asked) -> bool:
        taken = frozenset[str]().union(*self._devices(node).values())
        wanted = _gpus(asked)
        free = len(free_gpus(self.at.machine(node), taken))
        return min(free, self._uncounted(node)) >= wanted

    def _uncounted(self, node: str) -> int:
        """How many GPUs kube-scheduler counts as unused: a pod may have been given others."""
        flying = [order.name for order in self.flights if order.node == node]
        there = {name for name in self._bound() if self.at.pod(name).spec.node_name == node}
        there.update(name for name in flying if self.at.find(name) is not None)
        offered = int(self.at.nodes[node].status.allocatable[GPU])
        return offered - sum(_gpus(self.asked[name]) for name in there)

    def _devices(self, node: str) -> dict[str, set[str]]:
        """Which pod has, or will get, which devices: what the kubelet reports, else the plan."""
        found: dict[str, set[str]] = {}
        for key, containers in self.at.in_use(node).pods.items():
            found.setdefault(key, set()).update(*containers.values())
        for key, held in self.at.in_use(node).shares.items():
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

    def _some(self, of: list[T], most: int) -> list[T]:
        """Some of these, in some order."""
        return self.chance.sample(of, min(most, len(of)))

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
            if self.at.pod(name).spec.node_name and not self.at.pod(name).has_ended
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
