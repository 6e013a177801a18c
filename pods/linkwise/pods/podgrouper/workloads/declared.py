"""Groups that pods name with the labels and annotations of other schedulers and queues.

Some pods carry the size of their group; for others only a PodGroup has it. A PodGroup that belongs
to the pod's own workload is not a second gang: `decide` merges the two.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from linkwise.kube.fields import (
    Fields,
    UnreadableError,
    at,
    controller_of,
    count,
    has,
    items,
    mapping,
    number,
    text,
)
from linkwise.kube.objects import Pod, Quantity, whole
from linkwise.pods.annotations import NO_GROUP, NativeGroup
from linkwise.pods.podgrouper.workloads import kinds, marks
from linkwise.pods.podgrouper.workloads.answer import GangName, Missing, ObjectRef
from linkwise.pods.podgrouper.workloads.case import Case, OwnerGoneError
from linkwise.pods.podgrouper.workloads.kinds import OwnerKind
from linkwise.pods.spans import required_of

_MOST_LEVELS = 8  # of subgroups; KAI's groupers make two
_MOST_COMPOSITES = 4  # levels of groups that kube-scheduler accepts, those of pods among them
_PARENT = "spec.parentCompositePodGroupName"
_POLICY = "spec.schedulingPolicy."


@dataclass(frozen=True, slots=True)
class DeclaredGroup:
    """A group as its pods or an object declare it."""

    name: GangName
    minimum: int
    rule: str
    because: str
    size: int | None = None  # None: it declares only a minimum
    gpu_minimum: int | None = None  # of `minimum`, those that take GPUs; None: unknown
    role: str = "pod"
    basic: bool = False  # it declares that its pods are not a gang
    controller: str = ""  # uid of the object that created the group; empty: a person did
    object: bool = True  # an object declares it; False: only its pods do
    queue: str = ""
    priority_class: str = ""
    require: tuple[str, ...] = ()  # levels at which its pods must share one domain
    native: NativeGroup = NO_GROUP
    subgroup: str = ""  # the pod's own group, if others are in the gang too
    # The Workload and its template of a group of groups; empty: `minimum` is that of the gang.
    template: tuple[str, str] = ("", "")

    @property
    def is_composite(self) -> bool:
        return bool(self.template[0])

    @property
    def is_part(self) -> bool:
        """Whether the gang has other groups beside the pod's own."""
        return self.name.kind == kinds.COMPOSITE_POD_GROUP.qualified


def group_named(pod: Pod) -> tuple[str, ...] | None:
    """What identifies the group that *pod* names, if all its pods count towards its minimum,
    whatever they take. None: it names no such group."""
    meta, native, workload = pod.metadata, pod.spec.scheduling_group, pod.spec.workload_ref
    if native is not None and native.pod_group_name:
        return meta.namespace, "schedulingGroup", native.pod_group_name
    if workload is not None and workload.name:
        part = workload.pod_group, workload.pod_group_replica_key
        return meta.namespace, "workloadRef", workload.name, *part
    named = marks.first_at(marks.GROUPS, meta)
    return None if named is None else (meta.namespace, *named)


def group_at(
    case: Case, *, places: Iterable[marks.Place], tells: Callable[[Case, str], DeclaredGroup | None]
) -> DeclaredGroup | None:
    """What *tells* says of the group that the pod names in one of *places*."""
    named = marks.first_at(places, case.pod.metadata)
    return None if named is None else tells(case, named[1])


def native_pod_group(case: Case) -> DeclaredGroup | None:
    """Kubernetes 1.36 and newer. Groups of policy `basic`, which the Job controller creates too,
    are not gangs."""
    said = case.pod.spec.scheduling_group
    if said is None or not said.pod_group_name:
        return None
    name = said.pod_group_name
    owner = case.read(kinds.NATIVE_POD_GROUP, name)
    gang = has(owner, _POLICY + "gang")
    least = number(owner, _POLICY + "gang.minCount", 1) if gang else 1
    rule = "native-pod-group"
    group = _of_pod_group(case, kinds.NATIVE_POD_GROUP, owner, name, rule, least, basic=not gang)
    keys = _topology(owner)
    native = NativeGroup(tuple(keys), _priority(owner))
    group = replace(_within(group, keys), native=native)
    root = _gang_above(case, owner)
    return group if root is None else _of_composite(case, root, group, name)


