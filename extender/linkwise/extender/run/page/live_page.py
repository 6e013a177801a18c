"""The live page: one look at the cluster for all viewers, and one message for each change.

A look takes a snapshot, for which it holds the core's lock as an explanation does. Everything else
happens outside that lock. However many browsers there are, one look a second is taken at most, and
fewer in a large cluster: the page takes `_SHARE` of a processor's time. Without a viewer there are
none.

The pages of pods, gangs and idle pods take searches. They have a share of their own, and those that
are open have turns, so no search delays the first page or another browser.
"""

import logging
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Event, RLock, Thread
from urllib.parse import urlencode

import msgspec

from linkwise.extender.run.loop import NotReadyError
from linkwise.extender.run.page.render import Renderer
from linkwise.extender.run.page.viewers import Viewers
from linkwise.extender.show.explain.idle.idle_pods import view_idle
from linkwise.extender.show.explain.moves import view_moves
from linkwise.extender.show.explain.names_said import gang_said
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.show.page.elements import changes
from linkwise.extender.show.page.explained import SearchedPage, gang_page, pod_page
from linkwise.extender.show.page.group_page import GroupPage, group_page
from linkwise.extender.show.page.groups import Group, Grouper
from linkwise.extender.show.page.idle_rows import idle_page
from linkwise.extender.show.page.moves_rows import moves_page
from linkwise.extender.show.page.overview import Overview, Overviews
from linkwise.extender.show.page.timeline import Times, drawn
from linkwise.extender.state.records import PodRecord

log = logging.getLogger(__name__)
# Keys of pages. That of a group is the group's own: values of labels, which have no slash, and a
# number.
OVERVIEW, IDLE, MOVES = "", "idle/", "moves/"
_POD, _GANG = "pod", "gang"
_SHARE = 0.01
_MOST_CREDIT_SECONDS = 10.0  # of the share that searches did not use
_SHORTEST_SECONDS = 1.0  # between two looks
_MOST_PAGES = 64  # that are kept
_OLDEST_SECONDS = 30.0  # of the time that stands on a page which did not change
_MOST_MESSAGES = 8  # of a page, for browsers that connect again
HELLO = b"retry: 2000\n\n"
_RELOAD = b"event: reload\ndata: {}\n\n"
_GONE = b"event: gone\ndata: {}\n\n"
Value = Overview | GroupPage | SearchedPage


def pod_key(namespace: str, name: str) -> str:
    return f"{_POD}/{namespace}/{name}"


def gang_key(namespace: str, name: str) -> str:
    return f"{_GANG}/{namespace}/{name}"


def takes_searches(key: str) -> bool:
    """Whether it is a pod, a gang, the idle pods or the moves."""
    return key.startswith((IDLE, MOVES, f"{_POD}/", f"{_GANG}/"))


@dataclass(slots=True)
class _Page:
    """A page as it was at the last look."""

    value: Value
    version: str
    seen: Snapshot
    html: bytes | None = None  # None: not asked for yet
    rendered: float = 0.0  # the time that stands in `html`
    messages: deque[tuple[str, bytes]] = field(default_factory=lambda: deque(maxlen=_MOST_MESSAGES))
    """Each with the version before it."""

    @property
    def shape(self) -> Hashable:
        return self.value.shape


