"""Threads for handlers, and what the kernel says of connections and file descriptors."""

import resource
import socket
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

from linkwise.kube.structs import build_structs

_MOST_IDLE = 32  # threads that wait for the next connection
_DESCRIPTORS = 8192
_ESTABLISHED = 1  # of linux/tcp_states.h: neither side has sent a FIN, nor a reset


class Workers:
    """Threads for connections; a thread that is done waits for another connection."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = Lock()
        self.idle = 0
        build_structs()  # the handlers decode in many threads at once

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
