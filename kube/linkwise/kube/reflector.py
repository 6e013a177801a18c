"""Follows all objects of one kind: first a list, then every change.

The reflector lists, then watches from where the list ended. When the watch ends, it watches again
from the last version seen, so no change is lost. If that version is too old (410), it lists again.
Its owner gets everything in the API server's order, from one thread: `on_replace` with all
objects, then `on_event` for each change, until the next `on_replace`. The objects of a list are
decoded while its owner iterates over them.

An object that does not decode is skipped and reported; it never stops the others. If a callback
raises, the reflector logs the error and lists everything again.
"""

import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread, current_thread
from typing import Generic, Protocol, TypeVar

import msgspec
from tenacity import RetryCallState, Retrying, retry_if_exception_type
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set
from tenacity.wait import wait_random_exponential

from linkwise.kube.client import KubeClient, Params, Stream
from linkwise.kube.errors import GONE, NOT_FOUND, UNREACHED, ApiError, error_of
from linkwise.kube.listed import Listed
from linkwise.kube.objects import ObjectMeta

log = logging.getLogger(__name__)


_CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})


class HasMetadata(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=HasMetadata)


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None  # Go writes an empty list as null


class _Change(msgspec.Struct):
    type: str
    object: msgspec.Raw = msgspec.Raw()


class _Whole(msgspec.Struct, Generic[T]):
    type: str
    object: T


class _Identified(msgspec.Struct):
    metadata: ObjectMeta


class _CallbackError(Exception):
    """The owner's callback raised; its error is the cause."""


