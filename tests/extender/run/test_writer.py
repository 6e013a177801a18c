"""Each decision is one write that the API server takes whole, or refuses for a pod's successor."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.writer import Writer
from linkwise.extender.state.actions import (
    Action,
    Correct,
    CreateClaim,
    DropClaim,
    Emit,
    EventType,
    Evict,
    MarkStarted,
    PodRef,
    WithdrawPlan,
    WritePlan,
)
from linkwise.extender.state.extender_calls import BindOrder, Outcome
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names

PODS = "/api/v1/namespaces/ml/pods"


@pytest.fixture(scope="module")
def running() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def server(running: ApiServer, client: KubeClient) -> Iterator[ApiServer]:
    yield running
    running.clear_faults()
    for pod in client.get(PODS, dict[str, Any])["items"]:
        client.delete(f"{PODS}/{pod['metadata']['name']}", grace_seconds=0)


@pytest.fixture
def client(running: ApiServer) -> KubeClient:
    return KubeClient.load(kubeconfig=None, server=running.url)


@pytest.fixture
def metrics() -> ExtenderMetrics:
    return ExtenderMetrics()


@pytest.fixture
def actions(client: KubeClient, metrics: ExtenderMetrics) -> Writer:
    return Writer(client, metrics, clock=lambda: 1_800_000_000.0)


@pytest.fixture
def pod(server: ApiServer, client: KubeClient) -> PodRef:
    assert server.url
    return create(client, "w-0")


def create(client: KubeClient, name: str) -> PodRef:
    container = {"name": "main", "image": "x"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"theirs": "kept"}},
        "spec": {"containers": [container]},
    }
    client.post(PODS, body)
    return PodRef("ml", name, read(client, name)["metadata"]["uid"])


def read(client: KubeClient, name: str) -> dict[str, Any]:
    return client.get(f"{PODS}/{name}", dict[str, Any])


def plan_of(pod: PodRef) -> WritePlan:
    return WritePlan(pod, "n1", {names.GPUS: '{"main":["GPU-a"]}', names.PLAN: "{}"})


def done(metrics: ExtenderMetrics, kind: str, outcome: str) -> float:
    labels = {"action": kind, "outcome": outcome}
    return metrics.registry.get_sample_value("linkwise_extender_actions_total", labels) or 0.0


def test_a_plan_is_annotations_and_nomination_in_one_write(
    server: ApiServer, client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    before = server.requests().get("PATCH pods/status", 0)

    assert actions.perform(plan_of(pod)) is Outcome.DONE

    found = read(client, "w-0")
    assert found["status"]["nominatedNodeName"] == "n1"
    assert found["metadata"]["annotations"] == {
        "theirs": "kept",
        names.GPUS: '{"main":["GPU-a"]}',
        names.PLAN: "{}",
    }
    assert server.requests()["PATCH pods/status"] == before + 1


def test_a_plan_may_remove_what_kube_scheduler_said_of_the_one_before(
    server: ApiServer, client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    told = [{"type": kind, "status": "False"} for kind in ("PodScheduled", "Other")]
    client.patch(f"{PODS}/w-0/status", {"status": {"conditions": told}})
    before = server.requests().get("PATCH pods/status", 0)

    assert actions.perform(replace(plan_of(pod), unsays=True)) is Outcome.DONE

    found = read(client, "w-0")
    assert found["status"]["conditions"] == told[1:]
    assert found["status"]["nominatedNodeName"] == "n1"
    assert found["metadata"]["annotations"]["theirs"] == "kept"
    assert found["metadata"]["annotations"][names.PLAN] == "{}"
    assert server.requests()["PATCH pods/status"] == before + 1


def test_a_withdrawn_plan_leaves_nothing_behind(
    client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    actions.perform(plan_of(pod))

    assert actions.perform(WithdrawPlan(pod, (names.GPUS, names.PLAN))) is Outcome.DONE

    found = read(client, "w-0")
    assert "nominatedNodeName" not in found["status"]
    assert found["metadata"]["annotations"] == {"theirs": "kept"}


@pytest.mark.parametrize("kind", [Correct, MarkStarted])
def test_annotations_of_a_running_pod_change_and_nothing_else(
    kind: type[Correct | MarkStarted], client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    before = read(client, "w-0")

    assert actions.perform(kind(pod, {names.STARTED: "true"})) is Outcome.DONE

    found = read(client, "w-0")
    assert found["metadata"]["annotations"] == {"theirs": "kept", names.STARTED: "true"}
    assert (found["spec"], found["status"]) == (before["spec"], before["status"])


def events_of(client: KubeClient, pod: PodRef) -> list[dict[str, Any]]:
    found = client.get("/api/v1/namespaces/ml/events", dict[str, Any])["items"]
    return [event for event in found if event["involvedObject"]["uid"] == pod.uid]


def test_an_event_whose_answer_was_lost_is_there_once(
    server: ApiServer, client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    server.fail_next("POST", "/events", 0, carry_out=True)

    assert actions.perform(Emit(pod, "GpuSwap", EventType.WARNING, "got b")) is Outcome.DONE

    assert len(events_of(client, pod)) == 1


def test_an_event_that_is_told_again_is_the_same_with_a_new_time(
    client: KubeClient, metrics: ExtenderMetrics, pod: PodRef
) -> None:
    """Also by the process that comes after this one."""
    told = Emit(pod, "GangWaiting", EventType.WARNING, "no room")
    for number in range(2):
        actions = Writer(client, metrics, partial(float, 1_800_000_000 + 3600 * number))
        assert actions.perform(told) is Outcome.DONE

    (event,) = events_of(client, pod)
    assert event["firstTimestamp"] == "2027-01-15T08:00:00Z"
    assert event["lastTimestamp"] == "2027-01-15T09:00:00Z"


def test_what_is_told_otherwise_or_of_another_pod_is_another_event(
    client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    other = PodRef(pod.namespace, pod.name, "uid-of-another-pod")
    for told in (
        Emit(pod, "GangWaiting", EventType.WARNING, "no room"),
        Emit(pod, "GangWaiting", EventType.WARNING, "members are missing"),
        Emit(pod, "GangExpired", EventType.WARNING, "no room"),
        Emit(other, "GangWaiting", EventType.WARNING, "no room"),
    ):
        assert actions.perform(told) is Outcome.DONE

    assert len(events_of(client, pod)) == 3
    assert len(events_of(client, other)) == 1


def test_an_event_is_about_its_pod(client: KubeClient, actions: Writer, pod: PodRef) -> None:
    told = Emit(pod, "GpuSwap", EventType.WARNING, "got GPU-b for GPU-a" + "!" * 2000)

    assert actions.perform(told) is Outcome.DONE

    (event,) = events_of(client, pod)
    assert (event["reason"], event["type"], event["count"]) == ("GpuSwap", "Warning", 1)
    assert event["message"].startswith("got GPU-b for GPU-a")
    assert len(event["message"]) == 1024
    assert event["lastTimestamp"] == "2027-01-15T08:00:00Z"


def test_an_evicted_pod_goes(client: KubeClient, actions: Writer, pod: PodRef) -> None:
    assert actions.perform(Evict(pod, "its gang is partial")) is Outcome.DONE

    with pytest.raises(ApiError, match="404"):
        read(client, "w-0")


@pytest.mark.parametrize(
    "action",
    [
        lambda pod: plan_of(pod),
        lambda pod: WithdrawPlan(pod, (names.GPUS,)),
        lambda pod: Correct(pod, {names.GPUS: "{}"}),
        lambda pod: Evict(pod, "its gang is partial"),
    ],
)
def test_a_pod_created_again_under_the_same_name_is_left_alone(
    action: Any, client: KubeClient, actions: Writer, pod: PodRef, metrics: ExtenderMetrics
) -> None:
    client.delete(f"{PODS}/w-0", grace_seconds=0)
    create(client, "w-0")
    before = read(client, "w-0")
    meant_for_the_first: Action = action(pod)

    assert actions.perform(meant_for_the_first) is Outcome.REFUSED

    assert read(client, "w-0") == before
    assert done(metrics, type(meant_for_the_first).__name__, "refused") == 1


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(429, Outcome.UNKNOWN), (500, Outcome.REFUSED), (503, Outcome.UNKNOWN), (0, Outcome.UNKNOWN)],
)
def test_an_eviction_that_is_answered_500_again_and_again_is_refused(
    status: int, outcome: Outcome, server: ApiServer, actions: Writer, pod: PodRef
) -> None:
    """As for a pod under two PodDisruptionBudgets."""
    server.fail_next("POST", "/eviction", status, times=99)
    assert actions.perform(Evict(pod, "it makes room")) is outcome
    server.clear_faults()
    assert actions.perform(Evict(pod, "it makes room")) is Outcome.DONE


def test_a_pod_that_is_gone_refuses(client: KubeClient, actions: Writer, pod: PodRef) -> None:
    client.delete(f"{PODS}/w-0", grace_seconds=0)

    assert actions.perform(plan_of(pod)) is Outcome.REFUSED


@pytest.mark.parametrize("fate", ["gone", "replaced", "bound"])
def test_a_plan_that_comes_too_late_is_no_cause_for_a_warning(
    fate: str,
    client: KubeClient,
    actions: Writer,
    pod: PodRef,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if fate == "bound":
        actions.bind(BindOrder("ml", "w-0", pod.uid, "n2", {}))
    else:
        client.delete(f"{PODS}/w-0", grace_seconds=0)
    if fate == "replaced":
        create(client, "w-0")

    assert actions.perform(plan_of(pod)) is Outcome.REFUSED

    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("status", [0, 429, 503])
def test_a_write_is_tried_again_while_the_api_server_is_busy(
    status: int, server: ApiServer, client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    server.fail_next("PATCH", "/status", status, times=2)

    assert actions.perform(plan_of(pod)) is Outcome.DONE
    assert read(client, "w-0")["status"]["nominatedNodeName"] == "n1"


def test_a_write_that_never_gets_through_is_unknown(
    server: ApiServer, actions: Writer, pod: PodRef, metrics: ExtenderMetrics
) -> None:
    server.fail_next("PATCH", "/status", 503, times=3)

    assert actions.perform(plan_of(pod)) is Outcome.UNKNOWN
    assert done(metrics, "WritePlan", "unknown") == 1


def test_a_binding_brings_node_and_gpus_together(
    client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    order = BindOrder("ml", "w-0", pod.uid, "n1", {names.GPUS: '{"main":["GPU-a"]}'})

    assert actions.bind(order) == (Outcome.DONE, "")

    found = read(client, "w-0")
    assert found["spec"]["nodeName"] == "n1"
    assert found["metadata"]["annotations"][names.GPUS] == '{"main":["GPU-a"]}'


@pytest.mark.parametrize(
    ("status", "carry_out", "outcome"),
    [
        (404, False, Outcome.REFUSED),
        (409, False, Outcome.REFUSED),
        (403, False, Outcome.DENIED),
        (500, True, Outcome.UNKNOWN),
        (0, True, Outcome.UNKNOWN),
    ],
)
def test_how_a_failed_binding_is_understood(
    status: int,
    carry_out: bool,
    outcome: Outcome,
    server: ApiServer,
    client: KubeClient,
    actions: Writer,
    pod: PodRef,
) -> None:
    server.fail_next("POST", "/binding", status, carry_out=carry_out)

    found, text = actions.bind(BindOrder("ml", "w-0", pod.uid, "n1", {}))

    assert found is outcome
    assert text.startswith("linkwise: binding ml/w-0 to n1: ")
    assert (read(client, "w-0")["spec"].get("nodeName") == "n1") is carry_out


@pytest.mark.parametrize(
    ("why", "outcome"),
    [
        ("context deadline exceeded", Outcome.REFUSED),
        ("paramKind kind `/v1, Kind=Lease` not yet synced to use for admission", Outcome.REFUSED),
        ("no params found for policy binding with `Deny`", Outcome.DENIED),
    ],
)
def test_what_no_policy_could_judge_is_no_denial(
    why: str, outcome: Outcome, actions: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that has just started, or is overloaded, says so as if a policy refused."""
    text = f'pods "w-0" is forbidden: denied request: failed to configure binding: {why}'

    def post(*_: object) -> None:
        raise ApiError(422, "Invalid", text)

    monkeypatch.setattr(KubeClient, "post", post)
    assert actions.bind(BindOrder("ml", "w-0", "u", "n1", {}))[0] is outcome


