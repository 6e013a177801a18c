"""Keeps the certificates in one Secret, and tells the API server which to trust.

The Secret is the only truth, and all replicas share it: whoever finds that it is time writes the
next pair into it, and who comes second is refused by its version and reads again. The trust that
the webhook configurations state is written anew wherever it differs, so a manifest that was applied
again is mended too. A pair is served by a replica only after it has itself seen it trusted.
"""

import logging
from base64 import b64decode, b64encode
from binascii import Error as NotBase64Error
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol, TypeVar

import msgspec

from linkwise.extender.admission.pairs import (
    Lifetime,
    Pair,
    bundle,
    read_pair,
    read_pairs,
    renewed,
    served,
    write_pairs,
)
from linkwise.kube.client import STRATEGIC_PATCH
from linkwise.kube.errors import ApiError

log = logging.getLogger(__name__)
_REGISTRATION = "/apis/admissionregistration.k8s.io/v1/"
_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_NOT_FOUND, _CONFLICT = 404, 409
_LONGEST_LOOK_SECONDS = 10.0
_AGAIN_SECONDS = 1.0  # after a look that failed
_AT_ONCE_SECONDS = 0.1  # after another replica was faster


T = TypeVar("T")


class Api(Protocol):
    """What is needed of `linkwise.kube.client.KubeClient`."""

    def get(self, path: str, kind: type[T]) -> T: ...

    def put(self, path: str, body: object) -> None: ...

    def patch(self, path: str, body: object, *, content_type: str) -> None: ...


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: str = ""


class _Webhook(msgspec.Struct, rename="camel"):
    name: str
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)


class _Configuration(msgspec.Struct):
    webhooks: tuple[_Webhook, ...] = ()


class Keeper:
    """Looks now and then, and tells *use* of each pair that is to be served from now on."""

    def __init__(
        self,
        use: Callable[[Pair], None],
        *,
        every_seconds: float = _LONGEST_LOOK_SECONDS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._use, self._every_seconds, self._clock = use, every_seconds, clock
        self._served: Pair | None = None
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
        """Why the API server cannot trust this replica yet; empty where it can."""
        pair = self._served
        if pair is None:
            return "no certificate is published yet"
        return "" if pair.ends > self._clock() else "the certificate has ended"

    @property
    def ends(self) -> float:
        """When what is served ends, in seconds since 1970; 0 before there is any."""
        return self._served.ends.timestamp() if self._served else 0.0

    def look(self) -> None:
        """Serve what is to be served by now. May raise anything."""
        pair = self._chosen()
        if pair != self._served:
            self._use(pair)
            self._served = pair
            log.info("serves certificate %s, until %s", pair.name, pair.ends.isoformat())

    def _chosen(self) -> Pair:
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


class SecretKeeper(Keeper):
    """Makes the pairs itself."""

    def __init__(
        self,
        client: Api,
        *,
        secret: tuple[str, str],  # namespace, name
        configuration: str,  # the name of both
        hosts: Collection[str],
        lifetime: Lifetime,
        use: Callable[[Pair], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        every_seconds = min(_LONGEST_LOOK_SECONDS, lifetime.seconds / 100)
        super().__init__(use, every_seconds=every_seconds, clock=clock)
        self._client, self._hosts, self._lifetime = client, frozenset(hosts), lifetime
        self._secret = "/api/v1/namespaces/{}/secrets/{}".format(*secret)
        self._configurations = [f"{_REGISTRATION}{kind}/{configuration}" for kind in _KINDS]

    def _chosen(self) -> Pair:
        """Bring Secret and configurations to what they should be.

        Raises ApiError, and msgspec.ValidationError for objects that cannot be read.
        """
        pairs = self._kept()
        self._publish(bundle(pairs))
        return served(pairs, self._hosts, self._clock(), self._lifetime)

    def _kept(self) -> tuple[Pair, ...]:
        secret = self._client.get(self._secret, dict[str, Any])
        files = _decoded(secret.get("data") or {})
        pairs = renewed(read_pairs(files), self._hosts, self._clock(), self._lifetime)
        wanted = write_pairs(pairs)
        if wanted != files:
            secret["data"] = {name: b64encode(text).decode() for name, text in wanted.items()}
            self._client.put(self._secret, secret)  # of the version that was read
            log.info("keeps certificates %s", ", ".join(pair.name for pair in pairs))
        return pairs

    def _publish(self, trusted: bytes) -> None:
        """Raises ApiError where neither configuration is there: while nobody can ask us, nobody has
        been told whom to trust. `kubectl apply` makes them after the Deployment."""
        wanted, missing = b64encode(trusted).decode(), list[ApiError]()
        for path in self._configurations:
            try:
                found = self._client.get(path, _Configuration)
            except ApiError as error:
                if error.status != _NOT_FOUND:
                    raise
                missing.append(error)  # not every cluster wants both
                continue
            late = [hook.name for hook in found.webhooks if hook.client_config.ca_bundle != wanted]
            if late:
                hooks = [{"name": name, "clientConfig": {"caBundle": wanted}} for name in late]
                self._client.patch(path, {"webhooks": hooks}, content_type=STRATEGIC_PATCH)
                log.info("%s: trust written", path.removeprefix(_REGISTRATION))
        if len(missing) == len(self._configurations):
            raise missing[0]


class FileKeeper(Keeper):
    """Serves what somebody else keeps in a directory, as cert-manager does by a mounted Secret."""

    def __init__(self, directory: Path, use: Callable[[Pair], None]) -> None:
        super().__init__(use)
        self._directory = directory

    def _chosen(self) -> Pair:
        """Raises OSError, and ValueError where the two are not of one key."""
        certificate, key = (self._directory / name for name in ("tls.crt", "tls.key"))
        return read_pair(certificate.read_bytes(), key.read_bytes())


def _decoded(data: dict[str, str]) -> dict[str, bytes]:
    """Other people's keys in the Secret go with the next write; what is no base64 is empty."""
    found = {}
    for name, text in data.items():
        try:
            found[name] = b64decode(text, validate=True)
        except (NotBase64Error, ValueError):
            found[name] = b""
    return found
