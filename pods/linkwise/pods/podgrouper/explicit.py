"""A gang that the pod's author names, with `linkwise.dev/gang`.

This annotation has precedence over all other sources unless it cannot be met. A gang of 4 on a
template that creates 8 pods would leave 4 of them out. A gang that waits for pods which its owner
creates only after it runs would wait forever. In these cases the pod is refused, and the text
names both sources.
"""

from linkwise.kube.fields import mapping, number, text
from linkwise.pods.annotations import GangAsk
from linkwise.pods.podgrouper.workloads.answer import (
    Basis,
    GangName,
    Member,
    NoGang,
    ObjectRef,
    Recognised,
)
from linkwise.pods.podgrouper.workloads.batch import work_of_job
from linkwise.pods.podgrouper.workloads.case import Case, gang_said_in
from linkwise.pods.podgrouper.workloads.declared import DeclaredGroup
from linkwise.pods.podgrouper.workloads.kinds import JOB, STATEFUL_SET
from linkwise.pods.podgrouper.workloads.workload import FoundWorkload, Workload
from linkwise.topology import names

RULE = "linkwise.dev"


def clash_with_group(ask: GangAsk, group: DeclaredGroup) -> str:
    """Why *ask* and *group* contradict each other; empty if they do not."""
    if group.size is not None and group.size != ask.size:
        return f"{_said(ask)}, but {group.because}"
    if group.minimum > ask.size:
        return f"{_said(ask)}, but {group.because}"
    return ""


def clash_with_owner(case: Case, ask: GangAsk, owned: FoundWorkload | NoGang) -> str:
    """Why *ask* and the pod's owner contradict each other; empty if they do not.

    Raises UnreadError, OwnerGoneError and UnreadableError.
    """
    if isinstance(owned, FoundWorkload):
        return _clash_with_workload(ask, owned.workload)
    if case.is_controlled_by(STATEFUL_SET):
        return _clash_with_stateful_set(case, ask)
    if case.is_controlled_by(JOB) and owned.rule == "job":
        return _clash_with_workload(ask, work_of_job(case, case.read_controller(JOB)))
    return ""


def explicit_gang(case: Case, ask: GangAsk, owned: FoundWorkload | NoGang | None) -> Recognised:
    """The gang as *ask* names it. Members may have several owners, so no owner identifies it."""
    member = owned.member if owned is not None else case.member("pod", case.index())
    work = owned.workload if isinstance(owned, FoundWorkload) else None
    ours = [role for role in work.roles if role.gang_said == ask.name] if work else []
    if sum(role.pods for role in ours) == ask.size:
        gpus = sum(role.pods for role in ours if role.gpus)
    else:
        gpus = ask.size if case.takes_gpus else 0
    return Recognised(
        gang=GangName(case.namespace, RULE, ask.name),
        size=ask.size,
        minimum=ask.minimum,
        gpu_size=gpus,
        gpu_minimum=max(0, gpus - (ask.size - ask.minimum)),
        wave=ask.size,
        member=_with_rank(member),
        basis=Basis.DECLARED,
        rule=RULE,
        because=_said(ask),
    )


def _with_rank(member: Member) -> Member:
    rank = member.index if member.rank is None else member.rank
    return Member(
        member.role, member.index, rank, member.subgroup, member.queue, member.priority_class
    )


def _clash_with_workload(ask: GangAsk, work: Workload) -> str:
    """Only templates with the gang's name count: pods of other templates are not its members."""
    ours = [role for role in work.roles if role.gang_said == ask.name]
    pods = sum(role.pods for role in ours) + (work.done if ours else 0)
    if pods > ask.size:
        parts = " + ".join(f"{role.pods} {role.name}" for role in ours)
        ended = f", {work.done} have ended" if work.done else ""
        return f"{_said(ask)}, but {work.ref} runs {pods} pods of it ({parts}{ended})"
    ours_by_name = {role.name for role in ours}
    late = [role for role in ours if role.earlier & ours_by_name]
    # Members may have other owners too, so all but the late ones count towards the minimum.
    if late and ask.size - sum(role.pods for role in late) < ask.minimum:
        return f"{_said(ask)}, but {work.ref} makes {late[0].name} only once its others are ready"
    return ""


def _clash_with_stateful_set(case: Case, ask: GangAsk) -> str:
    owner = case.read_controller(STATEFUL_SET)
    if gang_said_in(mapping(owner, "spec.template")) != ask.name:
        return ""
    assert case.controller is not None
    ref = ObjectRef(STATEFUL_SET.group, STATEFUL_SET.kind, case.namespace, case.controller.name)
    replicas = number(owner, "spec.replicas", 1)
    if replicas > ask.size:
        return f"{_said(ask)}, but {ref} runs {replicas} pods of it"
    if replicas > 1 and ask.minimum > 1 and text(owner, "spec.podManagementPolicy") != "Parallel":
        return (
            f"{_said(ask)}, but {ref} makes each pod once the one before is ready: "
            f"expected podManagementPolicy Parallel"
        )
    return ""


def _said(ask: GangAsk) -> str:
    least = f", {names.GANG_MIN} {ask.minimum}" if ask.minimum < ask.size else ""
    return f"{names.GANG} {ask.name!r}: {names.GANG_SIZE} is {ask.size}{least}"
