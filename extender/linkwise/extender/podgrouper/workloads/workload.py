"""From what an owner says about its roles to the sizes of a gang.

A controller may make its pods in waves: workers only once their leader is ready. What is not made
yet must not be waited for, or all wait for ever; so each pod waits for its own wave, and for what
has to run before that.
"""

from dataclasses import dataclass
from itertools import takewhile

from linkwise.extender.podgrouper.workloads.answer import (
    Basis,
    GangName,
    Member,
    NoGang,
    ObjectRef,
    Recognised,
)
from linkwise.extender.podgrouper.workloads.case import Case, controller_of, gang_said_in
from linkwise.extender.podgrouper.workloads.fields import Fields, text

NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReplicaRole:
    """Pods made from one template."""

    name: str
    pods: int
    gpus: bool  # whether they take any
    ready: frozenset[str] = NOBODY  # roles that have to be ready before its pods are made
    ended: frozenset[str] = NOBODY  # roles that have to have ended by then
    ranked: bool = True  # takes part in the ring
    gang_said: str = ""  # its template's own `linkwise.dev/gang`

    @property
    def earlier(self) -> frozenset[str]:
        return self.ready | self.ended


@dataclass(frozen=True, slots=True)
class Workload:
    """What an owner runs together. The order of roles is the order of ranks."""

    ref: ObjectRef
    uid: str
    roles: tuple[ReplicaRole, ...]
    minimum: int | None = None  # that many are enough; None: all
    part: str = ""
    done: int = 0
    open_ended: bool = False
    queue: str = ""
    priority_class: str = ""
    kin: frozenset[str] = NOBODY  # uids of what owns the owner

    @property
    def size(self) -> int:
        return sum(role.pods for role in self.roles)

    def role(self, name: str) -> ReplicaRole | None:
        return next((role for role in self.roles if role.name == name), None)

    def wave(self, name: str) -> tuple[ReplicaRole, ...]:
        """The roles whose pods exist when those of this one are made and have to be placed."""
        mine = self.role(name)
        if mine is None:
            return self.roles
        return tuple(
            role
            for role in self.roles
            if role.earlier <= mine.earlier and role.name not in mine.ended
        )

    def rank(self, name: str, index: int | None) -> int | None:
        """The place in the whole gang: after all pods of the roles before."""
        mine = self.role(name)
        if index is None or mine is None or not mine.ranked:
            return None
        before = takewhile(lambda role: role.name != name, self.roles)
        return index + sum(role.pods for role in before if role.ranked)


def workload(
    case: Case,
    ref: ObjectRef,
    owner: Fields,
    roles: tuple[ReplicaRole, ...],
    minimum: int | None = None,
) -> Workload:
    """What *owner*, which was read, says; the caller replaces what is different about it."""
    kin = text(controller_of(owner), "uid")
    return Workload(
        ref=ref,
        uid=text(owner, "metadata.uid") or _uid_of_reference(case, ref),
        roles=roles,
        minimum=minimum,
        kin=frozenset({kin} if kin else ()),
    )


def role_of(case: Case, name: str, pods: int, template: Fields) -> ReplicaRole:
    return ReplicaRole(name, pods, case.takes_gpus_in(template), gang_said=gang_said_in(template))


@dataclass(frozen=True, slots=True)
class FoundWorkload:
    """What the owner of a pod says, and where in it the pod stands."""

    workload: Workload
    key: str  # the role's name in the workload
    member: Member
    basis: Basis
    rule: str
    because: str

    def settle(self, minimum: int | None = None) -> Recognised | NoGang:
        """Count. *minimum* is what a declared group says, which goes before the owner's."""
        work = self.workload
        if work.size + work.done <= 1 and not work.open_ended:
            return NoGang(self.member, self.rule, f"{work.ref} runs one pod")
        wave = work.wave(self.key)
        there = sum(role.pods for role in wave)
        gpus_there = sum(role.pods for role in wave if role.gpus)
        wanted = work.minimum if minimum is None else minimum
        least = max(1, there if wanted is None else min(wanted, there))
        return Recognised(
            gang=GangName(
                work.ref.namespace, work.ref.qualified_kind, work.ref.name, work.uid, work.part
            ),
            size=work.size,
            minimum=least,
            gpu_size=sum(role.pods for role in work.roles if role.gpus),
            # Which of the members come first is not known: those without GPUs, to be safe.
            gpu_minimum=max(0, least - (there - gpus_there)),
            wave=there,
            member=self.member,
            basis=self.basis,
            rule=self.rule,
            because=self.because,
            done=work.done,
            open_ended=work.open_ended,
            owners=frozenset({work.uid} - {""}) | work.kin,
        )


def found(
    case: Case,
    work: Workload,
    role: str,
    index: int | None,
    *,
    rule: str,
    because: str,
    shown_role: str = "",
    subgroup: str = "",
    basis: Basis = Basis.NATURE,
) -> FoundWorkload:
    """*role* is its name in the workload, *shown_role* the system's word where that differs."""
    member = case.member(
        shown_role or role,
        index,
        work.rank(role, index),
        subgroup=subgroup,
        queue=work.queue,
        priority_class=work.priority_class,
    )
    return FoundWorkload(work, role, member, basis, rule, because)


def _uid_of_reference(case: Case, ref: ObjectRef) -> str:
    """A manifest that was never sent to a cluster has no uid of its own; its pods may name one."""
    controller = case.controller
    same = controller is not None and controller.name == ref.name and controller.kind == ref.kind
    return controller.uid if same and controller is not None else ""
