"""Servers that span several pods: StatefulSets, kthena's ModelServings, Dynamo's graphs."""

from typing import Any

import msgspec
import pytest

from linkwise.kube.controllers.workload import pods_of
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import Missing, NoGang, Recognised
from linkwise.pods.podgrouper.workloads.essence import essence
from tests.pods.podgrouper.examples import MODEL_SERVING, POD_GANG, nodes_of_one_server
from tests.pods.podgrouper.pods import (
    Object,
    gang,
    owner,
    pod,
    ref_of,
    reference,
    template,
    told,
)

KTHENA = "modelserving.volcano.sh/"
# KAITO's, shortened; the workers' branch names no number.
KAITO = (
    'if [ "${POD_INDEX}" = "0" ]; then multi-node-serving.sh leader --ray_cluster_size=2 '
    "--ray_port=6379; python3 inference_api.py; else multi-node-serving.sh worker; fi"
)
SGLANG = ["python3", "-m", "sglang.launch_server", "--nnodes"]


def of_set(made: Object, index: int = 0) -> Object:
    return pod(f"{made['metadata']['name']}-{index}", made, gpus=8)


@pytest.mark.parametrize(
    "command",
    [
        ["/bin/sh", "-c", KAITO],
        [*SGLANG, "2"],
        ["bash", "-c", "python3 -m sglang.launch_server --nnodes 2 \\\n  --node-rank $POD_INDEX"],
        ["torchrun", "--nnodes=2", "train.py"],
        ["bash", "-c", "vllm serve x --nnodes '2'; echo --nnodes=2"],
    ],
)
def test_a_stateful_set_whose_command_counts_its_pods_is_one_gang(command: list[str]) -> None:
    made = nodes_of_one_server("r1", command)
    answer = gang(of_set(made), made)
    assert (answer.rule, answer.size, answer.minimum) == ("statefulset-nodes", 2, 2)
    assert answer.because == "the command of StatefulSet.apps ml/r1 starts one server on its 2 pods"
    # The extender caches the essence alone.
    slim = {ref_of(made): essence(made)}
    assert recognise(msgspec.convert(of_set(made), Pod), slim) == answer


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        ([*SGLANG, "2"], {"podManagementPolicy": "OrderedReady"}),
        ([*SGLANG, "2"], {"podManagementPolicy": None}),
        ([*SGLANG, "2"], {"replicas": 4}),  # two servers of two nodes, or one that was scaled
        ([*SGLANG, "1"], {"replicas": 1}),
        ([*SGLANG, "$(NODES)"], {}),
        (["torchrun", "--nnodes=2:4", "train.py"], {}),
        (["bash", "-c", "serve --nnodes 2; serve --nnodes 1"], {}),
        (["serve", "--max-nnodes", "2"], {}),
        (["serve"], {}),
    ],
)
def test_any_other_stateful_set_is_none_and_says_what_to_write(
    command: list[str], spec: dict[str, Any]
) -> None:
    made = nodes_of_one_server("r1", command, **spec)
    for given in (made, essence(made)):
        answer = recognise(msgspec.convert(of_set(made), Pod), {ref_of(made): given})
        assert isinstance(answer, NoGang)
        assert "linkwise.dev/gang" in answer.because or "runs one pod" in answer.because


def test_a_stateful_set_that_may_not_be_read_is_no_gang() -> None:
    made = nodes_of_one_server("r1", [*SGLANG, "2"])
    answer = told(of_set(made), missing=Missing.FORBIDDEN).answer
    assert isinstance(answer, NoGang)
    assert "may not be read" in answer.because


def serving(**template_of_group: object) -> Object:
    """3 prefill of one pod and 2 decode of four, twice."""
    spec = MODEL_SERVING["spec"]
    within = {**spec["template"], **template_of_group}
    return owner(
        "workload.serving.volcano.sh/v1alpha1 ModelServing", "llm", {**spec, "template": within}
    )


def answers(made: Object, *beside: Object) -> dict[str, Recognised | NoGang]:
    """By name, what the pods of *made* are, as its controller creates them."""
    found: dict[str, Recognised | NoGang] = {}
    for each in pods_of(made, {}).pods:
        answer = told(dict(each.body), (made, *beside)).answer
        assert isinstance(answer, Recognised | NoGang), answer
        found[each.body["metadata"]["name"]] = answer
    return found


