"""What a pod is given as it is created, and that nothing else of it is touched."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.pods.podgrouper.workloads.answer import IndexedJobs
from linkwise.topology import names
from linkwise.webhook.patch import Gating, Rules
from tests.pods.podgrouper.pods import GPU, owner, pod
from tests.webhook.reviews import Object, ask, patched, review

GATE = [{"name": names.GATE}]
GANG = {names.GANG: "train", names.GANG_SIZE: "4"}
SECOND = Rules(scheduler="linkwise-scheduler")
INDEX = {"batch.kubernetes.io/job-completion-index": "0"}
CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "pods" / "podgrouper" / "workload_pods.json").read_text()
)["cases"]
ROWS = [
    pytest.param(row["pod"], row["expected"]["is_gang"], id=f"{case['id']}-{number}")
    for case in CASES
    for number, row in enumerate(case["pods"])
]


def gates(made: Object, rules: Rules | None = None) -> list[Object]:
    found: list[Object] = patched(made, rules)["spec"].get("schedulingGates", [])
    return found


@pytest.mark.parametrize(("made", "is_gang"), ROWS)
def test_members_of_gangs_that_take_gpus_wait_for_their_plan_whoever_made_them(
    made: Object, is_gang: bool
) -> None:
    takes_gpus = GPU in json.dumps(made["spec"])
    assert gates(unbound(made)) == (GATE if takes_gpus and is_gang else [])


def test_pods_of_stateful_sets_get_no_gate_because_few_of_these_are_gangs() -> None:
    assert gates(pod("r1-0", by=owner("apps/v1 StatefulSet", "r1"))) == []


def unbound(made: Object) -> Object:
    made = deepcopy(made)
    made["spec"].pop("nodeName", None)
    made["spec"].pop("schedulerName", None)
    return made


def test_nothing_else_of_a_pod_is_changed() -> None:
    made = pod("train-0", annotations=GANG, tolerations=[{"operator": "Exists"}])
    after = patched(made, SECOND)
    assert after["spec"].pop("schedulingGates") == GATE
    assert after["spec"].pop("schedulerName") == "linkwise-scheduler"
    assert after == made


@pytest.mark.parametrize(
    ("gate", "single", "gang"),
    [(Gating.GANGS, [], GATE), (Gating.ALL, GATE, GATE), (Gating.NONE, [], [])],
)
def test_which_pods_get_the_gate_can_be_chosen(
    gate: Gating, single: list[Object], gang: list[Object]
) -> None:
    rules = Rules(gate=gate)
    assert gates(pod("single"), rules) == single
    assert gates(pod("train-0", annotations=GANG), rules) == gang
    assert gates(pod("web", gpus=0), rules) == []


@pytest.mark.parametrize(("mode", "gated"), [(IndexedJobs.ALL, GATE), (IndexedJobs.NONE, [])])
def test_indexed_jobs_are_taken_for_what_the_extender_takes_them_for(
    mode: IndexedJobs, gated: list[Object]
) -> None:
    made = pod("shard-0", by=owner("batch/v1 Job", "shard"), annotations=INDEX)
    assert gates(made, Rules(indexed_jobs=mode)) == gated
    pool = pod("pool-x", by=owner("batch/v1 Job", "pool"))
    assert gates(pool, Rules(indexed_jobs=mode)) == []


@pytest.mark.parametrize("rules", [Rules(gate=Gating.ALL), SECOND])
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(pod("bound", nodeName="n1"), id="bound"),
        pytest.param(pod("other", annotations=GANG, schedulerName="volcano"), id="another's"),
        pytest.param(pod("launcher", annotations=GANG, gpus=0), id="without GPUs"),
        pytest.param(
            pod("mad", annotations=GANG)
            | {"spec": {"containers": [{"name": "m", "resources": {"limits": {GPU: "two"}}}]}},
            id="unreadable quantity",
        ),
        pytest.param(pod("odd") | {"spec": {"containers": "none"}}, id="no pod at all"),
    ],
)
def test_who_is_left_alone(made: Object, rules: Rules) -> None:
    assert patched(made, rules) == made


def test_a_pod_with_wrong_annotations_gets_no_gate_since_it_is_refused_next() -> None:
    assert gates(pod("train-0", annotations={names.GANG: "train"})) == []


def test_gpus_of_an_init_container_count_and_another_resource_does_not() -> None:
    taking = {"name": "warm", "resources": {"limits": {GPU: "8"}}}
    assert gates(pod("a", annotations=GANG, gpus=0, initContainers=[taking])) == GATE
    assert gates(pod("b", annotations=GANG), Rules(resources=("amd.com/gpu",))) == []


def test_pods_of_each_of_two_resources_get_the_gate() -> None:
    both = Rules(resources=(GPU, "amd.com/gpu"))
    taking = {"name": "main", "resources": {"limits": {"amd.com/gpu": "8"}}}
    assert gates(pod("a", annotations=GANG), both) == GATE
    assert gates(pod("b", annotations=GANG, containers=[taking]), both) == GATE


SHARED, SLICE = f"{GPU}.shared", "nvidia.com/mig-1g.10gb"


def taking(**amounts: str) -> Object:
    containers = [{"name": "main", "resources": {"limits": amounts}}]
    return pod("a", annotations=GANG, containers=containers)


@pytest.mark.parametrize("gate", Gating)
@pytest.mark.parametrize("resource", [SHARED, SLICE])
def test_shares_about_which_the_scheduler_asks_bring_its_name_and_no_gate(
    resource: str, gate: Gating
) -> None:
    """The extender plans no gang of shares, so it would remove the gate at once."""
    rules = Rules(shared=frozenset({SHARED, SLICE}), scheduler="linkwise-scheduler", gate=gate)
    made = taking(**{resource: "1"})
    expected = deepcopy(made)
    expected["spec"]["schedulerName"] = "linkwise-scheduler"
    assert patched(made, rules) == expected
    beside = taking(**{resource: "1", GPU: "1"})
    assert gates(beside, rules) == ([] if gate is Gating.NONE else GATE)


def test_shares_about_which_the_scheduler_does_not_ask_stay_with_their_own() -> None:
    rules = Rules(shared=frozenset({SHARED}), scheduler="linkwise-scheduler")
    for made in (taking(**{SLICE: "1"}), taking(**{SHARED: "one"}), taking(**{SHARED: "0"})):
        assert patched(made, rules) == made


def test_gates_of_others_stay_before_ours() -> None:
    kueue = {"name": "kueue.x-k8s.io/admission"}
    made = pod("train-0", annotations=GANG, schedulingGates=[kueue])
    assert gates(made) == [kueue, *GATE]


@settings(deadline=None)  # the machine may be busy
@given(
    scheduler=st.sampled_from([None, "default-scheduler", "linkwise-scheduler", "volcano"]),
    waits=st.lists(st.sampled_from([names.GATE, "a.example/one", "b.example/two"]), unique=True),
    annotations=st.sampled_from([{}, GANG, {names.GANG: "x"}]),
    gpus=st.integers(0, 2),
    gate=st.sampled_from(Gating),
    wanted=st.sampled_from(["default-scheduler", "linkwise-scheduler"]),
)
def test_asked_again_there_is_nothing_left_to_add(
    scheduler: str | None,
    waits: list[str],
    annotations: dict[str, str],
    gpus: int,
    gate: Gating,
    wanted: str,
) -> None:
    """If another webhook comes after Linkwise's, the API server asks again."""
    rules = Rules(scheduler=wanted, gate=gate)
    made = pod("p", annotations=annotations, gpus=gpus)
    made["spec"]["schedulingGates"] = [{"name": name} for name in waits]
    if scheduler:
        made["spec"]["schedulerName"] = scheduler
    once = patched(made, rules)
    assert patched(once, rules) == once
    assert [each["name"] for each in once["spec"]["schedulingGates"]].count(names.GATE) <= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE"},
        {"operation": "CONNECT"},
        {"subResource": "ephemeralcontainers"},
        {"kind": {"group": "example.org", "version": "v1", "kind": "Pod"}},
        {"kind": {"group": "batch", "version": "v1", "kind": "Job"}},
        {"object": None},
    ],
)
def test_only_a_pod_that_is_created_is_changed(changes: Object) -> None:
    asked = review(pod("train-0", annotations=GANG))
    assert "patch" in ask("/mutate", asked)
    asked["request"] |= changes
    assert ask("/mutate", asked) == {"uid": asked["request"]["uid"], "allowed": True}


def test_a_dry_run_is_answered_as_the_real_thing() -> None:
    made = pod("train-0", annotations=GANG)
    assert ask("/mutate", review(made, dryRun=True)) == ask("/mutate", review(made))


def test_the_namespace_of_a_pod_that_has_none_yet_is_the_requests() -> None:
    made = pod("train-0", annotations=GANG)
    del made["metadata"]["namespace"]
    del made["metadata"]["name"]
    made["metadata"]["generateName"] = "train-"
    assert gates(made) == GATE


def test_the_patch_is_as_small_as_can_be() -> None:
    response = ask("/mutate", review(pod("single")), SECOND)
    steps = msgspec.json.decode(msgspec.json.decode(f'"{response["patch"]}"', type=bytes))
    assert steps == [{"op": "add", "path": "/spec/schedulerName", "value": "linkwise-scheduler"}]
