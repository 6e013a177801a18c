"""Asks the core which pods would have to go elsewhere, so that a gang or pod starts at once."""

import math
from collections.abc import Collection, Iterable

from linkwise.cli.what_if.answer import JobMoves, MovedPod, Verdict
from linkwise.cli.what_if.live_listing import LiveListing
from linkwise.drawing.words import some
from linkwise.extender.next.moves.plan import MovePlan
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.state.records import GangKey
from linkwise.kube.fields import group_of
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.topology import names

NO_BUDGETS = "PodDisruptionBudgets were not given: none is counted"


def moves_for(live: LiveListing, snapshot: Snapshot, key: GangKey) -> JobMoves | None:
    plan = live.core.moves.sought(key, live.now)
    if plan is None:
        return None
    return JobMoves(
        pods=moved_pods(snapshot, plan),
        lost_gpu_seconds=plan.lost,
        saved_gpu_seconds=None if plan.saved == math.inf else plan.saved,
        verdict=_verdict(live, key, plan),
        after_seconds=max(live.core.moves.policy.cost_seconds, plan.lost / _gpus(plan)),
    )


def moved_pods(snapshot: Snapshot, plan: MovePlan) -> tuple[MovedPod, ...]:
    found = []
    for move in plan.moves:
        here, there = (
            snapshot.node_named[node].machine for node in (move.pod.node, move.spot.node)
        )
        assert here is not None
        assert there is not None, "the search goes by machines"
        gpus = snapshot.node_named[move.pod.node].owned[move.pod.uid]
        found.append(
            MovedPod(
                pod=move.pod.key,
                node=move.pod.node,
                gpus=here.indices_of(gpus),
                target=move.spot.node,
                target_gpus=there.indices_of(move.spot.gpus),
                lost_gpu_seconds=move.lost,
            )
        )
    return tuple(found)


def _verdict(live: LiveListing, key: GangKey, plan: MovePlan) -> Verdict:
    """By the extender's own estimate of the wait, as `PlannedMoves` decides."""
    reservation = live.core.reservations.of(key)
    wait, least = plan.saved / _gpus(plan), live.core.moves.policy.cost_seconds
    if wait > least and plan.saved >= plan.lost:
        return Verdict.YES
    if reservation is None:
        return Verdict.NOT_FIRST
    if not reservation.earliest.known:  # it is expected to wait for as long as it has waited
        return Verdict.LATER
    return Verdict.LOSES if wait > least else Verdict.SHORT_WAIT


def _gpus(plan: MovePlan) -> int:
    return sum(spot.gpus.bit_count() for spot in plan.spots)


def jobs_of_movers(pods: Iterable[Pod], not_given: Collection[ObjectRef]) -> list[ObjectRef]:
    """Return the Jobs that were not given, and whose running pods consent to moves."""
    running = (pod for pod in pods if pod.spec.node_name)
    movers = (p for p in running if p.metadata.annotations.get(names.MOVABLE, "false") != "false")
    controllers = dict.fromkeys(map(controller_of, movers))
    return [ref for ref in controllers if ref is not None and ref in not_given]


def controller_of(pod: Pod) -> ObjectRef | None:
    for owner in pod.metadata.owner_references:
        if owner.controller:
            group = group_of(owner.api_version)
            return ObjectRef(group, owner.kind, pod.metadata.namespace, owner.name)
    return None


def note_of_jobs(jobs: Iterable[ObjectRef]) -> str:
    return (
        "pods that consent to moves stay, as their Jobs were not given, which say whether an "
        f"eviction counts as a failure: {some([str(ref) for ref in jobs])}"
    )