def test_a_plan_that_no_policy_could_judge_is_written_again(
    actions: Writer, pod: PodRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, answers = KubeClient.patch, [ApiError(422, "Invalid", "context deadline exceeded")]

    def once(client: KubeClient, *sent: Any, **more: Any) -> object:
        if answers:
            raise answers.pop()
        return patch(client, *sent, **more)

    monkeypatch.setattr(KubeClient, "patch", once)
    assert actions.perform(plan_of(pod)) is Outcome.DONE


def test_a_binding_that_was_never_sent_frees_its_gpus(metrics: ExtenderMetrics) -> None:
    unreachable = KubeClient.load(kubeconfig=None, server="http://127.0.0.1:1")

    found, text = Writer(unreachable, metrics).bind(BindOrder("ml", "w", "u", "n1", {}))

    assert found is Outcome.REFUSED
    assert "Unreachable" in text


def test_a_binding_is_for_one_pod_and_not_for_its_successor(
    client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    client.delete(f"{PODS}/w-0", grace_seconds=0)
    create(client, "w-0")

    found, _ = actions.bind(BindOrder("ml", "w-0", pod.uid, "n1", {}))

    assert found is Outcome.REFUSED
    assert "nodeName" not in read(client, "w-0")["spec"]


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims"


def claim_for(pod: PodRef, edition: str = "1.1.a") -> CreateClaim:
    name = "linkwise-0123456789abcdefghij"
    return CreateClaim(pod, name, {"main": ("GPU-1",)}, "gpu.nvidia.com", edition)


def drop_claims(client: KubeClient) -> None:
    for claim in client.get(CLAIMS, dict[str, Any])["items"]:
        client.delete(f"{CLAIMS}/{claim['metadata']['name']}")


def test_a_claim_that_is_there_already_is_done_if_it_is_for_this_plan(
    client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    drop_claims(client)
    assert actions.perform(claim_for(pod)) is Outcome.DONE
    assert actions.perform(claim_for(pod)) is Outcome.DONE  # the first answer was lost
    assert actions.perform(claim_for(pod, "1.2.b")) is Outcome.DENIED
    other = replace(claim_for(pod), pod=replace(pod, uid="other"))
    assert actions.perform(other) is Outcome.DENIED


def test_a_claim_of_that_name_by_somebody_else_denies_the_plan(
    client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    drop_claims(client)
    client.post(CLAIMS, {"metadata": {"name": claim_for(pod).name}, "spec": {}})
    assert actions.perform(claim_for(pod)) is Outcome.DENIED


def test_a_claim_is_deleted_as_it_was_seen(
    client: KubeClient, actions: Writer, pod: PodRef
) -> None:
    drop_claims(client)
    action = claim_for(pod)
    assert actions.perform(action) is Outcome.DONE
    meta = client.get(f"{CLAIMS}/{action.name}", dict[str, Any])["metadata"]
    seen = DropClaim(pod, action.name, meta["uid"], meta["resourceVersion"])
    client.patch(f"{CLAIMS}/{action.name}", {"metadata": {"labels": {"now": "changed"}}})
    assert actions.perform(seen) is Outcome.REFUSED
    meta = client.get(f"{CLAIMS}/{action.name}", dict[str, Any])["metadata"]
    assert actions.perform(replace(seen, version=meta["resourceVersion"])) is Outcome.DONE
    assert client.get(CLAIMS, dict[str, Any])["items"] == []