def _gang_above(case: Case, group: Fields) -> Fields | None:
    """The highest CompositePodGroup (Kubernetes 1.37) above *group* that is a gang, as all between
    the two are. The groups below one of policy `basic` start on their own."""
    found = None
    for _ in range(_MOST_COMPOSITES):
        above = text(found or group, _PARENT)
        if not above:
            break
        try:
            parent = case.read(kinds.COMPOSITE_POD_GROUP, above)
        except OwnerGoneError as error:
            if error.why is Missing.NOT_FOUND:
                raise
            break  # an older ClusterRole, or a cluster without the kind
        if not has(parent, _POLICY + "gang"):
            break
        found = parent
    return found


def _of_composite(case: Case, root: Fields, group: DeclaredGroup, own: str) -> DeclaredGroup:
    """All groups below *root* are one gang. How many pods that are, `decide` asks the pod's owner,
    or else `counted`: no group knows those beside it."""
    name = text(root, "metadata.name")
    ref = _ref(case, kinds.COMPOSITE_POD_GROUP, name)
    whole_gang = DeclaredGroup(
        GangName(ref.namespace, ref.qualified_kind, name, text(root, "metadata.uid")),
        group.minimum,
        group.rule,
        f"{group.because}, below {ref}",
        controller=_maker(root),
        priority_class=text(root, "spec.priorityClassName"),
        native=NativeGroup((*group.native.topology, *_topology(root)), _priority(root)),
        subgroup=own,
        template=(
            text(root, "spec.workloadRef.workloadName"),
            text(root, "spec.workloadRef.templateName"),
        ),
    )
    return _within(whole_gang, _topology(root))


def _topology(owner: Fields) -> list[str]:
    return [text(item, "key") for item in items(owner, "spec.schedulingConstraints.topology")]


def _priority(owner: Fields) -> int | None:
    found = at(owner, "spec.priority")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _within(group: DeclaredGroup, keys: list[str]) -> DeclaredGroup:
    """*group* with the node labels *keys*, of each of which its object requires one value."""
    levels = required_of(keys)
    if not levels:
        return group
    because = f"{group.because} in one {' and one '.join(levels)}"
    return replace(group, require=levels, because=because)


def counted(case: Case, group: DeclaredGroup) -> DeclaredGroup:
    """A group of groups with the pods that its Workload's templates say. Raises as `Case.read`."""
    workload, called = group.template
    owner = case.read(kinds.NATIVE_WORKLOAD, workload)
    waiting = [*items(owner, "spec.compositePodGroupTemplates")]
    found = None
    while waiting and found is None:
        each = waiting.pop()
        found = each if text(each, "name") == called else None
        waiting += items(each, "compositePodGroupTemplates")
    ref = _ref(case, kinds.NATIVE_WORKLOAD, workload)
    if found is None:
        raise UnreadableError(f"spec.workloadRef.templateName: {called!r}: not in {ref}")
    least = _least_below(found, _MOST_COMPOSITES)
    return replace(group, minimum=least, because=f"{group.because}; {ref}: {least} at once")


def _least_below(template: Fields, levels: int) -> int:
    """How many pods start together below a CompositePodGroupTemplate. Of a template, one group or
    several may be made: `minGroupCount` beyond the templates counts the smallest again."""
    within = "schedulingPolicy.gang."
    those = [number(each, within + "minCount", 1) for each in items(template, "podGroupTemplates")]
    if levels:
        those += [
            _least_below(each, levels - 1)
            for each in items(template, "compositePodGroupTemplates")
            if has(each, "schedulingPolicy.gang")
        ]
    if not those:
        return 1
    wanted = number(template, within + "minGroupCount", len(those))
    return sum(those) + max(wanted - len(those), 0) * min(those)


