"""Derives the sizes of a gang from its owner's roles.

A controller may create its pods in waves, such as workers only once their leader is ready. If a
pod waited for members of a later wave, all would wait forever. So each pod waits for its own wave
and for the waves that must run before it.
"""

from dataclasses import dataclass
from itertools import takewhile

from linkwise.kube.fields import Fields, controller_of, text
from linkwise.pods.podgrouper.workloads.answer import (
    Basis,
    GangName,
    Member,
    NoGang,
    ObjectRef,
    Recognised,
)
from linkwise.pods.podgrouper.workloads.case import Case, gang_said_in

NO_ROLES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReplicaRole:
    """Pods made from one template."""

    name: str
    pods: int
    gpus: bool  # whether they take any
    ready: frozenset[str] = NO_ROLES  # roles that must be ready before its pods are created
    ended: frozenset[str] = NO_ROLES  # roles that must have ended by then
    ranked: bool = True  # takes part in the ring
    gang_said: str = ""  # its template's own `linkwise.dev/gang`

    @property
    def earlier(self) -> frozenset[str]:
        return self.ready | self.ended


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods that an owner runs together. The order of roles is the order of ranks."""

    ref: ObjectRef
    uid: str
    roles: tuple[ReplicaRole, ...]
    minimum: int | None = None  # pods that are enough; None: all
    part: str = ""
    done: int = 0
    open_ended: bool = False
    queue: str = ""
    priority_class: str = ""
    kin: frozenset[str] = NO_ROLES  # uids of the owner's own owners

    @property
    def size(self) -> int:
        return sum(role.pods for role in self.roles)

    def role(self, name: str) -> ReplicaRole | None:
        return next((role for role in self.roles if role.name == name), None)

    def wave(self, name: str) -> tuple[ReplicaRole, ...]:
        """The roles whose pods exist, or are created, together with those of role *name*."""
        mine = self.role(name)
        if mine is None:
            return self.roles
        return tuple(
            role
            for role in self.roles
            if role.earlier <= mine.earlier and role.name not in mine.ended
        )

    def rank(self, name: str, index: int | None) -> int | None:
        """The rank in the whole gang: after all ranked pods of the roles before."""
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
    """A Workload with the common fields of *owner*; the caller replaces the others."""
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
    """The workload of a pod's owner, and the pod's position in it."""

    workload: Workload
    key: str  # the role's name in the workload
    member: Member
    basis: Basis
    rule: str
    because: str

    def settle(self, minimum: int | None = None) -> Recognised | NoGang:
        """Count the members. *minimum*, from a declared group, has precedence over the owner's."""
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
            # Unknown which members come first; this assumes those without GPUs, to be safe.
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
    """*role* is the role's name in the workload, *shown_role* the operator's word for it if that
    differs."""
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
    """The uid by which the pod refers to *ref*: a manifest that was never applied has no uid."""
    controller = case.controller
    same = controller is not None and controller.name == ref.name and controller.kind == ref.kind
    return controller.uid if same and controller is not None else ""
