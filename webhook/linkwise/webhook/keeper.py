"""Stores the webhook's certificates in one Secret, and publishes them to the API server.

The Secret is the only source of truth, and all replicas share it. The first replica that finds a
new pair due writes it. The API server refuses the write of a second replica by its
resourceVersion, and that replica reads again. If the trust in a webhook configuration differs, for
instance after a manifest was applied again, the keeper rewrites it. A replica serves a pair only
after it has written or seen the trust in it.
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
    """A Keeper that creates the pairs itself."""

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
        """Bring Secret and configurations to the desired state.

        Raises ApiError, and msgspec.ValidationError for unreadable objects.
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
            log.info("stored certificates %s", ", ".join(pair.name for pair in pairs))
        return pairs

    def _publish(self, trusted: bytes) -> None:
        """Write *trusted* into the webhook configurations.

        Raises ApiError if neither exists: then no API server knows yet which certificate to trust.
        `kubectl apply` creates them after the Deployment.
        """
        wanted, missing = b64encode(trusted).decode(), list[ApiError]()
        for path in self._configurations:
            try:
                found = self._client.get(path, _Configuration)
            except ApiError as error:
                if error.status != _NOT_FOUND:
                    raise
                missing.append(error)  # a cluster may have only one of them
                continue
            late = [hook.name for hook in found.webhooks if hook.client_config.ca_bundle != wanted]
            if late:
                hooks = [{"name": name, "clientConfig": {"caBundle": wanted}} for name in late]
                self._client.patch(path, {"webhooks": hooks}, content_type=STRATEGIC_PATCH)
                log.info("%s: wrote the trusted certificates", path.removeprefix(_REGISTRATION))
        if len(missing) == len(self._configurations):
            raise missing[0]