def test_an_entry_and_its_workers_are_a_gang_and_an_entry_alone_is_none() -> None:
    found = answers(serving())
    assert len(found) == 2 * (3 + 2 * 4)
    assert isinstance(found["llm-0-prefill-2-0"], NoGang)
    gangs = [found[f"llm-1-decode-1-{place}"] for place in range(4)]
    assert [each.member.rank for each in gangs] == [0, 1, 2, 3]
    assert {str(each.gang) for each in gangs if isinstance(each, Recognised)} == {
        "ml/ModelServing.workload.serving.volcano.sh/llm#llm-1-decode-1"
    }


@pytest.mark.parametrize(
    ("policy", "minimum"),
    [
        ({"gangPolicy": {}}, 11),
        ({"gangPolicy": {"minRoleReplicas": {"prefill": 1, "decode": 1}}}, 5),
        ({"gangPolicy": {"minRoleReplicas": {"prefill": 9}}}, 11),
        ({"networkTopology": {"rolePolicy": {"mode": "hard"}}}, 11),
    ],
)
def test_with_a_policy_a_serving_group_is_one_gang(policy: dict[str, object], minimum: int) -> None:
    found = answers(serving(**policy))
    of_first = {name: each for name, each in found.items() if name.startswith("llm-0-")}
    assert {str(each.gang) for each in of_first.values() if isinstance(each, Recognised)} == {
        "ml/ModelServing.workload.serving.volcano.sh/llm#llm-0"
    }
    gangs = [each for each in of_first.values() if isinstance(each, Recognised)]
    assert {(each.size, each.minimum) for each in gangs} == {(11, minimum)}
    assert sorted(each.member.rank or 0 for each in gangs) == [*range(11)]
    assert of_first["llm-0-decode-1-3"].member.subgroup == "decode-1"


def test_the_group_that_kthena_makes_for_volcano_is_the_same_gang() -> None:
    made = serving(gangPolicy={"minRoleReplicas": {"prefill": 1, "decode": 1}})
    group = owner("scheduling.volcano.sh/v1beta1 PodGroup", "llm-0", {"minMember": 5})
    group["metadata"]["ownerReferences"] = [reference(made)]
    alone = gang(as_pod(made, "llm-0-decode-0-1"), made)
    named = as_pod(made, "llm-0-decode-0-1")
    named["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "llm-0"}
    both = gang(named, made, group)
    assert (both.gang, both.size, both.minimum) == (alone.gang, 11, 5)


def as_pod(made: Object, name: str) -> Object:
    (found,) = (each for each in pods_of(made, {}).pods if each.body["metadata"]["name"] == name)
    return dict(found.body)


def test_an_entry_without_gpus_is_not_waited_for_as_if_it_had_some() -> None:
    role = {
        "name": "decode",
        "workerReplicas": 2,
        "entryTemplate": template(gpus=0),
        "workerTemplate": template(gpus=8),
    }
    answer = answers(serving(roles=[role]))["llm-0-decode-0-1"]
    assert isinstance(answer, Recognised)
    assert (answer.size, answer.gpu_size, answer.gpu_minimum) == (3, 2, 2)


def test_what_dynamo_creates_for_a_graph_is_recognised_by_what_it_is() -> None:
    """A DynamoGraphDeployment becomes PodCliqueSets of Grove, or LeaderWorkerSets
    (ai-dynamo/dynamo, deploy/operator). Its own labels say nothing of a gang."""
    ours = {
        "nvidia.com/dynamo-graph-deployment-name": "llm",
        "nvidia.com/dynamo-component-type": "worker",
        "nvidia.com/selector": "llm-0-decode",
    }
    clique = owner("grove.io/v1alpha1 PodClique", "group-decode")
    by_grove = {"grove.io/podgang": "group", "grove.io/podclique": "group-decode"}
    assert gang(pod("d-x", clique, {**ours, **by_grove}), POD_GANG).rule == "grove"
    answer = told(pod("d-x", clique, ours)).answer
    assert isinstance(answer, NoGang)
    assert "PodClique.grove.io" in answer.because

    lws = "leaderworkerset.sigs.k8s.io/"
    by_lws = {lws + "name": "llm-decode-0", lws + "group-index": "0", lws + "worker-index": "1"}
    set_ = owner(
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        "llm-decode-0",
        {"leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}},
    )
    workers = owner("apps/v1 StatefulSet", "llm-decode-0-0")
    made = pod("llm-decode-0-0-1", workers, {**ours, **by_lws}, {lws + "size": "2"})
    answer = gang(made, set_)
    assert (answer.rule, answer.size) == ("leaderworkerset", 2)
