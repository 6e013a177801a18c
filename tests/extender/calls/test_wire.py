"""kube-scheduler's JSON as it really comes, and what it must get back to the letter."""

import json
from typing import Any

import pytest

from linkwise.extender.calls import wire
from linkwise.extender.state.extender_calls import (
    BindCall,
    FilterAnswer,
    FilterCall,
    PreemptAnswer,
    PriorityAnswer,
    Victims,
)
from linkwise.kube.objects import Pod

POD: dict[str, Any] = {
    "metadata": {
        "name": "w-0",
        "namespace": "ml",
        "uid": "u-1",
        "creationTimestamp": None,
        "annotations": {"linkwise.dev/gang": "w"},
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {
        "containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}, "image": "x"}
        ],
    },
    "status": {},
}


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


def call(*names: str) -> wire.NodesCall:
    return wire.NodesCall(FilterCall(Pod(), names))


def test_names_come_as_kube_scheduler_writes_them() -> None:
    asked = wire.read_nodes_call(
        body(Pod=POD, Nodes=None, NodeNames=["n1", "n2"]), wire.NodeLists()
    )

    assert asked.call.node_names == ("n1", "n2")
    assert asked.items is None
    pod = asked.call.pod
    assert (pod.metadata.namespace, pod.metadata.name, pod.metadata.uid) == ("ml", "w-0", "u-1")
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "8"}


@pytest.mark.parametrize("spelling", [str.lower, str.upper, lambda key: key[0].lower() + key[1:]])
def test_member_names_are_read_in_any_case_as_go_does(spelling: Any) -> None:
    sent = {"Pod": POD, "Nodes": None, "NodeNames": ["n1"]}

    asked = wire.read_nodes_call(
        body(**{spelling(key): value for key, value in sent.items()}), wire.NodeLists()
    )

    assert asked.call.node_names == ("n1",)


def test_no_node_at_all_is_a_question_too() -> None:
    assert wire.read_nodes_call(body(Pod=POD, NodeNames=[]), wire.NodeLists()).call.node_names == ()


def test_whole_nodes_come_and_go_back_as_they_were() -> None:
    n1 = {"metadata": {"name": "n1"}, "spec": {"odd": [1.50, None]}}
    n2 = {"metadata": {"name": "n2"}}
    sent = body(Pod=POD, Nodes={"metadata": {}, "items": [n1, n2]}, NodeNames=None)

    asked = wire.read_nodes_call(sent, wire.NodeLists())
    answer = FilterAnswer(node_names=("n1",), failed={"n2": "linkwise: why"})
    reply = json.loads(wire.write_filter_answer(answer, asked, wire.NodeLists()))

    assert asked.call.node_names == ("n1", "n2")
    assert reply == {
        "Nodes": {"metadata": {}, "items": [n1]},
        "NodeNames": None,
        "FailedNodes": {"n2": "linkwise: why"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_a_filter_reply_has_every_member_of_the_go_struct() -> None:
    answer = FilterAnswer(("n1",), failed={"n2": "a"}, unresolvable={"n3": "b"})

    assert json.loads(
        wire.write_filter_answer(answer, call("n1", "n2", "n3"), wire.NodeLists())
    ) == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {"n2": "a"},
        "FailedAndUnresolvableNodes": {"n3": "b"},
        "Error": "",
    }


def test_no_node_left_is_an_empty_list_and_not_null() -> None:
    assert (
        json.loads(wire.write_filter_answer(FilterAnswer(), call(), wire.NodeLists()))["NodeNames"]
        == []
    )


def test_an_error_ends_the_cycle() -> None:
    reply = json.loads(
        wire.write_filter_answer(FilterAnswer(error="linkwise: x"), call("n1"), wire.NodeLists())
    )

    assert (reply["Error"], reply["NodeNames"]) == ("linkwise: x", None)


def test_scores_are_whole_numbers_since_go_drops_a_reply_with_a_float() -> None:
    sent = wire.write_priorities(PriorityAnswer(["n1", "n2"], [100, 0]))

    assert sent == b'[{"Host":"n1","Score":100},{"Host":"n2","Score":0}]'


def test_bind_call_and_result() -> None:
    sent = body(PodName="w-0", PodNamespace="ml", PodUID="u-1", Node="n1")

    assert wire.read_bind_call(sent) == BindCall("ml", "w-0", "u-1", "n1")
    assert wire.write_bind_result() == b'{"Error":""}'
    assert wire.write_bind_result("no") == b'{"Error":"no"}'


def test_victims_by_uid() -> None:
    meta = {"n1": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 1}}
    sent = body(Pod=POD, NodeNameToVictims=None, NodeNameToMetaVictims=meta)

    assert wire.read_preempt_call(sent).victims == {"n1": Victims(("a", "b"), 1)}


