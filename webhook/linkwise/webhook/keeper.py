"""Keeps the webhook's certificates in one Secret, and tells the API server which to trust.

The Secret is the only truth, and all replicas share it: whoever finds that it is time writes the
next pair into it, and who comes second is refused by its version and reads again. The trust that
the webhook configurations state is written anew wherever it differs, so a manifest that was applied
again is mended too. A pair is served by a replica only after it has itself seen it trusted.
"""

import logging
from base64 import b64encode
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from linkwise.kube.client import STRATEGIC_PATCH
from linkwise.kube.errors import ApiError
from linkwise.serving.certificates.keeper import LONGEST_LOOK_SECONDS, Api, Keeper, Secret
from linkwise.serving.certificates.pairs import (
    Lifetime,
    Pair,
    bundle,
    read_pairs,
    renewed,
    served,
    write_pairs,
)

log = logging.getLogger(__name__)
_REGISTRATION = "/apis/admissionregistration.k8s.io/v1/"
_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_NOT_FOUND = 404


class PatchingApi(Api, Protocol):
    def patch(self, path: str, body: object, *, content_type: str) -> None: ...


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: str = ""


class _Webhook(msgspec.Struct, rename="camel"):
    name: str
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)


class _Configuration(msgspec.Struct):
    webhooks: tuple[_Webhook, ...] = ()


class SecretKeeper(Keeper[Pair]):
    """Makes the pairs itself."""

    def __init__(
        self,
        client: PatchingApi,
        *,
        secret: tuple[str, str],  # namespace, name
        configuration: str,  # the name of both
        hosts: Collection[str],
        lifetime: Lifetime,
        use: Callable[[Pair], object],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        every_seconds = min(LONGEST_LOOK_SECONDS, lifetime.seconds / 100)
        super().__init__(use, every_seconds=every_seconds, clock=clock)
        self._client, self._hosts, self._lifetime = client, frozenset(hosts), lifetime
        self._secret = Secret(client, *secret)
        self._configurations = [f"{_REGISTRATION}{kind}/{configuration}" for kind in _KINDS]

    def _chosen(self) -> Pair:
        """Bring Secret and configurations to what they should be.

        Raises ApiError, and msgspec.ValidationError for objects that cannot be read.
        """
        pairs = self._kept()
        self._publish(bundle(pairs))
        return served(pairs, self._hosts, self._clock(), self._lifetime)

    def _kept(self) -> tuple[Pair, ...]:
        files = self._secret.read()
        pairs = renewed(read_pairs(files), self._hosts, self._clock(), self._lifetime)
        wanted = write_pairs(pairs)
        if wanted != files:
            self._secret.write(wanted)
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
