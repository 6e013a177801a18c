"""A cache of the objects that pods depend on, and the schedule for reading them.

A watch on each kind that may own pods would cache most of a cluster's objects. Instead, each
object is read by itself when the first pod that depends on it appears. It is read again when
another such pod appears, is being deleted or is gone, because the owner may have changed by then,
and periodically while such pods wait. It is dropped with its last pod, or after that read.

Namespaces are read in turn, so one that has thousands of owners delays each other one by one read.
The objects of a namespace have a bound in bytes; they are kept as JSON, because as Python's values
they can take 28 times the memory.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from linkwise.extender.state.timers import Agenda, Timers
from linkwise.kube.fields import Fields, at, text
from linkwise.kube.labels import JOB_SET_LABEL
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import Missing, NeedsOwner, ObjectRef
from linkwise.serving.turns import Turns

Found = Fields | Missing
# While a job's thousand pods appear, its owner is read once a second and not a thousand times.
FRESH_SECONDS = 1.0
# A change that no pod shows, such as a lower minimum of a group, reaches waiting pods this late.
STALE_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.5  # after a read that failed or found nothing; it doubles
MOST_AT_ONCE = 16
# Periodic reads for waiting pods, over all objects; up to twice as many if namespaces are unequal.
MOST_A_SECOND = 20
# Of what is kept of the objects of one namespace. A Job has some 500 bytes, or 32 KiB at most.
MOST_BYTES_OF_NAMESPACE = 32 << 20

_JSON = msgspec.json.Encoder(order="deterministic")
_OBJECT = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True)
class FetchOwner:
    """Read this object at the first of `paths` that the API server serves."""

    ref: ObjectRef
    paths: tuple[str, ...]
    step: int  # distinguishes this read of the object from others
    room: int  # bytes that its namespace has left for it

    def __str__(self) -> str:
        return str(self.ref)

    @property
    def namespace(self) -> str:
        return self.ref.namespace


@dataclass(frozen=True, slots=True)
class Answered:
    """What a read changes: the uids of the pods to judge *again*, and by uid, whether an owner has
    ended: it is gone, being deleted or suspended, so it creates no pods now."""

    again: set[str] = field(default_factory=set)
    ended: Mapping[str, bool] = field(default_factory=dict)


@dataclass(slots=True)
class _Entry:
    paths: tuple[str, ...] = ()
    object: bytes | Missing | None = None  # as JSON; None: not read yet
    uid: str = ""  # of the last one that existed
    read: int = 0  # the step at which the read of `object` began
    read_at: float = 0.0
    doubted: bool = False  # a pod was deleted since: the owner may want fewer, or be gone
    parting: bool = False  # and so it is read once more, even if that was its last pod
    began: int = 0  # the step of the read in flight; 0: none
    vain: int = 0  # consecutive reads that failed or found nothing
    pods: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)  # those that are not bound
    pending: set[str] = field(default_factory=set)  # those that cannot be judged before the read

    @property
    def wanted(self) -> bool:
        return self.doubted or bool(self.waiting or self.pending)

    @property
    def size(self) -> int:
        return len(self.object) if isinstance(self.object, bytes) else 0


@dataclass(slots=True)
class _Namespace:
    owners: int = 0
    size: int = 0  # bytes


class OwnerCache:
    """Steps order pods and reads; seconds only set the time of the next read."""

    def __init__(self, agenda: Agenda) -> None:
        agenda.ask(self._times)
        self._entries: dict[ObjectRef, _Entry] = {}
        self._namespaces: dict[str, _Namespace] = {}  # those of the entries
        self._refs: dict[str, frozenset[ObjectRef]] = {}
        self._came: dict[str, int] = {}  # uid -> step at which the pod was first seen
        self._step = 0
        self._alarms: Timers[ObjectRef] = Timers(agenda)  # when to read again
        self._due: Turns[ObjectRef] = Turns()  # those that were never read are urgent
        self._under_way = 0

    def __len__(self) -> int:
        return len(self._entries)

    def size(self, uid: str) -> int:
        """The bytes of all objects that the pod was judged by."""
        return sum(self._entries[ref].size for ref in self._refs.get(uid, ()))

    def view(self, pod: Pod) -> "OwnerView":
        """The objects that are valid for *pod*. If the pod is not followed, it counts as newer
        than all reads."""
        return OwnerView(self._entries, pod, self._came.get(pod.metadata.uid, self._step + 1))

    def hangs_on(
        self, uid: str, refs: frozenset[ObjectRef], needs: NeedsOwner | None, now: float
    ) -> None:
        """Record that the pod was judged by *refs*, or waits for the object that it *needs*."""
        is_new = uid not in self._refs
        if is_new:
            self._step += 1
            self._came[uid] = self._step
        for ref in self._refs.get(uid, frozenset()) - refs:
            self._let_go(uid, ref)
        self._refs[uid] = refs
        for ref in refs:
            if (entry := self._entries.get(ref)) is None:
                entry = self._entries[ref] = _Entry()
                self._namespaces.setdefault(ref.namespace, _Namespace()).owners += 1
            entry.pods.add(uid)
            if is_new and entry.object is not None:
                self._read_by(ref, max(now, entry.read_at + FRESH_SECONDS))
        if needs is not None:
            entry = self._entries[needs.owner]
            entry.paths = needs.paths
            if not needs.missing:
                entry.pending.add(uid)
                self._due.add(needs.owner.namespace, needs.owner, urgent=True)

    def waits(self, uid: str, now: float, *, waits: bool) -> None:
        """Record whether the pod is still unbound: only then do changes of its owner concern it."""
        for ref in self._refs.get(uid, ()):
            entry = self._entries[ref]
            if not waits:
                entry.waiting.discard(uid)
            elif uid not in entry.waiting:
                entry.waiting.add(uid)
                if entry.read:
                    self._read_by(ref, max(now, self._next_look(ref, entry)))

    def doubt(self, uid: str) -> None:
        """Read again what the pod, which is being deleted, was judged by."""
        for ref in self._refs.get(uid, ()):
            self._doubt(ref)
            self._entries[ref].parting = self._entries[ref].doubted

    def forget(self, uid: str) -> None:
        for ref in self._refs.pop(uid, ()):
            self._let_go(uid, ref)
            if ref in self._entries:
                self._doubt(ref)
        self._came.pop(uid, None)

    def _doubt(self, ref: ObjectRef) -> None:
        entry = self._entries[ref]
        if entry.object is not None:
            entry.doubted = True
            self._read_by(ref, entry.read_at + FRESH_SECONDS)

    @property
    def any_due(self) -> bool:
        return bool(self._due)

    def take_reads(self, now: float) -> Iterator[FetchOwner]:
        """What to read now. The caller reports each outcome to `answered`."""
        for ref in self._alarms.take(now):
            self._due.add(ref.namespace, ref)
        while self._due and self._under_way < MOST_AT_ONCE:
            ref = self._due.take()
            entry = self._entries.get(ref)
            if entry is None or not entry.wanted:
                continue
            if entry.began:  # that read may be too early for pods that appeared since
                self._read_by(ref, now + FRESH_SECONDS)
                continue
            self._step += 1
            entry.began, entry.doubted = self._step, False
            self._under_way += 1
            # What is kept already stays, whatever was read beside it.
            left = max(MOST_BYTES_OF_NAMESPACE - self._namespaces[ref.namespace].size, 0)
            yield FetchOwner(ref, entry.paths, self._step, left + entry.size)

    def _times(self) -> Iterable[float]:
        return [0.0] if self._due and self._under_way < MOST_AT_ONCE else ()

    def answered(self, read: FetchOwner, found: Found | None, now: float) -> Answered:
        """Record how *read* ended (None: it failed)."""
        self._under_way -= 1
        entry = self._entries.get(read.ref)
        if entry is None or entry.began != read.step:
            return Answered()  # its last pod was deleted meanwhile
        entry.began, entry.read_at = 0, now
        answered = self._read(read, entry, found)
        entry.parting &= entry.doubted
        if not (entry.pods or entry.parting):
            self._drop(read.ref, entry)
        return answered

    def _read(self, read: FetchOwner, entry: _Entry, found: Found | None) -> Answered:
        entry.vain = entry.vain + 1 if found is None or found is Missing.NOT_FOUND else 0
        if entry.waiting or found is None:
            self._read_by(read.ref, self._next_look(read.ref, entry))
        if found is None:
            return Answered()
        kept = found if isinstance(found, Missing) else _JSON.encode(found)
        changed, before = kept != entry.object, entry.size
        entry.object, entry.read = kept, read.step
        self._namespaces[read.ref.namespace].size += entry.size - before
        pending, entry.pending = entry.pending, set()
        ended = {entry.uid: True} if found is Missing.NOT_FOUND else {}
        if not isinstance(found, Missing):  # one of another uid has taken the place of the last
            uid = text(found, "metadata.uid")
            ended = {entry.uid: True, uid: _has_ended(found)}
            entry.uid = uid
        ended.pop("", None)
        return Answered(set(entry.pods) if changed else pending, ended)

    def _next_look(self, ref: ObjectRef, entry: _Entry) -> float:
        # As if all namespaces had as many objects, unless others have fewer.
        alike = self._namespaces[ref.namespace].owners * len(self._namespaces)
        pause = max(STALE_SECONDS, min(alike, len(self._entries)) / MOST_A_SECOND)
        if entry.vain:
            pause = min(FIRST_PAUSE_SECONDS * 2 ** min(entry.vain - 1, 16), pause)
        return entry.read_at + pause

    def _read_by(self, ref: ObjectRef, at: float) -> None:
        known = self._alarms.get(ref)
        if known is None or at < known:
            self._alarms[ref] = at

    def _let_go(self, uid: str, ref: ObjectRef) -> None:
        entry = self._entries[ref]
        for pods in (entry.pods, entry.waiting, entry.pending):
            pods.discard(uid)
        if not (entry.pods or entry.parting):
            self._drop(ref, entry)

    def _drop(self, ref: ObjectRef, entry: _Entry) -> None:
        del self._entries[ref]
        self._alarms.drop(ref)
        self._due.drop(ref)
        namespace = self._namespaces[ref.namespace]
        namespace.owners -= 1
        namespace.size -= entry.size
        if not namespace.owners:
            del self._namespaces[ref.namespace]


class OwnerView(Mapping[ObjectRef, Found]):
    """The objects that are valid for one pod; `asked` collects the references that were looked up.

    An owner may have been recreated under the same name. An object that was read before the pod
    appeared counts only if its uid is one that the pod refers to; otherwise it is read again.
    """

    def __init__(self, entries: Mapping[ObjectRef, _Entry], pod: Pod, came: int) -> None:
        self._entries, self._pod, self._came = entries, pod, came
        self.decoded: dict[ObjectRef, Fields] = {}  # those of `asked` that exist
        self.asked: set[ObjectRef] = set()

    def __getitem__(self, ref: ObjectRef) -> Found:
        self.asked.add(ref)
        entry = self._entries.get(ref)
        if entry is None or entry.object is None:
            raise KeyError(ref)
        found = self._found(ref, entry.object)
        if entry.read < self._came and self._is_another(ref, found):
            raise KeyError(ref)
        return found

    def _found(self, ref: ObjectRef, kept: bytes | Missing) -> Found:
        if isinstance(kept, Missing):
            return kept
        if ref not in self.decoded:
            self.decoded[ref] = _OBJECT.decode(kept)
        return self.decoded[ref]

    def _is_another(self, ref: ObjectRef, found: Found) -> bool:
        if isinstance(found, Missing):
            return True
        uids = _uids_said(self._pod, ref)
        return bool(uids) and text(found, "metadata.uid") not in uids

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _has_ended(owner: Fields) -> bool:
    suspends = ("spec.suspend", "spec.runPolicy.suspend")
    is_deleted = bool(text(owner, "metadata.deletionTimestamp"))
    return is_deleted or any(at(owner, path) is True for path in suspends)


def _uids_said(pod: Pod, ref: ObjectRef) -> set[str]:
    """The uids by which this pod refers to *ref*."""
    meta = pod.metadata
    said = {o.uid for o in meta.owner_references if (o.kind, o.name) == (ref.kind, ref.name)}
    if ref.kind == "JobSet":
        said.add(meta.labels.get(JOB_SET_LABEL + "jobset-uid", ""))
    return said - {""}
