"""How the API server takes objects in, refuses them, changes them and lists them."""

from typing import Any

import pytest

from tests.contract.api_world import JSON_PATCH, MERGE, NODES, STRATEGIC, Api, names, version_of

WORKER = {"metadata": {"name": "w"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}


# Creation


def test_a_new_pod_is_pending_with_the_defaults_of_the_api(api: Api) -> None:
    limits = {"nvidia.com/gpu": 4, "cpu": 8}
    main = {"name": "main", "image": "x", "resources": {"limits": limits, "requests": {"cpu": 2}}}
    made = api.pod("w", containers=[main], metadata={"uid": "mine"})
    assert (made["kind"], made["apiVersion"]) == ("Pod", "v1")
    assert made["metadata"]["namespace"] == api.namespace
    assert made["metadata"]["uid"] not in ("", "mine")
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert made["status"]["phase"] == "Pending"
    assert "nodeName" not in made["spec"]
    expected = {"schedulerName": "default-scheduler", "restartPolicy": "Always"}
    assert made["spec"].items() >= (expected | {"terminationGracePeriodSeconds": 30}).items()
    assert made["spec"]["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": "4", "cpu": "8"},
        "requests": {"nvidia.com/gpu": "4", "cpu": "2"},
    }


def test_a_status_sent_with_a_new_pod_is_put_aside_but_a_node_keeps_its_own(api: Api) -> None:
    sent = WORKER | {"status": {"phase": "Running", "nominatedNodeName": "n1"}}
    made = api.ask("POST", api.pods, sent).object
    assert made["status"]["phase"] == "Pending"
    assert "nominatedNodeName" not in made["status"]
    node = api.node("n1", capacity={"nvidia.com/gpu": 8})
    assert node["status"]["capacity"] == {"nvidia.com/gpu": "8"}
    assert node["status"]["allocatable"] == {"nvidia.com/gpu": "8"}


def test_a_generated_name_is_the_prefix_and_five_characters(api: Api) -> None:
    sent = WORKER | {"metadata": {"generateName": "w-"}}
    made = [api.ask("POST", api.pods, sent).object["metadata"] for _ in range(3)]
    assert len({metadata["name"] for metadata in made}) == 3
    assert all(m["name"].startswith("w-") and len(m["name"]) == 7 for m in made)
    assert {metadata["generateName"] for metadata in made} == {"w-"}


def test_a_name_is_taken_once(api: Api) -> None:
    api.pod("w")
    again = api.ask("POST", api.pods, WORKER)
    assert again.refusal == (409, "AlreadyExists")
    assert again.body["message"] == 'pods "w" already exists'


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        (b"{", 400, "BadRequest"),
        ({"metadata": {"name": "w"}}, 422, "Invalid"),
        ({"metadata": {}}, 422, "Invalid"),
        (WORKER | {"spec": {"containers": [{"image": "x"}]}}, 422, "Invalid"),
        (WORKER | {"metadata": {"name": "W"}}, 422, "Invalid"),
        (WORKER | {"metadata": {"name": "w", "namespace": "other"}}, 400, "BadRequest"),
        (WORKER | {"metadata": {"name": "w", "annotations": {"rank": 1}}}, 400, "BadRequest"),
        (WORKER | {"metadata": {"name": "w", "labels": {"a": "b c"}}}, 422, "Invalid"),
        (WORKER | {"kind": "Node", "apiVersion": "v1"}, 400, "BadRequest"),
    ],
    ids=[
        "json",
        "containers",
        "name",
        "container",
        "Name",
        "namespace",
        "annotation",
        "label",
        "kind",
    ],
)
def test_what_is_no_pod_is_refused(api: Api, body: Any, code: int, reason: str) -> None:
    assert api.ask("POST", api.pods, body).refusal == (code, reason)


def test_an_object_that_has_a_version_cannot_be_created(api: Api) -> None:
    made = api.pod("w")
    copy = WORKER | {"metadata": {"name": "v", "resourceVersion": version_of(made)}}
    assert api.ask("POST", api.pods, copy).status == 500


@pytest.mark.parametrize(
    ("method", "path", "code", "reason"),
    [
        ("GET", "/api/v1/none", 404, "NotFound"),
        ("GET", "/api/v1/nodes/n1/binding", 404, "NotFound"),
        ("POST", "/api/v1/nodes/n1", 405, "MethodNotAllowed"),
        ("DELETE", "/api/v1/pods", 405, "MethodNotAllowed"),
    ],
)
def test_what_there_is_no_way_to_is_refused(
    api: Api, method: str, path: str, code: int, reason: str
) -> None:
    body = WORKER if method == "POST" else None
    answer = api.ask(method, path, body)
    assert answer.status == code
    assert answer.refusal == (code, reason)


