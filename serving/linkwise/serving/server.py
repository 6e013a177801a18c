"""Accepts connections, does their TLS handshakes, and serves each connection on a thread.

One thread accepts connections and drives all TLS handshakes without ever waiting for one: a silent
peer costs a file descriptor until its time is over. Callers without a known client certificate are
strangers and share places (`guests`). Known callers have places that no stranger can take.
"""

import errno
import logging
import os
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from threading import Condition
from typing import Any, Literal

from linkwise.serving.greeting import Caller, Greeting, Welcome
from linkwise.serving.guests import Guests
from linkwise.serving.system import Workers

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_BACKLOG = 1024  # connections that the kernel queues during a round
_ACCEPTED_AT_ONCE = 64
_ROUND_SECONDS = 0.02  # of handshakes, before connections are accepted again
_UNREAD_MILLISECONDS = 10_000  # a peer that reads no byte of an answer for so long is gone
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Handle = Callable[[socket.socket, Any, Any], object]
# The result of a connection (docs/operating/extender.md, `connections_total`).
Result = Literal["served", "handshake", "name", "crowded", "late", "sent-off", "not-ready"]


@dataclass(frozen=True, slots=True)
class Places:
    """Limits on the connections that are open at the same time."""

    strangers: int
    known: int = 0
    stay_seconds: float | None = None  # for a stranger, after its handshake


@dataclass(slots=True, eq=False)
class Visit:
    """A connection, from its arrival to its end."""

    connection: socket.socket
    address: Any
    ends: float | None = None  # by the monotonic clock
    served: bool = False
    known: bool = False
    given_away: bool = False
    context: ssl.SSLContext | None = field(default=None, repr=False)  # until its first bytes

    @property
    def source(self) -> str:
        return str(self.address[0])

    def hang_up(self, how: int = socket.SHUT_RDWR) -> None:
        """Wake the thread that reads from the connection; that thread closes it."""
        with suppress(OSError):  # it has just ended
            # The method of a TLS socket would continue in plain text.
            socket.socket.shutdown(self.connection, how)


