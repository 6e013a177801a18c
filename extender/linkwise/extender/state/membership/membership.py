"""Which gang each pod is in, as far as the objects that it depends on have been read.

`recognise` judges one pod by the objects that it gets. `Membership` caches its answers, because
the core asks about a waiting pod several times, and lists the pods to judge again after an owner
was read.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from linkwise.extender.state.membership.owner_cache import FetchOwner, Found, OwnerCache
from linkwise.extender.state.timers import Agenda
from linkwise.kube.objects import (
    OwnerReference,
    Pod,
    SchedulingGroup,
    Toleration,
    WorkloadReference,
)
from linkwise.pods.annotations import MAX_GANG, GangAsk, PodRequest
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.explicit import RULE as EXPLICIT
from linkwise.pods.podgrouper.recreated import (
    AfterEviction,
    Eviction,
    after_eviction,
    goes_with_leader,
)
from linkwise.pods.podgrouper.workloads.answer import (
    Answer,
    GangName,
    IndexedJobs,
    Missing,
    NeedsOwner,
    NoGang,
    ObjectRef,
    Recognised,
    Refused,
    RoleToCome,
)
from linkwise.pods.podgrouper.workloads.declared import group_named
from linkwise.pods.podgrouper.workloads.kinds import COMPOSITE_POD_GROUP
from linkwise.pods.spans import Spans
from linkwise.serving.turns import Turns
from linkwise.topology import names

# Keys under which caches store results for pods that are alike.
#
# A user may write 256 KiB of annotations on a pod. These caches bound the number of their entries,
# so the size of an entry must be bounded too: the key is a digest, and only short annotations are
# read.


MOST_CHARACTERS = 32 * 1024  # of one pod's annotations that are read


def digest(words: bytes) -> bytes:
    """16 bytes of BLAKE2b, which is collision-resistant."""
    return blake2b(words, digest_size=16).digest()


def without_long_annotations(pod: Pod) -> Pod:
    """*pod* with its shortest annotations, as many as fit into MOST_CHARACTERS together."""
    said = pod.metadata.annotations
    if sum(map(len, said.values())) <= MOST_CHARACTERS:
        return pod
    metadata = msgspec.structs.replace(pod.metadata, annotations=_shortest(said))
    return msgspec.structs.replace(pod, metadata=metadata)


def _shortest(said: Mapping[str, str]) -> dict[str, str]:
    kept, left = {}, MOST_CHARACTERS
    for key in sorted(said, key=lambda key: (len(said[key]), key)):
        left -= len(said[key])
        if left < 0:
            break
        kept[key] = said[key]
    return kept


# Which pods name one group, with GPUs or without.
#
# A group that pods name counts all its pods, also those without GPUs, such as a driver. They matter
# only to pods with GPUs: of the groups that take none, nothing is read and nothing is planned.
#
# Groups below one CompositePodGroup are one group here. Only the PodGroups name it, so `unite`
# learns it from each pod that was judged; in a namespace with any, pods without GPUs are judged for
# that.


Group = tuple[str, ...]
_NONE: dict[str, Pod] = {}


class NamedGroups:
    def __init__(self) -> None:
        self._of: dict[str, Group] = {}  # uid -> group
        self._takers: dict[Group, set[str]] = {}  # the pods with GPUs, by uid
        self._others: dict[Group, dict[str, Pod]] = {}
        self._roots: dict[Group, Group] = {}  # a PodGroup -> the group of groups around it
        self._with_roots: set[str] = set()  # namespaces

    def put(self, pod: Pod, *, takes_gpus: bool) -> Iterable[str]:
        """Add a pod, or its newer version. Return the pods without GPUs to judge again, by uid:
        those of a group that takes GPUs now, and did not before, or the other way round."""
        uid, group = pod.metadata.uid, group_named(pod)
        group = None if group is None else self._roots.get(group, group)
        changed = () if self._of.get(uid) == group else self.drop(uid)
        if group is None:
            return changed
        self._of[uid] = group
        if not takes_gpus:
            self._others.setdefault(group, {})[uid] = pod
            return changed
        takers = self._takers.setdefault(group, set())
        is_first = not takers
        takers.add(uid)
        return (*changed, *self._others.get(group, _NONE)) if is_first else changed

    def drop(self, uid: str) -> Iterable[str]:
        """As `put`."""
        group = self._of.pop(uid, None)
        if group is None:
            return ()
        others, takers = self._others.get(group, {}), self._takers.get(group, set())
        is_last = uid in takers and len(takers) == 1
        others.pop(uid, None)
        takers.discard(uid)
        if not others:
            self._others.pop(group, None)
        if not takers:
            self._takers.pop(group, None)
        if not (others or takers) and group in self._roots.values():
            self._roots = {leaf: root for leaf, root in self._roots.items() if root != group}
        return (*others,) if is_last else ()

    def unite(self, pod: Pod, root: Group) -> Iterable[str]:
        """Record that the group that *pod* names is in *root*. Return uids as `put` does."""
        leaf, namespace = group_named(pod), pod.metadata.namespace
        if leaf is None or self._roots.get(leaf) == root:
            return ()
        again: set[str] = set()
        if namespace not in self._with_roots:
            self._with_roots.add(namespace)
            native = [group for group in self._others if group[:2] == leaf[:2]]
            again.update(uid for group in native for uid in self._others[group])
        self._roots[leaf] = root
        others, takers = self._others.pop(leaf, {}), self._takers.pop(leaf, set())
        for uid in (*others, *takers):
            self._of[uid] = root
        if others:
            self._others.setdefault(root, {}).update(others)
        if takers:
            self._takers.setdefault(root, set()).update(takers)
        return again.union(self._others.get(root, _NONE))

    def may_be_united(self, pod: Pod) -> bool:
        """Whether the pod must be judged to know all that its group is in."""
        return pod.metadata.namespace in self._with_roots and pod.spec.scheduling_group is not None

    def takes_gpus(self, uid: str) -> bool:
        """Whether any pod of the pod's group does."""
        return self._of.get(uid) in self._takers

    def pod(self, uid: str) -> Pod | None:
        """The newest version of a pod without GPUs."""
        group = self._of.get(uid)
        return None if group is None else self._others.get(group, _NONE).get(uid)


