"""NodeUnschedulable, TaintToleration and NodeAffinity: what a node refuses by itself."""

import pytest

from tests.kube.filters.cases import Object, fits, node, pod, refused

TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Gt", "value": "0"}, False),
    ],
)
def test_a_taint_keeps_out_pods_that_do_not_tolerate_it(
    toleration: Object, tolerated: bool
) -> None:
    found = refused(pod(tolerations=[toleration]), node("n1", taints=[TAINT]))
    if tolerated:
        assert found is None
    else:
        assert found is not None
        assert (found.plugin, found.reasons, found.resolvable) == (
            "TaintToleration",
            ("node(s) had untolerated taint(s)",),
            False,
        )


def test_a_taint_that_only_prefers_keeps_no_pod_out() -> None:
    slow = {"key": "slow", "effect": "PreferNoSchedule"}
    assert refused(pod(), node("n1", taints=[slow])) is None


def test_a_cordoned_node_takes_only_pods_that_tolerate_that() -> None:
    found = refused(pod(), node("n1", unschedulable=True))
    assert found is not None
    assert (found.plugin, found.reasons) == ("NodeUnschedulable", ("node(s) were unschedulable",))
    tolerates = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    assert refused(pod(tolerations=[tolerates]), node("n1", unschedulable=True)) is None


def affine(*terms: Object) -> Object:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return pod(affinity={"nodeAffinity": required})


def test_the_node_selector_must_match_whole() -> None:
    new = pod(nodeSelector={"zone": "a", "pool": "train"})
    nodes = [node("n1", {"zone": "a", "pool": "train"}), node("n2", {"zone": "a"})]
    assert fits(new, nodes) == ["n1"]


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ({"key": "pool", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "pool", "operator": "In", "values": ["b"]}, False),
        ({"key": "pool", "operator": "In", "values": []}, False),
        ({"key": "pool", "operator": "NotIn", "values": ["b"]}, True),
        ({"key": "pool", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "pool", "operator": "NotIn", "values": ["no label"]}, False),
        ({"key": "absent", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "pool", "operator": "Exists"}, True),
        ({"key": "absent", "operator": "Exists"}, False),
        ({"key": "absent", "operator": "DoesNotExist"}, True),
        ({"key": "gpus", "operator": "Gt", "values": ["7"]}, True),
        ({"key": "gpus", "operator": "Gt", "values": ["8"]}, False),
        ({"key": "gpus", "operator": "Gt", "values": ["0" * 5000 + "7"]}, True),
        ({"key": "gpus", "operator": "Lt", "values": ["9" * 5000]}, False),
        ({"key": "gpus", "operator": "Lt", "values": ["9"]}, True),
        ({"key": "gpus", "operator": "Lt", "values": ["1_0"]}, False),
        ({"key": "absent", "operator": "Gt", "values": ["7"]}, False),
        ({"key": "gpus", "operator": "Near", "values": ["8"]}, False),
    ],
)
def test_required_affinity_knows_every_operator(expression: Object, matches: bool) -> None:
    new = affine({"matchExpressions": [expression]})
    found = refused(new, node("n1", {"pool": "a", "gpus": "8"}))
    assert (found is None) is matches
    assert found is None or found.reasons == ("node(s) didn't match Pod's node affinity/selector",)


def test_one_term_is_enough_and_an_empty_one_matches_nothing() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    other = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}
    nodes = [node("n1"), node("n2", {"pool": "a"}), node("n3")]
    assert fits(affine({}), nodes) == []
    assert fits(affine({}, {"matchFields": [field]}, other), nodes) == ["n1", "n2"]


def test_a_pod_that_names_nodes_asks_about_these_alone() -> None:
    def named(*names: str) -> Object:
        return {"key": "metadata.name", "operator": "In", "values": list(names)}

    found = refused(affine({"matchFields": [named("n1")]}), node("n2", taints=[TAINT]))
    assert found is not None
    assert found.reasons == ("node(s) didn't satisfy plugin(s) [NodeAffinity]",)
    found = refused(affine({"matchFields": [named("n1"), named("n2")]}), node("n2"))
    assert found is not None
    assert found.reasons == ("pod affinity terms conflict",)