class Reflector(Generic[T]):
    """`on_skipped(where, why)` reports each skipped object: "ADDED ml/worker-0", "expected …".

    `watch_seconds` is the range from which each watch's length is drawn, so that the watches of
    many programs do not end together. After `idle_seconds` without a byte the connection is dead
    (bookmarks come every minute).

    With `optional`, the API server need not serve the kind: then there are no objects, and the
    reflector asks again after `unserved_seconds`.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        kind: type[T],
        *,
        field_selector: str | None = None,
        label_selector: str | None = None,
        on_replace: Callable[[Listed[T]], None],
        on_event: Callable[[str, T], None],
        on_skipped: Callable[[str, str], None] | None = None,
        watch_seconds: tuple[int, int] = (240, 480),
        idle_seconds: float = 120.0,
        longest_wait_seconds: float = 30.0,
        page_size: int = 500,
        optional: bool = False,
        unserved_seconds: float = 300.0,
    ) -> None:
        self.synced = Event()  # set after the first `on_replace`
        self._client, self._path, self._kind = client, path, kind
        self._whole: msgspec.json.Decoder[_Whole[T]] = msgspec.json.Decoder(
            _Whole[kind]  # type: ignore[valid-type]
        )
        self._selectors: dict[str, str | int] = {}
        if field_selector:
            self._selectors["fieldSelector"] = field_selector
        if label_selector:
            self._selectors["labelSelector"] = label_selector
        self._on_replace, self._on_event = on_replace, on_event
        self._on_skipped = on_skipped or self._log_skipped
        self._watch_seconds, self._idle_seconds = watch_seconds, idle_seconds
        self._page_size = page_size
        self._longest_wait = longest_wait_seconds
        self._optional, self._unserved_seconds = optional, unserved_seconds
        self._version: str | None = None  # None: list before the next watch
        self._lists_wanted, self._lists_made = 0, 0
        self._failing_since: float | None = None
        self._stopping = Event()
        self._lock = Lock()  # guards the stream, which stop() closes from another thread
        self._stream: Stream | None = None
        self._thread = Thread(target=self._run, name=f"reflector {path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End the watch at once. When this returns, no callback runs any more."""
        self._stopping.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        if self._thread.is_alive() and self._thread is not current_thread():
            self._thread.join(timeout_seconds)

    def list_again(self) -> int:
        """Request a new list, which also brings the changes since the last one.

        For an owner that must know that it misses nothing, as a watch may have been dead for
        minutes. Returns a number for `has_listed`.
        """
        with self._lock:
            self._lists_wanted += 1
            if self._stream is not None:
                self._stream.close()
            return self._lists_wanted

    def has_listed(self, number: int) -> bool:
        """True if `on_replace` got a list that began after that call of `list_again`."""
        return self._lists_made >= number

    @property
    def running(self) -> bool:
        """True while the thread runs. If it has died, the program should report itself
        unhealthy."""
        return self._thread.is_alive()

    @property
    def version(self) -> str | None:
        """The newest resourceVersion seen; None before the first list, or if it is too old."""
        return self._version

    @property
    def failing_seconds(self) -> float:
        """Seconds since the API server last answered; 0 while it answers."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def _run(self) -> None:
        retrying = Retrying(
            retry=retry_if_exception_type(Exception),  # only stop() ends this thread
            wait=wait_random_exponential(multiplier=0.2, max=self._longest_wait),
            stop=stop_when_event_set(self._stopping),
            sleep=sleep_using_event(self._stopping),
            before_sleep=self._note_failure,
            # Stopped while failing: there is nothing to report.
            retry_error_callback=lambda _: None,
        )
        while not self._stopping.is_set():
            retrying(self._round_if_served)

    def _round_if_served(self) -> None:
        try:
            self._round()
        except ApiError as error:
            if not self._optional or error.status != NOT_FOUND:
                raise
            if not self.synced.is_set() or self._version is not None:
                self._tell(lambda: self._on_replace(Listed(self._kind)))
            self._version, self._failing_since = None, None
            self.synced.set()
            self._stopping.wait(self._unserved_seconds)

    def _round(self) -> None:
        """List if necessary, then watch until the watch ends."""
        if self._version is None or self._lists_wanted > self._lists_made:
            self._replace()
        if self._version is not None and not self._stopping.is_set():
            self._watch(self._version)

    def _replace(self) -> None:
        """List, and hand that over. It returns before the watch, or the list would stay as long."""
        wanted = self._lists_wanted
        objects, version = self._list()
        if self._stopping.is_set():
            return
        self._tell(lambda: self._on_replace(objects))
        self._version, self._lists_made = version, wanted
        self.synced.set()

    def _note_failure(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, ApiError) and error.status == GONE:
            self._version = None
            log.info("%s: version too old, listing again", self._path)
            return
        if not isinstance(error, ApiError | msgspec.MsgspecError):
            self._version = None
            log.error("%s: a callback failed, listing again", self._path, exc_info=error)
        elif self._failing_since is None:
            log.warning("%s: %s; trying again", self._path, error)
        if self._failing_since is None:
            self._failing_since = time.monotonic()

    def _tell(self, callback: Callable[[], None]) -> None:
        if self._stopping.is_set():
            return
        try:
            callback()
        except Exception as error:
            raise _CallbackError from error

    def _list(self) -> tuple[Listed[T], str]:
        """Hand over all objects, and keep their version.

        The request names no resourceVersion: an API server that lags behind the previous one must
        not take the owner back in time.
        """
        try:
            return self._list_pages(self._page_size)
        except ApiError as error:
            if error.status != GONE:
                raise
            return self._list_pages(0)  # the pages expired in between: get all at once

    def _list_pages(self, page_size: int) -> tuple[Listed[T], str]:
        params: dict[str, str | int] = dict(self._selectors)
        if page_size:
            params["limit"] = page_size
        objects = Listed(self._kind)
        while True:
            page = self._client.get(self._path, _Page, params=params)
            items = page.items or ()
            objects.add([raw for raw in items if self._decode("listed", raw) is not None])
            if not page.metadata.continue_ or self._stopping.is_set():
                return objects, page.metadata.resource_version
            params["continue"] = page.metadata.continue_

    def _watch(self, version: str) -> None:
        began = time.monotonic()
        try:
            stream = self._open(
                self._selectors
                | {
                    "watch": "true",
                    "resourceVersion": version,
                    "allowWatchBookmarks": "true",
                    "timeoutSeconds": random.randint(*self._watch_seconds),
                }
            )
            for line in stream:
                if not self._take(line):
                    return
        except ApiError as error:
            # Open a connection again at once if it worked before it broke.
            if error.status != UNREACHED or version == self._version:
                raise
        finally:
            self._forget_stream()
        unasked = self._lists_wanted == self._lists_made
        if unasked and version == self._version and time.monotonic() - began < 1.0:
            raise ApiError(UNREACHED, "WatchEnded", f"{self._path}: a watch ended as it began")

    def _open(self, params: Params) -> Stream:
        stream = self._client.stream(self._path, params=params, idle_seconds=self._idle_seconds)
        with self._lock:
            self._stream = stream
            if self._stopping.is_set() or self._lists_wanted > self._lists_made:
                stream.close()
        self._failing_since = None
        return stream

    def _forget_stream(self) -> None:
        with self._lock:
            if self._stream is not None:
                self._stream.close()
            self._stream = None

    def _take(self, line: bytes) -> bool:
        """Hand over one change. Return False if only a new list can say what happened."""
        with suppress(msgspec.MsgspecError):  # decodes nearly every line in one step
            whole = self._whole.decode(line)
            if whole.type in _CHANGES:
                self._tell(lambda: self._on_event(whole.type, whole.object))
                self._version = whole.object.metadata.resource_version or self._version
                return True
        try:
            change = msgspec.json.decode(line, type=_Change)
        except msgspec.MsgspecError as error:
            self._on_skipped("an unreadable event", str(error))
            return True
        if change.type == "ERROR":
            raise error_of(0, bytes(change.object), what=f"watch of {self._path}")
        if change.type == "BOOKMARK":
            self._version = _version_of(change.object) or self._version
            return True
        found = self._decode(change.type, change.object)
        if found is not None:
            self._tell(lambda: self._on_event(change.type, found))
            self._version = found.metadata.resource_version or self._version
        elif change.type == "DELETED":  # its owner must not keep it forever
            self._version = None
            return False
        else:
            self._version = _version_of(change.object) or self._version
        return True

    def _decode(self, what: str, raw: msgspec.Raw) -> T | None:
        try:
            return msgspec.json.decode(raw, type=self._kind)
        except msgspec.MsgspecError as error:
            self._on_skipped(f"{what} {_name_of(raw)}", str(error))
            return None

    def _log_skipped(self, where: str, why: str) -> None:
        log.warning("%s: %s skipped: %s", self._path, where, why)


def _name_of(raw: msgspec.Raw) -> str:
    try:
        found = msgspec.json.decode(raw, type=_Identified).metadata
    except msgspec.MsgspecError:
        return "(no metadata)"
    return f"{found.namespace}/{found.name}" if found.namespace else found.name


def _version_of(raw: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=_Identified).metadata.resource_version
    except msgspec.MsgspecError:
        return ""
