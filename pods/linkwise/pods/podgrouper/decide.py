"""Which gang a pod is in.

The sources in the order of precedence: the pod's `linkwise.dev/gang`, then a group that it names
for another scheduler, then what its owner implies. Each pod is judged alone. All members get the
same gang because they read the same objects. No content of a pod or of its owner makes
`recognise` raise.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from linkwise.kube.fields import UnreadableError
from linkwise.kube.labels import LWS
from linkwise.kube.objects import Pod
from linkwise.pods.annotation_faults import faults_of
from linkwise.pods.annotations import MAX_GANG, GangAsk, ask_of
from linkwise.pods.podgrouper.explicit import (
    RULE,
    Beside,
    beside_owner,
    clash_with_group,
    clash_with_owner,
    explicit_gang,
)
from linkwise.pods.podgrouper.workloads.answer import (
    Answer,
    Basis,
    IndexedJobs,
    Missing,
    NeedsOwner,
    NoGang,
    Objects,
    Recognised,
    Refused,
)
from linkwise.pods.podgrouper.workloads.case import Case, OwnerGoneError, UnreadError
from linkwise.pods.podgrouper.workloads.declared import DeclaredGroup, counted
from linkwise.pods.podgrouper.workloads.kinds import JOB, OwnerKind
from linkwise.pods.podgrouper.workloads.systems import DECLARED, System, owned_by
from linkwise.pods.podgrouper.workloads.workload import Foretold, FoundWorkload
from linkwise.topology import names
from linkwise.topology.errors import AnnotationError

_Unclear = NeedsOwner | Refused
_Says = TypeVar("_Says")
_WORKER_INDEX = f"{LWS}worker-index"


def recognise(
    pod: Pod,
    objects: Objects,
    *,
    resources: tuple[str, ...] = names.DEFAULT_RESOURCES,
    indexed_jobs: IndexedJobs = IndexedJobs.ALL,
) -> Answer:
    """Return the gang of *pod*. *objects* holds what was read for it so far; if the answer is
    NeedsOwner, read that object and call again."""
    case = Case(pod, objects, resources, indexed_jobs)
    try:
        ask = ask_of(pod.metadata.annotations, pod.metadata.labels)
        _ = case.takes_gpus
    except AnnotationError:
        faults = faults_of(pod.metadata.annotations, pod.metadata.labels)
        return Refused("; ".join(faults), RULE)
    except UnreadableError as error:
        return Refused(str(error), RULE)
    answer = _implied(case) if ask.gang is None else _explicit(case, ask.gang)
    if names.RANK in pod.metadata.annotations and isinstance(answer, Recognised):
        return replace(answer, member=replace(answer.member, rank=ask.rank))
    return answer


def _implied(case: Case) -> Answer:
    group = _declared(case)
    if isinstance(group, DeclaredGroup):
        return _with_owner(case, group)
    return group or _settled(_owned(case))


def _explicit(case: Case, ask: GangAsk) -> Answer:
    group, owned = _declared(case), _owned(case)
    if isinstance(group, _Unclear) and not _is_missing(group):
        return group
    if isinstance(owned, _Unclear):
        return owned
    if isinstance(group, DeclaredGroup):
        clash = clash_with_group(ask, group)
        if clash:
            return Refused(clash, RULE)
    clashes = _guarded(lambda: clash_with_owner(case, ask, owned), RULE)
    if isinstance(clashes, _Unclear):
        return clashes
    if isinstance(clashes, str) and clashes:
        return Refused(clashes, RULE)
    beside = _guarded(lambda: beside_owner(case, ask, owned), RULE)
    if isinstance(beside, _Unclear):
        return beside
    return explicit_gang(
        case, ask, owned, Beside() if isinstance(beside, OwnerGoneError) else beside
    )


def _with_owner(case: Case, group: DeclaredGroup) -> Answer:
    """Merge a declared group with the pod's owner: if the group belongs to the pod's own workload,
    both declare the same gang."""
    owned = _owned(case)
    if not group.object and group.minimum > 1:
        # The pod declares everything. Its owner only says which pods are created later.
        if isinstance(owned, NeedsOwner) and not owned.missing:
            return owned
        return _of_group(case, group, owned, as_owned=False)
    if isinstance(owned, _Unclear):
        return owned
    if isinstance(owned, FoundWorkload) and group.controller in _uids(owned):
        return _of_owner(case, group, owned)
    if group.basic:
        # The Job controller sets `basic` for each Job of a JobSet too; the JobSet stays a gang.
        if isinstance(owned, FoundWorkload) and owned.basis is Basis.NATURE and group.controller:
            return owned.settle()
        return NoGang(owned.member, group.rule, group.because)
    if group.is_composite:
        whole = _guarded(lambda: counted(case, group), group.rule)
        if isinstance(whole, OwnerGoneError):
            return _awaited(whole, group.rule) or _settled(owned)
        return whole if isinstance(whole, _Unclear) else _of_itself(case, whole, owned)
    return _of_itself(case, group, owned)


def _of_itself(case: Case, group: DeclaredGroup, owned: FoundWorkload | NoGang) -> Answer:
    if group.minimum <= 1 and not group.is_part:
        return _settled(owned)  # a minimum of one delays no pod, so the group adds nothing
    return _of_group(case, group, owned)


def _of_owner(case: Case, group: DeclaredGroup, owned: FoundWorkload) -> Recognised | NoGang:
    """The owner's gang, as the group that was made for it says."""
    if group.basic and case.is_controlled_by(JOB):
        # Kubernetes 1.37 makes a basic group for each Job that chooses no policy. What a Job has
        # chosen itself is in `owned`.
        return owned.settle()
    if group.basic:
        return NoGang(owned.member, group.rule, group.because)
    if group.minimum <= 1 and not group.is_composite:
        return owned.settle()  # a minimum of one delays no pod, so the group adds nothing
    settled = owned.settle(None if group.is_composite else group.minimum)
    if isinstance(settled, NoGang):
        return settled
    # A group of some of the owner's pods says nothing about where the others run.
    has_all = group.is_composite or group.minimum >= settled.size
    return replace(
        settled,
        basis=Basis.DECLARED,
        rule=group.rule,
        because=f"{group.because}; {owned.because}",
        require=(*settled.require, *(group.require if has_all else ())),
        native=group.native,
    )


