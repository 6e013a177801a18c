"""Maintains the certificate that the extender presents, and the authorities of its callers.

The extender has an authority that signs the server's certificates: kube-scheduler reads the trusted
authority only at its start, so the authority must outlive it. A Secret that all replicas share
stores the authority, and a ConfigMap of the same name publishes it. Each replica signs a
certificate of its own, whose key no other process ever has.

kube-scheduler presents its client certificate for the API server. The extender trusts it as the
API server does: by the cluster's authority, which every cluster publishes for such servers. If the
scheduler has no certificate (it runs in a pod), the extender's authority signs one. A Secret that
the scheduler's pod mounts stores it, and kube-scheduler reads it again for each connection.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from linkwise.serving.certificates.keeper import LONGEST_LOOK_SECONDS, Api, Keeper, Secret
from linkwise.serving.certificates.pairs import (
    AUTHORITY,
    UNREADABLE,
    Lifetime,
    Pair,
    bundle,
    is_clients,
    issue_client,
    issue_server,
    make_authority,
    read_pair,
    read_pairs,
    renewed,
    served,
    write_pairs,
)

log = logging.getLogger(__name__)
CLUSTER_AUTHORITY = ("kube-system", "extension-apiserver-authentication")
_CLUSTER_AUTHORITY_FILE = "client-ca-file"
AUTHORITY_FILE = "ca.crt"
_CERTIFICATE, _KEY = "tls.crt", "tls.key"

# A fixed name: if the server's name changes, kube-scheduler still trusts the same authority.
_AUTHORITY_NAMES = frozenset({"linkwise-extender"})

Place = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class Trust:
    """The certificate to present, and the *authorities* (PEM) that sign callers' certificates."""

    shown: Pair
    authorities: bytes = field(repr=False)

    @property
    def name(self) -> str:
        return self.shown.name

    @property
    def ends(self) -> datetime:
        return self.shown.ends


class CallersKeeper(Keeper[Trust]):
    """*client* is the Secret and the common name of a client that has no certificate of its own;
    without it, the cluster's authority decides which clients to trust."""

    def __init__(
        self,
        api: Api,
        *,
        place: Place,  # of the Secret and the ConfigMap
        hosts: Collection[str],
        lifetime: Lifetime,
        use: Callable[[Trust], object],
        client: tuple[Place, str] | None = None,
        authority_lifetime: Lifetime = AUTHORITY,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        every_seconds = min(LONGEST_LOOK_SECONDS, lifetime.seconds / 100)
        super().__init__(use, every_seconds=every_seconds, clock=clock)
        self._api, self._hosts, self._lifetime = api, frozenset(hosts), lifetime
        self._authority_lifetime = authority_lifetime
        self._secret, self._published = Secret(api, *place), _config_map(place)
        self._client = Secret(api, *client[0]) if client else None
        self._called = client[1] if client else ""
        self._shown: tuple[str, Pair] | None = None  # the authority's name, and its certificate

    def _chosen(self) -> Trust:
        """Bring Secrets and ConfigMap to the desired state.

        Raises ApiError, msgspec.ValidationError for unreadable objects, and ValueError if the
        cluster publishes no authority.
        """
        now = self._clock()
        authorities = self._authorities(now)
        trusted = bundle(authorities)
        self._publish(trusted)
        signer = served(authorities, _AUTHORITY_NAMES, now, self._authority_lifetime)
        if self._client is not None:
            self._certify(self._client, signer, authorities, now)
            return Trust(self._server(signer, now), trusted)
        return Trust(self._server(signer, now), self._of_cluster())

    def _authorities(self, now: datetime) -> tuple[Pair, ...]:
        files = self._secret.read()
        kept = read_pairs(files)
        pairs = renewed(kept, _AUTHORITY_NAMES, now, self._authority_lifetime, make_authority)
        wanted = write_pairs(pairs)
        if wanted != files:
            self._secret.write(wanted)
            log.info("keeps authorities %s", ", ".join(pair.name for pair in pairs))
        return pairs

    def _publish(self, trusted: bytes) -> None:
        found = self._api.get(self._published, dict[str, Any])
        data = {AUTHORITY_FILE: trusted.decode()}
        if found.get("data") != data:
            self._api.put(self._published, {**found, "data": data})
            log.info("authority published")

    def _server(self, signer: Pair, now: datetime) -> Pair:
        """This process's certificate. No object stores its key; each process creates its own."""
        if self._shown is not None:
            authority, shown = self._shown
            if authority == signer.name and self._lasts(shown, now):
                return shown
        made = issue_server(signer, self._hosts, now, self._lifetime)
        self._shown = signer.name, made
        return made

    def _certify(
        self, secret: Secret, signer: Pair, authorities: tuple[Pair, ...], now: datetime
    ) -> None:
        files = secret.read()
        try:
            held = read_pair(files.get(_CERTIFICATE, b""), files.get(_KEY, b""))
        except UNREADABLE:
            held = None
        if held and self._lasts(held, now) and is_clients(held, self._called, authorities):
            return
        made = issue_client(signer, self._called, now, self._lifetime)
        secret.write({_CERTIFICATE: made.certificate, _KEY: made.key})
        log.info("client %s: certificate until %s", self._called, made.ends.isoformat())

    def _of_cluster(self) -> bytes:
        found = self._api.get(_config_map(CLUSTER_AUTHORITY), dict[str, Any])
        authorities = str((found.get("data") or {}).get(_CLUSTER_AUTHORITY_FILE, ""))
        if not authorities:
            where = f"ConfigMap {'/'.join(CLUSTER_AUTHORITY)}"
            raise ValueError(
                f"{where} has no {_CLUSTER_AUTHORITY_FILE}: the API server trusts no certificates"
            )
        return authorities.encode()

    def _lasts(self, pair: Pair, now: datetime) -> bool:
        return pair.ends - now > self._lifetime.renew_before


def _config_map(place: Place) -> str:
    return "/api/v1/namespaces/{}/configmaps/{}".format(*place)