def test_victims_as_whole_pods() -> None:
    whole = {"n1": {"Pods": [{"metadata": {"uid": "a", "name": "x"}}], "NumPDBViolations": 0}}
    sent = body(Pod=POD, NodeNameToVictims=whole, NodeNameToMetaVictims=None)

    assert wire.read_preempt_call(sent).victims == {"n1": Victims(("a",), 0)}


def test_a_node_without_victims_stays_one() -> None:
    meta: dict[str, Any] = {"n1": {"Pods": None, "NumPDBViolations": 0}, "n2": {"Pods": []}}
    sent = body(Pod=POD, NodeNameToMetaVictims=meta)

    assert wire.read_preempt_call(sent).victims == {"n1": Victims(), "n2": Victims()}


def test_a_preemption_without_candidates() -> None:
    sent = body(Pod=POD, NodeNameToMetaVictims=None, NodeNameToVictims=None)

    assert wire.read_preempt_call(sent).victims == {}


def test_a_preempt_reply_is_always_by_uid() -> None:
    sent = wire.write_preempt_answer(PreemptAnswer({"n1": Victims(("a",), 2), "n2": Victims()}))

    assert json.loads(sent) == {
        "NodeNameToMetaVictims": {
            "n1": {"Pods": [{"UID": "a"}], "NumPDBViolations": 2},
            "n2": {"Pods": [], "NumPDBViolations": 0},
        }
    }


def pod_with(**metadata: Any) -> dict[str, Any]:
    return {**POD, "metadata": {**POD["metadata"], **metadata}}


MALFORMED = [
    ("nodes", b"", "$", "JSON"),
    ("nodes", b"{", "$", "JSON"),
    ("nodes", b"\xff\xfe{}", "$", "JSON"),
    ("nodes", b"[]", "$", "`object`, got `array`"),
    ("nodes", b"null", "$", "`object`, got `null`"),
    ("nodes", b'{"Pod":' * 100_000, "$", "recursion"),
    ("nodes", body(NodeNames=["n1"]), "$.Pod", "`object`, got `null`"),
    ("nodes", body(Pod="w-0", NodeNames=[]), "$.Pod", "`object`, got `str`"),
    ("nodes", body(Pod=pod_with(name=7), NodeNames=[]), "$.Pod.metadata.name", "got `int`"),
    ("nodes", body(Pod=pod_with(name=""), NodeNames=[]), "$.Pod.metadata.name", "the pod's name"),
    ("nodes", body(Pod=pod_with(uid=""), NodeNames=[]), "$.Pod.metadata.uid", "the pod's uid"),
    (
        "nodes",
        body(Pod=pod_with(namespace=""), NodeNames=[]),
        "$.Pod.metadata.namespace",
        "the pod's namespace",
    ),
    (
        "nodes",
        body(Pod=pod_with(annotations={"linkwise.dev/gang-size": 4}), NodeNames=[]),
        "$.Pod.metadata.annotations[...]",
        "`str`, got `int`",
    ),
    ("nodes", body(Pod=POD), "$.NodeNames", "a list of node names"),
    ("nodes", body(Pod=POD, NodeNames="n1"), "$.NodeNames", "`array`, got `str`"),
    ("nodes", body(Pod=POD, NodeNames=["n1", 2]), "$.NodeNames[1]", "`str`, got `int`"),
    ("nodes", body(Pod=POD, Nodes=["n1"]), "$.Nodes", "`object`, got `array`"),
    ("nodes", body(Pod=POD, Nodes={"items": {}}), "$.Nodes.items", "`array`, got `object`"),
    (
        "nodes",
        body(Pod=POD, Nodes={"items": [{"metadata": {"name": "n1"}}, {}]}),
        "$.Nodes.items[1].metadata.name",
        "the node's name",
    ),
    ("bind", body(PodNamespace="ml", PodUID="u", Node="n1"), "$.PodName", "not empty"),
    ("bind", body(PodName="w", PodNamespace="ml", PodUID="", Node="n1"), "$.PodUID", "not empty"),
    ("bind", body(PodName="w", PodNamespace="ml", PodUID="u", Node=None), "$.Node", "not empty"),
    ("bind", body(PodName="w", PodNamespace=[], PodUID="u", Node="n"), "$.PodNamespace", "`str`"),
    ("preempt", body(NodeNameToMetaVictims={}), "$.Pod", "`object`"),
    (
        "preempt",
        body(Pod=POD, NodeNameToMetaVictims={"n1": {"Pods": [{"UID": "a"}, {}]}}),
        "$.NodeNameToMetaVictims.n1.Pods[1].UID",
        "not empty",
    ),
    (
        "preempt",
        body(Pod=POD, NodeNameToMetaVictims={"n1": {"NumPDBViolations": "1"}}),
        "$.NodeNameToMetaVictims.n1.NumPDBViolations",
        "`int`, got `str`",
    ),
    (
        "preempt",
        body(Pod=POD, NodeNameToVictims={"n1": {"Pods": [{"metadata": {}}]}}),
        "$.NodeNameToVictims.n1.Pods[0].metadata.UID",
        "not empty",
    ),
]


