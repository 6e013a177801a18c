"""The browsers that have a page open, and get its changes as server-sent events.

No viewer has a thread, and none waits for another: a send never blocks. A viewer that does not
read is dropped; its browser connects again, and loads the page again if it missed too much.
"""

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

log = logging.getLogger(__name__)
MOST_VIEWERS = 100
_MOST_UNSENT = 1 << 20  # bytes
_UNREAD_SECONDS = 10.0
_HEARTBEAT_SECONDS = 15.0  # proxies end a connection that is silent for a minute
_HEARTBEAT = b":\n\n"


@dataclass(slots=True, eq=False)
class _Viewer:
    page: str
    connection: socket.socket
    sent: float  # when its last byte was accepted
    unsent: bytearray = field(default_factory=bytearray)


class Viewers:
    """Thread-safe."""

    def __init__(
        self, most: int = MOST_VIEWERS, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._clock = most, clock
        self._lock = Lock()
        self._viewers: set[_Viewer] = set()

    def __len__(self) -> int:
        return len(self._viewers)

    @property
    def full(self) -> bool:
        return len(self._viewers) >= self._most

    def pages(self) -> frozenset[str]:
        """The pages that at least one viewer has open."""
        with self._lock:
            return frozenset(viewer.page for viewer in self._viewers)

    def add(self, page: str, connection: socket.socket, first: bytes) -> None:
        """Own *connection* from now on, and send *first*."""
        connection.setblocking(False)
        viewer = _Viewer(page, connection, self._clock())
        with self._lock:
            self._viewers.add(viewer)
            if len(self._viewers) > self._most:
                self._drop(viewer)
            else:
                self._send(viewer, first)

    def push(self, page: str, message: bytes) -> None:
        with self._lock:
            for viewer in [each for each in self._viewers if each.page == page]:
                self._send(viewer, message)

    def look_after(self) -> None:
        """Send what could not be sent before, and drop those who have gone or do not read."""
        with self._lock:
            now = self._clock()
            for viewer in list(self._viewers):
                idle = now - viewer.sent
                if _has_gone(viewer.connection) or (viewer.unsent and idle > _UNREAD_SECONDS):
                    self._drop(viewer)
                elif viewer.unsent or idle > _HEARTBEAT_SECONDS:
                    self._send(viewer, b"" if viewer.unsent else _HEARTBEAT)

    def close(self) -> None:
        with self._lock:
            for viewer in list(self._viewers):
                self._drop(viewer)

    def _send(self, viewer: _Viewer, message: bytes) -> None:
        viewer.unsent += message
        try:
            while viewer.unsent:
                sent = viewer.connection.send(viewer.unsent)
                del viewer.unsent[:sent]
                viewer.sent = self._clock()
        except BlockingIOError:
            if len(viewer.unsent) > _MOST_UNSENT:
                self._drop(viewer)
        except OSError:
            self._drop(viewer)

    def _drop(self, viewer: _Viewer) -> None:
        self._viewers.discard(viewer)
        with suppress(OSError):
            viewer.connection.shutdown(socket.SHUT_RDWR)
        viewer.connection.close()


def _has_gone(connection: socket.socket) -> bool:
    """Whether the browser has hung up; it sends nothing after its request."""
    try:
        return not connection.recv(1 << 12)
    except BlockingIOError:
        return False
    except OSError:
        return True
