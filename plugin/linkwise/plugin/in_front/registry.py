"""The socket at which vendors' plugins register, as they would with the kubelet.

If a kubelet starts, the registry makes the socket again. The kubelet empties its directory, where
the vendors' sockets are, and a vendor's plugin notices that only by the creation of the socket that
it was configured with. Others notice it only by the end of their own socket (Intel's). These are
mounted to see the registry's directory as the kubelet's, so the registry empties it as the kubelet
does. The registry makes the new socket under another name and renames it. A gRPC
server that ends removes the path that it was bound to, at an unknown time, and must not remove its
successor's.
"""

# ruff: noqa: N802 - gRPC gives a servicer's methods their names and arguments

import logging
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from linkwise.plugin.device_plugin.registration import Identity, identity
from linkwise.plugin.device_plugin.server import try_socket
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)

log = logging.getLogger(__name__)

_WORKERS = 4  # a registration waits up to 10 s for a plugin that does not answer
_GRACE_SECONDS = 1.0
_LONGEST_PATH = 107  # bytes of a unix socket's path
_MODE = 0o750  # as the kubelet makes its directory


class RefusedError(Exception):
    """The vendor's plugin gets the text, as from the kubelet."""


Take = Callable[[wire.RegisterRequest], None]
"""Takes a registration. Raises RefusedError."""


class Registry:
    """*empties*: whether `open` removes all other sockets in the directory. Only a directory below
    the kubelet's is sure to have plugins' sockets alone."""

    def __init__(self, socket: Path, take: Take, *, empties: bool) -> None:
        self._socket, self._take, self._empties = socket, take, empties
        self._server: grpc.Server | None = None
        self._workers: ThreadPoolExecutor | None = None
        self._ours: Identity | None = None

    @property
    def there(self) -> bool:
        """Whether the socket that `open` made last is still in its place."""
        return self._ours is not None and identity(self._socket) == self._ours

    def open(self) -> None:
        """Serve on a new socket. Raises OSError if it cannot be made."""
        made = self._socket.with_name(f"{secrets.token_hex(4)}.new")
        if len(bytes(made)) > _LONGEST_PATH:
            raise OSError(f"{made}: expected at most {_LONGEST_PATH} bytes for a socket")
        self._socket.parent.mkdir(mode=_MODE, exist_ok=True)
        for left in self._socket.parent.glob("*.new"):  # by a process that was killed
            left.unlink(missing_ok=True)
        try_socket(made)
        workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="vendor-registration")
        server = grpc.server(workers)
        add_RegistrationServicer_to_server(_Registration(self._take), server)
        server.add_insecure_port(f"unix:{made}")
        server.start()
        # Some plugins watch for the end of the old socket. All others go just before the new one
        # is in its place: a plugin that notices registers within milliseconds.
        self._socket.unlink(missing_ok=True)
        if self._empties:
            self._empty(but=made)
        self._ours = identity(made)
        made.rename(self._socket)
        self._end()
        self._server, self._workers = server, workers

    def _empty(self, *, but: Path) -> None:
        for path in self._socket.parent.iterdir():
            if path != but and path.is_socket():
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Keep the directory: a vendor's plugin may watch it, and cannot start without it."""
        if self.there:
            self._socket.unlink(missing_ok=True)
        self._ours = None
        self._end()

    def _end(self) -> None:
        if self._server is not None and self._workers is not None:
            self._server.stop(_GRACE_SECONDS).wait(_GRACE_SECONDS + 1)
            self._workers.shutdown(wait=False)
        self._server = self._workers = None


class _Registration(RegistrationServicer):
    def __init__(self, take: Take) -> None:
        self._take = take

    def Register(self, request: wire.RegisterRequest, context: grpc.ServicerContext) -> wire.Empty:
        try:
            self._take(request)
        except RefusedError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))  # Go's code for any error
        return wire.Empty()
