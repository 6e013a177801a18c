"""Linkwise's own choice on openb: the functions by which the extender places pods, on the state of
the replay.

Which node and which GPUs a pod gets, `linkwise.extender.place` decides here as it does in a
cluster. Only what is left of each node comes from the replay, since no device plugin divides GPUs
as openb's pods do: there a GPU is whole or divided for good, here an idle GPU is either. Each size
of a part counts as a resource of its own, such as a MIG profile. The trace says nothing of links,
so all GPUs of a node are equally near to each other.

The extender does not place pods without GPUs. They go where kube-scheduler's LeastAllocated puts
them, over CPU and memory as by default.
"""

from collections.abc import Collection
from math import gcd

import numpy as np

from bench.replay.openb.policies import Policy
from bench.replay.openb.state import State
from bench.replay.traces.openb import MILLI, Ints, OpenbTrace, Request
from linkwise.extender.place.nodes.best_node import first_of
from linkwise.extender.place.room import LatestRoom, Left, PodMix, Room
from linkwise.extender.place.shares.choice import (
    FoundShares,
    Rank,
    ShareChoice,
    ShareRequest,
    ShareRoom,
    search,
)
from linkwise.extender.state.actions import PodRef
from linkwise.extender.state.cache.machine_kind import Floats, GpuRequest, MachineKind
from linkwise.extender.state.records import NO_DEMAND, PodRecord, ResourceList
from linkwise.pods.annotations import PodRequest, Sharing
from linkwise.pods.requirement import HardwareRequirement, TopologyRequirement, words_of
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine


class UnderKubeScheduler:
    """Another policy for pods with GPUs; kube-scheduler for the others."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def sees(self, state: State, request: Request) -> bool:
        return self._policy.sees(state, request)

    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        if request.gpus:
            return self._policy.scores(state, request, nodes)
        cpu = (state.cpu[nodes] - request.milli_cpu) * 100 // state.all_cpu[nodes]
        memory = (state.memory[nodes] - request.memory_mib) * 100 // state.all_memory[nodes]
        scores: Ints = (cpu + memory) // 2
        return scores

    def gpus(self, state: State, request: Request, node: int) -> tuple[int, ...]:
        return self._policy.gpus(state, request, node)


class Linkwise:
    """Scores the best node 1 and all others 0. It places no pods without GPUs."""

    def __init__(self, trace: OpenbTrace) -> None:
        kinds = sorted({(node.model, node.gpus) for node in trace.nodes if node.gpus})
        self._kinds = [MachineKind(_machine(*kind), n) for n, kind in enumerate(kinds)]
        of_nodes = [(node.model, node.gpus) for node in trace.nodes]
        self._kind_of = np.array([kinds.index(of) if of in kinds else -1 for of in of_nodes])
        self._name_ranks = np.argsort(trace.node_order)
        self._step = gcd(MILLI, *(pod.gpu_milli for pod in trace.pods))
        self._mix = PodMix()
        self._latest = LatestRoom(self._mix)
        self._arrivals = 0

    def sees(self, state: State, request: Request) -> bool:  # noqa: ARG002
        self._arrivals += 1
        self._mix.came(_record(request, self._arrivals))
        return True

    def scores(self, state: State, request: Request, nodes: Ints) -> Ints:
        room = self._latest.at(2 * self._arrivals, self._kinds, lambda of: self._all(state, of))
        best = (
            self._for_shares(room, state, request, nodes)
            if request.shares
            else self._for_whole(room, state, request, nodes)
        )
        scores: Ints = (nodes == best).astype(np.int64)
        return scores

    def gpus(self, state: State, request: Request, node: int) -> tuple[int, ...]:
        if not request.gpus:
            return ()
        if request.shares:
            found = self._found(state, request, node)
            return tuple(gpu for gpu, _ in found.counts[0])
        free = int(_idle(state.gpu[[node]])[0])
        gpus = self._kinds[self._kind_of[node]].take(_gpu_request(request), free)
        assert gpus is not None, "the request fits"
        return tuple(gpu for gpu in range(gpus.bit_length()) if gpus >> gpu & 1)

    def _for_whole(self, room: Room, state: State, request: Request, nodes: Ints) -> int:
        asked = _gpu_request(request)
        gpu, free = state.gpu[nodes].copy(), _idle(state.gpu[nodes])
        before = self._left(state, nodes, gpu, room.resources)
        quality, damage = np.full(len(nodes), -np.inf), np.zeros(len(nodes))
        free_share = np.zeros(len(nodes))
        taken = np.zeros(len(nodes), dtype=np.int64)
        for number in np.unique(self._kind_of[nodes]).tolist():
            places, kind = np.flatnonzero(self._kind_of[nodes] == number), self._kinds[number]
            quality[places] = kind.qualities(asked, free[places])
            taken[places] = kind.taken_within(asked, free[places])
            damage[places] = kind.damages(free[places], taken[places])
            free_share[places] = (gpu[places] == MILLI).sum(axis=1) / kind.all_gpus.bit_count()
        gpu[(taken[:, None] >> np.arange(gpu.shape[1]) & 1).astype(np.bool_)] = 0
        lost = self._lost(room, state, request, nodes, before, gpu)
        order = -quality, lost, damage, free_share, self._name_ranks[nodes]
        return int(nodes[first_of(np.arange(len(nodes)), *order)])

    def _for_shares(self, room: Room, state: State, request: Request, nodes: Ints) -> int:
        gpu = state.gpu[nodes].copy()
        before = self._left(state, nodes, gpu, room.resources)
        found = [self._found(state, request, node) for node in nodes.tolist()]
        gpu[np.arange(len(nodes)), [each.counts[0][0][0] for each in found]] -= request.gpu_milli
        lost = self._lost(room, state, request, nodes, before, gpu)
        ranked: list[tuple[Rank, int, int]] = [
            (_choice(each).rank(lost_room), int(self._name_ranks[node]), node)
            for each, lost_room, node in zip(found, lost.tolist(), nodes.tolist(), strict=True)
        ]
        return min(ranked)[2]

    def _found(self, state: State, request: Request, node: int) -> FoundShares:
        left = state.gpu[node].tolist()
        free = tuple((gpu, of // self._step) for gpu, of in enumerate(left) if of >= self._step)
        idle = sum(1 << gpu for gpu, of in enumerate(left) if of == MILLI)
        opened = sum(1 << gpu for gpu, of in enumerate(left) if 0 < of < MILLI)
        wants = (("", _demand(request.gpu_milli // self._step)),)
        asked = ShareRequest(wants, Sharing.PACK, TopologyRequirement())
        kind = self._kinds[self._kind_of[node]]
        found, _ = search(kind, asked, (ShareRoom("", apart=False, free=free),), idle, opened)
        assert found is not None, "the request fits"
        return found

    def _all(self, state: State, resources: Collection[str]) -> Left:
        nodes = np.arange(len(state.cpu))
        return self._left(state, nodes, state.gpu, resources)

    def _left(self, state: State, nodes: Ints, gpu: Ints, resources: Collection[str]) -> Left:
        shares = {size: (gpu // int(size)).sum(axis=1) for size in resources}
        kinds, free = self._kind_of[nodes], _idle(gpu)
        return Left(kinds, free, state.cpu[nodes], state.memory[nodes], shares)

    def _lost(
        self, room: Room, state: State, request: Request, nodes: Ints, before: Left, gpu: Ints
    ) -> Floats:
        """[nodes] the lost room, if the request leaves *gpu* of each node's GPUs."""
        after = self._left(state, nodes, gpu, room.resources).without(_needs(request))
        return room.lost(before, after)


