"""What the extender shows and which callers it admits, over years, with a small API server."""

import json
import logging
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from linkwise.kube.errors import ApiError
from linkwise.serving.certificates.callers import CallersKeeper, Trust
from linkwise.serving.certificates.pairs import (
    AUTHORITY,
    Lifetime,
    Pair,
    is_clients,
    make_authority,
    make_pair,
    read_pair,
    read_pairs,
)
from tests.extender.world import wait_for
from tests.serving.certificates.objects import Objects

SYSTEM = "/api/v1/namespaces/kube-system"
SECRET, PUBLISHED = f"{SYSTEM}/secrets/linkwise-extender", f"{SYSTEM}/configmaps/linkwise-extender"
CALLER = f"{SYSTEM}/secrets/linkwise-scheduler"
CLUSTER = f"{SYSTEM}/configmaps/extension-apiserver-authentication"
HOST = "linkwise-extender.kube-system.svc"
START = datetime(2026, 11, 21, 12, tzinfo=UTC)
# A private key whose kind no library knows: PKCS #8 with the object identifier 1.2.3.
UNKNOWN_KIND = b"""-----BEGIN PRIVATE KEY-----
MAsCAQAwBAYCKgMEAA==
-----END PRIVATE KEY-----
"""


class Api(Objects):
    def __init__(self) -> None:
        made = make_authority(["cluster"], START, AUTHORITY).certificate.decode()
        super().__init__(
            {
                SECRET: {"type": "Opaque"},
                CALLER: {"type": "Opaque"},
                PUBLISHED: {},
                CLUSTER: {
                    "data": {"client-ca-file": made, "requestheader-client-ca-file": "other"}
                },
            }
        )

    def file(self, path: str, name: str) -> bytes:
        return b64decode(self.objects[path]["data"][name])

    def authorities(self) -> tuple[Pair, ...]:
        data = self.objects[SECRET]["data"]
        return read_pairs({name: b64decode(text) for name, text in data.items()})

    def published(self) -> str:
        return str(self.objects[PUBLISHED]["data"]["ca.crt"])

    def client(self) -> Pair:
        return read_pair(self.file(CALLER, "tls.crt"), self.file(CALLER, "tls.key"))


class Replica:
    def __init__(self, api: Api, *, signs: bool = False) -> None:
        self.now, self.used = START, list[Trust]()
        self.keeper = CallersKeeper(
            api,
            place=("kube-system", "linkwise-extender"),
            hosts=[HOST],
            lifetime=Lifetime(),
            use=self.used.append,
            client=(("kube-system", "linkwise-scheduler"), "linkwise-scheduler") if signs else None,
            clock=lambda: self.now,
        )

    def look(self, *, days: float = 0) -> None:
        self.now = START + timedelta(days=days)
        self.keeper.look()


@pytest.fixture
def api() -> Api:
    return Api()


def test_it_shows_what_its_authority_signs_and_trusts_the_clusters_authority(api: Api) -> None:
    one = Replica(api)
    assert one.keeper.waits_for() == "no certificate is published yet"
    one.look()
    (trust,) = one.used
    (authority,) = api.authorities()
    assert api.published() == authority.certificate.decode()
    assert trust.shown.hosts == {HOST}
    assert trust.authorities.decode() == api.objects[CLUSTER]["data"]["client-ca-file"]
    assert api.writes == [SECRET, PUBLISHED]
    assert "data" not in api.objects[CALLER]
    assert one.keeper.waits_for() == ""


def test_where_it_signs_the_callers_certificate_nobody_elses_word_counts(api: Api) -> None:
    one = Replica(api, signs=True)
    del api.objects[CLUSTER]
    one.look()
    assert one.used[0].authorities.decode() == api.published()
    assert is_clients(api.client(), "linkwise-scheduler", api.authorities())


def test_the_key_of_what_is_shown_is_in_no_object(api: Api) -> None:
    one = Replica(api, signs=True)
    one.look()
    kept = json.dumps(api.objects)
    key = one.used[0].shown.key
    assert b64encode(key).decode() not in kept
    assert key.decode() not in kept


def test_replicas_share_the_authority_and_each_has_a_certificate_of_its_own(api: Api) -> None:
    one, two = Replica(api, signs=True), Replica(api, signs=True)
    one.look()
    written = len(api.writes)
    two.look()
    for replica in (one, two):
        replica.look(days=1)
    assert len(api.writes) == written
    assert len(one.used) == len(two.used) == 1
    assert one.used[0].shown != two.used[0].shown
    assert one.used[0].authorities == two.used[0].authorities