# What is not there


def test_what_is_not_there_is_named(api: Api) -> None:
    absent = f"{api.pods}/absent"
    patch = {"metadata": {"labels": {"a": "1"}}}
    binding = {"metadata": {"name": "absent"}, "target": {"kind": "Node", "name": "n1"}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "absent"}}
    for answer in (
        api.ask("GET", absent),
        api.ask("DELETE", absent),
        api.patch(absent, patch),
        api.patch(f"{absent}/status", patch),
        api.ask("POST", f"{absent}/binding", binding),
        api.ask("POST", f"{absent}/eviction", eviction),
    ):
        assert answer.refusal == (404, "NotFound")
        assert answer.body["message"] == 'pods "absent" not found'
        assert answer.body["details"] == {"name": "absent", "kind": "pods"}
    node = api.ask("GET", f"{NODES}/{api.node_name('absent')}")
    assert node.body["message"] == f'nodes "{api.node_name("absent")}" not found'


# Versions


def test_a_change_of_nothing_makes_no_new_version(api: Api) -> None:
    api.pod("w")
    patch = {"metadata": {"labels": {"a": "1"}}}
    changed = api.patch(f"{api.pods}/w", patch).object
    again = api.patch(f"{api.pods}/w", patch).object
    assert version_of(again) == version_of(changed)


def test_a_replacement_of_an_old_version_is_a_conflict(api: Api) -> None:
    first = api.pod("w")
    second = api.patch(f"{api.pods}/w", {"metadata": {"labels": {"a": "1"}}}).object
    assert int(version_of(second)) > int(version_of(first))
    answer = api.ask("PUT", f"{api.pods}/w", first)
    assert answer.refusal == (409, "Conflict")
    assert answer.body["message"] == (
        'Operation cannot be fulfilled on pods "w": the object has been modified; please apply '
        "your changes to the latest version and try again"
    )
    second["metadata"]["labels"]["a"] = "2"
    replaced = api.ask("PUT", f"{api.pods}/w", second).object
    del replaced["metadata"]["resourceVersion"]
    replaced["metadata"]["labels"]["a"] = "3"
    assert api.ask("PUT", f"{api.pods}/w", replaced).object["metadata"]["labels"] == {"a": "3"}


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_a_patch_for_another_version_is_a_conflict_and_for_another_uid_invalid(
    api: Api, subresource: str
) -> None:
    """The API server has no preconditions for a patch: a uid is a field that may not change."""
    api.pod("w")
    path = f"{api.pods}/w{subresource}"
    labels = {"labels": {"a": "1"}}
    old = api.patch(path, {"metadata": {"resourceVersion": "1", **labels}})
    assert old.refusal == (409, "Conflict")
    other = api.patch(path, {"metadata": {"uid": "another", **labels}})
    assert other.refusal == (422, "Invalid")
    assert other.body["message"] == (
        'Pod "w" is invalid: metadata.uid: Invalid value: "another": field is immutable'
    )
    assert "labels" not in api.get(f"{api.pods}/w")["metadata"]


def test_a_replacement_for_another_uid_is_a_conflict(api: Api) -> None:
    made = api.pod("w")
    made["metadata"] |= {"uid": "another"}
    answer = api.ask("PUT", f"{api.pods}/w", made)
    assert answer.refusal == (409, "Conflict")
    assert "Precondition failed: UID in precondition: another, UID in" in answer.body["message"]


def test_a_patch_that_names_the_uid_it_is_for_is_done(api: Api) -> None:
    made = api.pod("w")
    patch = {"metadata": {"uid": made["metadata"]["uid"], "labels": {"a": "1"}}}
    assert api.patch(f"{api.pods}/w", patch).object["metadata"]["labels"] == {"a": "1"}


# Patches


def test_a_merge_patch_adds_changes_and_takes_away(api: Api) -> None:
    api.pod("w", metadata={"annotations": {"a": "1", "b": "1", "c": "1"}})
    patch = {"metadata": {"annotations": {"a": "2", "b": None, "d": "1", "absent": None}}}
    changed = api.patch(f"{api.pods}/w", patch).object
    assert changed["metadata"]["annotations"] == {"a": "2", "c": "1", "d": "1"}
    gone = api.patch(f"{api.pods}/w", {"metadata": {"annotations": None}}).object
    assert "annotations" not in gone["metadata"]


