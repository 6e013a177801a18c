"""Writes on our own Node what the cluster should know: topology, labels, and what is in use.

One merge patch with just what differs, and only when something does. Labels of ours that stopped
being true are taken away: which are ours is kept in an annotation beside them, so a later version
of this program, or one on changed hardware, still knows. Labels that others wrote (such as GPU
feature discovery, under the same names) are theirs: they are neither changed nor removed.

A Node that is deleted and made anew under its name says nothing of us: its uid shows it, and it is
told everything at once.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Condition, Event, Thread

import msgspec
from tenacity import RetryCallState, Retrying, retry_if_exception_type
from tenacity.stop import stop_when_event_set
from tenacity.wait import wait_random_exponential

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.kube.objects import Node
from linkwise.topology import names
from linkwise.topology.labels import node_labels
from linkwise.topology.model import Machine
from linkwise.topology.node_annotation import write_topology
from linkwise.topology.plan import InUse, write_in_use

log = logging.getLogger(__name__)

_STOP_SECONDS = 15.0  # a write that is under way takes no longer

Patch = dict[str, dict[str, str | None]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the Node should say; an annotation that is not named here is left as it is."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]


def wanted(machine: Machine, in_use: InUse | None) -> Wanted:
    annotations = {names.TOPOLOGY: write_topology(machine)}
    if in_use is not None:
        annotations[names.IN_USE] = write_in_use(in_use)
    return Wanted(annotations, node_labels(machine))


def difference(node: Node, want: Wanted) -> Patch:
    """What to patch into the Node's metadata; empty when it says all that already."""
    has, notes = node.metadata.labels, node.metadata.annotations
    written = _own_labels(node)
    ours = {
        key
        for key in want.labels
        if key in written or key not in has or key.startswith(names.PREFIX)
    }
    labels: dict[str, str | None] = {
        key: want.labels[key] for key in sorted(ours) if has.get(key) != want.labels[key]
    }
    labels |= {key: None for key in sorted(written - want.labels.keys()) if key in has}
    annotations: dict[str, str | None] = {
        key: value
        for key, value in {**want.annotations, names.OWN_LABELS: ",".join(sorted(ours))}.items()
        if notes.get(key) != value
    }
    patch = {"labels": labels, "annotations": annotations}
    return {what: entries for what, entries in patch.items() if entries}


def written_by_us(node: Node) -> Patch:
    """What takes all of ours off the Node again; empty when there is nothing."""
    notes = node.metadata.annotations
    ours = [key for key in (names.TOPOLOGY, names.IN_USE, names.OWN_LABELS) if key in notes]
    patch: Patch = {
        "labels": dict.fromkeys(sorted(_own_labels(node))),
        "annotations": dict.fromkeys(ours),
    }
    return {what: entries for what, entries in patch.items() if entries}


def _own_labels(node: Node) -> set[str]:
    """The keys of labels that we are known to have written."""
    return set(filter(None, node.metadata.annotations.get(names.OWN_LABELS, "").split(",")))


def _annotations_changed(told: Wanted, want: Wanted) -> Patch:
    """What to patch where the Node is known to say *told*: no reading for each GPU taken."""
    changed = want.annotations.items() - told.annotations.items()
    return {"annotations": dict(sorted(changed))}


class NodePublisher:
    """`resync_seconds`: how often the Node is read, to repair what somebody else has changed."""

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        *,
        on_error: Callable[[], None],
        resync_seconds: float = 60.0,
    ) -> None:
        self._client, self._path = client, f"/api/v1/nodes/{node_name}"
        self._on_error, self._resync_seconds = on_error, resync_seconds
        self._changed = Condition()
        self._machine: Machine | None = None
        self._in_use: InUse | None = None
        self._dirty = False
        self._stopping = Event()
        self._told: Wanted | None = None  # what the Node says, as far as we know
        self._told_uid = ""  # which Node that is
        self._seen_uid = ""  # of the Node that there is, as its watch last showed it
        self._read_at = 0.0
        self._trouble = ""
        self._thread = Thread(target=self._run, name="publisher", daemon=True)

    @property
    def published(self) -> bool:
        """Whether the Node has been told our topology, and the last write went well."""
        return self._told is not None and not self._trouble

    @property
    def trouble(self) -> str:
        """What the last write failed of; empty when it went well."""
        return self._trouble

    def machine(self, machine: Machine) -> None:
        with self._changed:
            self._machine, self._dirty = machine, True
            self._changed.notify_all()

    def in_use(self, in_use: InUse) -> None:
        with self._changed:
            self._in_use, self._dirty = in_use, True
            self._changed.notify_all()

    def node_seen(self, uid: str) -> None:
        """There is a Node of our name, with this uid."""
        with self._changed:
            if uid == self._seen_uid:
                return
            self._seen_uid = uid
            if uid != self._told_uid:
                self._told, self._dirty = None, True
            self._changed.notify_all()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        retrying = Retrying(
            retry=retry_if_exception_type(Exception),  # this thread ends only by stop()
            wait=wait_random_exponential(multiplier=0.2, max=30),
            stop=stop_when_event_set(self._stopping),
            sleep=self._pause,
            before_sleep=self._note_failure,
            retry_error_callback=lambda _: None,  # stopped while failing
        )
        while not self._stopping.is_set():
            with self._changed:
                self._changed.wait_for(
                    lambda: self._dirty or self._stopping.is_set(), self._resync_seconds
                )
            if not self._stopping.is_set():
                retrying(self._publish)

    def _pause(self, seconds: float) -> None:
        """Before the next attempt; not for long where there is another Node to write on."""
        with self._changed:
            seen = self._seen_uid
            self._changed.wait_for(
                lambda: self._seen_uid != seen or self._stopping.is_set(), seconds
            )

    def _publish(self) -> None:
        with self._changed:
            self._dirty = False
            machine, in_use = self._machine, self._in_use
            told = self._told if self._seen_uid in ("", self._told_uid) else None
        if machine is None:
            return
        want = wanted(machine, in_use)
        due = time.monotonic() - self._read_at > self._resync_seconds
        if want == told and not due:
            return
        if told is None or due or want.labels != told.labels:
            node = self._client.get(self._path, Node)
            patch = difference(node, want)
            self._told_uid, self._read_at = node.metadata.uid, time.monotonic()
        else:
            patch = _annotations_changed(told, want)
        if patch:
            self._client.patch(self._path, {"metadata": patch})
            log.info(
                "node: wrote %s", ", ".join(sorted({k for part in patch.values() for k in part}))
            )
        if self._trouble:
            log.info("node: the API server takes our writes again")
        self._told, self._trouble = want, ""

    def _note_failure(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        before, self._trouble = self._trouble, str(error) or repr(error)
        if not isinstance(error, ApiError | msgspec.MsgspecError):
            log.error("node: writing failed; trying again", exc_info=error)
        elif self._trouble != before:
            log.warning("node: %s; trying again", error)
        # A write that failed may have been done all the same: read before the next.
        self._told = None
        self._on_error()