class LivePage:
    """Thread-safe. `start()` begins to send changes to viewers."""

    def __init__(
        self,
        take: Callable[[], Snapshot],
        *,
        read_times: Callable[[Sequence[PodRecord]], Times] = lambda _pods: {},
        viewers: Viewers | None = None,
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        """*take* may raise NotReadyError. *read_times* says when pods were bound, by uid; it may
        read from the API server."""
        self._take, self._read_times, self._clock, self._cost = take, read_times, clock, cost
        self.viewers = Viewers() if viewers is None else viewers
        self.renderer = Renderer()
        self._lock = RLock()  # guards the fields below
        self._grouper, self._overviews = Grouper(), Overviews()
        self._snapshot: Snapshot | None = None
        self._groups: tuple[Group, ...] = ()
        self._pages: OrderedDict[str, _Page] = OrderedDict()
        # No other process has the same versions: a browser may come from another leader.
        self._process, self._numbers = f"{time.time_ns():x}", count(1)
        self._looked_at, self._spent = 0.0, 0.0
        self._searches_at = -_MOST_CREDIT_SECONDS  # when open pages may search again
        self._stopping, self._wanted = Event(), Event()
        self._thread = Thread(target=self._run, name="page", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()
        self.viewers.close()

    def html(self, key: str = OVERVIEW) -> bytes | None:
        """The page of this key; None if there is no such group, pod or gang. Raises
        NotReadyError."""
        with self._lock:
            self._look()
        if takes_searches(key):
            self._search(key)
        with self._lock:
            page = self._pages.get(key) if takes_searches(key) else self._advance(key)
            if page is None:
                return None
            at = page.seen.at
            if page.html is None or at - page.rendered > _OLDEST_SECONDS:
                page.html, page.rendered = self._render(key, page, at), at
            return page.html

    def latest(self) -> tuple[Snapshot, tuple[Group, ...]]:
        """What the page shows at most a moment later. Raises NotReadyError."""
        with self._lock:
            return self._look(), self._groups

    def join(self, key: str, version: str, connection: socket.socket) -> None:
        """Send to *connection* what changed since *version*, and from now on every change."""
        with self._lock:
            page = self._pages.get(key)
            self.viewers.add(key, connection, _since(page, version))
        self._wanted.set()

    def refresh(self) -> None:
        """Look at the cluster, and send the changes of all pages that are open."""
        with self._lock:
            self._look()
            opened = self.viewers.pages()
            for key in opened:
                if not takes_searches(key) and self._advance(key) is None:
                    self.viewers.push(key, _GONE)
        self._search_in_turn([key for key in opened if takes_searches(key)])
        self.viewers.look_after()

    def _search_in_turn(self, keys: list[str]) -> None:
        """Bring those pages to the last look that have waited for longest, within the share."""
        self._searches_at = max(self._searches_at, self._clock() - _MOST_CREDIT_SECONDS)
        with self._lock:
            seen = {key: page.seen.at for key, page in self._pages.items()}
        for key in sorted(keys, key=lambda key: seen.get(key, 0.0)):
            if self._searches_at > self._clock():
                return
            began = self._cost()
            if not self._search(key):
                self.viewers.push(key, _GONE)
            self._searches_at += (self._cost() - began) / _SHARE

    def _search(self, key: str) -> bool:
        """Bring a page that takes searches to the last look; False if there is none. The caller
        does not hold the lock."""
        with self._lock:
            snapshot, groups, page = self._snapshot, self._groups, self._pages.get(key)
        assert snapshot is not None, "the caller has looked"
        if page is not None and page.seen is snapshot:
            return True
        value = self._explained(snapshot, groups, key)
        with self._lock:
            page = self._pages.get(key)
            if page is None or page.seen.at <= snapshot.at:  # no other thread was faster
                self._put(key, value, snapshot)
        return value is not None

    def _explained(
        self, snapshot: Snapshot, groups: Sequence[Group], key: str
    ) -> SearchedPage | None:
        if key == MOVES:
            return moves_page(view_moves(snapshot))
        if key == IDLE:
            return idle_page(view_idle(snapshot))
        kind, namespace, name = [*key.split("/", 2), ""][:3]
        if kind == _POD:
            return pod_page(snapshot, groups, namespace, name)
        gang = gang_said(snapshot, namespace, name) if kind == _GANG else None
        if gang is None:
            return None
        return gang_page(snapshot, groups, gang, self._read_times(drawn(gang)))

    def _look(self) -> Snapshot:
        """The caller holds the lock."""
        if self._snapshot is not None and self._seconds_left() > 0:
            return self._snapshot
        began = self._cost()
        self._snapshot = self._take()
        self._groups = self._grouper.groups(self._snapshot)
        self._looked_at, self._spent = self._clock(), self._cost() - began
        return self._snapshot

    def _seconds_left(self) -> float:
        """Until the next look."""
        pause = max(_SHORTEST_SECONDS, self._spent / _SHARE)
        return self._looked_at + pause - self._clock()

    def _advance(self, key: str) -> _Page | None:
        """Bring a page that takes no search to the last look, and send what changed. The caller
        holds the lock."""
        assert self._snapshot is not None, "the caller has looked"
        page = self._pages.get(key)
        if page is not None and page.seen is self._snapshot:
            return page
        began = self._cost()
        page = self._put(key, self._value(self._snapshot, key), self._snapshot)
        self._spent += self._cost() - began
        return page

    def _put(self, key: str, value: Value | None, snapshot: Snapshot) -> _Page | None:
        """Keep what a page shows, and send what changed. The caller holds the lock."""
        page = self._pages.get(key)
        if value is None:
            self._pages.pop(key, None)
            return None
        if page is None:
            page = self._pages[key] = _Page(value, self._next(), snapshot)
        else:
            page.seen = snapshot
            self._update(key, page, value)
        self._pages.move_to_end(key)
        if len(self._pages) > _MOST_PAGES:
            opened = self.viewers.pages()
            for old in [each for each in self._pages if each not in opened and each != key]:
                if len(self._pages) > _MOST_PAGES:
                    del self._pages[old]
        return page

    def _value(self, snapshot: Snapshot, key: str) -> Overview | GroupPage | None:
        if key == OVERVIEW:
            return self._overviews.of(snapshot, self._groups)
        group = next((each for each in self._groups if each.key == key), None)
        return None if group is None else group_page(snapshot, group)

    def _update(self, key: str, page: _Page, value: Value) -> None:
        before, page.value = page.value, value
        if before.shape != value.shape:
            page.version, page.html = self._next(), None
            page.messages.clear()
            self.viewers.push(key, _RELOAD)
            return
        changed = changes(before.slots, value.slots)
        if changed:
            old, page.version, page.html = page.version, self._next(), None
            data = msgspec.json.encode(changed)
            message = b"id: %s\nevent: change\ndata: %s\n\n" % (page.version.encode(), data)
            page.messages.append((old, message))
            self.viewers.push(key, message)

    def _next(self) -> str:
        return f"{self._process}-{next(self._numbers)}"

    def _render(self, key: str, page: _Page, at: float) -> bytes:
        stream = f"events?{urlencode({'key': key, 'since': page.version})}"
        return self.renderer.page(page.value, at=at, stream=stream)

    def _run(self) -> None:
        while True:
            self._wanted.clear()  # before both looks, so that no `join` and no `stop` is missed
            if self._stopping.is_set():
                return
            if not len(self.viewers):
                self._wanted.wait()
                continue
            try:
                self.refresh()
            except NotReadyError:
                self.viewers.close()  # another process leads: browsers shall find it
            except Exception:
                log.exception("the live page could not be brought up to date")
            self._stopping.wait(max(self._seconds_left(), _SHORTEST_SECONDS))


def _since(page: _Page | None, version: str) -> bytes:
    """What a browser with *version* has missed."""
    if page is None:
        return _RELOAD
    if page.version == version:
        return b""
    olds = [old for old, _ in page.messages]
    if version not in olds:
        return _RELOAD
    return b"".join(message for _, message in list(page.messages)[olds.index(version) :])