# Pods to judge again in one step, and the bytes of the objects that they are judged by. Each pod
# takes some 0.15 ms, and some more for each byte, and calls wait meanwhile.
_AT_ONCE, _BYTES_AT_ONCE = 8, 64 << 10
_MOST_ALIKE = 4096  # cached answers; each some 1 KB
_HIDDEN = (Missing.FORBIDDEN, Missing.TOO_LARGE, Missing.NAMESPACE_FULL)
# The API server copies these from the node to the pod when it binds it (KEP-4742). No rule reads
# them, so a pod is not judged again because it was bound.
_OF_THE_NODE = "topology.kubernetes.io/"
_UNKNOWN = Eviction(AfterEviction.UNKNOWN)
_PLAIN = frozenset({EXPLICIT, "bare-pod"})  # rules that an explanation need not name


@dataclass(frozen=True, slots=True)
class Judged:
    ask: PodRequest
    invalid: str = ""  # why the pod's annotations are wrong, or cannot be met
    awaits: str = ""  # what must be read before its gang is known
    to_come: tuple[RoleToCome, ...] = ()  # the members that its owner creates later


class _Evidence(msgspec.Struct, frozen=True):
    """Everything of a pod that the rules read, except its owners' content, and its name where
    they read an owner."""

    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str]
    owners: tuple[OwnerReference, ...]
    group: SchedulingGroup | None
    workload: WorkloadReference | None
    priority_class: str
    gpus: int
    # Where members run that the pod says are to come.
    place: tuple[dict[str, str], tuple[Toleration, ...], str] | None


@dataclass(frozen=True, slots=True)
class _Known:
    evidence: bytes
    judged: Judged
    pod: Pod


