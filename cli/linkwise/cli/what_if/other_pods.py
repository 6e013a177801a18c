"""Where kube-scheduler puts the job's pods without GPUs, which Linkwise does not place.

It counts all pods and plans, as kube-scheduler counts nominated pods, and prefers the node with
most CPU and memory left (LeastAllocated).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.show.explain.texts.format import cpus_in_words, gib_in_words, in_bytes
from linkwise.extender.state.records import NodeRecord, PodRecord, ResourceList
from linkwise.kube.filters.nodes import Ints, domains_of
from linkwise.kube.filters.placed_pods import PlacedPods
from linkwise.kube.filters.plugins import PodFilters, World, candidate, node_rejection
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.objects import Pod

Bools = NDArray[np.bool_]
_NOT_READY = Rejection("TaintToleration", ("node(s) were not ready",), resolvable=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a pod gets no node."""

    reasons: tuple[tuple[str, int], ...]  # kube-scheduler's words, and of how many nodes
    lacks: tuple[str, ...]  # what no node has at all, in words
    never: bool  # it fits on no node even without other pods


class NodesForOthers:
    """The nodes of a snapshot. Pods that are put there count for those that follow."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._left = snapshot.left.of_rows(slice(None))
        rows = self._left.amounts.shape[1]
        self._nodes: list[NodeRecord | None] = [None] * rows
        for node in snapshot.nodes:
            self._nodes[node.row] = node.record
        offers = [ResourceList() if node is None else node.offers for node in self._nodes]
        self._offers = (
            np.array([each.milli_cpu for each in offers], dtype=np.int64),
            np.array([each.memory for each in offers], dtype=np.int64),
        )
        self._known: dict[object, Bools] = {}

    def put(self, pod: Pod, record: PodRecord) -> str:
        """Return the node that the pod gets; empty: none."""
        fits = self._fits(pod, record)
        if not fits.any():
            return ""
        row = int(np.argmax(np.where(fits, self._score(record.needs), -1.0)))
        node = self._nodes[row]
        assert node is not None, "it fits"
        self._left.take(row, record.needs)
        if "_placed" in self.__dict__ and record.facts is not None:
            self._placed.put(record.uid, record.facts, row)
        return node.name

    def can_take(self, pod: Pod, record: PodRecord) -> frozenset[str]:
        """Return the nodes that fit the pod now, whatever GPUs it takes."""
        fits = self._fits(pod, record)
        return frozenset(
            node.name
            for node, fit in zip(self._nodes, fits, strict=True)
            if node is not None and fit
        )

    def _fits(self, pod: Pod, record: PodRecord) -> Bools:
        fits: Bools = self._allowed(pod, record) & self._left.fits(record.needs, len(self._nodes))
        return fits

    def could_take(self, pod: Pod, record: PodRecord) -> frozenset[str]:
        """Return the nodes that fit the pod if they are empty."""
        return frozenset(
            node.name
            for node, allowed in zip(self._nodes, self._suitable(pod), strict=True)
            if node is not None
            and allowed
            and _fit(self._counted(record), node.offers, has_place=node.max_pods > 0) is None
        )

    def why_not(self, pod: Pod, record: PodRecord) -> Refused:
        filters = PodFilters(candidate(pod), self._world, frozenset([record.uid]))
        reasons: Counter[str] = Counter()
        for row, node in enumerate(self._nodes):
            if node is None:
                continue
            found = filters.rejection(row, partial(self._short, record, row))
            found = found if node.ready else _NOT_READY
            reasons.update(found.reasons if found is not None else ())
        never = bool(filters.nowhere) or not self.could_take(pod, record)
        return Refused(tuple(reasons.most_common()), (*self._lacks(self._counted(record)),), never)

    def _short(self, record: PodRecord, row: int) -> Rejection | None:
        has_place = bool(self._left.pods[row] > 0)
        return _fit(self._counted(record), self._left.on(row), has_place=has_place)

    def _counted(self, record: PodRecord) -> ResourceList:
        """What it needs of resources that any node lists."""
        return self._left.counted(record.needs)

    def _lacks(self, needs: ResourceList) -> list[str]:
        """What no node has, however empty it is."""
        offers = [node.offers for node in self._nodes if node is not None]
        found = []
        for name, wanted in _amounts(needs).items():
            most = max((_amounts(each).get(name, 0) for each in offers), default=0)
            if wanted > most:
                found.append(
                    f"{in_words(name, wanted)}, and no node has more than {in_words(name, most)}"
                )
        return found

    def _allowed(self, pod: Pod, record: PodRecord) -> Bools:
        """[rows] the nodes that let the pod in beside the pods that are there."""
        found, wanted = self._suitable(pod), candidate(pod)
        if not (wanted.facts.demands or self._keeps_out):
            return found
        return found & PodFilters(wanted, self._world, frozenset([record.uid])).allowed

    def _suitable(self, pod: Pod) -> Bools:
        """[rows] the nodes that let the pod in if they are empty."""
        key = repr((pod.spec.tolerations, pod.spec.node_selector, pod.spec.affinity))
        found = self._known.get(key)
        if found is None:
            wanted = candidate(pod)
            found = self._known[key] = np.array(
                [
                    node is not None and node.ready and node_rejection(wanted, node) is None
                    for node in self._nodes
                ],
                dtype=np.bool_,
            )
        return found

    def _score(self, needs: ResourceList) -> NDArray[np.float64]:
        rows = len(self._nodes)
        left = (
            self._left.milli_cpu[:rows] - needs.milli_cpu,
            self._left.memory[:rows] - needs.memory,
        )
        shares = [
            np.clip(free / np.maximum(offer, 1), 0.0, 1.0)
            for free, offer in zip(left, self._offers, strict=True)
        ]
        found: NDArray[np.float64] = (shares[0] + shares[1]) / 2
        return found

    @cached_property
    def _keeps_out(self) -> bool:
        """Whether any pod has required anti-affinity."""
        return any(
            record.facts is not None and record.facts.rules.apart for record in self._snapshot.pods
        )

    @cached_property
    def _placed(self) -> PlacedPods:
        placed, rows = PlacedPods(), {node.name: node.row for node in self._snapshot.nodes}
        for record in self._snapshot.pods:
            plan = self._snapshot.plans.get(record.uid)
            node = record.node or (plan.plan.node if plan is not None else "")
            if node in rows and record.facts is not None:
                placed.put(record.uid, record.facts, rows[node], leaving=record.leaving)
        return placed

    @cached_property
    def _world(self) -> World:
        return World(self._nodes, self._domain, self._placed, None, None)

    def _domain(self, key: str) -> Ints:
        return domains_of(key, [node.labels if node is not None else {} for node in self._nodes])


def _fit(needs: ResourceList, left: ResourceList, *, has_place: bool) -> Rejection | None:
    there = _amounts(left)
    short = [
        f"Insufficient {name}"
        for name, wanted in _amounts(needs).items()
        if wanted > there.get(name, 0)
    ]
    if not has_place:
        short.append("Too many pods")
    return Rejection("NodeResourcesFit", tuple(short), resolvable=True) if short else None


def _amounts(of: ResourceList) -> Mapping[str, int]:
    found = {"cpu": of.milli_cpu, "memory": of.memory, **dict(of.others)}
    return {name: amount for name, amount in found.items() if amount}


def in_words(resource: str, amount: int) -> str:
    if resource == "cpu":
        return cpus_in_words(amount)
    of = f" of {resource}"
    return (
        gib_in_words(amount) + of if resource == "memory" or in_bytes(resource) else f"{amount}{of}"
    )


def alike(pod: Pod) -> object:
    """Equal for pods that may go to the same nodes."""
    spec = pod.spec
    resources = [each.resources for each in (*spec.init_containers, *spec.containers)]
    return repr((resources, spec.tolerations, spec.node_selector, spec.affinity))


def put_all(snapshot: Snapshot, pods: Sequence[Pod]) -> tuple[tuple[Pod, str], ...]:
    """Return those of *pods* that get a node now, each with it."""
    nodes = NodesForOthers(snapshot)
    found = []
    for pod in pods:
        record = snapshot.by_uid.get(pod.metadata.uid)
        node = nodes.put(pod, record) if record is not None else ""
        if node:
            found.append((pod, node))
    return tuple(found)