class Server:
    """`run()` serves until an exception; `close()` lets calls in flight finish.

    The server calls *handler* with a connection, the address of its peer and itself, like
    `socketserver`, on a thread for that connection. With *secure*, it serves no connection before
    the first `use()`. It calls *count* with the result of each connection, and *met* with each
    caller after its handshake. Raises OSError if it cannot listen.
    """

    def __init__(
        self,
        address: str,
        port: int,
        handler: Handle,
        places: Places,
        *,
        secure: bool,
        count: Callable[[Result], object] = lambda _result: None,
        met: Callable[[Caller], object] = lambda _caller: None,
    ) -> None:
        self.closing = False
        self.ending = os.eventfd(0, os.EFD_CLOEXEC)  # can be read from once the server closes
        weakref.finalize(self, os.close, self.ending)
        self.calls = 0
        self._handler, self._places, self._secure = handler, places, secure
        self._count, self._met = count, met
        self._greeting: Greeting | None = None
        self._changed = Condition()  # around what is open, and the count of calls
        self._open: dict[socket.socket, Visit] = {}
        self._ends_itself: set[socket.socket] = set()
        self._strangers: Guests[Visit] = Guests(places.strangers)
        self._known = 0
        self._workers = Workers()
        self._runs = False
        self._looked_at = 0.0
        family, _, _, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listen(where)
        except OSError:
            self._listener.close()
            raise
        self._selector = DefaultSelector()
        self._selector.register(self._listener, EVENT_READ)

    def _listen(self, where: Any) -> None:
        listener = self._listener
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections that are accepted inherit both.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MILLISECONDS)
        listener.bind(where)
        listener.listen(_BACKLOG)
        listener.setblocking(False)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def use(self, greeting: Greeting) -> None:
        """Use *greeting* for new connections; open ones are not affected."""
        self._greeting = greeting

    # The life of the server

    def run(self) -> None:
        self._runs = True
        try:
            while not self.closing:
                self._round()
        finally:
            with self._changed:
                self._runs = False
                self._changed.notify_all()

    def close(self, timeout_seconds: float = 3.0, *, last_calls_seconds: float = 0.0) -> None:
        """Stop listening and wait for the calls in flight. For *last_calls_seconds*, open
        connections still get replies, which announce that the connection ends."""
        self.closing = True
        os.eventfd_write(self.ending, 1)
        with self._changed:
            self._changed.wait_for(lambda: not self._runs, timeout_seconds)
            self._selector.close()
            self._listener.close()
            for visit in [visit for visit in self._open.values() if not visit.served]:
                self._forget(visit)
            self._changed.wait_for(lambda: not self._open, last_calls_seconds)
            for connection, visit in self._open.items():
                if connection not in self._ends_itself:
                    visit.hang_up(socket.SHUT_RD)  # no further call; a reply still goes out
            self._changed.wait_for(lambda: not (self.calls or self._ends_itself), timeout_seconds)

    @contextmanager
    def ends_itself(self, connection: socket.socket) -> Iterator[None]:
        """A context for a connection that `close` does not hang up: its handler ends it when
        `ending` becomes readable."""
        with self._changed:
            self._ends_itself.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._ends_itself.discard(connection)
                self._changed.notify_all()

    @contextmanager
    def call(self) -> Iterator[None]:
        """A context for a call up to the last byte of its reply: `close()` waits for it."""
        with self._changed:
            self.calls += 1
        try:
            yield
        finally:
            with self._changed:
                self.calls -= 1
                self._changed.notify_all()

    def run_aside(self, job: Callable[[], None]) -> None:
        """Run *job* on a thread of this server."""
        self._workers.run(job)

    def was_useful(self, connection: socket.socket) -> None:
        """Record a call on *connection*: of its source's connections, it loses its place last."""
        with self._changed:
            if visit := self._open.get(connection):
                self._strangers.use(visit)

    def give_away(self, connection: socket.socket) -> None:
        """Let the caller own *connection*: it takes no place here any more, and the server neither
        hangs up nor closes it."""
        with self._changed:
            visit = self._open.pop(connection, None)
            if visit is not None:
                visit.given_away = True
                self._strangers.leave(visit)
                self._known -= visit.known
                self._changed.notify_all()

    # Arrivals

    def _round(self) -> None:
        waiting: dict[str, list[Visit]] = {}
        for key, _ in self._selector.select(_POLL_SECONDS):
            if key.fileobj is self._listener:
                self._accept()
            else:
                waiting.setdefault(key.data.source, []).append(key.data)
        self._greet_in_turn(waiting)
        if time.monotonic() - self._looked_at > _POLL_SECONDS:
            self._send_off_late()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    # The selector reports the connection again at once, so this would be a busy
                    # loop without the sleep.
                    log.warning("cannot accept a connection: %s", error)
                    with self._changed:
                        self._send_off(self._strangers.give_up())
                    time.sleep(_POLL_SECONDS)
                return
            self._spare_others(self._take, Visit(connection, address))

    def _take(self, visit: Visit) -> None:
        greeting = self._greeting
        if self._secure and greeting is None:
            self._count("not-ready")
            visit.connection.close()
            return
        stay = self._places.stay_seconds if greeting is None else HANDSHAKE_SECONDS
        visit.ends = None if stay is None else time.monotonic() + stay
        with self._changed:
            self._open[visit.connection] = visit
            self._send_off(self._strangers.arrive(visit, visit.source))
        if greeting is None:
            self._serve(visit)
        else:
            visit.connection.setblocking(False)
            visit.context = greeting.context
            self._selector.register(visit.connection, EVENT_READ, visit)

    def _greet_in_turn(self, waiting: dict[str, list[Visit]]) -> None:
        """Greet one visit of each source, then the next of each, within the time of a round; so no
        source waits for all handshakes of another."""
        ends = time.monotonic() + _ROUND_SECONDS
        while waiting and time.monotonic() < ends:
            for source in list(waiting):
                visit = waiting[source].pop()
                if not waiting[source]:
                    del waiting[source]
                if visit.connection in self._open:  # otherwise it lost its place meanwhile
                    self._spare_others(self._greet, visit)

    def _spare_others(self, step: Callable[[Visit], None], visit: Visit) -> None:
        """Run *step*; a defect, or a failure to start a thread, ends only this connection."""
        try:
            step(visit)
        except Exception:
            log.exception("connection of %s: a defect", visit.source)
            self._dismiss(visit, "handshake")

    def _greet(self, visit: Visit) -> None:
        """Do one step of the handshake; once it is done, serve the visit."""
        greeting = self._greeting
        assert greeting is not None, "a handshake needs a greeting"
        try:
            if visit.context is not None:
                self._wrap(visit, visit.context)
            assert isinstance(visit.connection, ssl.SSLSocket)
            visit.connection.do_handshake()
        except ssl.SSLWantReadError:
            self._selector.modify(visit.connection, EVENT_READ, visit)
        except ssl.SSLWantWriteError:
            self._selector.modify(visit.connection, EVENT_WRITE, visit)
        except (OSError, ValueError) as error:  # the peer has gone, or one side rejects the other
            log.debug("handshake of %s: %s", visit.source, error)
            self._dismiss(visit, "handshake")
        else:
            self._let_in(visit, greeting.judge(visit.connection))

    def _wrap(self, visit: Visit, context: ssl.SSLContext) -> None:
        """Wrap the connection in TLS. This waits for the peer's first bytes, because TLS costs
        memory."""
        plain = visit.connection
        self._selector.unregister(plain)
        with self._changed:
            visit.connection = context.wrap_socket(
                plain, server_side=True, do_handshake_on_connect=False
            )
            visit.context = None
            self._open[visit.connection] = self._open.pop(plain)
        self._selector.register(visit.connection, EVENT_READ, visit)

    def _let_in(self, visit: Visit, caller: Caller) -> None:
        self._met(caller)
        if caller.welcome is Welcome.REFUSED:
            log.warning("%s is called %s, and may not call here", visit.source, caller.name)
            self._dismiss(visit, "name")
            return
        with self._changed:
            known = caller.welcome is Welcome.KNOWN
            crowded = known and self._known >= self._places.known
            if known and not crowded:
                self._strangers.leave(visit)
                visit.known, self._known = True, self._known + 1
        if crowded:
            log.warning("more than %d connections of known callers", self._places.known)
            self._dismiss(visit, "crowded")
            return
        stay = None if visit.known else self._places.stay_seconds
        visit.ends = None if stay is None else time.monotonic() + stay
        self._selector.unregister(visit.connection)
        self._serve(visit)

    # Departures

    def _send_off(self, visit: Visit | None) -> None:
        """End a visit that has lost its place. The caller holds the lock."""
        if visit is not None:
            self._end(visit, "sent-off")

    def _send_off_late(self) -> None:
        now = self._looked_at = time.monotonic()
        with self._changed:
            visits = self._open.values()
            for visit in [v for v in visits if v.ends is not None and v.ends < now]:
                visit.ends = None
                self._end(visit, "late")

    def _end(self, visit: Visit, result: Result) -> None:
        if visit.served:
            self._count(result)
            visit.hang_up()  # its thread does the rest
        else:
            self._dismiss(visit, result)

    def _dismiss(self, visit: Visit, result: Result) -> None:
        """End a visit that no thread serves; called by the thread that accepts."""
        self._count(result)
        with suppress(KeyError, ValueError):
            self._selector.unregister(visit.connection)
        self._forget(visit)

    def _forget(self, visit: Visit) -> None:
        with self._changed:
            self._open.pop(visit.connection, None)
            self._strangers.leave(visit)
            self._known -= visit.known
            visit.connection.close()
            self._changed.notify_all()

    # Service

    def _serve(self, visit: Visit) -> None:
        self._count("served")
        visit.served = True
        visit.connection.setblocking(True)
        self._workers.run(partial(self._handle, visit))

    def _handle(self, visit: Visit) -> None:
        try:
            self._handler(visit.connection, visit.address, self)
        except Exception:  # mostly a client that disconnected during a call
            log.debug("connection of %s broke", visit.source, exc_info=True)
        finally:
            if not visit.given_away:
                visit.hang_up(socket.SHUT_WR)
                self._forget(visit)
