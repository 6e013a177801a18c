"""What was decided about a pod, a gang or a node, by this leader; and of the plans that an earlier
leader made what the pods that have them say."""

from collections.abc import Iterator
from dataclasses import dataclass

from linkwise.extender.show.explain.names_said import gangs_meant, names_of_gangs, why_unknown
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.state.decisions import MOST, Decision, What
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import HistoryView


@dataclass(frozen=True, slots=True)
class Asked:
    """What the decisions have to be about; each part that is empty asks for nothing."""

    namespace: str = ""
    pod: str = ""  # namespace/name
    gang: str = ""  # namespace/name; the name as users say it
    node: str = ""


def view_history(snapshot: Snapshot, asked: Asked) -> HistoryView | str:
    """The oldest first, and no more than a leader keeps; as text, that nothing is known of what is
    *asked* for."""
    known = {each.uid for each in snapshot.decisions if each.what in (What.PLANNED, What.BOUND)}
    every = [*_earlier_plans(snapshot, known), *snapshot.decisions]
    own = snapshot.own
    gangs = _gangs(snapshot, every, asked.gang)
    of_pod = _gang_of(snapshot, every, asked.pod)
    found = [
        each
        for each in every
        if (not asked.namespace or _is_of_namespace(each, asked.namespace))
        and (not asked.pod or _is_about_pod(each, asked.pod, of_pod))
        and (not asked.gang or each.gang in gangs or each.for_whom in {f"gang {g}" for g in gangs})
        and (not asked.node or asked.node in each.nodes)
    ]
    if not found and (unknown := _unknown(snapshot, asked, gangs)):
        return unknown
    found.sort(key=lambda each: each.at)
    return HistoryView(snapshot.at, own.began, snapshot.dropped, tuple(found[-MOST:]))


def _earlier_plans(snapshot: Snapshot, known: set[str]) -> Iterator[Decision]:
    """The plans that pods carry and that the leader has not made itself."""
    for record in snapshot.pods:
        if record.ended or record.uid in known:
            continue
        written = snapshot.plan_of(record)
        if written is not None and record.written is not None:
            yield Decision(
                written.plan.made,
                What.PLANNED,
                record.key,
                record.gang_name,
                (written.plan.node,),
                uid=record.uid,
                gpus=written.gpus,
                count=len(written.uuids),
                from_annotation=True,
            )


def _is_of_namespace(decision: Decision, namespace: str) -> bool:
    """Whether it is about a pod or gang there, or gives room to one."""
    _, _, for_whom = decision.for_whom.partition(" ")
    return namespace in (decision.namespace, for_whom.partition("/")[0])


def _is_about_pod(decision: Decision, pod: str, gang: str) -> bool:
    """*gang*: the pod's. What is about the gang as a whole is about each of its pods."""
    if decision.pod == pod or decision.for_whom == f"pod {pod}":
        return True
    return bool(gang) and (
        (not decision.pod and decision.gang == gang) or decision.for_whom == f"gang {gang}"
    )


def _gang_of(snapshot: Snapshot, decisions: list[Decision], pod: str) -> str:
    """namespace/name of the pod's gang; empty: it is in none."""
    record = _pod_named(snapshot, pod)
    if record is not None:
        return record.gang_name
    return next((each.gang for each in reversed(decisions) if each.pod == pod), "")


def _pod_named(snapshot: Snapshot, pod: str) -> PodRecord | None:
    return next((record for record in snapshot.pods if record.key == pod), None)


def _gangs(snapshot: Snapshot, decisions: list[Decision], said: str) -> set[str]:
    """namespace/name of the gangs that may be meant, also of those that are gone."""
    namespace, _, name = said.partition("/")
    told = {each.gang.partition("/") for each in decisions if each.gang}
    there = names_of_gangs(snapshot, namespace)
    there |= {its_name for space, _, its_name in told if space == namespace}
    return {f"{namespace}/{each}" for each in gangs_meant(there, name)} if name else set()


def _unknown(snapshot: Snapshot, asked: Asked, gangs: set[str]) -> str:
    """Why there can be no decisions; empty: there are none, and there might be."""
    if asked.pod and _pod_named(snapshot, asked.pod) is None:
        return why_unknown(snapshot, "pod", *asked.pod.split("/", 1))
    if asked.gang and not gangs:
        return why_unknown(snapshot, "gang", *asked.gang.split("/", 1))
    if asked.node and asked.node not in snapshot.node_named:
        return f"no node {asked.node} is known"
    return ""
