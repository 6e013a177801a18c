"""TLS for a port: the certificate that the server presents, and the callers that it knows.

With client certificates, a caller is known by the common name of a certificate that a trusted
authority signed for clients. The handshake fails for a caller without such a certificate.
"""

import os
import ssl
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from linkwise.serving.certificates.pairs import Pair


class Welcome(Enum):
    KNOWN = "known"
    STRANGER = "stranger"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller after its handshake."""

    welcome: Welcome
    name: str = ""
    certificate_ends: float = 0.0  # in seconds since 1970


@dataclass(frozen=True, slots=True)
class Greeting:
    """*names* are those of known callers; None if the server requests no client certificate."""

    context: ssl.SSLContext = field(repr=False)
    names: frozenset[str] | None = None

    def judge(self, connection: ssl.SSLSocket) -> Caller:
        """The caller of a connection whose handshake is done."""
        if self.names is None:
            return Caller(Welcome.STRANGER)
        shown = connection.getpeercert()
        assert shown, "the handshake asked for a certificate"
        called = _common_names(shown)
        name = called[0] if len(called) == 1 else f"[{', '.join(called)}]"
        welcome = Welcome.KNOWN if name in self.names else Welcome.REFUSED
        return Caller(welcome, name, ssl.cert_time_to_seconds(str(shown["notAfter"])))


def greet_any_client(pair: Pair) -> Greeting:
    """Present *pair*; request no client certificate."""
    context = _context(pair)
    context.set_alpn_protocols(["http/1.1"])
    return Greeting(context)


def greet_known(pair: Pair, authorities: bytes, names: Collection[str]) -> Greeting:
    """Present *pair*; admit callers with a certificate from *authorities* (PEM) for one of *names*.

    Raises ssl.SSLError if the authorities cannot be read, ValueError if there are none.
    """
    context = _context(pair)
    context.load_verify_locations(cadata=authorities.decode())
    if not context.get_ca_certs():
        raise ValueError("no authority that signs clients' certificates")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2", "http/1.1"])
    return Greeting(context, frozenset(names))


def _context(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # Go resumes no sessions by default
    # OpenSSL reads only files. This one is in memory, and ceases to exist when it is closed.
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def _common_names(certificate: object) -> list[str]:
    assert isinstance(certificate, dict)
    return [
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
