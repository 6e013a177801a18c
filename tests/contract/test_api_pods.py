"""The life of a pod as far as the API server decides it: plan, gate, binding, deletion."""

from typing import Any

import pytest

from tests.contract.api_world import STRATEGIC, Api, Object, version_of

GATE = {"name": "linkwise.dev/plan"}
PLAN = {"linkwise.dev/gpus": '{"main":["GPU-1"]}', "linkwise.dev/plan": "n1"}


def condition(pod: Object, kind: str) -> Object:
    (found,) = [c for c in pod["status"].get("conditions", ()) if c["type"] == kind]
    return dict(found)


# Creation


def test_the_server_draws_the_uid_of_a_created_pod_whatever_its_manifest_says(api: Api) -> None:
    """So a decision that came with a manifest cannot name its pod."""
    wished = "8f0c6a52-3d7e-4a35-9a52-0c1f5a3b7d11"
    made = api.pod("w", metadata={"uid": wished, "annotations": PLAN})
    assert made["metadata"]["uid"] not in ("", wished)
    assert made["metadata"]["annotations"] == PLAN
    changed = api.patch(f"{api.pods}/w", {"metadata": {"uid": wished}})
    assert changed.status in (409, 422)


# Plan and nomination


def test_plan_and_nomination_are_one_write_of_the_status(api: Api) -> None:
    made = api.pod("w", metadata={"annotations": {"kept": "yes"}})
    uid = made["metadata"]["uid"]
    patch = {
        "metadata": {"uid": uid, "annotations": PLAN},
        "status": {"nominatedNodeName": "n1"},
    }
    with api.watch(api.pods, resourceVersion=version_of(made)) as events:
        planned = api.patch(f"{api.pods}/w/status", patch).object
        assert next(events)["object"] == planned
    assert planned["metadata"]["annotations"] == PLAN | {"kept": "yes"}
    assert planned["status"]["nominatedNodeName"] == "n1"
    assert planned["spec"] == made["spec"]
    withdrawn = {
        "metadata": {"uid": uid, "annotations": dict.fromkeys(PLAN)},
        "status": {"nominatedNodeName": None},
    }
    left = api.patch(f"{api.pods}/w/status", withdrawn).object
    assert left["metadata"]["annotations"] == {"kept": "yes"}
    assert "nominatedNodeName" not in left["status"]
    again = api.patch(f"{api.pods}/w/status", withdrawn).object
    assert version_of(again) == version_of(left)


def test_a_pod_can_be_nominated_to_a_node_that_does_not_exist_but_not_to_a_wrong_name(
    api: Api,
) -> None:
    api.pod("w")
    status = f"{api.pods}/w/status"
    assert api.patch(status, {"status": {"nominatedNodeName": "gone"}}).status == 200
    refused = api.patch(status, {"status": {"nominatedNodeName": "No Node"}})
    assert refused.refusal == (422, "Invalid")


def test_a_bound_pod_cannot_be_nominated_any_more(api: Api) -> None:
    """A plan that is written when kube-scheduler has just bound the pod changes nothing of it."""
    api.pod("w")
    api.bind("w", "n1")
    patch = {"metadata": {"annotations": PLAN}, "status": {"nominatedNodeName": "n2"}}
    answer = api.patch(f"{api.pods}/w/status", patch)
    assert answer.refusal == (422, "Invalid")
    assert "already bound" in answer.body["message"]
    assert "annotations" not in api.get(f"{api.pods}/w")["metadata"]
    corrected = api.patch(f"{api.pods}/w/status", {"metadata": {"annotations": PLAN}}).object
    assert corrected["metadata"]["annotations"] == PLAN


def test_an_update_leaves_the_status_and_a_status_update_the_spec(api: Api) -> None:
    api.pod("w")
    both: Object = {"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 9}}
    changed = api.patch(f"{api.pods}/w", both).object
    assert (changed["status"]["phase"], changed["spec"]["activeDeadlineSeconds"]) == ("Pending", 9)
    both["spec"] = {"activeDeadlineSeconds": 7}
    changed = api.patch(f"{api.pods}/w/status", both).object
    assert (changed["status"]["phase"], changed["spec"]["activeDeadlineSeconds"]) == ("Running", 9)


def test_a_status_update_does_not_change_the_owner(api: Api) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}
    api.pod("w", metadata={"ownerReferences": [owner]})
    changed = api.patch(f"{api.pods}/w/status", {"metadata": {"ownerReferences": []}}).object
    assert changed["metadata"]["ownerReferences"] == [owner]


