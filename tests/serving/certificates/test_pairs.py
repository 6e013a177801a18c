"""Which certificates there are at any moment, and which of them is served."""

import logging
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.serving.certificates.pairs import (
    AUTHORITY,
    Lifetime,
    Pair,
    bundle,
    is_clients,
    issue_client,
    issue_server,
    make_authority,
    make_pair,
    read_pairs,
    renewed,
    served,
    write_pairs,
)
from linkwise.serving.greeting import greet_any_client

HOSTS = frozenset({"linkwise-webhook.kube-system.svc"})
START = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAYS_90 = Lifetime()
OVERLAP = timedelta(hours=1)


def later(days: float = 0, hours: float = 0) -> datetime:
    return START + timedelta(days=days, hours=hours)


def at(pairs: tuple[Pair, ...], now: datetime) -> tuple[tuple[Pair, ...], Pair]:
    kept = renewed(pairs, HOSTS, now, DAYS_90)
    return kept, served(kept, HOSTS, now, DAYS_90)


def test_the_first_is_served_at_once_as_there_is_no_other() -> None:
    (pair,), chosen = at((), START)
    assert chosen is pair
    assert (pair.made, pair.ends) == (START, later(days=90))


def test_a_second_is_made_when_a_third_of_the_time_is_left_and_served_an_hour_later() -> None:
    first, _ = at((), START)
    assert at(first, later(days=59.9)) == (first, first[0])

    both, chosen = at(first, later(days=60))
    assert (len(both), chosen) == (2, first[0])
    assert at(both, later(days=60, hours=0.9)) == (both, first[0])
    assert at(both, later(days=60, hours=1)) == (both, both[1])
    # A replica that has not read it yet serves the first, and is trusted while that one lives.
    assert at(both, later(days=89.9)) == (both, both[1])
    assert at(both, later(days=90)) == (both[1:], both[1])


def test_after_a_long_sleep_there_is_a_new_one_at_once() -> None:
    first, _ = at((), START)
    kept, chosen = at(first, later(days=400))
    assert kept == (chosen,)
    assert chosen.made == later(days=400)


def test_a_replica_that_is_called_otherwise_takes_nobodys_certificate_away() -> None:
    """As in an update that changes the Service: both kinds of replicas run for a while."""
    old, _ = at((), START)
    other = frozenset({"10.0.0.1", "webhook.example"})
    both = renewed(old, other, later(hours=1), DAYS_90)
    assert both[0] == old[0]
    assert served(both, other, later(hours=1), DAYS_90) == both[1]
    assert at(both, later(hours=2)) == (both, old[0])


@settings(max_examples=30, deadline=None)
@given(looks=st.lists(st.floats(0.01, 29), min_size=1, max_size=30))
def test_whenever_it_is_looked_what_was_served_last_time_is_still_trusted(
    looks: list[float],
) -> None:
    now, before = START, None
    pairs, before = at((), START)
    for days in looks:
        now += timedelta(days=days)
        trusted = bundle(pairs)
        pairs, chosen = at(pairs, now)
        assert chosen.ends > now
        if chosen != before:  # then every peer has had its time to learn it
            assert chosen.certificate in trusted or now - chosen.made >= OVERLAP or days >= 1
        if before.ends > now:
            assert before.certificate in bundle(pairs)
        before = chosen