def test_of_two_that_begin_at_once_one_is_refused_and_takes_the_others(api: Api) -> None:
    one, two = Replica(api, signs=True), Replica(api, signs=True)
    api.before_put = two.look
    with pytest.raises(ApiError, match="Conflict"):
        one.look()
    one.look()
    assert len(api.authorities()) == 1
    assert one.used[0].authorities == two.used[0].authorities


def test_a_conflict_is_tried_again_at_once_and_is_no_trouble(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Replica(api), Replica(api)
    api.before_put = two.look
    one.keeper.start()
    wait_for(lambda: one.used)
    one.keeper.stop()
    assert "certificates:" not in caplog.text


def test_over_years_kube_scheduler_and_extender_know_each_other_at_every_moment(api: Api) -> None:
    """kube-scheduler reads the trusted authorities when it starts, here once in ten months.
    It reads its own certificate when it connects."""
    often, rarely = Replica(api, signs=True), Replica(api, signs=True)
    trusted, shown = "", set()
    for day in range(0, 365 * 12, 5):
        often.look(days=day)
        if day % 20 == 0:
            rarely.look(days=day)
        if day % 300 == 0:
            trusted = api.published()
        for replica in (often, rarely):
            trust = replica.used[-1]
            assert trust.shown.ends > often.now
            assert any(
                _signed_by(trust.shown, pair)
                for pair in api.authorities()
                if pair.certificate.decode() in trusted
            )
            client = api.client()
            assert client.ends > often.now
            assert is_clients(client, "linkwise-scheduler", api.authorities())
            assert all(
                pair.certificate in trust.authorities
                for pair in api.authorities()
                if _signed_by(client, pair)
            )
        shown.add(often.used[-1].shown.name)
    assert len(api.authorities()) == 1, "the first has ended"
    assert len(shown) > 12 * 365 / 61


def _signed_by(pair: Pair, authority: Pair) -> bool:
    return is_clients(pair, _name_of(pair), [authority])


def _name_of(pair: Pair) -> str:
    (name,) = x509.load_pem_x509_certificate(pair.certificate).subject
    return str(name.value)


def test_a_client_certificate_is_made_again_where_it_would_not_do(api: Api) -> None:
    one = Replica(api, signs=True)
    one.look()
    stranger = make_pair(["x.example"], START, Lifetime())
    for data in (
        {},
        {"tls.crt": "?", "tls.key": "eA=="},
        {
            "tls.crt": b64encode(stranger.certificate).decode(),
            "tls.key": b64encode(UNKNOWN_KIND).decode(),
        },
        {
            "tls.crt": b64encode(stranger.certificate).decode(),
            "tls.key": b64encode(stranger.key).decode(),
        },
    ):
        api.objects[CALLER]["data"] = data
        one.look(days=1)
        assert is_clients(api.client(), "linkwise-scheduler", api.authorities())
    assert len(one.used) == 1, "what the server shows is not concerned"


def test_a_deleted_authority_is_replaced_and_all_that_it_signed(api: Api) -> None:
    one = Replica(api, signs=True)
    one.look()
    (before,) = api.authorities()
    api.objects[SECRET]["data"] = {}
    one.look(days=1)
    (after,) = api.authorities()
    assert after != before
    assert api.published() == after.certificate.decode()
    assert is_clients(api.client(), "linkwise-scheduler", [after])
    assert _signed_by(one.used[-1].shown, after)


def test_what_was_published_is_mended(api: Api) -> None:
    one = Replica(api)
    one.look()
    api.objects[PUBLISHED]["data"] = {"ca.crt": "nonsense", "more": "x"}
    one.look(days=1)
    (authority,) = api.authorities()
    assert api.objects[PUBLISHED]["data"] == {"ca.crt": authority.certificate.decode()}


def test_another_authority_of_the_cluster_counts_from_the_next_look_on(api: Api) -> None:
    one = Replica(api)
    one.look()
    data = api.objects[CLUSTER]["data"]
    data["client-ca-file"] += make_authority(["new"], START, AUTHORITY).certificate.decode()
    one.look(days=1)
    assert [trust.authorities.decode() for trust in one.used[1:]] == [data["client-ca-file"]]


@pytest.mark.parametrize("data", [None, {}, {"client-ca-file": ""}])
def test_a_cluster_that_trusts_no_certificates_is_said(
    api: Api, data: dict[str, str] | None
) -> None:
    api.objects[CLUSTER] = {"data": data}
    with pytest.raises(ValueError, match="has no client-ca-file"):
        Replica(api).look()


def test_no_log_has_a_key(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    one = Replica(api, signs=True)
    for day in range(0, 4000, 50):
        one.look(days=day)
    assert "keeps authorities" in caplog.text
    assert "PRIVATE" not in caplog.text
    assert "PRIVATE" not in f"{one.used!r}"
