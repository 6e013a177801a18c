"""The rules of the API server that Linkwise lives by, one by one, on the store alone."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from linkwise.simulator.api_server.kinds import EVENT, JOB, NODE, POD
from linkwise.simulator.api_server.patches import JSON, MERGE, STRATEGIC
from linkwise.simulator.api_server.refusals import Object, RefusedError
from linkwise.simulator.api_server.selectors import read_selector
from linkwise.simulator.api_server.store import Store

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now, self.uids = NOON, 0

    def new_uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids // 2:08d}"  # each twice: names collide

    def pass_seconds(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)


CLOCK = Clock()


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


def binding(node: str = "n1", **metadata: Any) -> Object:
    return {"metadata": {"name": "w"} | metadata, "target": {"kind": "Node", "name": node}}


def merge(store: Store, patch: Object, name: str = "w", *, status: bool = False) -> Object:
    return store.patch(POD, "ml", name, patch, MERGE, status=status).obj


def refusal(error: pytest.ExceptionInfo[RefusedError]) -> tuple[int, str]:
    return error.value.code, error.value.reason


# Creation


def test_a_new_pod_is_pending_with_the_defaults_of_the_api() -> None:
    sent = {"limits": {"nvidia.com/gpu": 4, "cpu": 8}, "requests": {"cpu": 2}}
    main = {"name": "main", "resources": sent}
    made = new_store().create(POD, "ml", pod(containers=[main])).obj
    assert made["status"] == {"phase": "Pending"}
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    assert made["spec"]["priority"] == 0
    resources = {
        "limits": {"nvidia.com/gpu": "4", "cpu": "8"},
        "requests": {"nvidia.com/gpu": "4", "cpu": "2"},
    }
    assert made["spec"]["containers"] == [{"name": "main", "resources": resources}]
    assert made["metadata"]["creationTimestamp"] == "2026-03-01T12:00:00Z"
    assert (made["kind"], made["apiVersion"]) == ("Pod", "v1")


def test_a_status_sent_with_a_new_pod_or_job_is_put_aside_but_a_node_keeps_its_own() -> None:
    store = new_store()
    assert store.create(POD, "ml", pod() | {"status": {"phase": "Running"}}).obj["status"] == {
        "phase": "Pending"
    }
    job = {"metadata": {"name": "j"}, "status": {"active": 3}}
    assert store.create(JOB, "ml", job).obj["status"] == {}
    node = {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": 64}}}
    status = store.create(NODE, "", node).obj["status"]
    assert status == {"capacity": {"cpu": "64"}, "allocatable": {"cpu": "64"}}


def test_a_gated_pod_says_so_in_its_conditions() -> None:
    made = new_store().create(POD, "ml", pod(schedulingGates=[{"name": "linkwise.dev/plan"}])).obj
    (condition,) = made["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    assert condition["reason"] == "SchedulingGated"


def test_generated_names_differ() -> None:
    store = new_store()
    anonymous = {"metadata": {"generateName": "w-"}, "spec": {"containers": [{"name": "main"}]}}
    names = {store.create(POD, "ml", anonymous).obj["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("w-") and len(name) == 7 for name in names)


@pytest.mark.parametrize(
    ("body", "code", "part"),
    [
        ([], 400, "no JSON object"),
        ({"kind": "Node", "metadata": {"name": "w"}}, 400, "kind 'Node': expected 'Pod'"),
        ({"metadata": {}}, 400, "name or generateName is required"),
        ({"metadata": {"name": "w", "namespace": "other"}}, 400, "does not match the namespace"),
        ({"metadata": {"name": "w", "resourceVersion": "5"}}, 400, "should not be set"),
        ({"metadata": {"name": "w", "annotations": {"rank": 1}}}, 400, "of type string: rank"),
        ({"metadata": {"name": "w"}}, 422, "spec.containers: Required value"),
        (pod("W"), 422, "a lowercase RFC 1123 subdomain"),
        (pod(containers=[{}]), 422, r"spec.containers\[0\].name: Required value"),
        (pod(schedulingGates=[{"name": "g"}], nodeName="n"), 422, "cannot be set until all"),
    ],
)
def test_what_is_no_pod_is_refused_with_the_field(body: Any, code: int, part: str) -> None:
    with pytest.raises(RefusedError, match=part) as error:
        new_store().create(POD, "ml", body)
    assert error.value.code == code


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "b c"}},
        {"labels": {"a": "x" * 64}},
        {"annotations": {"a/b/c": ""}},
        {"annotations": {"a": "x" * (257 << 10)}},
    ],
)
def test_labels_and_annotations_that_kubernetes_forbids_are_refused(metadata: Object) -> None:
    store = store_with(pod())
    with pytest.raises(RefusedError) as error:
        merge(store, {"metadata": metadata})
    assert refusal(error) == (422, "Invalid")


def test_a_name_is_taken_once_per_namespace() -> None:
    store = store_with(pod())
    store.create(POD, "other", pod())
    with pytest.raises(RefusedError) as error:
        store.create(POD, "ml", pod())
    assert refusal(error) == (409, "AlreadyExists")


# Updates


def test_versions_rise_over_all_kinds() -> None:
    store = new_store()
    first = store.create(POD, "ml", pod()).version
    second = store.create(NODE, "", {"metadata": {"name": "n1"}}).version
    third = store.patch(POD, "ml", "w", {"metadata": {"labels": {"a": "1"}}}, MERGE).version
    assert first < second < third == store.version


def test_a_change_of_nothing_makes_no_version_and_no_event() -> None:
    store = store_with(pod())
    merge(store, {"metadata": {"labels": {"a": "1"}}})
    before = store.version
    merge(store, {"metadata": {"labels": {"a": "1"}}})
    store.replace(POD, "ml", "w", store.get(POD, "ml", "w").obj)
    assert store.version == before
    assert events(store) == ["ADDED w", "MODIFIED w"]


@pytest.mark.parametrize("metadata", [{"uid": "another"}, {"resourceVersion": "1"}])
def test_a_patch_for_another_uid_or_version_is_a_conflict(metadata: Object) -> None:
    store = store_with(pod())
    with pytest.raises(RefusedError) as error:
        merge(store, {"metadata": metadata | {"labels": {"a": "1"}}})
    assert refusal(error) == (409, "Conflict")
    assert "labels" not in store.get(POD, "ml", "w").obj["metadata"]


def test_an_update_leaves_the_status_and_a_status_update_the_spec() -> None:
    store = store_with(pod())
    both: Object = {"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 9}}
    assert merge(store, both)["status"] == {"phase": "Pending"}
    changed = merge(store, {"spec": {"activeDeadlineSeconds": 7}, **both}, status=True)
    assert (changed["status"], changed["spec"]["activeDeadlineSeconds"]) == (
        {"phase": "Running"},
        9,
    )


def test_a_status_update_does_not_change_the_owner() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}
    body = pod()
    body["metadata"]["ownerReferences"] = [owner]
    store = store_with(body)
    changed = merge(store, {"metadata": {"ownerReferences": []}}, status=True)
    assert changed["metadata"]["ownerReferences"] == [owner]


def test_plan_and_nomination_are_one_write_of_the_status() -> None:
    store = store_with(pod())
    patch = {
        "metadata": {"annotations": {"linkwise.dev/gpus": "{}"}},
        "status": {"nominatedNodeName": "n1"},
    }
    changed = merge(store, patch, status=True)
    assert changed["metadata"]["annotations"] == {"linkwise.dev/gpus": "{}"}
    assert changed["status"] == {"phase": "Pending", "nominatedNodeName": "n1"}
    assert events(store) == ["ADDED w", "MODIFIED w"]
    withdrawn = {"metadata": {"annotations": None}, "status": {"nominatedNodeName": None}}
    changed = merge(store, withdrawn, status=True)
    assert "annotations" not in changed["metadata"]
    assert changed["status"] == {"phase": "Pending"}


def test_a_pod_gets_its_node_by_binding_alone() -> None:
    store = store_with(pod())
    with pytest.raises(RefusedError, match="pod updates may not change fields") as error:
        merge(store, {"spec": {"nodeName": "n1"}})
    assert refusal(error) == (422, "Invalid")


def test_scheduling_gates_can_be_taken_away_and_not_added() -> None:
    store = store_with(pod(schedulingGates=[{"name": "a"}, {"name": "b"}]))
    merge(store, {"spec": {"schedulingGates": [{"name": "b"}], "nodeSelector": {"x": "y"}}})
    with pytest.raises(RefusedError, match="only deletion is allowed"):
        merge(store, {"spec": {"schedulingGates": [{"name": "b"}, {"name": "c"}]}})
    changed = merge(store, {"spec": {"schedulingGates": None}})
    assert "schedulingGates" not in changed["spec"]
    with pytest.raises(RefusedError, match="may not change"):  # once the gates are gone
        merge(store, {"spec": {"nodeSelector": {"x": "z"}}})


def test_tolerations_can_only_be_added() -> None:
    old, more = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}
    store = store_with(pod(tolerations=[old]))
    merge(store, {"spec": {"tolerations": [old, more]}})
    with pytest.raises(RefusedError, match="existing toleration"):
        merge(store, {"spec": {"tolerations": [more]}})


def test_an_unknown_patch_format_is_refused() -> None:
    with pytest.raises(RefusedError) as error:
        store_with(pod()).patch(POD, "ml", "w", {}, "application/apply-patch+yaml")
    assert refusal(error) == (415, "UnsupportedMediaType")


def test_a_strategic_patch_merges_conditions_by_type() -> None:
    store = store_with(pod())
    for kind, value in (("PodScheduled", "False"), ("Ready", "True"), ("PodScheduled", "True")):
        patch = {"status": {"conditions": [{"type": kind, "status": value}]}}
        store.patch(POD, "ml", "w", patch, STRATEGIC, status=True)
    conditions = store.get(POD, "ml", "w").obj["status"]["conditions"]
    assert {c["type"]: c["status"] for c in conditions} == {"PodScheduled": "True", "Ready": "True"}


def test_a_json_patch_goes_step_by_step_and_a_failed_test_changes_nothing() -> None:
    store = store_with(pod())
    operations = [
        {"op": "add", "path": "/metadata/labels", "value": {"a/b": "1"}},
        {"op": "test", "path": "/metadata/labels/a~1b", "value": "1"},
        {"op": "add", "path": "/metadata/labels/c", "value": "2"},
        {"op": "move", "from": "/metadata/labels/c", "path": "/metadata/labels/d"},
    ]
    changed = store.patch(POD, "ml", "w", operations, JSON).obj
    assert changed["metadata"]["labels"] == {"a/b": "1", "d": "2"}
    failing = [
        {"op": "remove", "path": "/metadata/labels"},
        {"op": "test", "path": "/metadata/name", "value": "another"},
    ]
    with pytest.raises(RefusedError) as error:
        store.patch(POD, "ml", "w", failing, JSON)
    assert error.value.code == 422
    assert store.get(POD, "ml", "w").obj == changed


# Binding


def test_a_binding_writes_node_and_annotations_in_one_update() -> None:
    store = store_with(pod())
    merge(store, {"metadata": {"annotations": {"kept": "yes", "linkwise.dev/gpus": "old"}}})
    merge(store, {"status": {"nominatedNodeName": "n1"}}, status=True)
    before = store.version
    bound = store.bind(
        "ml", "w", binding(name="w", annotations={"linkwise.dev/gpus": "{}"}, labels={"a": "1"})
    ).obj
    assert store.version == before + 1
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"kept": "yes", "linkwise.dev/gpus": "{}"}
    assert bound["metadata"]["labels"] == {"a": "1"}
    (condition,) = bound["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    assert "nominatedNodeName" not in bound["status"]


def test_a_bound_pod_stays_where_it_is() -> None:
    store = store_with(pod())
    store.bind("ml", "w", binding("n1"))
    with pytest.raises(RefusedError, match='already assigned to node "n1"') as error:
        store.bind("ml", "w", binding("n1"))
    assert refusal(error) == (409, "Conflict")


@pytest.mark.parametrize(
    ("body", "code", "part"),
    [
        (binding(uid="another"), 409, "UID in precondition: another"),
        (binding(resourceVersion="1"), 409, "ResourceVersion in precondition: 1"),
        (binding(name="other"), 400, "does not match name"),
        ({"target": {"kind": "Node", "name": "n"}}, 400, "does not match name"),
        ({"metadata": {"name": "w"}, "target": {"kind": "Node"}}, 422, "target.name: Required"),
        ({"metadata": {"name": "w"}, "target": {"kind": "Shelf", "name": "n"}}, 422, "target.kind"),
        (binding(annotations={"a": 1}), 400, "of type string"),
    ],
)
def test_a_binding_for_another_pod_is_refused(body: Object, code: int, part: str) -> None:
    store = store_with(pod())
    with pytest.raises(RefusedError, match=part) as error:
        store.bind("ml", "w", body)
    assert error.value.code == code
    assert "nodeName" not in store.get(POD, "ml", "w").obj["spec"]


def test_a_gated_pod_is_not_bound() -> None:
    store = store_with(pod(schedulingGates=[{"name": "linkwise.dev/plan"}]))
    with pytest.raises(RefusedError, match=r"non-empty \.spec\.schedulingGates"):
        store.bind("ml", "w", binding())


# Deletion


def test_a_pod_that_is_nowhere_goes_at_once() -> None:
    store = store_with(pod())
    last, gone = store.delete(POD, "ml", "w")
    assert gone
    assert last.version == store.version
    assert events(store) == ["ADDED w", "DELETED w"]
    with pytest.raises(RefusedError) as error:
        store.get(POD, "ml", "w")
    assert refusal(error) == (404, "NotFound")


def test_a_pod_on_a_node_stays_until_its_kubelet_says_so() -> None:
    store = store_with(pod(nodeName="n1"))
    marked, gone = store.delete(POD, "ml", "w")
    assert not gone
    assert marked.obj["metadata"]["deletionTimestamp"] == "2026-03-01T12:00:30Z"
    assert marked.obj["metadata"]["deletionGracePeriodSeconds"] == 30
    with pytest.raises(RefusedError, match="being deleted"):
        store.bind("ml", "w", binding())
    assert store.delete(POD, "ml", "w", grace_seconds=0)[1]
    assert events(store) == ["ADDED w", "MODIFIED w", "DELETED w"]


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


def test_a_pod_that_fails_while_it_terminates_still_waits_for_its_kubelet() -> None:
    store = store_with(pod(nodeName="n1"))
    store.delete(POD, "ml", "w")
    merge(store, {"status": {"phase": "Failed"}}, status=True)
    assert not store.delete(POD, "ml", "w")[1]


def test_a_finished_pod_goes_at_once() -> None:
    store = store_with(pod(nodeName="n1"))
    merge(store, {"status": {"phase": "Failed"}}, status=True)
    assert store.delete(POD, "ml", "w")[1]


def test_finalizers_keep_an_object_until_the_last_is_gone() -> None:
    store = new_store()
    store.create(JOB, "ml", {"metadata": {"name": "j", "finalizers": ["a"]}})
    assert not store.delete(JOB, "ml", "j")[1]
    store.patch(JOB, "ml", "j", {"metadata": {"finalizers": None}}, MERGE)
    with pytest.raises(RefusedError, match="not found"):
        store.get(JOB, "ml", "j")


@pytest.mark.parametrize("condition", [{"uid": "another"}, {"resourceVersion": "1"}])
def test_a_deletion_holds_to_its_preconditions(condition: Mapping[str, str]) -> None:
    store = store_with(pod())
    with pytest.raises(RefusedError) as error:
        store.delete(POD, "ml", "w", preconditions=condition)
    assert refusal(error) == (409, "Conflict")
    assert events(store) == ["ADDED w"]


def test_deletion_marks_cannot_be_written_by_a_client() -> None:
    store = store_with(pod(nodeName="n1"))
    store.delete(POD, "ml", "w")
    patched = merge(store, {"metadata": {"deletionTimestamp": None, "labels": {"a": "1"}}})
    assert patched["metadata"]["deletionTimestamp"] == "2026-03-01T12:00:30Z"


def test_a_deleted_node_leaves_its_pods() -> None:
    store = store_with(pod(nodeName="n1"))
    store.create(NODE, "", {"metadata": {"name": "n1"}})
    store.delete(NODE, "", "n1")
    assert store.get(POD, "ml", "w").obj["spec"]["nodeName"] == "n1"


def test_an_eviction_names_its_pod() -> None:
    with pytest.raises(RefusedError, match="does not match name in Eviction"):
        store_with(pod()).evict("ml", "w", {})


def test_an_eviction_says_so_and_deletes() -> None:
    store = store_with(pod(nodeName="n1"))
    store.evict("ml", "w", {"metadata": {"name": "w"}, "deleteOptions": {"gracePeriodSeconds": 5}})
    evicted = store.get(POD, "ml", "w").obj
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 5
    assert evicted["status"]["conditions"][0]["type"] == "DisruptionTarget"
    another = {"preconditions": {"uid": "another"}}
    with pytest.raises(RefusedError) as error:
        store.evict("ml", "w", {"metadata": {"name": "w"}, "deleteOptions": another})
    assert refusal(error) == (409, "Conflict")


# Lists and history


def test_a_list_is_by_namespace_and_name() -> None:
    store = store_with(pod("b"), pod("a"))
    store.create(POD, "early", pod("z"))
    page = store.list(POD)
    assert [stored.obj["metadata"]["name"] for stored in page.items] == ["z", "a", "b"]
    assert page.version == store.version
    assert len(store.list(POD, "ml").items) == 2


def test_the_pages_of_a_list_are_of_one_moment() -> None:
    store = store_with(pod("a"), pod("b"), pod("c"))
    first = store.page(store.list(POD), limit=2)
    store.delete(POD, "ml", "c")
    rest = store.page(store.rest_of_list(first.rest), limit=2)
    assert (len(first.items), first.remaining, len(rest.items), rest.rest) == (2, 1, 1, "")
    assert rest.version == first.version < store.version


def test_a_page_can_be_asked_for_again_and_the_oldest_are_forgotten_first() -> None:
    store = store_with(pod("a"), pod("b"))
    # The test's uids come in pairs, so every other list takes the token of the one before.
    tokens = [store.page(store.list(POD), limit=1).rest for _ in range(200)]
    assert store.rest_of_list(tokens[-1]) == store.rest_of_list(tokens[-1])
    with pytest.raises(RefusedError, match="too old"):
        store.rest_of_list(tokens[0])


def test_a_page_that_waited_too_long_is_expired() -> None:
    store = store_with(pod("a"), pod("b"))
    first = store.page(store.list(POD), limit=1)
    store.compact()
    with pytest.raises(RefusedError) as error:
        store.rest_of_list(first.rest)
    assert refusal(error) == (410, "Expired")


def test_history_before_a_compaction_is_expired_and_after_it_whole() -> None:
    store = store_with(pod("a"))
    before = store.version - 1
    store.compact()
    at = store.version
    store.create(POD, "ml", pod("b"))
    assert events(store, at) == ["ADDED b"]
    for version in (before, store.version + 1):
        with pytest.raises(RefusedError) as error:
            store.since(POD, version)
        assert refusal(error) == (410, "Expired")


def test_history_is_bounded() -> None:
    store = new_store(history_limit=10)
    store.create(POD, "ml", pod())
    first = store.version
    for step in range(100):
        merge(store, {"metadata": {"labels": {"step": str(step)}}})
        assert len(store.since(POD, store.version - min(step, 10))) == min(step, 10)
    with pytest.raises(RefusedError, match="too old resource version"):
        store.since(POD, first)


def test_a_watch_with_a_selector_sees_objects_come_and_go() -> None:
    store = new_store()
    store.create(POD, "ml", pod("a"))
    store.bind("ml", "a", binding("n1", name="a"))
    store.create(POD, "ml", pod("b", nodeName="n2"))
    merge(store, {"status": {"phase": "Running"}}, "a", status=True)
    merge(store, {"status": {"phase": "Failed"}}, "a", status=True)
    selector = read_selector(POD, "", "spec.nodeName=n1,status.phase!=Failed")
    seen = [change.seen_through("ml", selector) for change in store.since(POD, 1)]
    assert [event[0] for event in seen if event] == ["ADDED", "MODIFIED", "DELETED"]
    assert all(change.seen_through("other", selector) is None for change in store.since(POD, 1))


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("app=a", True),
        ("app==b", False),
        ("app!=b", True),
        ("tier!=x", True),
        ("app in (a, b),tier", False),
        ("app notin (b)", True),
        ("tier notin (b)", True),
        ("!tier", True),
        ("!app", False),
        ("", True),
    ],
)
def test_label_selectors(selector: str, matches: bool) -> None:
    labelled = {"metadata": {"name": "w", "labels": {"app": "a"}}}
    assert read_selector(POD, selector, "").matches(labelled) is matches


def test_field_selectors_of_nodes_and_events() -> None:
    node = {"metadata": {"name": "n1"}, "spec": {}}
    assert read_selector(NODE, "", "spec.unschedulable=false").matches(node)
    told = {"metadata": {"name": "e"}, "involvedObject": {"name": "w"}}
    assert read_selector(EVENT, "", "involvedObject.name=w").matches(told)


@pytest.mark.parametrize(
    ("labels", "fields"), [("", "spec.colour=red"), ("", "metadata.name"), ("a of (b)", "")]
)
def test_a_selector_that_does_not_parse_is_refused(labels: str, fields: str) -> None:
    with pytest.raises(RefusedError) as error:
        read_selector(POD, labels, fields)
    assert refusal(error) == (400, "BadRequest")