def test_an_annotation_that_is_no_text_is_refused(api: Api) -> None:
    api.pod("w")
    answer = api.patch(f"{api.pods}/w", {"metadata": {"annotations": {"rank": 1}}})
    assert answer.refusal == (422, "Invalid")
    assert "annotations" not in api.get(f"{api.pods}/w")["metadata"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "x" * 64}},
        {"annotations": {"a/b/c": ""}},
        {"annotations": {"a": "x" * (257 << 10)}},
    ],
    ids=["label", "key", "size"],
)
def test_labels_and_annotations_that_kubernetes_forbids_are_refused(
    api: Api, metadata: dict[str, Any]
) -> None:
    api.pod("w")
    assert api.patch(f"{api.pods}/w", {"metadata": metadata}).refusal == (422, "Invalid")


def test_annotations_may_be_a_quarter_of_a_mebibyte(api: Api) -> None:
    api.node("n1")
    patch = {"metadata": {"annotations": {"a": "x" * ((256 << 10) - 1)}}}
    path = f"{NODES}/{api.node_name('n1')}"
    assert api.patch(path, patch).status == 200
    assert api.patch(path, {"metadata": {"annotations": {"b": ""}}}).refusal == (422, "Invalid")


def test_a_strategic_patch_merges_conditions_by_type_and_a_merge_patch_replaces_them(
    api: Api,
) -> None:
    api.pod("w")

    def kinds(patch: list[dict[str, str]], content_type: str) -> set[str]:
        body = {"status": {"conditions": patch}}
        status = api.patch(f"{api.pods}/w/status", body, content_type).object["status"]
        return {f"{c['type']}={c['status']}" for c in status["conditions"]}

    ready = [{"type": "Ready", "status": "False"}]
    scheduled = [{"type": "PodScheduled", "status": "False"}]
    assert kinds(scheduled, STRATEGIC) == {"PodScheduled=False"}
    assert kinds(ready, STRATEGIC) == {"PodScheduled=False", "Ready=False"}
    assert kinds([{"type": "PodScheduled", "$patch": "delete"}], STRATEGIC) == {"Ready=False"}
    assert kinds(scheduled, MERGE) == {"PodScheduled=False"}


def test_a_json_patch_goes_step_by_step_and_a_failed_test_changes_nothing(api: Api) -> None:
    api.pod("w")
    steps = [
        {"op": "add", "path": "/metadata/labels", "value": {"a/b": "1"}},
        {"op": "test", "path": "/metadata/labels/a~1b", "value": "1"},
        {"op": "add", "path": "/metadata/labels/c", "value": "2"},
    ]
    changed = api.patch(f"{api.pods}/w", steps, JSON_PATCH).object
    assert changed["metadata"]["labels"] == {"a/b": "1", "c": "2"}
    for failing in (
        {"op": "test", "path": "/metadata/name", "value": "another"},
        {"op": "remove", "path": "/metadata/absent"},
    ):
        steps = [{"op": "remove", "path": "/metadata/labels"}, failing]
        assert api.patch(f"{api.pods}/w", steps, JSON_PATCH).refusal == (422, "Invalid")
    assert version_of(api.get(f"{api.pods}/w")) == version_of(changed)


def test_an_unknown_patch_format_is_refused(api: Api) -> None:
    api.pod("w")
    answer = api.patch(f"{api.pods}/w", {}, "application/json")
    assert answer.refusal == (415, "UnsupportedMediaType")


def test_a_name_cannot_be_changed(api: Api) -> None:
    api.pod("w")
    answer = api.patch(f"{api.pods}/w", {"metadata": {"name": "v"}})
    assert answer.refusal == (400, "BadRequest")


# Lists


def test_a_list_has_its_kind_and_a_version_and_goes_by_name(api: Api) -> None:
    empty = api.get(api.pods)
    assert empty["items"] == []
    for name in ("b", "a", "a-1", "ab"):
        api.pod(name)
    listed = api.get(api.pods)
    assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
    assert names(listed) == ["a", "a-1", "ab", "b"]
    assert int(version_of(listed)) >= max(int(version_of(item)) for item in listed["items"])