def native_workload(case: Case) -> DeclaredGroup | None:
    """Kubernetes 1.35, where PodGroup is not yet an object: one gang per replica key."""
    said = case.pod.spec.workload_ref
    if said is None or not said.name:
        return None
    owner = case.read(kinds.NATIVE_WORKLOAD, said.name)
    groups = items(owner, "spec.podGroups")
    mine = next((group for group in groups if text(group, "name") == said.pod_group), None)
    ref = _ref(case, kinds.NATIVE_WORKLOAD, said.name)
    if mine is None:
        raise UnreadableError(f"spec.workloadRef.podGroup: {said.pod_group!r}: not in {ref}")
    part = said.pod_group + (f"-{said.pod_group_replica_key}" if said.pod_group_replica_key else "")
    gang = has(mine, "policy.gang")
    least = number(mine, "policy.gang.minCount", 1)
    return DeclaredGroup(
        GangName(ref.namespace, ref.qualified_kind, ref.name, text(owner, "metadata.uid"), part),
        least,
        "native-workload",
        f"{ref}: {said.pod_group} is a gang, minCount {least}" if gang else f"{ref}: no gang",
        basic=not gang,
    )


def kueue(case: Case, name: str) -> DeclaredGroup | None:
    """Groups of plain pods. With fast admission, Kueue admits pods one by one: not a gang."""
    if case.said(marks.KUEUE + "pod-group-fast-admission") == "true":
        return None
    key = marks.KUEUE + "pod-group-total-count"
    size = count(case.said(key), key)
    return _of_pods(case, "kueue", "kueue-pod-group", name, size, f"{key}: {size}", size=size)


def koordinator(case: Case, name: str) -> DeclaredGroup:
    key, total = marks.KOORDINATOR + "min-available", case.said(marks.KOORDINATOR + "total-number")
    least = count(case.said(key), key, 0)
    size = count(total, marks.KOORDINATOR + "total-number") if total else None
    because = f"{key}: {least}"
    return _of_pods(case, "koordinator", "koordinator-gang", name, least, because, size=size)


class _TaskGroup(msgspec.Struct, rename="camel"):
    name: str
    min_member: int
    min_resource: dict[str, Quantity] = {}  # of one member

    def takes(self, resources: Iterable[str]) -> bool:
        """Raises ValueError."""
        return any(whole(self.min_resource.get(each, 0)) > 0 for each in resources)


def yunikorn(case: Case) -> DeclaredGroup | None:
    """Only if the pod lists all task groups. Spark's pods are excluded: the driver creates the
    executors while it runs."""
    application = case.said("applicationId", marks.YUNIKORN + "app-id")
    listed = case.annotations.get(marks.YUNIKORN + "task-groups", "")
    if not application or not listed or "spark-role" in case.labels:
        return None
    key = marks.YUNIKORN + "task-groups"
    try:
        groups = msgspec.json.decode(listed, type=list[_TaskGroup])
        mine = case.said(marks.YUNIKORN + "task-group-name")
        # The pod's own task group counts: `decide` asks whether this pod takes GPUs. Another one
        # counts only if it requests GPUs: the gang would wait forever for members without GPUs.
        gpus = [group for group in groups if group.name == mine or group.takes(case.resources)]
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise UnreadableError(f"{key}: {error}") from None
    least = count(str(sum(max(group.min_member, 0) for group in groups)), key)
    role = mine or "pod"
    because = f"{key}: {' + '.join(f'{group.min_member} {group.name}' for group in groups)}"
    named = _of_pods(
        case, "yunikorn", "yunikorn-application", application, least, because, role=role
    )
    return replace(named, gpu_minimum=sum(max(group.min_member, 0) for group in gpus))


def old_coscheduling_labels(case: Case, name: str) -> DeclaredGroup | None:
    """scheduler-plugins of 2020: the pod's labels have both the name and the minimum."""
    key = f"{marks.OLD_COSCHEDULING}/min-available"
    if key not in case.labels:
        return None
    least = count(case.labels[key], key, 0)
    return _of_pods(case, "coscheduling-labels", "pod-group", name, least, f"{key}: {least}")


def coscheduling(case: Case, name: str) -> DeclaredGroup:
    is_old = not case.labels.get(marks.COSCHEDULING) and case.labels.get(marks.OLD_COSCHEDULING)
    kind = kinds.OLD_COSCHEDULING_POD_GROUP if is_old else kinds.COSCHEDULING_POD_GROUP
    return _min_member(case, kind, name, "coscheduling")


def volcano_pod_group(case: Case, name: str) -> DeclaredGroup | None:
    """Volcano creates a group for any pod without one; only a minimum above one makes it a gang."""
    if case.is_controlled_by(kinds.VOLCANO_JOB):  # the Job has all that its group has
        return None
    try:
        return _min_member(case, kinds.VOLCANO_POD_GROUP, name, "volcano-pod-group")
    except OwnerGoneError:
        owner = case.controller.uid if case.controller else case.pod.metadata.uid
        if name == f"podgroup-{owner}":  # Volcano created it by default: no pod waits for it
            return None
        raise