class Membership:
    def __init__(
        self,
        resources: tuple[str, ...],
        agenda: Agenda,
        indexed_jobs: IndexedJobs,
        may_be_evicted: Callable[[str, PodRequest], bool],
    ) -> None:
        """*may_be_evicted*: whether a pod of this namespace consents to its eviction."""
        self._resources, self._indexed_jobs = resources, indexed_jobs
        self._may_be_evicted = may_be_evicted
        self._owners = OwnerCache(agenda)
        self._alike: dict[bytes, Judged] = {}  # by evidence, of pods that depend on no other object
        self._known: dict[str, _Known] = {}  # by uid, of pods that depend on other objects
        self._named = NamedGroups()
        self._to_rejudge: Turns[str] = Turns()  # uids of `_known` and `_named` to judge again

    def judged(self, pod: Pod, ask: PodRequest, gpus: int) -> Judged:
        """Judge a pod as a caller sent it, which may be newer than the watch's. Does not follow
        it."""
        pod = without_long_annotations(pod)
        evidence = _evidence(pod, gpus)
        return self._remembered(pod, evidence) or self._judge(pod, ask, gpus, evidence)[0]

    def follow(self, pod: Pod, ask: PodRequest, gpus: int, now: float) -> Judged:
        """Judge a pod as the watch shows it, and keep what it depends on up to date until
        `forget`."""
        uid = pod.metadata.uid
        pod = without_long_annotations(pod)
        self._judge_again(self._named.put(pod, takes_gpus=gpus > 0))
        counts = gpus or ask.gang or self._named.takes_gpus(uid)
        if not (counts or self._named.may_be_united(pod)):
            self._let_go(uid)
            return Judged(ask)
        evidence = _evidence(pod, gpus)
        judged = self._remembered(pod, evidence)
        if judged is None:
            judged, refs, needs = self._judge(pod, ask, gpus, evidence)
            if refs:
                self._known[uid] = _Known(evidence, judged, pod)
                self._owners.hangs_on(uid, refs, needs, now)
        known = self._known.get(uid)
        if known is not None and known.evidence != evidence:
            self._let_go(uid)
        elif known is not None:
            if judged.ask.gang is not None and pod.is_leaving and not known.pod.is_leaving:
                self._owners.doubt(uid)  # if it has ended, the gang's places are free at once
            if known.pod is not pod:  # `take_to_rejudge` returns the newest version
                self._known[uid] = replace(known, pod=pod)
            self._owners.waits(uid, now, waits=_waits(pod))
        return judged if counts or self._named.takes_gpus(uid) else Judged(ask)

    def forget(self, uid: str) -> None:
        self._judge_again(self._named.drop(uid))
        self._let_go(uid)

    def _let_go(self, uid: str) -> None:
        self._to_rejudge.drop(uid)
        if self._known.pop(uid, None) is not None:
            self._owners.forget(uid)

    @property
    def any_due(self) -> bool:
        """Whether an owner is to be read, or a pod judged again."""
        return self._owners.any_due or bool(self._to_rejudge)

    def take_reads(self, now: float) -> tuple[FetchOwner, ...]:
        return tuple(self._owners.take_reads(now))

    def owner_read(self, read: FetchOwner, found: Found | None, now: float) -> Mapping[str, bool]:
        """Record the outcome of *read*; then `take_to_rejudge` returns the pods concerned. Return
        `Answered.ended`."""
        answered = self._owners.answered(read, found, now)
        uids = sorted(answered.again)
        for uid in uids:
            self._known[uid] = replace(self._known[uid], evidence=b"")
        self._judge_again(uids)
        return answered.ended

    def _judge_again(self, uids: Iterable[str]) -> None:
        """Namespaces in turn: pods of another one wait for no thousand pods of a large object."""
        for uid in uids:
            self._to_rejudge.add(self._pod(uid).metadata.namespace, uid)

    def _pod(self, uid: str) -> Pod:
        return self._named.pod(uid) or self._known[uid].pod

    @property
    def steps_to_rejudge(self) -> int:
        """How many calls of `take_to_rejudge` return those that are to be judged again now. Others
        may come meanwhile, all the time."""
        return sum(1 for _ in self._steps())

    def _steps(self) -> Iterator[list[str]]:
        """The pods of each step, by uid. A pod of a large object may be one alone."""
        step, size = list[str](), 0
        for uid in self._to_rejudge:
            size += (more := self._owners.size(uid))
            if step and (len(step) == _AT_ONCE or size > _BYTES_AT_ONCE):
                yield step
                step, size = [], more
            step.append(uid)
        if step:
            yield step

    def take_to_rejudge(self) -> list[Pod]:
        """The next pods to pass to `follow` again: at most 8 of maybe thousands."""
        return [self._pod(self._to_rejudge.take()) for _ in next(self._steps(), [])]

    def _remembered(self, pod: Pod, evidence: bytes) -> Judged | None:
        known = self._known.get(pod.metadata.uid)
        if known is not None and known.evidence == evidence:
            return known.judged
        return self._alike.get(evidence)

    def _judge(
        self, pod: Pod, ask: PodRequest, gpus: int, evidence: bytes
    ) -> tuple[Judged, frozenset[ObjectRef], NeedsOwner | None]:
        view = self._owners.view(pod)
        answer = recognise(pod, view, resources=self._resources, indexed_jobs=self._indexed_jobs)
        needs = answer if isinstance(answer, NeedsOwner) else None
        # Of its gang, nothing is known before that is read.
        if needs is not None or goes_with_leader(pod.metadata.labels):
            ask = replace(ask, movable_seconds=math.inf)
        elif ask.movable or self._may_be_evicted(pod.metadata.namespace, ask):
            eviction = after_eviction(pod, view, self._resources)
            if isinstance(eviction, NeedsOwner):  # it may be placed before that is read
                needs, eviction = eviction, _UNKNOWN
            ask = _knowing(ask, eviction)
        elif isinstance(answer, Recognised):
            # A timeout evicts members that do not consent. Only its text needs this, so nothing is
            # read for it.
            eviction = after_eviction(pod, view.decoded, self._resources)
            ask = _knowing(ask, _UNKNOWN if isinstance(eviction, NeedsOwner) else eviction)
        hidden = [
            f"{ref} {found.value}"
            for ref in sorted(view.asked)
            if isinstance(found := view.get(ref), Missing) and found in _HIDDEN
        ]
        judged = _judged(ask, answer, hidden, takes_gpus=gpus > 0)
        if isinstance(answer, Recognised) and answer.gang.kind == COMPOSITE_POD_GROUP.qualified:
            root = answer.gang.namespace, answer.gang.kind, answer.gang.name
            self._judge_again(self._named.unite(pod, root))
        if not view.asked:
            if len(self._alike) >= _MOST_ALIKE:
                self._alike.clear()
            self._alike[evidence] = judged
        return judged, frozenset(view.asked), needs


