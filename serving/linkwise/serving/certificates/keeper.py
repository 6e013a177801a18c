"""Checks periodically which certificates to use, and passes changes to the server."""

import logging
from base64 import b64decode, b64encode
from binascii import Error as NotBase64Error
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any, Generic, Protocol, TypeVar

from linkwise.kube.errors import ApiError
from linkwise.serving.certificates.pairs import Pair, read_pair

log = logging.getLogger(__name__)
LONGEST_LOOK_SECONDS = 10.0
_CONFLICT = 409
_AGAIN_SECONDS = 1.0  # after a failed check
_AT_ONCE_SECONDS = 0.1  # after another replica wrote first

T = TypeVar("T")


class Used(Protocol):
    """What a keeper chooses. Equal values are not passed on again."""

    @property
    def name(self) -> str: ...

    @property
    def ends(self) -> datetime: ...


U = TypeVar("U", bound=Used)


class Api(Protocol):
    """The methods of `linkwise.kube.client.KubeClient` that a keeper needs."""

    def get(self, path: str, kind: type[T]) -> T: ...

    def put(self, path: str, body: object) -> None: ...


class Keeper(Generic[U]):
    """Checks every *every_seconds*, and calls *use* with each new choice."""

    def __init__(
        self,
        use: Callable[[U], object],
        *,
        every_seconds: float = LONGEST_LOOK_SECONDS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._use, self._every_seconds, self._clock = use, every_seconds, clock
        self._used: U | None = None
        self._stop = Event()
        self._thread = Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def waits_for(self) -> str:
        """Why clients cannot trust this replica yet; empty if they can."""
        used = self._used
        if used is None:
            return "no certificate is published yet"
        return "" if used.ends > self._clock() else "the certificate has ended"

    @property
    def ends(self) -> float:
        """When the certificate in use ends, in seconds since 1970; 0 before there is one."""
        return self._used.ends.timestamp() if self._used else 0.0

    def look(self) -> None:
        """Check once, and call *use* if the choice has changed. May raise any exception."""
        chosen = self._chosen()
        if chosen != self._used:
            self._use(chosen)
            self._used = chosen
            log.info("serves certificate %s, until %s", chosen.name, chosen.ends.isoformat())

    def _chosen(self) -> U:
        raise NotImplementedError

    def _run(self) -> None:
        failed = ""
        while not self._stop.is_set():
            try:
                self.look()
                failed = ""
            except ApiError as error:
                if error.status == _CONFLICT:
                    self._stop.wait(_AT_ONCE_SECONDS)
                    continue
                failed = self._complain(str(error), failed)
            except Exception as error:  # a mangled object, or a defect
                # Without the traceback, which may show secret values.
                failed = self._complain(f"{type(error).__name__}: {error}", failed)
            soon = min(_AGAIN_SECONDS, self._every_seconds)
            self._stop.wait(soon if failed else self._every_seconds)

    def _complain(self, text: str, before: str) -> str:
        if text != before:
            log.warning("certificates: %s", text)
        return text


class FileKeeper(Keeper[Pair]):
    """Serves a certificate that another program renews in a directory, such as cert-manager by a
    mounted Secret."""

    def __init__(self, directory: Path, use: Callable[[Pair], object]) -> None:
        super().__init__(use)
        self._directory = directory

    def _chosen(self) -> Pair:
        """Raises OSError, and ValueError if certificate and key do not match."""
        certificate, key = (self._directory / name for name in ("tls.crt", "tls.key"))
        return read_pair(certificate.read_bytes(), key.read_bytes())


class Secret:
    """The files in an existing Secret, so that no right to create Secrets is needed."""

    def __init__(self, client: Api, namespace: str, name: str) -> None:
        self._client, self._path = client, f"/api/v1/namespaces/{namespace}/secrets/{name}"
        self._read: dict[str, Any] = {}

    def read(self) -> dict[str, bytes]:
        """Raises ApiError, and msgspec.ValidationError for an unreadable object."""
        self._read = self._client.get(self._path, dict[str, Any])
        return _decoded(self._read.get("data") or {})

    def write(self, files: Mapping[str, bytes]) -> None:
        """Replace the version that was read last. Raises ApiError if another process has written
        since."""
        self._read["data"] = {name: b64encode(text).decode() for name, text in files.items()}
        self._client.put(self._path, self._read)


def _decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    """The decoded files; a value that is not base64 becomes empty. The next write drops keys that
    Linkwise does not use."""
    found = {}
    for name, text in data.items():
        try:
            found[name] = b64decode(text, validate=True)
        except (NotBase64Error, ValueError):
            found[name] = b""
    return found
