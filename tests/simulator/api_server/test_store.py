"""What the stand-in's store does that no client can see or wait for, and its finer rules.

tests/contract has what it shares with the real API server, and runs against both.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from linkwise.simulator.api_server.kinds import EVENT, JOB, NODE, POD
from linkwise.simulator.api_server.patches import MERGE
from linkwise.simulator.api_server.refusals import Object, RequestRefusedError
from linkwise.simulator.api_server.selectors import read_selector
from linkwise.simulator.api_server.store import Store

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class SteppedClock:
    def __init__(self) -> None:
        self.now, self.uids = NOON, 0

    def new_uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids // 2:08d}"  # each one twice: names collide

    def pass_seconds(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)


CLOCK = SteppedClock()


def new_store(*, history_limit: int = 1000) -> Store:
    CLOCK.now = NOON
    return Store(now=lambda: CLOCK.now, new_uid=CLOCK.new_uid, history_limit=history_limit)


def pod(name: str = "w", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}]} | spec}


def store_with(*pods: Object) -> Store:
    store = new_store()
    for each in pods:
        store.create(POD, "ml", each)
    return store


def events(store: Store, since: int = 0) -> list[str]:
    changes = store.since(POD, max(since, 1))
    return [f"{change.type} {change.after.obj['metadata']['name']}" for change in changes]


def merge(store: Store, patch: Object, name: str = "w", *, status: bool = False) -> Object:
    return store.patch(POD, "ml", name, patch, MERGE, status=status).obj


def refusal(error: pytest.ExceptionInfo[RequestRefusedError]) -> tuple[int, str]:
    return error.value.code, error.value.reason


# Creation


def test_a_new_pod_has_a_priority_and_a_new_job_no_status() -> None:
    store = new_store()
    assert store.create(POD, "ml", pod()).obj["spec"]["priority"] == 0
    job = {"metadata": {"name": "j"}, "status": {"active": 3}}
    assert store.create(JOB, "ml", job).obj["status"] == {}


def test_in_the_nodes_network_a_port_is_the_nodes() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]
    body = pod(containers=[{"name": "main", "ports": ports}])
    made = new_store().create(POD, "ml", body | {"spec": {**body["spec"], "hostNetwork": True}}).obj
    assert [each["hostPort"] for each in made["spec"]["containers"][0]["ports"]] == [80, 81]


def test_label_keys_of_an_affinity_become_part_of_its_selector() -> None:
    term = {
        "topologyKey": "zone",
        "labelSelector": {"matchLabels": {"app": "web"}},
        "matchLabelKeys": ["rev", "absent"],
        "mismatchLabelKeys": ["tenant"],
    }
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    body = pod(affinity={"podAntiAffinity": required})
    body["metadata"]["labels"] = {"rev": "2", "tenant": "a"}
    made = new_store().create(POD, "ml", body).obj["spec"]["affinity"]["podAntiAffinity"]
    (merged,) = made["requiredDuringSchedulingIgnoredDuringExecution"]
    assert merged["labelSelector"] == {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "rev", "operator": "In", "values": ["2"]},
            {"key": "tenant", "operator": "NotIn", "values": ["a"]},
        ],
    }


# Updates


def test_versions_rise_over_all_kinds() -> None:
    store = new_store()
    first = store.create(POD, "ml", pod()).version
    second = store.create(NODE, "", {"metadata": {"name": "n1"}}).version
    third = store.patch(POD, "ml", "w", {"metadata": {"labels": {"a": "1"}}}, MERGE).version
    assert first < second < third == store.version


def test_tolerations_can_only_be_added() -> None:
    old, more = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}
    store = store_with(pod(tolerations=[old]))
    merge(store, {"spec": {"tolerations": [old, more]}})
    with pytest.raises(RequestRefusedError, match="existing toleration"):
        merge(store, {"spec": {"tolerations": [more]}})


# Deletion


def test_the_grace_of_a_deleted_pod_only_becomes_shorter() -> None:
    store = store_with(pod(nodeName="n1"))
    store.delete(POD, "ml", "w", grace_seconds=10)
    CLOCK.pass_seconds(2)
    store.delete(POD, "ml", "w")
    store.delete(POD, "ml", "w", grace_seconds=60)
    assert store.get(POD, "ml", "w").obj["metadata"]["deletionGracePeriodSeconds"] == 10
    store.delete(POD, "ml", "w", grace_seconds=3)
    metadata = store.get(POD, "ml", "w").obj["metadata"]
    assert metadata["deletionTimestamp"] == "2026-03-01T12:00:03Z"


def test_a_grace_below_zero_is_one_second() -> None:
    store = store_with(pod("a", nodeName="n1"), pod("b", nodeName="n1"))
    marked, _ = store.delete(POD, "ml", "a", grace_seconds=-5)
    assert marked.obj["metadata"]["deletionGracePeriodSeconds"] == 1
    store.delete(POD, "ml", "b")
    marked, _ = store.delete(POD, "ml", "b", grace_seconds=-5)
    assert marked.obj["metadata"]["deletionGracePeriodSeconds"] == 1


# Lists and history


def test_a_list_is_by_namespace_and_name() -> None:
    store = store_with(pod("b"), pod("a"))
    store.create(POD, "early", pod("z"))
    page = store.list(POD)
    assert [stored.obj["metadata"]["name"] for stored in page.items] == ["z", "a", "b"]
    assert page.version == store.version
    assert len(store.list(POD, "ml").items) == 2


def test_a_page_can_be_asked_for_again_and_the_oldest_are_forgotten_first() -> None:
    store = store_with(pod("a"), pod("b"))
    # The test's uids come in pairs, so every other list gets the token of the one before.
    tokens = [store.page(store.list(POD), limit=1).rest for _ in range(200)]
    assert store.rest_of_list(tokens[-1]) == store.rest_of_list(tokens[-1])
    with pytest.raises(RequestRefusedError, match="too old"):
        store.rest_of_list(tokens[0])


def test_history_before_a_compaction_is_expired_and_after_it_whole() -> None:
    store = store_with(pod("a"))
    before = store.version - 1
    store.compact()
    at = store.version
    store.create(POD, "ml", pod("b"))
    assert events(store, at) == ["ADDED b"]
    with pytest.raises(RequestRefusedError) as error:
        store.since(POD, before)
    assert refusal(error) == (410, "Expired")


def test_history_is_bounded() -> None:
    store = new_store(history_limit=10)
    store.create(POD, "ml", pod())
    first = store.version
    for step in range(100):
        merge(store, {"metadata": {"labels": {"step": str(step)}}})
        assert len(store.since(POD, store.version - min(step, 10))) == min(step, 10)
    with pytest.raises(RequestRefusedError, match="too old resource version"):
        store.since(POD, first)


def test_field_selectors_of_nodes_and_events() -> None:
    node = {"metadata": {"name": "n1"}, "spec": {}}
    assert read_selector(NODE, "", "spec.unschedulable=false").matches(node)
    told = {"metadata": {"name": "e"}, "involvedObject": {"name": "w"}}
    assert read_selector(EVENT, "", "involvedObject.name=w").matches(told)
