"""Threads for handlers, and what the kernel says of connections and file descriptors."""

import errno
import logging
import resource
import socket
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Literal

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
_POLL_SECONDS = 0.1
_BACKLOG = 1024  # connections that the kernel queues during a round
_ACCEPTED_AT_ONCE = 64
_ROUND_SECONDS = 0.02  # of handshakes, before connections are accepted again
_MOST_IDLE = 32  # threads that wait for the next connection
_UNREAD_MILLISECONDS = 10_000  # a peer that reads no byte of an answer for so long is gone
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_DESCRIPTORS = 8192
_ESTABLISHED = 1  # of linux/tcp_states.h: neither side has sent a FIN, nor a reset

Handle = Callable[[socket.socket, Any, Any], object]
# The result of a connection (docs/operating/extender.md, `connections_total`).
Result = Literal["served", "handshake", "name", "crowded", "late", "sent-off", "not-ready"]


class Workers:
    """Threads for connections; a thread that is done waits for another connection."""

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


def is_established(connection: socket.socket) -> bool:
    """Whether the peer has neither hung up nor ended its side of the connection.

    POLLRDHUP would not do: it also reports a connection whose reading side this server has closed.
    """
    try:
        state: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return False
    return state[0] == _ESTABLISHED


def raise_limit() -> None:
    """Raise the limit of open files: each connection is one, and containers may start with
    1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
