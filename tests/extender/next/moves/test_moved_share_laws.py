"""Pods of all kinds on nodes with whole GPUs, replicas and MIG devices, of which a person empties
some: each that is evicted has its next place, and no other pod gets that."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.next.moves.targets import Target
from linkwise.extender.state.extender_calls import BindOrder
from linkwise.topology import names
from tests.extender.next.moves.movers import MOVABLE, owned_by
from tests.extender.shares.cluster import asks
from tests.extender.shares.life import NODES, Life

SETTINGS = CoreSettings(moves=MovePolicy(Moves.CONSENT, again_seconds=0.0))


@dataclass(frozen=True)
class _Place:
    node: str
    devices: frozenset[str]


class MovingLife(Life):
    """Each pod has a controller of its own, which makes a new one for one that was evicted."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance, SETTINGS)
        self.owners: dict[str, str] = {}
        self.next_places: dict[str, _Place] = {}  # of the replacements
        self.arrived = self.seen = 0

    def _make(self, name: str, *limits: Mapping[str, int], share: str) -> None:
        self.owners.setdefault(name, name)
        containers = [asks(f"c{number}", each) for number, each in enumerate(limits)]
        words = {**MOVABLE, "share": share} if share else MOVABLE
        alter = owned_by("ReplicaSet", self.owners[name])
        self.at.add_pod(name, containers=containers, said=words, alter=alter)

    def empty(self) -> None:
        self.start_all()
        self.delete()
        node = self.chance.choice(NODES)
        for other in NODES:
            self.at.annotate_node(other, names.EMPTY, "true" if other == node else None)
        self.decide()

    def stop_emptying(self) -> None:
        for node in NODES:
            self.at.annotate_node(node, names.EMPTY, None)

    def decide(self) -> None:
        """The extender decides; of each pod that it evicts the controller makes another, which
        kube-scheduler tries before or after strangers."""
        self.at.pass_time(60.0)
        leaving: list[str] = []
        for name in self.at.evicted[self.seen :]:
            pod = self.at.find(name)
            if pod is None:
                continue
            target = self.at.core._planner.targets.of(pod.metadata.uid)
            assert target is not None, f"{name} was evicted and has no target"
            place = _Place(target.spot.node, self._devices_of(target))
            assert place.node != pod.spec.node_name
            assert not place.devices & self._taken(place.node), f"the target of {name} is not free"
            self.number += 1
            new = f"p{self.number}"
            self.owners[new], self.asked[new] = self.owners[name], self.asked[name]
            limits = ({resource: count} for resource, count in self.asked[name].wants)
            self._make(new, *limits, share=self.asked[name].share)
            self.next_places[new] = place
            if self.chance.random() < 0.5:
                self._bury(name)
            else:
                leaving.append(name)
        self.seen = len(self.at.evicted)
        self.at.settle()
        if self.chance.random() < 0.5:
            self.add()
            self.try_all()
        self._try_replacements()
        for name in leaving:
            self._bury(name)

    def _bury(self, name: str) -> None:
        pod = self.at.find(name)
        if pod is not None:
            self.at.delete(name)
            self.at.put_in_use(pod.spec.node_name, f"ml/{name}", None, ())

    def _try_replacements(self) -> None:
        for name, place in self.next_places.items():
            if self.at.pod(name).spec.node_name:
                continue
            order = self._try(name)
            assert order is not None, f"{name} has no place"
            self.at.land(order)
            gpus, shares = self._planned(name)
            ids = {each for of in shares.values() for ids in of.values() for each in ids}
            assert _Place(order.node, frozenset(ids.union(gpus))) == place
            self.arrived += 1
        self.next_places.clear()

    def try_all(self) -> None:
        for name in self._some(self._waiting(), 99):
            if name not in self.next_places and (order := self._try(name)) is not None:
                self.at.land(order)

    def _try(self, name: str) -> BindOrder | None:
        passed = self.at.filter(name).node_names
        emptied = {n for n in NODES if names.EMPTY in self.at.nodes[n].metadata.annotations}
        assert not emptied.intersection(passed)
        if not passed:
            return None
        order = self.at.begin_bind(name, self.chance.choice(sorted(passed)))
        assert isinstance(order, BindOrder), order
        self._gives_what_is_free(order)
        if name not in self.next_places:
            self._takes_no_target(order)
        self.placed += 1
        return order

    def _takes_no_target(self, order: BindOrder) -> None:
        kept = {
            each for p in self.next_places.values() if p.node == order.node for each in p.devices
        }
        uuids = self.at.core._cache.assumed[order.uid][order.node]
        ids = {each for planned in uuids.plan.shares for each in planned.ids}
        assert kept.isdisjoint(ids | uuids.uuids), f"{order.name} got the target of another"

    def _devices_of(self, target: Target) -> frozenset[str]:
        gpus = self.at.machine(target.spot.node).uuids_of(target.spot.gpus)
        return frozenset(gpus).union(*(of.ids for of in target.shares))

    def _taken(self, node: str) -> set[str]:
        return set().union(*self._devices(node).values())

    def start_all(self) -> None:
        """The kubelet gives what was planned."""
        for name in self._unstarted():
            node = self.at.pod(name).spec.node_name
            gpus, shares = self._planned(name)
            self.at.put_in_use(node, f"ml/{name}", shares, gpus)
            self.at.set_phase(name, "Running")


@pytest.mark.parametrize("seed", range(4))
def test_each_that_is_evicted_gets_its_next_place(seed: int) -> None:
    life = MovingLife(random.Random(seed))
    happenings = (
        *(life.add, life.add, life.try_all, life.try_all, life.start_all, life.empty),
        *(life.empty, life.empty, life.decide, life.decide, life.stop_emptying, life.empty),
        *(life.end, life.clean_up, life.divide_otherwise, life.fall_ill, life.restart),
    )
    for _ in range(200):
        life.chance.choice(happenings)()
        life.sound()
    assert life.arrived > 2
