"""Writes on the plugin's Node what the cluster should know: topology, labels, GPUs in
use, and what pods do with them.

If something differs, the publisher sends one merge patch with only the differences. It removes its
own labels that are no longer true. An annotation beside the labels lists which are its own, so a
later version of this program, or one on changed hardware, still knows. It neither changes nor
removes labels of other writers (such as GPU feature discovery, under the same names).

If the Node is deleted and created again under its name, it has nothing of the plugin. The publisher
sees that by the uid, and writes everything at once.
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
from linkwise.topology.annotations.activity import Activity, write_activity
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.annotations.plan import InUse, write_in_use
from linkwise.topology.machine.model import Machine

log = logging.getLogger(__name__)

_STOP_SECONDS = 15.0  # a write in progress takes no longer

Patch = dict[str, dict[str, str | None]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the Node should say; annotations that are not named here stay as they are."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]


def wanted(
    machine: Machine, in_use: InUse | None = None, activity: Activity | None = None
) -> Wanted:
    annotations = {names.TOPOLOGY: write_topology(machine)}
    if in_use is not None:
        annotations[names.IN_USE] = write_in_use(in_use)
    if activity is not None:
        annotations[names.ACTIVITY] = write_activity(activity)
    return Wanted(annotations, node_labels(machine))


def difference(node: Node, want: Wanted) -> Patch:
    """What to patch into the Node's metadata; empty if the Node says all that already."""
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
    """The patch that removes everything that the plugin wrote on the Node; empty if that is
    nothing."""
    notes = node.metadata.annotations
    ours = [key for key in names.BY_PLUGIN if key in notes]
    patch: Patch = {
        "labels": dict.fromkeys(sorted(_own_labels(node))),
        "annotations": dict.fromkeys(ours),
    }
    return {what: entries for what, entries in patch.items() if entries}


def _own_labels(node: Node) -> set[str]:
    """The keys of the labels that the plugin wrote, by its annotation."""
    return set(filter(None, node.metadata.annotations.get(names.OWN_LABELS, "").split(",")))


def _annotations_changed(told: Wanted, want: Wanted) -> Patch:
    """What to patch if the Node is known to say *told*. So the publisher need not read the Node for
    each GPU that a pod takes."""
    changed = want.annotations.items() - told.annotations.items()
    return {"annotations": dict(sorted(changed))}


class NodePublisher:
    """Every `resync_seconds` the publisher reads the Node, to repair what others have changed."""

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
        self._activity: Activity | None = None
        self._dirty = False
        self._stopping = Event()
        self._told: Wanted | None = None  # what the Node says, as far as known
        self._told_uid = ""  # the uid of that Node
        self._seen_uid = ""  # the uid of the present Node, as its watch last showed it
        self._read_at = 0.0
        self._trouble = ""
        self._thread = Thread(target=self._run, name="publisher", daemon=True)

    @property
    def published(self) -> bool:
        """Whether the Node has the plugin's topology, and the last write succeeded."""
        return self._told is not None and not self._trouble

    @property
    def trouble(self) -> str:
        """Why the last write failed; empty if it succeeded."""
        return self._trouble

    def machine(self, machine: Machine) -> None:
        with self._changed:
            self._machine, self._dirty = machine, True
            self._changed.notify_all()

    def in_use(self, in_use: InUse) -> None:
        with self._changed:
            self._in_use, self._dirty = in_use, True
            self._changed.notify_all()

    def activity(self, activity: Activity) -> None:
        with self._changed:
            self._activity, self._dirty = activity, True
            self._changed.notify_all()

    def node_seen(self, uid: str) -> None:
        """There is a Node of the plugin's node name, with this uid."""
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
        """Wait before the next attempt; end early if there is another Node to write on."""
        with self._changed:
            seen = self._seen_uid
            self._changed.wait_for(
                lambda: self._seen_uid != seen or self._stopping.is_set(), seconds
            )

    def _publish(self) -> None:
        with self._changed:
            self._dirty = False
            machine, in_use, activity = self._machine, self._in_use, self._activity
            told = self._told if self._seen_uid in ("", self._told_uid) else None
        if machine is None:
            return
        want = wanted(machine, in_use, activity)
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
            log.info("node: the API server accepts writes again")
        self._told, self._trouble = want, ""

    def _note_failure(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        before, self._trouble = self._trouble, str(error) or repr(error)
        if not isinstance(error, ApiError | msgspec.MsgspecError):
            log.error("node: writing failed; trying again", exc_info=error)
        elif self._trouble != before:
            log.warning("node: %s; trying again", error)
        # A failed write may have taken effect: read before the next.
        self._told = None
        self._on_error()