def kai(case: Case, name: str) -> DeclaredGroup:
    owner = case.read(kinds.KAI_POD_GROUP, name)
    least = number(owner, "spec.minMember", _least_in_subgroups(owner))
    return _of_pod_group(case, kinds.KAI_POD_GROUP, owner, name, "kai", least)


def _least_in_subgroups(owner: Fields) -> int:
    """How many pods a KAI PodGroup without `minMember` needs at least: those of its smallest
    subgroups, `minSubGroup` of them. A subgroup has a `minMember`, or subgroups of its own."""
    within = "spec.subGroups"
    groups = items(owner, within)
    if len({text(group, "name") for group in groups}) < len(groups):
        raise UnreadableError(f"{within}: expected each name once")
    inside: dict[str, list[Fields]] = {}
    for group in groups:
        inside.setdefault(text(group, "parent"), []).append(group)

    def least(parent: str, wanted: int, levels: int) -> int:
        if not levels:
            raise UnreadableError(f"{within}: expected at most {_MOST_LEVELS} levels")
        those = [
            number(group, "minMember", 0, within=within)
            or least(
                text(group, "name"), number(group, "minSubGroup", 0, within=within), levels - 1
            )
            for group in inside.get(parent, ())
        ]
        return sum(sorted(those)[:wanted])

    return max(least("", number(owner, "spec.minSubGroup", 0), _MOST_LEVELS), 1)


def grove(case: Case, name: str) -> DeclaredGroup:
    """A PodGang of Grove, as Dynamo creates too (ai-dynamo/grove,
    scheduler/api/core/v1alpha1/podgang.go): the `minReplicas` of all its groups start together."""
    owner = case.read(kinds.POD_GANG, name)
    within = "spec.podgroups"
    least = sum(number(each, "minReplicas", 0, within=within) for each in items(owner, within))
    group = _of_pod_group(case, kinds.POD_GANG, owner, name, "grove", least)
    required = text(owner, "spec.topologyConstraint.packConstraint.required")
    group = _within(group, [required] if required else [])
    return replace(group, subgroup=case.said(marks.GROVE + "podclique"))


def _min_member(case: Case, kind: OwnerKind, name: str, rule: str) -> DeclaredGroup:
    owner = case.read(kind, name)
    return _of_pod_group(case, kind, owner, name, rule, number(owner, "spec.minMember", 1))


def _of_pod_group(
    case: Case,
    kind: OwnerKind,
    owner: Fields,
    name: str,
    rule: str,
    least: int,
    *,
    basic: bool = False,
) -> DeclaredGroup:
    ref = _ref(case, kind, name)
    what = "schedulingPolicy is basic" if basic else f"{least} at once"
    return DeclaredGroup(
        GangName(ref.namespace, ref.qualified_kind, name, text(owner, "metadata.uid")),
        max(least, 1),
        rule,
        f"{ref}: {what}",
        basic=basic,
        controller=_maker(owner),
        queue=text(owner, "spec.queue"),
        priority_class=text(owner, "spec.priorityClassName"),
    )


def _maker(owner: Fields) -> str:
    """The uid of the object for which a scheduler created the group; some schedulers set an owner
    reference without `controller`."""
    controller = text(controller_of(owner), "uid")
    others = mapping(owner, "metadata").get("ownerReferences")
    if controller or not isinstance(others, list) or len(others) != 1:
        return controller
    return text(others[0], "uid") if isinstance(others[0], Mapping) else ""


def _of_pods(
    case: Case,
    rule: str,
    kind: str,
    name: str,
    least: int,
    because: str,
    *,
    size: int | None = None,
    role: str = "pod",
) -> DeclaredGroup:
    named = GangName(case.namespace, kind, name)
    # With a minimum of 0, as with 1, no pod waits for another.
    return DeclaredGroup(named, max(least, 1), rule, because, size=size, role=role, object=False)


def _ref(case: Case, kind: OwnerKind, name: str) -> ObjectRef:
    return ObjectRef(kind.group, kind.kind, case.namespace, name)