def _of_group(
    case: Case,
    group: DeclaredGroup,
    owned: FoundWorkload | NoGang | _Unclear,
    *,
    as_owned: bool = True,
) -> Recognised:
    """The declared group as the gang. *as_owned*: the role and the rank come from the pod's owner,
    as they always do if it foretells members."""
    size = group.minimum if group.size is None else group.size
    work = owned.gang if isinstance(owned, FoundWorkload) else None
    # A group that has enough without those that come later need not wait for them.
    foretold = Foretold()
    if work is not None and work.waves()[0] < group.minimum:
        foretold = work.foretold()
    late = sum(len(role.members) for role in foretold.to_come)
    absent = 0  # of those that come later, as many as this pod cannot wait for
    if foretold.why_not and work is not None and isinstance(owned, FoundWorkload):
        absent = work.size - sum(role.first for role in work.beside(owned.key))
    elif work is None and case.controller is None and case.labels.get(_WORKER_INDEX) == "0":
        # Only the LeaderWorkerSet says whether it creates the workers before the leader is ready.
        # A leader without one waits for none: it might wait forever.
        absent = MAX_GANG
    if isinstance(owned, FoundWorkload) and (as_owned or foretold.to_come):
        member = owned.member
    else:
        index = case.index()
        member = case.member(
            group.role,
            index,
            index,
            queue=group.queue,
            priority_class=group.priority_class,
            subgroup=group.subgroup,
        )
    least = max(min(group.minimum, size - absent), 1)
    fewer = 0 if group.gpu_minimum is None else group.minimum - group.gpu_minimum
    later = late or min(absent, size - 1)
    why = f"; {foretold.why_not}" if foretold.why_not else ""
    return Recognised(
        gang=group.name,
        size=size,
        minimum=least,
        gpu_size=max(size - fewer, 0) if case.takes_gpus else 0,
        gpu_minimum=max(least - fewer, 0) if case.takes_gpus else 0,
        waves=(max(size - later, 1), later) if later else (size,),
        member=member,
        basis=Basis.DECLARED,
        rule=group.rule,
        because=f"{group.because}{why}",
        open_ended=group.size is None,
        owners=frozenset({group.name.uid, group.controller} - {""}),
        require=(*group.require, *(work.require if work and work.size >= size else ())),
        native=group.native,
        counts_all=group.gpu_minimum is None,
        to_come=foretold.to_come,
    )


def _declared(case: Case) -> DeclaredGroup | _Unclear | None:
    found = _first(DECLARED, case)
    assert not isinstance(found, FoundWorkload | NoGang)
    return found


def _owned(case: Case) -> FoundWorkload | NoGang | _Unclear:
    found = _first(owned_by(case.owner_kind), case)
    assert found is not None
    assert not isinstance(found, DeclaredGroup)
    return found


def _settled(owned: FoundWorkload | NoGang | _Unclear) -> Answer:
    return owned.settle() if isinstance(owned, FoundWorkload) else owned


def _first(
    systems: Iterable[System], case: Case
) -> DeclaredGroup | FoundWorkload | NoGang | _Unclear | None:
    for system in systems:
        found = _ask(system, case)
        if found is not None:
            return found
    return None


def _ask(system: System, case: Case) -> DeclaredGroup | FoundWorkload | NoGang | _Unclear | None:
    found = _guarded(lambda: system.recognise(case), system.rule, system.reads)
    if not isinstance(found, OwnerGoneError):
        return found
    if system.owners:  # the owner was deleted, so the garbage collector deletes the pod too
        return NoGang(case.member("pod", case.index()), system.rule, str(found))
    return _awaited(found, system.rule)


def _awaited(gone: OwnerGoneError, rule: str) -> NeedsOwner | None:
    """The pod waits for an object of its group that does not exist yet. None: it cannot be read,
    so the pod's owner decides."""
    if gone.why is not Missing.NOT_FOUND:
        return None
    because = f"{gone}: the pod waits for it"
    return NeedsOwner(gone.ref, gone.paths, rule, because, missing=True)


def _guarded(
    says: Callable[[], _Says], rule: str, reads: tuple[OwnerKind, ...] = ()
) -> _Says | _Unclear | OwnerGoneError:
    try:
        return says()
    except UnreadError as error:
        return NeedsOwner(error.ref, error.paths, rule, str(error))
    except OwnerGoneError as error:
        return error
    except UnreadableError as error:
        return Refused(f"{reads[0].qualified}: {error}" if reads else str(error), rule)


def _is_missing(group: _Unclear) -> bool:
    return isinstance(group, NeedsOwner) and group.missing


def _uids(owned: FoundWorkload) -> frozenset[str]:
    return frozenset({owned.workload.uid} - {""}) | owned.workload.kin