def test_the_pages_of_a_list_are_of_one_moment(api: Api) -> None:
    for name in ("a", "b", "c", "d", "e"):
        api.pod(name)
    first = api.query(api.pods, limit=2).object
    assert names(first) == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    api.ask("DELETE", f"{api.pods}/d")
    api.pod("c-1")
    token = first["metadata"]["continue"]
    second = api.query(api.pods, **{"limit": 2, "continue": token}).object
    again = api.query(api.pods, **{"limit": 2, "continue": token}).object
    assert names(second) == names(again) == ["c", "d"]
    assert version_of(second) == version_of(first)
    rest = {"limit": 2, "continue": second["metadata"]["continue"]}
    last = api.query(api.pods, **rest).object
    assert names(last) == ["e"]
    assert not last["metadata"].get("continue")


def test_a_page_of_a_selection_does_not_count_the_rest(api: Api) -> None:
    for name in ("a", "b"):
        api.pod(name)
    listed = api.query(api.pods, limit=1, labelSelector="!absent").object
    assert listed["metadata"]["continue"]
    assert "remainingItemCount" not in listed["metadata"]


def test_a_page_that_waited_too_long_is_expired(api: Api) -> None:
    for name in ("a", "b"):
        api.pod(name)
    first = api.query(api.pods, limit=1).object
    api.forget_history()
    rest = {"limit": 1, "continue": first["metadata"]["continue"]}
    assert api.query(api.pods, **rest).refusal == (410, "Expired")


def test_a_token_that_is_none_is_refused(api: Api) -> None:
    assert api.query(api.pods, **{"limit": 1, "continue": "x"}).refusal == (400, "BadRequest")


@pytest.mark.parametrize(
    "query",
    [{"limit": "many"}, {"labelSelector": "a of (b)"}, {"fieldSelector": "metadata.name"}],
)
def test_a_query_that_does_not_parse_is_refused(api: Api, query: dict[str, object]) -> None:
    assert api.query(api.pods, **query).refusal == (400, "BadRequest")


def test_fields_that_can_be_selected_by(api: Api) -> None:
    api.pod("here", nodeName=api.node_name("n1"))
    api.pod("there", nodeName=api.node_name("n2"))
    api.pod("nowhere")

    def selected(selector: str) -> list[str]:
        return names(api.query(api.pods, fieldSelector=selector).object)

    assert selected(f"spec.nodeName={api.node_name('n1')}") == ["here"]
    assert selected("spec.nodeName=") == ["nowhere"]
    assert selected("spec.nodeName!=") == ["here", "there"]
    assert selected("metadata.name=there,status.phase=Pending") == ["there"]
    assert selected("status.phase!=Pending") == []
    answer = api.query(api.pods, fieldSelector="spec.colour=red")
    assert answer.refusal == (400, "BadRequest")
    assert "field label not supported: spec.colour" in answer.body["message"]


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("app=a", ["a"]),
        ("app!=a", ["b", "none"]),
        ("app in (a, b)", ["a", "b"]),
        ("app notin (b)", ["a", "none"]),
        ("app", ["a", "b"]),
        ("!app", ["none"]),
        ("app==a", ["a"]),
        ("tier!=x", ["a", "b", "none"]),
        ("app in (a, b),tier", []),
    ],
)
def test_labels_that_can_be_selected_by(api: Api, selector: str, selected: list[str]) -> None:
    api.pod("none")
    for label in ("a", "b"):
        api.pod(label, metadata={"labels": {"app": label}})
    assert names(api.query(api.pods, labelSelector=selector).object) == selected


# Events


def test_an_event_is_of_the_namespace_of_what_it_is_about(api: Api) -> None:
    made = api.pod("w")

    def event(namespace: str) -> dict[str, Any]:
        about = {"kind": "Pod", "namespace": namespace, "name": "w", "uid": made["metadata"]["uid"]}
        return {
            "metadata": {"generateName": "w.", "namespace": api.namespace},
            "involvedObject": about,
            "reason": "Planned",
            "message": "on n1",
            "type": "Normal",
            "count": 1,
        }

    path = f"/api/v1/namespaces/{api.namespace}/events"
    assert api.ask("POST", path, event(api.namespace)).status == 201
    assert api.ask("POST", path, event("other")).refusal == (422, "Invalid")
    told = api.query(path, fieldSelector="involvedObject.name=w").object
    assert [item["reason"] for item in told["items"]] == ["Planned"]
