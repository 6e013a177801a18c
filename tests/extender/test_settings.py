"""What may be set, and how a wrong setting is named."""

from typing import Any

import pytest

from linkwise.extender.next.core_settings import MovePolicy
from linkwise.extender.run.settings import Settings, SettingsError
from linkwise.kube.lease import Timing
from linkwise.pods.durations import seconds_of
from linkwise.serving.certificates.pairs import Lifetime


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("1h30m", 5400),
        ("90s", 90),
        ("1h0m1s", 3601),
        ("0s", 0),
        ("250ms", 0.25),
        ("1m5ms", 60.005),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "1.5h", "-1m", "1m1h", "10 m", "١m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration like 10m, 1h30m or 90s"):
        seconds_of(text)


def test_a_duration_is_a_year_at_most() -> None:
    assert seconds_of("8760h") == 365 * 86400
    with pytest.raises(ValueError, match="expected at most 8760h"):
        seconds_of("8760h1s")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"resource_names": ("gpu",)}, "--resource-name gpu: expected like nvidia.com/gpu"),
        ({"resource_names": ("nvidia.com/",)}, "--resource-name nvidia.com/: expected like"),
        ({"resource_names": ()}, "--resource-name : expected each resource once"),
        (
            {"resource_names": ("amd.com/gpu", "amd.com/gpu")},
            "--resource-name amd.com/gpu, amd.com/gpu: expected each resource once",
        ),
        ({"api_server": "localhost:80"}, "--api-server localhost:80: expected a URL"),
        ({"listen_port": 65536}, "--listen-port 65536: expected 0 to 65535"),
        ({"gang_timeout_seconds": 0.0}, "--gang-timeout 0.0: expected more than 0 seconds"),
        ({"reclaim_idle": (("ML", 60.0),)}, "--reclaim-idle ML=60s: expected each namespace once"),
        ({"reclaim_idle": (("ml", 0.0),)}, "--reclaim-idle ml=0s: expected each namespace once"),
        (
            {"reclaim_idle": (("ml", 60.0), ("ml", 90.0))},
            "--reclaim-idle ml=90s: expected each namespace once, and more than 0 seconds",
        ),
        ({"span_levels": ("rack", "node")}, "--span-levels node: expected clique or the key of a"),
        ({"span_levels": ("a/b/c",)}, "--span-levels a/b/c: expected clique or the key of a node"),
        (
            {"timing": Timing(15, 10, 0)},
            "--retry-period 0: expected more than 0 seconds",
        ),
        (
            {"timing": Timing(15, 3, 2)},
            "--renew-deadline 3: expected at least twice --retry-period 2",
        ),
        (
            {"timing": Timing(12, 10, 2)},
            "--lease-duration 12: expected at least 1.25 times --renew-deadline 10",
        ),
        ({"service": "s"}, "--pod-name None: expected a name, where --service is given"),
        ({"service": "s", "pod_name": "p"}, "--pod-ip None: expected an IP address of this"),
        (
            {"service": "s", "pod_name": "p", "pod_ip": "here"},
            "--pod-ip here: expected an IP address of this",
        ),
        ({"plain_http": True}, "--plain-http True: expected with a --listen-address that only"),
        (
            {"plain_http": True, "listen_address": "10.0.0.1"},
            "--plain-http True: expected with a --listen-address that only this machine reaches",
        ),
        ({"callers": ()}, "--caller : expected a name"),
        (
            {"callers": ("a", "b"), "caller_secret": ("gpu", "scheduler")},
            "--caller a, b: expected one, where --caller-secret is given",
        ),
        ({"hosts": ()}, "--host : expected a name or an address"),
        (
            {"certificate_lifetime": Lifetime(9.0)},
            "--certificate-lifetime 9.0: expected 10 seconds or more",
        ),
        (
            {"call_timeout_seconds": 12.9},
            "--call-timeout 12.9: expected 13 seconds or more, else members of a gang do not meet",
        ),
        ({"status_port": 9402}, "--status-port 9402: expected another than --listen-port"),
        ({"max_refusals": 0}, "--max-refusals 0: expected 1 or more"),
        ({"lift_gates_after_seconds": 0.0}, "--lift-gates-after 0.0: expected more than 0 seconds"),
        (
            {"moves": MovePolicy(namespaces=(("A_b", 0.0),))},
            "--movable-namespace A_b: expected the name of a namespace",
        ),
        (
            {"moves": MovePolicy(whole_nodes=3)},
            "--whole-nodes 3: expected 0, unless --moves is consent or advise",
        ),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings(**wrong)

    assert str(refused.value).startswith(text)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_plain_http_is_for_this_machine_alone(address: str) -> None:
    assert Settings(plain_http=True, listen_address=address).plain_http


def test_mig_resources_are_names_too() -> None:
    names = ("nvidia.com/mig-1g.5gb",)
    assert Settings(resource_names=names).resource_names == names
