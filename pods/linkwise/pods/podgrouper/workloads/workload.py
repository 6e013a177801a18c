"""Derives the sizes of a gang from its owner's roles.

A controller may create its pods in waves, such as workers only once their leader is ready. Such a
gang is planned whole: the members of later waves are foretold. A role that must have ended before
another begins never runs beside it, so the two are different gangs.
"""

from dataclasses import dataclass, field, replace
from itertools import takewhile

from linkwise.kube.fields import Fields, controller_of, text
from linkwise.pods.annotations import MAX_GANG
from linkwise.pods.podgrouper.workloads.answer import (
    Basis,
    GangName,
    Member,
    NoGang,
    ObjectRef,
    Recognised,
    RoleToCome,
)
from linkwise.pods.podgrouper.workloads.case import Case, gang_said_in
from linkwise.pods.podgrouper.workloads.essence import template_essence
from linkwise.pods.podgrouper.workloads.foretold import (
    Parts,
    is_template,
    members_of,
    priority_class_in,
    queue_in,
    tied_to_come,
)

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
    template: Fields = field(default_factory=dict[str, object])
    indexed: bool = True  # its pods have indices
    parts: Parts | None = None

    @property
    def earlier(self) -> frozenset[str]:
        return self.ready | self.ended

    @property
    def first(self) -> int:
        """How many of its pods are created first."""
        alone = self.parts is not None and self.parts.first_alone
        return -(-self.pods // self.parts.each) if alone and self.parts else self.pods

    def to_come(self, like: Member, rank: int | None, *, late: bool) -> tuple[RoleToCome, ...]:
        """Those that are created after others; if it is *late*, all. *rank* is that of index 0."""
        parts = self.parts
        if parts is not None and parts.tied is not None:
            return tied_to_come(parts, self.pods, like, rank, late=late, gpus=self.gpus)
        indices = range(self.pods)
        members = members_of(like, indices, rank, indexed=self.indexed, parts=parts)
        return (RoleToCome(template_essence(self.template), members, self.gpus),)


@dataclass(frozen=True, slots=True)
class Foretold:
    to_come: tuple[RoleToCome, ...] = ()
    why_not: str = ""  # why some pods come later and are not in `to_come`


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods that an owner creates. The order of roles is the order of ranks."""

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
    require: tuple[str, ...] = ()  # levels at which its pods must share one domain

    @property
    def size(self) -> int:
        return sum(role.pods for role in self.roles)

    def role(self, name: str) -> ReplicaRole | None:
        return next((role for role in self.roles if role.name == name), None)

    def together(self, name: str) -> "Workload":
        """The roles that are one gang with role *name*: those for whose end no other waits, or
        else those that wait for the same ends."""
        awaited = frozenset[str]().union(*(role.ended for role in self.roles))
        mine = self.role(name)
        if mine is None or not awaited:
            return self
        stage = mine.ended if name in awaited else None
        roles = tuple(
            role for role in self.roles if (role.ended if role.name in awaited else None) == stage
        )
        return replace(self, roles=roles, part=self.part if stage is None else roles[0].name)

    def beside(self, name: str) -> tuple[ReplicaRole, ...]:
        """The roles whose pods exist, or are created, together with those of role *name*."""
        mine = self.role(name)
        if mine is None:
            return self.roles
        return tuple(
            role
            for role in self.roles
            if role.earlier <= mine.earlier and role.name not in mine.ended
        )

    def foretold(
        self, among: tuple[ReplicaRole, ...] | None = None, *, ranks_are_indices: bool = False
    ) -> Foretold:
        """The pods that are created after other pods of the roles *among*; None: of all roles.
        *ranks_are_indices*: those of roles without rank."""
        roles = [role for role in (self.roles if among is None else among) if role.pods]
        late = _late(roles)
        those = [role for role in roles if role.name in late or role.first < role.pods]
        if those and sum(role.pods for role in roles) > MAX_GANG:
            return Foretold(why_not=f"more than {MAX_GANG} are not planned together")
        unclear = next((role.name for role in those if not is_template(role.template)), "")
        if unclear:
            return Foretold(
                why_not=f"the template of {unclear} cannot be read, so none waits for it"
            )
        found = list[RoleToCome]()
        for role in those:
            rank = self.together(role.name).rank(role.name, 0)
            if rank is None and ranks_are_indices:
                rank = 0
            queue = self.queue or queue_in(role.template)
            priority_class = self.priority_class or priority_class_in(role.template)
            like = Member(role.name, queue=queue, priority_class=priority_class)
            found += role.to_come(like, rank, late=role.name in late)
        return Foretold(tuple(found))

    def waves(self) -> tuple[int, ...]:
        """Its pods by the time at which they are created."""
        waves, ends = dict[int, int](), list[tuple[frozenset[str], int]]()
        for role in sorted(self.roles, key=lambda role: len(role.earlier)):
            if not role.pods:
                continue
            wave = max((end + 1 for before, end in ends if before < role.earlier), default=0)
            rest = role.pods - role.first
            waves[wave] = waves.get(wave, 0) + role.first
            if rest:
                waves[wave + 1] = waves.get(wave + 1, 0) + rest
            ends.append((role.earlier, wave + bool(rest)))
        return tuple(waves[each] for each in sorted(waves)) or (0,)

    def rank(self, name: str, index: int | None) -> int | None:
        """The rank in the whole gang: after all ranked pods of the roles before."""
        mine = self.role(name)
        if index is None or mine is None or not mine.ranked:
            return None
        before = takewhile(lambda role: role.name != name, self.roles)
        return index + sum(role.pods for role in before if role.ranked)


def _late(roles: list[ReplicaRole]) -> frozenset[str]:
    """The roles whose pods may not exist yet when those of another do."""
    if not roles:
        return NO_ROLES
    common = roles[0].earlier.intersection(*(role.earlier for role in roles))
    return frozenset(role.name for role in roles if not role.earlier <= common)


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
    gpus = case.takes_gpus_in(template)
    return ReplicaRole(name, pods, gpus, gang_said=gang_said_in(template), template=template)


@dataclass(frozen=True, slots=True)
class FoundWorkload:
    """The workload of a pod's owner, and the pod's position in it."""

    workload: Workload
    key: str  # the role's name in the workload
    member: Member
    basis: Basis
    rule: str
    because: str

    @property
    def gang(self) -> Workload:
        return self.workload.together(self.key)

    def settle(self, minimum: int | None = None) -> Recognised | NoGang:
        """Count the members. *minimum*, from a declared group, has precedence over the owner's."""
        work = self.gang
        if work.size + work.done <= 1 and not work.open_ended:
            what = "one pod" if work.size == self.workload.size else f"{self.key} by itself"
            return NoGang(self.member, self.rule, f"{work.ref} runs {what}")
        foretold, because = work.foretold(), self.because
        there, gpus_there = work.size, sum(role.pods for role in work.roles if role.gpus)
        gpu_size = gpus_there
        if foretold.why_not:
            because = f"{because}; {foretold.why_not}"
            beside = work.beside(self.key)
            there = sum(role.first for role in beside)
            gpus_there = sum(role.first for role in beside if role.gpus)
        wanted = work.minimum if minimum is None else minimum
        least = max(1, there if wanted is None else min(wanted, there))
        return Recognised(
            gang=GangName(
                work.ref.namespace, work.ref.qualified_kind, work.ref.name, work.uid, work.part
            ),
            size=work.size,
            minimum=least,
            gpu_size=gpu_size,
            # Unknown which members come first; this assumes those without GPUs, to be safe.
            gpu_minimum=max(0, least - (there - gpus_there)),
            waves=work.waves(),
            member=self.member,
            basis=self.basis,
            rule=self.rule,
            because=because,
            done=work.done,
            open_ended=work.open_ended,
            owners=frozenset({work.uid} - {""}) | work.kin,
            require=work.require,
            to_come=foretold.to_come,
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
        work.together(role).rank(role, index),
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
