"""Pairs of a certificate and its key, and which of them is in use at a time.

Everything follows from the certificates' own dates, so replicas that see the same ones act alike
without communication. A new pair is created long before its predecessor ends, and is used only
after all clients have had time to learn that it is trusted. A pair is trusted until it ends.

The API server learns of a new certificate at any time, so the webhook's certificates are
self-signed: there is no authority whose key could sign anything else. kube-scheduler reads the
trusted authority only at its start, so the extender has an authority with a long life.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

log = logging.getLogger(__name__)
UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)  # what `read_pair` raises
# Clocks differ, so a certificate is valid from before its creation.
_BACKDATED = timedelta(hours=1)
_LONGEST_OVERLAP_SECONDS = 3600.0
_CERTIFICATE, _KEY = ".crt", ".key"
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Lifetime:
    seconds: float = 90 * 86400.0
    longest_overlap_seconds: float = _LONGEST_OVERLAP_SECONDS

    @property
    def renew_before(self) -> timedelta:
        """The time before the end of the newest pair at which another is created."""
        return timedelta(seconds=self.seconds / 3)

    @property
    def overlap(self) -> timedelta:
        """The time from which a pair is trusted until it is served."""
        return timedelta(seconds=min(self.seconds / 10, self.longest_overlap_seconds))


# Ten years. After two thirds of them, another authority is created, which signs after one more
# year: no kube-scheduler runs so long without a restart, because no Kubernetes version is
# maintained so long.
AUTHORITY = Lifetime(10 * 365 * 86400.0, longest_overlap_seconds=365 * 86400.0)


@dataclass(frozen=True, slots=True)
class Pair:
    name: str  # sorts by age
    certificate: bytes  # PEM
    key: bytes = field(repr=False)  # PEM; no log may ever have it
    made: datetime
    ends: datetime
    hosts: frozenset[str]


def make_pair(hosts: Collection[str], now: datetime, lifetime: Lifetime) -> Pair:
    """A self-signed pair for a server whose names or addresses are *hosts*."""
    return _make("linkwise-webhook", hosts, now, lifetime, ExtendedKeyUsageOID.SERVER_AUTH)


def make_authority(hosts: Collection[str], now: datetime, lifetime: Lifetime) -> Pair:
    """An authority that signs for the server with the names *hosts*, and for its clients."""
    return _make("linkwise-extender", hosts, now, lifetime, None)


def issue_server(
    authority: Pair, hosts: Collection[str], now: datetime, lifetime: Lifetime
) -> Pair:
    usage = ExtendedKeyUsageOID.SERVER_AUTH
    return _make("linkwise-extender", hosts, now, lifetime, usage, authority)


def issue_client(authority: Pair, called: str, now: datetime, lifetime: Lifetime) -> Pair:
    """A pair of the client with the common name *called*."""
    return _make(called, (), now, lifetime, ExtendedKeyUsageOID.CLIENT_AUTH, authority)


def _make(
    called: str,
    hosts: Collection[str],
    now: datetime,
    lifetime: Lifetime,
    usage: x509.ObjectIdentifier | None,  # None: it signs others
    authority: Pair | None = None,  # None: it is signed by its own key
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    made, serial = now.replace(microsecond=0), x509.random_serial_number()
    if authority is None:
        # Each authority has its own subject: OpenSSL finds trusted authorities by it.
        called = f"{called} {_name(made, serial)}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)])
    signs = usage is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(made - _BACKDATED)
        .not_valid_after(made + timedelta(seconds=lifetime.seconds))
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )
    if hosts:
        names = [_alternative(host) for host in sorted(hosts)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), False)
    else:
        builder = builder.add_extension(_SIGNS, True)
    if authority is None:
        certificate = builder.issuer_name(subject).sign(key, hashes.SHA256())
    else:
        signer, signing = _certificate_of(authority), _key_of(authority)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
        certificate = (
            builder.issuer_name(signer.subject)
            .add_extension(identifier, False)
            .sign(signing, hashes.SHA256())
        )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return read_pair(certificate.public_bytes(Encoding.PEM), pem)


def _certificate_of(pair: Pair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def _key_of(pair: Pair) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pair.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"certificate {pair.name}: expected a key of an elliptic curve")
    return key


def read_pairs(files: Mapping[str, bytes]) -> tuple[Pair, ...]:
    """The readable pairs of *files*, oldest first; a mangled pair is left out."""
    found = []
    for name in sorted(files):
        if not name.endswith(_CERTIFICATE):
            continue
        key = files.get(name.removesuffix(_CERTIFICATE) + _KEY, b"")
        try:
            found.append(read_pair(files[name], key))
        except UNREADABLE:
            log.warning("certificate %s: left out: unreadable, or does not match its key", name)
    return tuple(sorted(found, key=lambda pair: pair.name))


def write_pairs(pairs: Sequence[Pair]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for pair in pairs:
        files[pair.name + _CERTIFICATE], files[pair.name + _KEY] = pair.certificate, pair.key
    return files


def read_pair(certificate: bytes, key: bytes) -> Pair:
    """Parse PEM; the server also presents what follows the first certificate.

    Raises one of UNREADABLE; ValueError if certificate and key do not match.
    """
    read = x509.load_pem_x509_certificate(certificate)
    private = load_pem_private_key(key, password=None)
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if read.public_key().public_bytes(*form) != private.public_key().public_bytes(*form):
        raise ValueError("not of one key")
    made = read.not_valid_before_utc + _BACKDATED
    return Pair(
        name=_name(made, read.serial_number),
        certificate=certificate,
        key=key,
        made=made,
        ends=read.not_valid_after_utc,
        hosts=_hosts_of(read),
    )


def is_clients(pair: Pair, called: str, authorities: Sequence[Pair]) -> bool:
    """Whether one of *authorities* signed *pair* for the client *called*."""
    read = _certificate_of(pair)
    names = [name.value for name in read.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return names == [called] and any(_signed(read, authority) for authority in authorities)


def _signed(read: x509.Certificate, authority: Pair) -> bool:
    try:
        read.verify_directly_issued_by(_certificate_of(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _hosts_of(read: x509.Certificate) -> frozenset[str]:
    try:
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(name.value) for name in names)


def renewed(
    pairs: Sequence[Pair],
    hosts: Collection[str],
    now: datetime,
    lifetime: Lifetime,
    make: Callable[[Collection[str], datetime, Lifetime], Pair] = make_pair,
) -> tuple[Pair, ...]:
    """*pairs* without those that have ended, and with a new one if it is due; equal to *pairs* if
    there is nothing to do. Pairs of other hosts belong to other replicas, such as during a rollout
    that changes the hosts, and stay trusted."""
    kept = tuple(pair for pair in pairs if pair.ends > now)
    newest_ends = max((pair.ends for pair in _of(hosts, kept)), default=now)
    if newest_ends - now > lifetime.renew_before:
        return kept
    return (*kept, make(hosts, now, lifetime))


def served(
    pairs: Sequence[Pair], hosts: Collection[str], now: datetime, lifetime: Lifetime
) -> Pair:
    """The newest pair that all clients trust by now; if none is so old, the oldest."""
    own = _of(hosts, pairs)
    trusted = [pair for pair in own if pair.made + lifetime.overlap <= now]
    return trusted[-1] if trusted else own[0]


def bundle(pairs: Sequence[Pair]) -> bytes:
    """The certificates of *pairs* as PEM, for clients to trust."""
    return b"".join(pair.certificate for pair in pairs)


def _of(hosts: Collection[str], pairs: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in pairs if pair.hosts == frozenset(hosts)]


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(made: datetime, serial: int) -> str:
    """The name has the serial number, because two replicas may create a pair in the same second."""
    return f"{made.astimezone(UTC):%Y%m%dT%H%M%SZ}-{serial:040x}"[:32]