# Gates


def test_a_gated_pod_says_so(api: Api) -> None:
    made = api.pod("w", schedulingGates=[GATE])
    gated = condition(made, "PodScheduled")
    assert (gated["status"], gated["reason"]) == ("False", "SchedulingGated")
    assert gated["message"] == "Scheduling is blocked due to non-empty scheduling gates"


def test_a_gated_pod_is_not_bound(api: Api) -> None:
    api.pod("w", schedulingGates=[GATE])
    answer = api.bind("w")
    assert answer.refusal == (409, "Conflict")
    assert answer.body["message"] == (
        'Operation cannot be fulfilled on pods/binding "w": pod w has non-empty '
        ".spec.schedulingGates"
    )


def test_a_gated_pod_has_no_node_from_the_start(api: Api) -> None:
    spec = {"containers": [{"name": "main", "image": "x"}], "nodeName": "n1"}
    body = {"metadata": {"name": "w"}, "spec": {**spec, "schedulingGates": [GATE]}}
    assert api.ask("POST", api.pods, body).refusal == (422, "Invalid")


def test_a_gated_pod_can_be_planned_and_let_go(api: Api) -> None:
    api.pod("w", schedulingGates=[GATE])
    plan = {"metadata": {"annotations": PLAN}, "status": {"nominatedNodeName": "n1"}}
    assert api.patch(f"{api.pods}/w/status", plan).status == 200
    let_go = api.patch(f"{api.pods}/w", {"spec": {"schedulingGates": None}}).object
    assert "schedulingGates" not in let_go["spec"]
    assert let_go["status"]["nominatedNodeName"] == "n1"
    # That it waits for its gate stays in its conditions, until a scheduler says otherwise.
    assert condition(let_go, "PodScheduled")["reason"] == "SchedulingGated"
    assert api.bind("w").status == 201


@pytest.mark.parametrize(
    ("content_type", "gates"),
    [
        ("application/merge-patch+json", [{"name": "other"}]),
        (STRATEGIC, [{"name": GATE["name"], "$patch": "delete"}]),
    ],
)
def test_one_gate_of_several_can_be_taken_away(
    api: Api, content_type: str, gates: list[dict[str, str]]
) -> None:
    api.pod("w", schedulingGates=[GATE, {"name": "other"}])
    patch = {"spec": {"schedulingGates": gates}}
    left = api.patch(f"{api.pods}/w", patch, content_type).object
    assert left["spec"]["schedulingGates"] == [{"name": "other"}]


def test_a_json_patch_takes_a_gate_away_only_where_it_is(api: Api) -> None:
    api.pod("w", schedulingGates=[GATE, {"name": "other"}])
    steps = [
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE["name"]},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]
    left = api.patch(f"{api.pods}/w", steps, "application/json-patch+json").object
    assert left["spec"]["schedulingGates"] == [{"name": "other"}]
    again = api.patch(f"{api.pods}/w", steps, "application/json-patch+json")
    assert again.refusal == (422, "Invalid")


def test_a_gate_cannot_be_added(api: Api) -> None:
    api.pod("free")
    api.pod("gated", schedulingGates=[{"name": "other"}])
    for name in ("free", "gated"):
        patch = {"spec": {"schedulingGates": [{"name": "other"}, GATE]}}
        answer = api.patch(f"{api.pods}/{name}", patch)
        assert answer.refusal == (422, "Invalid")
        assert "only deletion is allowed" in answer.body["message"]


TERM = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}
    }
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, 200),
        ({"nodeSelector": {"pool": "b"}}, 422),
        ({"nodeSelector": None}, 422),
        ({"affinity": AFFINITY}, 200),
        ({"tolerations": [{"key": "k", "operator": "Exists"}]}, 200),
        ({"nodeName": "n1"}, 422),
        ({"priority": 5}, 422),
        ({"schedulerName": "other"}, 422),
        ({"containers": [{"name": "main", "image": "y"}]}, 200),
        ({"containers": [{"name": "main", "image": "x", "args": ["y"]}]}, 422),
    ],
)
def test_what_may_change_of_a_gated_pod(api: Api, change: Object, code: int) -> None:
    api.pod("w", schedulingGates=[GATE], nodeSelector={"pool": "a"})
    assert api.patch(f"{api.pods}/w", {"spec": change}, STRATEGIC).status == code
    # and of one that is gated no longer, less
    api.pod("free", nodeSelector={"pool": "a"})
    widens = bool({"nodeSelector", "affinity"} & change.keys())
    free = api.patch(f"{api.pods}/free", {"spec": change}, STRATEGIC).status
    assert free == (422 if widens else code)