def test_it_is_a_certificate_for_a_server_alone_and_of_nobody_else() -> None:
    pair = make_pair({"127.0.0.1", "webhook.example"}, START, DAYS_90)
    read = x509.load_pem_x509_certificate(pair.certificate)
    extensions = {type(each.value): each.value for each in read.extensions}
    names = extensions[x509.SubjectAlternativeName]
    assert isinstance(names, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["webhook.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert extensions[x509.BasicConstraints] == x509.BasicConstraints(False, None)
    assert read.not_valid_before_utc == START - timedelta(hours=1)  # clocks differ


def test_who_trusts_it_is_served_and_who_does_not_is_not() -> None:
    pair, stranger = (make_pair({"webhook.example"}, datetime.now(UTC), DAYS_90) for _ in "ab")
    assert handshake(pair, pair, "webhook.example") == ""
    assert "self-signed certificate" in handshake(pair, stranger, "webhook.example")
    assert "not valid for 'other.example'" in handshake(pair, pair, "other.example")


def handshake(serving: Pair, trusted: Pair, host: str) -> str:
    """Why a client that calls *host* refuses it; empty where it does not."""
    client = ssl.create_default_context(cadata=trusted.certificate.decode())
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(into, out, server_hostname=host)
    other = greet_any_client(serving).context.wrap_bio(out, into, server_side=True)
    try:
        for side in (one, other, one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        return str(error)
    return ""


def test_whom_an_authority_signs_is_trusted_by_it_alone() -> None:
    now = datetime.now(UTC)
    authority, other = (make_authority(["linkwise-extender"], now, AUTHORITY) for _ in "ab")
    shown = issue_server(authority, ["webhook.example"], now, DAYS_90)
    assert handshake(shown, authority, "webhook.example") == ""
    assert "unable to get local issuer" in handshake(shown, other, "webhook.example")
    assert "not valid for 'other.example'" in handshake(shown, authority, "other.example")
    client = issue_client(authority, "linkwise-scheduler", now, DAYS_90)
    assert is_clients(client, "linkwise-scheduler", [other, authority])
    assert not is_clients(client, "linkwise-scheduler", [other])
    assert not is_clients(client, "linkwise", [authority])
    assert "unsuitable certificate purpose" in handshake(client, authority, "linkwise-scheduler")


def test_a_client_signs_for_nobody() -> None:
    now = datetime.now(UTC)
    authority = make_authority(["linkwise-extender"], now, AUTHORITY)
    client = issue_client(authority, "linkwise-scheduler", now, DAYS_90)
    forged = issue_server(client, ["webhook.example"], now, DAYS_90)
    with_chain = replace(forged, certificate=forged.certificate + client.certificate)
    assert "invalid CA certificate" in handshake(with_chain, authority, "webhook.example")


def test_an_authority_is_followed_by_another_that_signs_a_year_after_it_is_known() -> None:
    """kube-scheduler reads the trusted authorities only at its start; none runs for a year."""
    names, day = frozenset({"linkwise-extender"}), 0.0
    kept: tuple[Pair, ...] = ()
    signers: dict[float, Pair] = {}
    while day < 365 * 25:
        kept = renewed(kept, names, later(days=day), AUTHORITY, make_authority)
        signer = served(kept, names, later(days=day), AUTHORITY)
        trusted = bundle(kept)
        for before, earlier in signers.items():
            if day - before < 365:  # a scheduler that started then knows who signs now
                assert signer.made + timedelta(days=365) <= later(days=day) or signer is earlier
        assert signer.certificate in trusted
        assert signer.ends - later(days=day) > timedelta(days=90)
        signers[day] = signer
        day += 30
    assert len({signer.name for signer in signers.values()}) == 4


def test_what_is_written_is_read_again() -> None:
    pairs = tuple(make_pair(HOSTS, later(days=day), DAYS_90) for day in (0, 60))
    assert read_pairs(write_pairs(pairs)) == pairs
    assert read_pairs(dict(reversed(write_pairs(pairs).items()))) == pairs


@pytest.mark.parametrize(
    "mangle",
    [
        {"key": b""},
        {"key": b"-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n"},
        {"certificate": b""},
        {"certificate": b"\xff"},
        {"key": make_pair(HOSTS, START, DAYS_90).key},
    ],
)
def test_a_mangled_pair_is_as_good_as_none_and_no_log_has_its_key(
    mangle: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good, bad = (make_pair(HOSTS, later(days=day), DAYS_90) for day in (0, 60))
    files = write_pairs((good, bad))
    for field, text in mangle.items():
        files[bad.name + {"key": ".key", "certificate": ".crt"}[field]] = text
    assert read_pairs(files) == (good,)
    assert read_pairs({"notes": b"?", "a.key": good.key}) == ()
    assert bad.name in caplog.text
    for secret in (good.key, bad.key, *mangle.values()):
        assert secret.decode(errors="replace") not in caplog.text or not secret


def test_a_key_is_in_no_text_of_a_pair() -> None:
    pair = make_pair(HOSTS, START, DAYS_90)
    assert "PRIVATE" in pair.key.decode()
    assert "PRIVATE" not in f"{pair!r} {pair}"
