"""Asks the core which moves would give so many whole nodes: nodes with all of their GPUs free.

It is asked for a gang of as many pods, each with all GPUs of a node, that is as important as the
most important pod that runs. Nodes with different numbers of GPUs are tried apart. The pods that
wait are left aside.
"""

from collections import defaultdict

import msgspec

from linkwise.cli.what_if.answer import WholeNodes, WholeNodesAnswer
from linkwise.cli.what_if.cluster import ListedCluster, all_left_out, presumed, use_of
from linkwise.cli.what_if.live_listing import LiveListing
from linkwise.cli.what_if.moves import (
    NO_BUDGETS,
    jobs_of_movers,
    moved_pods,
    note_of_jobs,
)
from linkwise.extender.next.core_settings import Preempt
from linkwise.extender.next.moves.plan import MovePlan
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.show.explain.usage import view_nodes
from linkwise.extender.state.records import GangKey
from linkwise.kube.objects import (
    Container,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    Resources,
    SchedulingGate,
    Toleration,
)
from linkwise.topology import names

change = msgspec.structs.replace
_SIZE = "what-if.linkwise.dev/gpus"  # a label that the listed nodes get here
_NAMESPACE = "what-if"
_OF_CONDITIONS = "node.kubernetes.io/"  # taints of nodes that are cordoned or ill


def ask_whole_nodes(cluster: ListedCluster, wanted: int) -> WholeNodesAnswer:
    return _Asking(cluster, wanted).answer()


class _Asking:
    def __init__(self, cluster: ListedCluster, wanted: int) -> None:
        self._cluster, self._wanted = cluster, wanted
        nodes = cluster.known.nodes
        bound = [pod for pod in cluster.listing.pods.values() if _has_place(pod)]
        self._priority = max((pod.spec.priority for pod in bound), default=0)
        keys = {taint.key for node in nodes for taint in node.spec.taints}
        self._tolerations = tuple(
            Toleration(key=key, operator="Exists")
            for key in sorted(keys)
            if not key.startswith(_OF_CONDITIONS)
        )
        self._live = LiveListing(cluster, bound, preempt=Preempt.NEVER, ends=False)
        self._live.settle()
        self._before = self._live.core.snapshot(self._live.now)
        for node in self._before.nodes:
            if node.machine is not None and node.name in self._live.nodes:
                self._live.put_node(_labelled(self._live.nodes[node.name], len(node.machine.gpus)))

    def answer(self) -> WholeNodesAnswer:
        before, cluster, wanted = self._before, self._cluster, self._wanted
        sizes = tuple(
            self._of_size(size, resource, nodes)
            for (size, resource), nodes in sorted(_by_size(before).items(), reverse=True)
        )
        notes = []
        jobs = jobs_of_movers(cluster.listing.pods.values(), self._live.not_given)
        if jobs:
            notes.append(note_of_jobs(jobs))
        if cluster.listing.budgets is None and any(size.moves for size in sizes):
            notes.append(NO_BUDGETS)
        return WholeNodesAnswer(
            at=cluster.at,
            wanted=wanted,
            given=any(len(size.whole) + len(size.emptied) >= wanted for size in sizes),
            cluster=use_of(before),
            sizes=sizes,
            guesses=cluster.known.guesses,
            left_out=all_left_out(cluster, before),
            presumed=presumed(before),
            notes=tuple(notes),
        )

    def _of_size(self, size: int, resource: str, nodes: list[NodeState]) -> WholeNodes:
        whole = [node.name for node in nodes if node.free.bit_count() == size]
        plan = self._most(size, resource, len(whole), min(self._wanted, len(nodes)))
        used = () if plan is None else [spot.node for spot in plan.spots]
        return WholeNodes(
            gpus=size,
            nodes=len(nodes),
            whole=tuple(whole),
            emptied=tuple(sorted({*used} - {*whole})),
            moves=() if plan is None else moved_pods(self._before, plan),
            lost_gpu_seconds=0.0 if plan is None else plan.lost,
        )

    def _most(self, size: int, resource: str, whole: int, wanted: int) -> MovePlan | None:
        """Return the moves that make *wanted* nodes whole, else those for the largest number that
        a bisection finds; None: there are no more than *whole* in any case."""
        if wanted <= whole:
            return None
        best = self._sought(size, resource, wanted)
        few, many = (whole, wanted) if best is None else (wanted, wanted)
        while few < many - 1:
            middle = (few + many) // 2
            plan = self._sought(size, resource, middle)
            few, many = (few, middle) if plan is None else (middle, many)
            best = plan or best
        return best

    def _sought(self, size: int, resource: str, count: int) -> MovePlan | None:
        live, name = self._live, f"{count}-nodes-of-{size}"
        pods = [self._pod(name, number, size, resource, count) for number in range(count)]
        live.add(pods)
        live.settle()
        plan = live.core.moves.sought(GangKey(_NAMESPACE, name), live.now)
        live.remove([pod.metadata.uid for pod in pods])
        live.settle()
        return plan

    def _pod(self, gang: str, number: int, size: int, resource: str, count: int) -> Pod:
        limits: dict[str, Quantity] = {resource: size}
        return Pod(
            metadata=ObjectMeta(
                name=f"{gang}-{number}",
                namespace=_NAMESPACE,
                uid=f"{gang}-{number}",
                annotations={names.GANG: gang, names.GANG_SIZE: str(count)},
            ),
            spec=PodSpec(
                containers=(
                    Container(name="main", resources=Resources(requests=limits, limits=limits)),
                ),
                node_selector={_SIZE: str(size)},
                priority=self._priority,
                scheduling_gates=(SchedulingGate(name=names.GATE),),
                tolerations=self._tolerations,
            ),
        )


def _by_size(snapshot: Snapshot) -> dict[tuple[int, str], list[NodeState]]:
    """By number of GPUs and by resource."""
    usable = {view.name for view in view_nodes(snapshot) if view.usable}
    found: dict[tuple[int, str], list[NodeState]] = defaultdict(list)
    for node in sorted(snapshot.nodes, key=lambda node: node.name):
        if node.machine is not None and node.record is not None and node.name in usable:
            found[len(node.machine.gpus), node.record.resource].append(node)
    return found


def _has_place(pod: Pod) -> bool:
    is_planned = pod.status.nominated_node_name and names.PLAN in pod.metadata.annotations
    return bool(pod.spec.node_name or is_planned)


def _labelled(node: Node, gpus: int) -> Node:
    labels = {**node.metadata.labels, _SIZE: str(gpus)}
    return change(node, metadata=change(node.metadata, labels=labels))