# Binding


def test_a_binding_writes_node_and_annotations_in_one_update(api: Api) -> None:
    api.pod("w", metadata={"annotations": {"kept": "yes", "linkwise.dev/gpus": "old"}})
    nominated = api.patch(f"{api.pods}/w/status", {"status": {"nominatedNodeName": "n1"}}).object
    with api.watch(api.pods, resourceVersion=version_of(nominated)) as events:
        answer = api.bind("w", "n1", annotations=PLAN, labels={"a": "1"})
        bound = next(events)["object"]
    assert (answer.status, answer.body["kind"]) == (201, "Status")
    assert (answer.body["status"], answer.body["code"]) == ("Success", 201)
    assert bound == api.get(f"{api.pods}/w")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == PLAN | {"kept": "yes"}
    assert bound["metadata"]["labels"]["a"] == "1"
    assert condition(bound, "PodScheduled")["status"] == "True"
    assert "nominatedNodeName" not in bound["status"]


def test_a_bound_pod_stays_where_it_is(api: Api) -> None:
    api.pod("w")
    assert api.bind("w", "n1").status == 201
    for node in ("n1", "n2"):
        answer = api.bind("w", node, annotations=PLAN)
        assert answer.refusal == (409, "Conflict")
        assert answer.body["message"] == (
            'Operation cannot be fulfilled on pods/binding "w": pod w is already assigned to node '
            '"n1"'
        )
    assert "annotations" not in api.get(f"{api.pods}/w")["metadata"]


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({"uid": "another"}, "Precondition failed: UID in precondition: another, UID in object"),
        ({"resourceVersion": "1"}, "ResourceVersion in precondition: 1, ResourceVersion in object"),
    ],
)
def test_a_binding_holds_to_its_preconditions(api: Api, claim: Any, says: str) -> None:
    api.pod("w")
    answer = api.bind("w", "n1", **claim)
    assert answer.refusal == (409, "Conflict")
    assert says in answer.body["message"]
    assert "nodeName" not in api.get(f"{api.pods}/w")["spec"]


def test_a_binding_names_the_pod_of_its_path_and_a_node(api: Api) -> None:
    api.pod("w")
    path = f"{api.pods}/w/binding"
    node = {"kind": "Node", "name": "n1"}
    other = api.ask("POST", path, {"metadata": {"name": "other"}, "target": node})
    assert other.refusal == (400, "BadRequest")
    for target in ({"kind": "Node"}, {"kind": "Shelf", "name": "n1"}):
        answer = api.ask("POST", path, {"metadata": {"name": "w"}, "target": target})
        assert answer.status == 500
    assert "nodeName" not in api.get(f"{api.pods}/w")["spec"]


def test_a_binding_may_name_a_node_that_does_not_exist(api: Api) -> None:
    api.pod("w")
    assert api.bind("w", "nowhere").status == 201


def test_a_pod_that_is_being_deleted_is_not_bound(api: Api) -> None:
    api.pod("w", metadata={"finalizers": ["linkwise.dev/test"]})
    api.ask("DELETE", f"{api.pods}/w")
    answer = api.bind("w")
    assert answer.refusal == (409, "Conflict")
    assert "pod w is being deleted, cannot be assigned to a host" in answer.body["message"]
    api.patch(f"{api.pods}/w", {"metadata": {"finalizers": None}})


# Deletion


def test_a_pod_that_is_nowhere_goes_at_once(api: Api) -> None:
    made = api.pod("w")
    with api.watch(api.pods, resourceVersion=version_of(made)) as events:
        last = api.ask("DELETE", f"{api.pods}/w").object
        seen = [next(events) for _ in range(2)]
    assert (last["kind"], last["metadata"]["uid"]) == ("Pod", made["metadata"]["uid"])
    assert [event["type"] for event in seen] == ["MODIFIED", "DELETED"]
    for event in seen:
        assert event["object"]["metadata"]["deletionGracePeriodSeconds"] == 0
    assert api.ask("GET", f"{api.pods}/w").refusal == (404, "NotFound")


