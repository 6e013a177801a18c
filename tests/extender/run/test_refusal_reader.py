"""The Events that say why pods could not be created are read from the API server."""

from typing import Any

import pytest

from linkwise.extender.next.gangs.uncreated import FetchRefusals, RefusedPod
from linkwise.extender.run.reads import RefusalReads
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError

FORBIDDEN = 'pods "a-1-x7k2p" is forbidden: '
QUOTA = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8"
BEGAN = 1_000_000_000


def write(
    client: KubeClient,
    message: str,
    *,
    owner: str = "a",
    reason: str = "FailedCreate",
    kind: str = "Warning",
    at: int = 0,
) -> None:
    event: dict[str, Any] = {
        "metadata": {"generateName": f"{owner}.", "namespace": "ml"},
        "involvedObject": {
            "kind": "Job",
            "namespace": "ml",
            "name": owner,
            "uid": f"uid-of-{owner}",
        },
        "reason": reason,
        "message": message,
        "type": kind,
        "eventTime": None,
        "lastTimestamp": f"2286-11-20T17:46:{at:02}Z",
    }
    client.post("/api/v1/namespaces/ml/events", event)


def read(client: KubeClient) -> tuple[RefusedPod, ...] | None:
    return RefusalReads(client).read(FetchRefusals("ml"))


@pytest.mark.parametrize(
    ("message", "reason", "why"),
    [
        (f"Error creating: {FORBIDDEN}{QUOTA}", "FailedCreate", QUOTA),
        (f"Error creating: {FORBIDDEN}{QUOTA}", "FailedCreatePod", QUOTA),
        (
            f"create Pod w-1 in StatefulSet w failed error: {FORBIDDEN}{QUOTA}",
            "FailedCreate",
            QUOTA,
        ),
        (
            "Error creating: Internal error occurred: failed calling webhook",
            "FailedCreate",
            "Internal error occurred: failed calling webhook",
        ),
        (
            f"Failed to create worker Pod ml/ray-x, {FORBIDDEN}{QUOTA}",
            "FailedToCreateWorkerPod",
            QUOTA,
        ),
    ],
)
def test_the_words_of_who_refused_a_pod_are_read_from_each_controllers_event(
    client: KubeClient, message: str, reason: str, why: str
) -> None:
    write(client, message, reason=reason)
    (found,) = read(client) or ()
    assert found[:3] == ("Job", "a", "uid-of-a")
    assert found.why == why


def test_the_last_event_of_each_owner_counts_and_other_events_do_not(client: KubeClient) -> None:
    write(client, "Error creating: old", at=1)
    write(client, "Error creating: new", at=9)
    write(client, "Error creating: of another", owner="b", at=5)
    write(client, "0/5 nodes are available", owner="c", reason="FailedScheduling")
    write(client, "Created pod", owner="d", reason="SuccessfulCreate", kind="Normal")
    assert {each.name: each.why for each in read(client) or ()} == {"a": "new", "b": "of another"}


def test_many_events_are_read_in_pages_and_long_ones_are_cut(client: KubeClient) -> None:
    for number in range(25):
        write(client, f"Error creating: {'x' * 100_000}", owner=f"job-{number}")
    found = read(client) or ()
    assert len(found) == 25
    assert max(len(each.why) for each in found) < 3000


def test_without_the_right_or_an_answer_nothing_is_known(
    client: KubeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ApiError(403, "Forbidden", "events is forbidden")

    monkeypatch.setattr(client, "get", refuse)
    reads = RefusalReads(client)
    assert reads.read(FetchRefusals("ml")) is None
    assert reads.read(FetchRefusals("nlp")) is None
    assert caplog.text.count("no right to list Events") == 1
