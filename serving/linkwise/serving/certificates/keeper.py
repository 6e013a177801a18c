"""Looks now and then which certificates are to be used, and tells whoever uses them."""

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
_AGAIN_SECONDS = 1.0  # after a look that failed
_AT_ONCE_SECONDS = 0.1  # after another replica was faster

T = TypeVar("T")


class Used(Protocol):
    """What a keeper chooses; two equal ones are the same."""

    @property
    def name(self) -> str: ...

    @property
    def ends(self) -> datetime: ...


U = TypeVar("U", bound=Used)


class Api(Protocol):
    """What is needed of `linkwise.kube.client.KubeClient`."""

    def get(self, path: str, kind: type[T]) -> T: ...

    def put(self, path: str, body: object) -> None: ...


class Keeper(Generic[U]):
    """Looks now and then, and tells *use* of what is to be used from now on."""

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
        """Why nobody can trust this replica yet; empty where everybody can."""
        used = self._used
        if used is None:
            return "no certificate is published yet"
        return "" if used.ends > self._clock() else "the certificate has ended"

    @property
    def ends(self) -> float:
        """When what is used ends, in seconds since 1970; 0 before there is any."""
        return self._used.ends.timestamp() if self._used else 0.0

    def look(self) -> None:
        """Use what is to be used by now. May raise anything."""
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
            except Exception as error:  # a mangled object, and whatever we did not think of
                # Without its traceback, as that may show values.
                failed = self._complain(f"{type(error).__name__}: {error}", failed)
            soon = min(_AGAIN_SECONDS, self._every_seconds)
            self._stop.wait(soon if failed else self._every_seconds)

    def _complain(self, text: str, before: str) -> str:
        if text != before:
            log.warning("certificates: %s", text)
        return text


class FileKeeper(Keeper[Pair]):
    """Serves what somebody else keeps in a directory, as cert-manager does by a mounted Secret."""

    def __init__(self, directory: Path, use: Callable[[Pair], object]) -> None:
        super().__init__(use)
        self._directory = directory

    def _chosen(self) -> Pair:
        """Raises OSError, and ValueError where the two are not of one key."""
        certificate, key = (self._directory / name for name in ("tls.crt", "tls.key"))
        return read_pair(certificate.read_bytes(), key.read_bytes())


class Secret:
    """The files in a Secret, which has to exist: no right to create Secrets is needed."""

    def __init__(self, client: Api, namespace: str, name: str) -> None:
        self._client, self._path = client, f"/api/v1/namespaces/{namespace}/secrets/{name}"
        self._read: dict[str, Any] = {}

    def read(self) -> dict[str, bytes]:
        """Raises ApiError, and msgspec.ValidationError for what cannot be read."""
        self._read = self._client.get(self._path, dict[str, Any])
        return _decoded(self._read.get("data") or {})

    def write(self, files: Mapping[str, bytes]) -> None:
        """Over the version that was read last: raises ApiError where another was faster."""
        self._read["data"] = {name: b64encode(text).decode() for name, text in files.items()}
        self._client.put(self._path, self._read)


def _decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    """Other people's keys in the Secret go with the next write; what is no base64 is empty."""
    found = {}
    for name, text in data.items():
        try:
            found[name] = b64decode(text, validate=True)
        except (NotBase64Error, ValueError):
            found[name] = b""
    return found