def test_a_pod_on_a_node_stays_until_its_kubelet_says_so(api: Api) -> None:
    made = api.pod("w", nodeName="n1", terminationGracePeriodSeconds=7)
    with api.watch(api.pods, resourceVersion=version_of(made)) as events:
        marked = api.ask("DELETE", f"{api.pods}/w").object
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 7
        assert marked["metadata"]["deletionTimestamp"] > marked["metadata"]["creationTimestamp"]
        again = api.ask("DELETE", f"{api.pods}/w").object
        assert version_of(again) == version_of(marked)
        api.ask("DELETE", f"{api.pods}/w", {"gracePeriodSeconds": 0})
        seen = [next(events) for _ in range(3)]
    graces = [event["object"]["metadata"]["deletionGracePeriodSeconds"] for event in seen]
    assert [event["type"] for event in seen] == ["MODIFIED", "MODIFIED", "DELETED"]
    assert graces == [7, 0, 0]
    assert api.ask("GET", f"{api.pods}/w").refusal == (404, "NotFound")


def test_the_grace_of_a_deleted_pod_only_becomes_shorter(api: Api) -> None:
    api.pod("w", nodeName="n1")
    grace = []
    for asked in (20, 60, None, 3, -1):
        options = {} if asked is None else {"gracePeriodSeconds": asked}
        marked = api.ask("DELETE", f"{api.pods}/w", options).object
        grace.append(marked["metadata"]["deletionGracePeriodSeconds"])
    assert grace == [20, 20, 20, 3, 1]


def test_a_grace_may_stand_in_the_query(api: Api) -> None:
    api.pod("w", nodeName="n1")
    api.ask("DELETE", f"{api.pods}/w", query={"gracePeriodSeconds": 0})
    assert api.ask("GET", f"{api.pods}/w").refusal == (404, "NotFound")


def test_a_pod_that_ended_goes_at_once_but_not_if_it_ends_while_it_terminates(api: Api) -> None:
    for name in ("ended", "terminating"):
        api.pod(name, nodeName="n1")
    failed = {"status": {"phase": "Failed"}}
    api.patch(f"{api.pods}/ended/status", failed)
    api.ask("DELETE", f"{api.pods}/ended")
    assert api.ask("GET", f"{api.pods}/ended").status == 404
    api.ask("DELETE", f"{api.pods}/terminating")
    api.patch(f"{api.pods}/terminating/status", failed)
    api.ask("DELETE", f"{api.pods}/terminating")
    assert api.ask("GET", f"{api.pods}/terminating").status == 200


@pytest.mark.parametrize("claim", [{"uid": "another"}, {"resourceVersion": "1"}])
def test_a_deletion_holds_to_its_preconditions(api: Api, claim: Object) -> None:
    api.pod("w")
    answer = api.ask("DELETE", f"{api.pods}/w", {"preconditions": claim})
    assert answer.refusal == (409, "Conflict")
    assert api.ask("GET", f"{api.pods}/w").status == 200


def test_deletion_marks_cannot_be_written_by_a_client(api: Api) -> None:
    api.pod("w", nodeName="n1")
    marked = api.ask("DELETE", f"{api.pods}/w").object["metadata"]
    patch = {"metadata": {"deletionTimestamp": None, "labels": {"a": "1"}}}
    assert api.patch(f"{api.pods}/w", patch).status in (200, 422)
    kept = api.get(f"{api.pods}/w")["metadata"]
    assert kept["deletionTimestamp"] == marked["deletionTimestamp"]


def test_finalizers_keep_a_pod_until_the_last_is_gone(api: Api) -> None:
    api.pod("w", metadata={"finalizers": ["linkwise.dev/test"]})
    marked = api.ask("DELETE", f"{api.pods}/w").object
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 0
    added = {"metadata": {"finalizers": ["linkwise.dev/test", "linkwise.dev/more"]}}
    assert api.patch(f"{api.pods}/w", added).refusal == (422, "Invalid")
    api.patch(f"{api.pods}/w", {"metadata": {"finalizers": None}})
    assert api.ask("GET", f"{api.pods}/w").status == 404


