"""Accepts connections, greets strangers, and serves each connection on a thread.

One thread accepts, and takes part in every TLS handshake without ever waiting for one: a peer that
says nothing costs a file descriptor until its time is over. Whoever is not known, by a client
certificate, shares the places of the strangers (`guests`); who is known has places that no stranger
can take.
"""

import errno
import logging
import os
import resource
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from threading import Condition, Lock, Thread
from typing import Any, Literal

from linkwise.serving.greeting import Caller, Greeting, Welcome
from linkwise.serving.guests import Guests

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_BACKLOG = 1024  # connections that the kernel completes while a round takes its time
_ACCEPTED_AT_ONCE = 64
_ROUND_SECONDS = 0.02  # of handshakes, before connections are accepted again
_MOST_IDLE = 32  # threads kept for the next connection
_UNREAD_MILLISECONDS = 10_000  # a peer that takes no byte of an answer for so long is gone
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_DESCRIPTORS = 8192
_ESTABLISHED = 1  # of linux/tcp_states.h: neither side has sent a FIN, nor a reset

Handle = Callable[[socket.socket, Any, Any], object]
# What became of a connection (docs/operating/extender.md, `connections_total`).
Result = Literal["served", "handshake", "name", "crowded", "late", "sent-off", "not-ready"]


@dataclass(frozen=True, slots=True)
class Places:
    """How many connections of whom are open at a time."""

    strangers: int
    known: int = 0
    stay_seconds: float | None = None  # of a stranger, once it is served


@dataclass(slots=True, eq=False)
class Visit:
    """A connection, from its arrival to its end."""

    connection: socket.socket
    address: Any
    ends: float | None = None  # by the monotonic clock
    served: bool = False
    known: bool = False
    context: ssl.SSLContext | None = field(default=None, repr=False)  # until it says something

    @property
    def source(self) -> str:
        return str(self.address[0])

    def hang_up(self, how: int = socket.SHUT_RDWR) -> None:
        """Wakes whoever reads from it. Its own thread closes it."""
        with suppress(OSError):  # it has just ended
            # Not the method of a TLS socket, which would go on in plain text.
            socket.socket.shutdown(self.connection, how)


class _Workers:
    """Threads for connections: one that is done with its own waits a while for another."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = Lock()
        self.idle = 0

    def run(self, job: Callable[[], None]) -> None:
        with self._lock:
            free = self.idle > 0
            if free:
                self.idle -= 1
        if free:
            self._waiting.put(job)
        else:
            Thread(target=self._work, args=(job,), name="connection", daemon=True).start()

    def _work(self, job: Callable[[], None]) -> None:
        while True:
            job()
            with self._lock:
                if self.idle >= _MOST_IDLE:
                    return
                self.idle += 1
            job = self._waiting.get()


class Server:
    """`run()` until an exception ends it; `close()` lets calls under way come to their end.

    *handler* is called with a connection, the address of its peer and this server, as those of
    `socketserver` are, on a thread of the connection's own. With *secure*, nobody is served before
    the first `use()`. *count* hears what became of each connection, *met* who was known or refused.
    Raises OSError where it cannot listen.
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
        self._workers = _Workers()
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
        """For every connection from now on; those that are open go on undisturbed."""
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
        """Who asks meanwhile hears that the connection ends; *last_calls_seconds* are for that."""
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
        """Around the service of one that is not hung up on when `ending` can be read from: its
        handler ends it then."""
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
        """Around a call, to the last byte of its reply: `close()` waits for it."""
        with self._changed:
            self.calls += 1
        try:
            yield
        finally:
            with self._changed:
                self.calls -= 1
                self._changed.notify_all()

    def run_aside(self, job: Callable[[], None]) -> None:
        """On a thread of this server's."""
        self._workers.run(job)

    def was_useful(self, connection: socket.socket) -> None:
        """A call came over *connection*: of its source's, it is sent off last."""
        with self._changed:
            if visit := self._open.get(connection):
                self._strangers.use(visit)

    # Who comes

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
                    # It is offered again at once: without end, and with all of a processor's time.
                    log.warning("no connection can be taken: %s", error)
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
        """One of each source, then the next of each, as far as the time of a round goes; so no
        source has to wait for all handshakes of another."""
        ends = time.monotonic() + _ROUND_SECONDS
        while waiting and time.monotonic() < ends:
            for source in list(waiting):
                visit = waiting[source].pop()
                if not waiting[source]:
                    del waiting[source]
                if visit.connection in self._open:  # else it was sent off meanwhile
                    self._spare_others(self._greet, visit)

    def _spare_others(self, step: Callable[[Visit], None], visit: Visit) -> None:
        """A defect, or a thread too many, costs one connection and not the port."""
        try:
            step(visit)
        except Exception:
            log.exception("connection of %s: a defect", visit.source)
            self._dismiss(visit, "handshake")

    def _greet(self, visit: Visit) -> None:
        """One step of its handshake; once it is done, serve it."""
        greeting = self._greeting
        assert greeting is not None, "nobody is greeted without one"
        try:
            if visit.context is not None:
                self._wrap(visit, visit.context)
            assert isinstance(visit.connection, ssl.SSLSocket)
            visit.connection.do_handshake()
        except ssl.SSLWantReadError:
            self._selector.modify(visit.connection, EVENT_READ, visit)
        except ssl.SSLWantWriteError:
            self._selector.modify(visit.connection, EVENT_WRITE, visit)
        except (OSError, ValueError) as error:  # it went away, or does not trust us, or we not it
            log.debug("handshake of %s: %s", visit.source, error)
            self._dismiss(visit, "handshake")
        else:
            self._let_in(visit, greeting.judge(visit.connection))

    def _wrap(self, visit: Visit, context: ssl.SSLContext) -> None:
        """Its first bytes have come: what TLS costs in memory it costs from now on."""
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

    # Who goes

    def _send_off(self, visit: Visit | None) -> None:
        """It has lost its place. The lock is held."""
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
        """End a visit that nobody serves; by the thread that accepts."""
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

    # Who is served

    def _serve(self, visit: Visit) -> None:
        self._count("served")
        visit.served = True
        visit.connection.setblocking(True)
        self._workers.run(partial(self._handle, visit))

    def _handle(self, visit: Visit) -> None:
        try:
            self._handler(visit.connection, visit.address, self)
        except Exception:  # a client that went away in the middle is its own affair
            log.debug("connection of %s broke", visit.source, exc_info=True)
        finally:
            visit.hang_up(socket.SHUT_WR)
            self._forget(visit)


def is_established(connection: socket.socket) -> bool:
    """Whether the peer has neither hung up nor ended its side of the connection.

    Not by POLLRDHUP, which says the same of a connection whose reading side we have closed.
    """
    try:
        state: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return False
    return state[0] == _ESTABLISHED


def raise_limit() -> None:
    """Of open files: each connection is one, and containers may begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