def _machine(model: str, gpus: int) -> Machine:
    found = (Gpu(f"{model}-{gpus}-{index}", index, model, 0) for index in range(gpus))
    return Machine(tuple(found), (Link(LinkClass.SYS),) * (gpus * (gpus - 1) // 2))


def _idle(gpu: Ints) -> Ints:
    """The bitmask of each row's idle GPUs."""
    masks: Ints = ((gpu == MILLI) << np.arange(gpu.shape[1])).sum(axis=1)
    return masks


def _demand(count: int) -> PodDemand:
    return PodDemand((ContainerDemand("main", Role.MAIN, count),))


def _needs(request: Request) -> ResourceList:
    return ResourceList(request.milli_cpu, request.memory_mib, request.gpus)


def _requirement(request: Request) -> TopologyRequirement:
    models = [words_of(model) for model in request.models.split("|") if model]
    return TopologyRequirement(hardware=HardwareRequirement(models=tuple(models)))


def _gpu_request(request: Request) -> GpuRequest:
    return GpuRequest(_demand(request.gpus), _requirement(request))


def _choice(found: FoundShares) -> ShareChoice:
    return ShareChoice((), found.quality, found.opened, found.damage, found.left)


def _record(request: Request, number: int) -> PodRecord:
    """The pod as the extender knows it when it comes."""
    name = f"pod-{number}"
    return PodRecord(
        ref=PodRef("openb", name, name),
        node="",
        ended=False,
        failed=False,
        leaving=False,
        priority=0,
        created=0.0,
        needs=_needs(request),
        demand=_demand(request.gpus) if request.gpus and not request.shares else NO_DEMAND,
        shares=((str(request.gpu_milli), _demand(1)),) if request.shares else (),
        ask=PodRequest(requirement=_requirement(request)),
    )
