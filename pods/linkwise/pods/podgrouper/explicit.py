"""A gang that the pod's author names, with `linkwise.dev/gang`.

This annotation has precedence over all other sources unless it cannot be met. A gang of 4 on a
template that creates 8 pods would leave 4 of them out. In such a case the pod is refused, and the
text names both sources. Pods that the owner creates only after others run are members to come.
"""

from dataclasses import dataclass, replace

from linkwise.kube.fields import Fields, mapping, number, text
from linkwise.kube.labels import deployment_of
from linkwise.pods.annotations import GangAsk
from linkwise.pods.podgrouper.workloads.answer import (
    Basis,
    GangName,
    Member,
    NoGang,
    ObjectRef,
    Recognised,
    RoleToCome,
)
from linkwise.pods.podgrouper.workloads.batch import work_of_job
from linkwise.pods.podgrouper.workloads.case import Case, OwnerGoneError, gang_said_in
from linkwise.pods.podgrouper.workloads.declared import DeclaredGroup
from linkwise.pods.podgrouper.workloads.essence import template_essence
from linkwise.pods.podgrouper.workloads.foretold import is_template, members_of, template_of
from linkwise.pods.podgrouper.workloads.kinds import DEPLOYMENT, JOB, REPLICA_SET, STATEFUL_SET
from linkwise.pods.podgrouper.workloads.workload import FoundWorkload, Workload
from linkwise.topology import names

RULE = "linkwise.dev"
_AS_THE_POD = ("nodeSelector", "tolerations", "schedulerName")


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


@dataclass(frozen=True, slots=True)
class Beside:
    """What the pod's owner adds to its gang."""

    to_come: tuple[RoleToCome, ...] = ()
    part: str = ""  # distinguishes gangs of the same name


def beside_owner(case: Case, ask: GangAsk, owned: FoundWorkload | NoGang) -> Beside:
    """The members that are created only after others run: as the pod says, or else its owner.
    Pods of templates without the gang's name are not its members. Raises as `clash_with_owner`."""
    found = Beside()
    if case.is_controlled_by(REPLICA_SET):
        found = _generation(case, ask, owned.member)
    elif isinstance(owned, FoundWorkload):
        roles = tuple(role for role in owned.workload.roles if role.gang_said == ask.name)
        found = Beside(owned.workload.foretold(roles, ranks_are_indices=True).to_come)
    elif case.is_controlled_by(STATEFUL_SET):
        found = Beside(_later_replicas(case, ask, owned.member))
    return replace(found, to_come=_as_said(case, ask, owned.member)) if ask.to_come else found


def explicit_gang(
    case: Case, ask: GangAsk, owned: FoundWorkload | NoGang, beside: Beside
) -> Recognised:
    """The gang as *ask* names it. Members may have several owners, so no owner identifies it."""
    member = owned.member
    work = owned.workload if isinstance(owned, FoundWorkload) else None
    ours = [role for role in work.roles if role.gang_said == ask.name] if work else []
    has_all = sum(role.pods for role in ours) == ask.size
    if has_all:
        gpus = sum(role.pods for role in ours if role.gpus)
    else:
        gpus = ask.size if case.takes_gpus else 0
    late = sum(len(role.members) for role in beside.to_come)
    return Recognised(
        gang=GangName(case.namespace, RULE, ask.name, part=beside.part),
        size=ask.size,
        minimum=ask.minimum,
        gpu_size=gpus,
        gpu_minimum=max(0, gpus - (ask.size - ask.minimum)),
        waves=(max(ask.size - late, 1), late) if late else (ask.size,),
        member=_with_rank(member),
        basis=Basis.DECLARED,
        rule=RULE,
        because=_said(ask),
        require=work.require if has_all and work else (),
        to_come=beside.to_come,
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
    return ""


def _generation(case: Case, ask: GangAsk, like: Member) -> Beside:
    """The pods of one ReplicaSet: a Deployment that is updated creates a new one, whose pods start
    while the old ones run, some only once others are ready. If the Deployment has fewer pods than
    the gang needs, the gang has pods of others too, and is one for all generations."""
    assert case.controller is not None
    part, pods = case.controller.name, ask.size
    template = template_of(case.pod)
    try:
        owner = case.read(DEPLOYMENT, deployment_of(part, case.labels) or part)
        pods = number(owner, "spec.replicas", 1)
        of_owner = mapping(owner, "spec.template")
        if gang_said_in(of_owner) == ask.name and is_template(of_owner):
            template = of_owner
    except OwnerGoneError:
        pass  # a ReplicaSet without one, or that may not be read
    if pods < ask.minimum:
        return Beside()
    if not 1 < pods <= ask.size or not is_template(template):
        return Beside(part=part)
    return Beside((_anonymous(case, template, like, pods - 1),), part)


def _as_said(case: Case, ask: GangAsk, like: Member) -> tuple[RoleToCome, ...]:
    """Members that the pod itself will create, so only it knows what they request."""
    spec = mapping(template_of(case.pod), "spec")
    said = {key: spec[key] for key in _AS_THE_POD if key in spec}
    container = {"name": "main", "resources": {"limits": dict(ask.to_come)}}
    template = {"metadata": {}, "spec": {**said, "containers": [container]}}
    if ask.size == 1:
        return ()
    return (_anonymous(case, template, replace(like, role="", subgroup=""), ask.size - 1),)


def _anonymous(case: Case, template: Fields, like: Member, count: int) -> RoleToCome:
    members = members_of(replace(like, index=None, rank=None), range(count), None, indexed=False)
    return RoleToCome(template_essence(template), members, case.takes_gpus_in(template))


def _later_replicas(case: Case, ask: GangAsk, like: Member) -> tuple[RoleToCome, ...]:
    """A StatefulSet creates each pod once the one before is ready, if it is not parallel."""
    owner = case.read_controller(STATEFUL_SET)
    template, replicas = mapping(owner, "spec.template"), number(owner, "spec.replicas", 1)
    first = number(owner, "spec.ordinals.start", 0)
    one_by_one = text(owner, "spec.podManagementPolicy") != "Parallel"
    if not (one_by_one and 1 < replicas <= ask.size and is_template(template)):
        return ()
    if gang_said_in(template) != ask.name:
        return ()
    like = replace(like, index=None, rank=None)
    later = range(first + 1, first + replicas)
    indexed = case.index() is not None
    members = members_of(like, later, 0, indexed=indexed)
    return (RoleToCome(template_essence(template), members, case.takes_gpus_in(template)),)


def _said(ask: GangAsk) -> str:
    least = f", {names.GANG_MIN} {ask.minimum}" if ask.minimum < ask.size else ""
    return f"{names.GANG} {ask.name!r}: {names.GANG_SIZE} is {ask.size}{least}"