@pytest.mark.parametrize(("verb", "sent", "path", "expected"), MALFORMED)
def test_a_malformed_body_is_refused_by_its_path(
    verb: str, sent: bytes, path: str, expected: str
) -> None:
    read = {
        "nodes": lambda sent: wire.read_nodes_call(sent, wire.NodeLists()),
        "bind": wire.read_bind_call,
        "preempt": wire.read_preempt_call,
    }[verb]

    with pytest.raises(wire.WireError) as refused:
        read(sent)

    assert refused.value.path == path
    assert expected in str(refused.value)
    assert str(refused.value).startswith(f"linkwise: request body: {path}: expected ")


def test_five_thousand_names_are_read_and_answered() -> None:
    names = [f"gpu-node-{number:05}.cluster.example" for number in range(5000)]

    asked = wire.read_nodes_call(body(Pod=POD, Nodes=None, NodeNames=names), wire.NodeLists())
    reply = json.loads(
        wire.write_filter_answer(FilterAnswer(tuple(names)), asked, wire.NodeLists())
    )

    assert reply["NodeNames"] == names


def test_a_list_that_was_answered_is_the_same_object_when_it_comes_back() -> None:
    lists = wire.NodeLists()
    sent = body(Pod=POD, NodeNames=["n1", "n2", "n3"])
    asked = wire.read_nodes_call(sent, lists)
    answer = FilterAnswer(("n1", "n3"), failed={"n2": "a"})
    reply = json.loads(wire.write_filter_answer(answer, asked, lists))

    # As Go writes it: without spaces.
    passed = b'{"Pod":%s,"NodeNames":["n1","n3"]}' % json.dumps(POD).encode()
    others = b'{"Pod":%s,"NodeNames":["n1","n2"]}' % json.dumps(POD).encode()
    assert reply["NodeNames"] == ["n1", "n3"]
    assert wire.read_nodes_call(passed, lists).call.node_names is answer.node_names
    assert wire.read_nodes_call(sent, lists).call.node_names is asked.call.node_names
    assert wire.read_nodes_call(others, lists).call.node_names == ("n1", "n2")


def test_calls_in_turns_keep_both_of_their_lists() -> None:
    lists = wire.NodeLists()
    sent = body(Pod=POD, NodeNames=["n1", "n2"])
    first = wire.read_nodes_call(sent, lists)
    for passed in ("n1", "n2", "n1"):
        wire.write_filter_answer(FilterAnswer((passed,)), first, lists)
        again = wire.read_nodes_call(sent, lists)
        assert again.call.node_names is first.call.node_names
