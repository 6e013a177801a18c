"""The keeper with an API server that holds one Secret and two configurations."""

import time
from base64 import b64decode
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import msgspec
import pytest

from linkwise.kube.client import STRATEGIC_PATCH
from linkwise.kube.errors import ApiError
from linkwise.serving.certificates.keeper import FileKeeper
from linkwise.serving.certificates.pairs import Lifetime, Pair, make_pair
from linkwise.webhook.keeper import SecretKeeper
from tests.serving.certificates.objects import Objects

SECRET = "/api/v1/namespaces/kube-system/secrets/linkwise-webhook"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
CONFIGURATIONS = [f"/apis/admissionregistration.k8s.io/v1/{kind}/linkwise" for kind in KINDS]
START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Api(Objects):
    def __init__(self) -> None:
        hooks = [{"name": "pods.linkwise.dev", "clientConfig": {"url": "https://x"}}]
        two = [
            *deepcopy(hooks),
            {"name": "workloads.linkwise.dev", "clientConfig": {"url": "https://x"}},
        ]
        super().__init__(
            {
                SECRET: {"metadata": {"name": "linkwise-webhook"}, "type": "Opaque"},
                CONFIGURATIONS[0]: {"webhooks": hooks},
                CONFIGURATIONS[1]: {"webhooks": two},
            }
        )

    def patch(self, path: str, body: object, *, content_type: str) -> None:
        assert content_type == STRATEGIC_PATCH
        assert isinstance(body, dict)
        self.written(path)
        for hook in body["webhooks"]:
            (mine,) = (h for h in self.objects[path]["webhooks"] if h["name"] == hook["name"])
            mine["clientConfig"] |= hook["clientConfig"]

    def trusted(self) -> set[str]:
        return {
            b64decode(hook["clientConfig"].get("caBundle", "")).decode()
            for path in CONFIGURATIONS
            for hook in self.objects.get(path, {"webhooks": []})["webhooks"]
        }

    def certificates(self) -> str:
        """Of the Secret, as they would be trusted."""
        data = self.objects[SECRET]["data"]
        return "".join(b64decode(data[name]).decode() for name in sorted(data) if ".crt" in name)


class Replica:
    def __init__(self, api: Api) -> None:
        self.api, self.now, self.used = api, START, list[Pair]()
        self.keeper = SecretKeeper(
            api,
            secret=("kube-system", "linkwise-webhook"),
            configuration="linkwise",
            hosts=["linkwise-webhook.kube-system.svc"],
            lifetime=Lifetime(),
            use=self.used.append,
            clock=lambda: self.now,
        )

    def look(self, *, days: float = 0) -> None:
        self.now = START + timedelta(days=days)
        self.keeper.look()


@pytest.fixture
def api() -> Api:
    return Api()


def test_the_first_look_makes_a_certificate_and_has_it_trusted_before_it_is_served(
    api: Api,
) -> None:
    one = Replica(api)
    assert one.keeper.waits_for() == "no certificate is published yet"
    one.look()
    (pair,) = one.used
    assert api.trusted() == {pair.certificate.decode()} == {api.certificates()}
    assert api.writes == [SECRET, *CONFIGURATIONS]
    assert one.keeper.waits_for() == ""
    assert one.keeper.ends == pair.ends.timestamp()


def test_a_second_look_and_a_second_replica_write_nothing(api: Api) -> None:
    one, two = Replica(api), Replica(api)
    one.look()
    written = len(api.writes)
    one.look(days=1)
    two.look(days=1)
    assert len(api.writes) == written
    assert one.used == two.used


def test_a_rotation_over_its_whole_length_is_trusted_at_every_moment(api: Api) -> None:
    """One replica looks often, the other once a day."""
    often, rarely = Replica(api), Replica(api)
    for hour in range(0, 24 * 200, 6):
        often.look(days=hour / 24)
        if hour % 24 == 0:
            rarely.look(days=hour / 24)
        (trusted,) = api.trusted()
        for replica in (often, rarely):
            assert replica.used[-1].certificate.decode() in trusted
            assert replica.used[-1].ends > often.now
    assert len(often.used) == 4  # days 0, 60, 120, 180
    assert often.used == rarely.used