def test_a_deleted_node_leaves_its_pods_and_answers_with_a_status(api: Api) -> None:
    made = api.node("n1")
    name = api.node_name("n1")
    api.pod("w", nodeName=name)
    answer = api.ask("DELETE", f"/api/v1/nodes/{name}")
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (200, "Status", "Success")
    assert answer.body["details"] == {
        "name": name,
        "kind": "nodes",
        "uid": made["metadata"]["uid"],
    }
    assert api.get(f"{api.pods}/w")["spec"]["nodeName"] == name


# Eviction


def evict(api: Api, name: str = "w", **options: object) -> Any:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": api.namespace},
        "deleteOptions": options,
    }
    return api.ask("POST", f"{api.pods}/{name}/eviction", body)


def test_an_eviction_says_so_and_deletes(api: Api) -> None:
    made = api.pod("w", nodeName="n1")
    other = evict(api, preconditions={"uid": "another"})
    assert other.refusal == (409, "Conflict")
    assert "conditions" not in api.get(f"{api.pods}/w")["status"]
    answer = evict(api, preconditions={"uid": made["metadata"]["uid"]}, gracePeriodSeconds=5)
    assert (answer.status, answer.body["status"]) == (201, "Success")
    evicted = api.get(f"{api.pods}/w")
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 5
    target = condition(evicted, "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")


def test_an_eviction_names_its_pod(api: Api) -> None:
    api.pod("w")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "other"}}
    assert api.ask("POST", f"{api.pods}/w/eviction", body).refusal == (400, "BadRequest")


def disruption_budget(api: Api, name: str = "b", *, allowed: int) -> str:
    """A budget over the pods labelled app=w, as its controller would leave it."""
    budgets = f"/apis/policy/v1/namespaces/{api.namespace}/poddisruptionbudgets"
    selector = {"matchLabels": {"app": "w"}}
    body = {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": selector}}
    api.ask("POST", budgets, body)
    healthy = {"currentHealthy": 1 + allowed, "desiredHealthy": 1, "expectedPods": 1 + allowed}
    status = {"observedGeneration": 1, "disruptionsAllowed": allowed, **healthy}
    assert api.patch(f"{budgets}/{name}/status", {"status": status}).status == 200
    return f"{budgets}/{name}"


def running(api: Api, name: str = "w") -> None:
    api.pod(name, nodeName="n1", metadata={"labels": {"app": "w"}})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    api.patch(f"{api.pods}/{name}/status", {"status": {"phase": "Running", **ready}})


def test_an_eviction_that_a_budget_does_not_allow_is_to_be_tried_later(api: Api) -> None:
    disruption_budget(api, allowed=0)
    running(api)
    answer = evict(api)
    assert answer.refusal == (429, "TooManyRequests")
    assert answer.body["message"] == (
        "Cannot evict pod as it would violate the pod's disruption budget."
    )
    (cause,) = answer.body["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"] == "The disruption budget b needs 1 healthy pods and has 1 currently"
    assert "deletionTimestamp" not in api.get(f"{api.pods}/w")["metadata"]
    # A deletion asks no budget.
    api.ask("DELETE", f"{api.pods}/w")
    assert "deletionTimestamp" in api.get(f"{api.pods}/w")["metadata"]


def test_a_budget_is_used_up_by_evictions(api: Api) -> None:
    path = disruption_budget(api, allowed=1)
    for name in ("first", "second"):
        running(api, name)
    assert evict(api, "first").status == 201
    budget = api.get(path)["status"]
    assert budget["disruptionsAllowed"] == 0
    assert list(budget["disruptedPods"]) == ["first"]
    assert evict(api, "second").refusal == (429, "TooManyRequests")


def test_a_budget_does_not_hold_a_pod_that_does_not_run(api: Api) -> None:
    disruption_budget(api, allowed=0)
    api.pod("w", metadata={"labels": {"app": "w"}})
    assert evict(api).status == 201
    assert api.ask("GET", f"{api.pods}/w").status == 404


def test_a_pod_in_two_budgets_cannot_be_evicted(api: Api) -> None:
    for name in ("a", "b"):
        disruption_budget(api, name, allowed=1)
    running(api)
    answer = evict(api)
    assert (answer.status, answer.body["code"]) == (500, 500)
    assert "more than one PodDisruptionBudget" in answer.body["message"]