def _knowing(ask: PodRequest, eviction: Eviction) -> PodRequest:
    if ask.movable and eviction.after is not AfterEviction.RECREATED:
        ask = replace(ask, movable_seconds=math.inf)
    if eviction.after is AfterEviction.FAILURE:
        ask = replace(ask, evictions_left=eviction.survives)
    return ask


def _waits(pod: Pod) -> bool:
    ended = pod.status.phase in ("Succeeded", "Failed")
    return not (pod.spec.node_name or ended or pod.metadata.deletion_timestamp)


def _evidence(pod: Pod, gpus: int) -> bytes:
    meta, spec = pod.metadata, pod.spec
    said, labels = meta.annotations, meta.labels
    if any(key.startswith(_OF_THE_NODE) for key in labels):
        labels = {key: text for key, text in labels.items() if not key.startswith(_OF_THE_NODE)}
    if any(key in said for key in names.BY_LINKWISE):
        said = {key: text for key, text in said.items() if key not in names.BY_LINKWISE}
    words = msgspec.json.encode(
        _Evidence(
            meta.namespace,
            labels,
            said,
            meta.owner_references,
            spec.scheduling_group,
            spec.workload_ref,
            spec.priority_class_name,
            gpus,
            (spec.node_selector, spec.tolerations, spec.scheduler_name)
            if names.GANG_TO_COME in said
            else None,
        ),
        order="deterministic",
    )
    return digest(words)


def _judged(ask: PodRequest, answer: Answer, hidden: list[str], *, takes_gpus: bool) -> Judged:
    if not (takes_gpus or ask.gang or isinstance(answer, Recognised)):
        return Judged(ask)  # kube-scheduler alone places it
    why = [] if answer.rule in _PLAIN else [f"{answer.rule}: {answer.because}"]
    why += [text for text in hidden if text not in answer.because]
    because = "; ".join(why)
    match answer:
        case Recognised():
            member = _member(ask, answer, because, takes_gpus=takes_gpus)
            counts_all = answer.counts_all or ask.gang is not None
            to_come = (role for role in answer.to_come if role.gpus or counts_all)
            return Judged(member, to_come=() if member.gang is None else tuple(to_come))
        case NoGang():
            return Judged(replace(ask, gang=None, role=answer.member.role, because=because))
        case Refused():
            return Judged(replace(ask, gang=None), invalid=answer.because)
        case NeedsOwner():
            waits = answer.because if answer.missing else f"reading its owner {answer.owner}"
            return Judged(replace(ask, gang=None, because=because), awaits=f"gang: {waits}")


def _member(ask: PodRequest, found: Recognised, because: str, *, takes_gpus: bool) -> PodRequest:
    """*ask* with the gang that was found. Only pods that take GPUs count as members, unless the
    pods' own annotations name the gang and its size, or nothing says which ones take GPUs."""
    member = found.member
    gang = ask.gang
    if gang is None:
        gang = GangAsk(
            name=_name(found.gang),
            size=(found.size if found.counts_all else found.gpu_size) + found.done,
            minimum=max(found.minimum if found.counts_all else found.gpu_minimum, 1) + found.done,
            source=found.gang.uid or found.gang.kind,
            done=found.done,
            open_ended=found.open_ended,
            native=found.native,
        )
        if not (takes_gpus or found.counts_all):
            gang = None
        elif (gang.size <= 1 or not (found.gpu_size or found.counts_all)) and not gang.open_ended:
            because, gang = f"{because}; no other takes GPUs", None
        elif gang.minimum > MAX_GANG:
            because, gang = f"{because}; more than {MAX_GANG} are not planned together", None
    elif found.gang.part:  # a generation of a gang
        gang = replace(gang, name=f"{gang.name}#{found.gang.part}")
    return replace(
        ask,
        gang=gang,
        rank=member.rank,
        role=member.role,
        subgroup=member.subgroup,
        because=because,
        spans=_within(ask.spans, found.require) if gang is not None else ask.spans,
    )


def _within(spans: Spans, levels: tuple[str, ...]) -> Spans:
    return replace(spans, require=(*spans.require, *levels)) if levels else spans


def _name(gang: GangName) -> str:
    return f"{gang.kind}/{gang.name}" + (f"#{gang.part}" if gang.part else "")