def test_a_new_certificate_is_not_served_where_it_could_not_be_published(api: Api) -> None:
    one = Replica(api)
    one.look()
    kept = api.objects.pop(CONFIGURATIONS[1])
    api.objects[CONFIGURATIONS[1]] = {"webhooks": 3}  # cannot be read
    with pytest.raises(msgspec.ValidationError):
        one.look(days=60)
    with pytest.raises(msgspec.ValidationError):
        one.look(days=61)
    assert len(one.used) == 1
    api.objects[CONFIGURATIONS[1]] = kept
    one.look(days=61)
    assert len(one.used) == 2


def test_trust_that_somebody_took_away_is_written_again(api: Api) -> None:
    one = Replica(api)
    one.look()
    for path in CONFIGURATIONS:
        api.objects[path]["webhooks"][0]["clientConfig"]["caBundle"] = ""
    api.writes.clear()
    one.look(days=1)
    assert api.trusted() == {api.certificates()}
    assert api.writes == CONFIGURATIONS


def test_a_configuration_that_is_not_wanted_is_not_missed(api: Api) -> None:
    del api.objects[CONFIGURATIONS[0]]
    one = Replica(api)
    one.look()
    assert one.keeper.waits_for() == ""
    assert api.trusted() == {api.certificates()}


def test_it_is_not_ready_before_anybody_can_be_told_whom_to_trust(api: Api) -> None:
    made = {path: api.objects.pop(path) for path in CONFIGURATIONS}
    one = Replica(api)
    with pytest.raises(ApiError, match="NotFound"):
        one.look()
    assert one.keeper.waits_for() == "no certificate is published yet"
    api.objects |= made
    one.look()
    assert one.keeper.waits_for() == ""
    assert api.trusted() == {api.certificates()}


@pytest.mark.parametrize("data", [{"a.crt": "?", "a.key": "eA=="}, {"a.crt": "eA=="}, {}])
def test_a_mangled_secret_is_filled_again(api: Api, data: dict[str, str]) -> None:
    one = Replica(api)
    one.look()
    api.objects[SECRET]["data"] = data
    one.look(days=1)
    assert len(one.used) == 2
    assert api.trusted() == {one.used[1].certificate.decode()}


def test_a_replica_whose_certificate_ended_meanwhile_is_not_ready(api: Api) -> None:
    one = Replica(api)
    one.look()
    api.down = True
    with pytest.raises(ApiError):
        one.look(days=89)
    assert one.keeper.waits_for() == ""
    with pytest.raises(ApiError):
        one.look(days=90)
    assert one.keeper.waits_for() == "the certificate has ended"


def test_certificates_that_somebody_else_keeps_are_served_as_they_change(tmp_path: Path) -> None:
    def write(certificate: Pair, key: Pair) -> None:
        (tmp_path / "tls.crt").write_bytes(certificate.certificate)
        (tmp_path / "tls.key").write_bytes(key.key)

    first, second = (make_pair({"x.example"}, datetime.now(UTC), Lifetime()) for _ in "ab")
    used: list[Pair] = []
    keeper = FileKeeper(tmp_path, used.append)
    with pytest.raises(FileNotFoundError):
        keeper.look()
    assert keeper.waits_for()
    write(first, first)
    keeper.look()
    keeper.look()
    write(second, first)
    with pytest.raises(ValueError, match="not of one key"):
        keeper.look()
    assert (used, keeper.waits_for()) == ([first], "")
    write(second, second)
    keeper.look()
    assert used == [first, second]


def test_its_thread_goes_on_whatever_happens(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    api.down = True
    served = Event()
    keeper = SecretKeeper(
        api,
        secret=("kube-system", "linkwise-webhook"),
        configuration="linkwise",
        hosts=["x.example"],
        lifetime=Lifetime(10.0),
        use=lambda _: served.set(),
    )
    keeper.start()
    try:
        wait_for_text(caplog, "Unreachable: GET")
        assert keeper.alive
        api.before_put = lambda: Replica(api).look()
        api.down = False
        assert served.wait(60)
    finally:
        keeper.stop()
    assert not keeper.alive


def wait_for_text(caplog: pytest.LogCaptureFixture, text: str) -> None:
    ends = time.monotonic() + 10
    while text not in caplog.text:
        assert time.monotonic() < ends, caplog.text
        time.sleep(0.01)
