import pytest

from tests.kube.filters.cases import HOST, ZONE, Object, apart, fits, near, node, pod, refused, term

ZONES = [
    node("a1", {ZONE: "a"}),
    node("a2", {ZONE: "a"}),
    node("b1", {ZONE: "b"}),
    node("lost"),
]
DB = {"app": "db"}


def test_a_pod_stays_away_from_those_that_its_terms_select() -> None:
    new = pod(affinity=apart(term(DB, ZONE)))
    assert fits(new, ZONES, [pod("db", DB, on="a1")]) == ["b1", "lost"]
    found = refused(new, ZONES[0], [pod("db", DB, on="a1")])
    assert found is not None
    assert found.reasons == ("node(s) didn't match pod anti-affinity rules",)
    assert found.resolvable


def test_a_pod_that_runs_keeps_out_those_that_its_terms_select() -> None:
    there = pod("there", on="a1", affinity=apart(term(DB, ZONE)))
    assert fits(pod("new", DB), ZONES, [there]) == ["b1", "lost"]
    assert len(fits(pod("new"), ZONES, [there])) == len(ZONES)
    found = refused(pod("new", DB), ZONES[0], [there])
    assert found is not None
    assert found.reasons == ("node(s) didn't satisfy existing pods anti-affinity rules",)


def test_a_pod_follows_those_that_its_terms_select() -> None:
    new = pod(affinity=near(term(DB, ZONE)))
    assert fits(new, ZONES, [pod("db", DB, on="a1")]) == ["a1", "a2"]
    assert fits(new, ZONES, [pod("db", DB, on="a1", leaving=True)]) == ["a1", "a2"]
    found = refused(new, ZONES[2], [])
    assert found is not None
    assert found.reasons == ("node(s) didn't match pod affinity rules",)
    assert not found.resolvable


def test_the_first_of_a_group_may_run_wherever_the_nodes_have_the_labels() -> None:
    new = pod("new", DB, affinity=near(term(DB, ZONE)))
    assert fits(new, ZONES) == ["a1", "a2", "b1"]
    assert fits(new, ZONES, [pod("db", DB, on="b1")]) == ["b1"]
    # A pod that is in no domain is no start.
    assert fits(new, ZONES, [pod("db", DB, on="lost")]) == ["a1", "a2", "b1"]


def test_one_pod_must_match_all_terms() -> None:
    both = near(term(DB, ZONE), term({"tier": "1"}, HOST))
    apart_from_each_other = [pod("x", DB, on="a1"), pod("y", {"tier": "1"}, on="a1")]
    assert fits(pod(affinity=both), ZONES, apart_from_each_other) == []
    assert fits(pod(affinity=both), ZONES, [pod("x", DB | {"tier": "1"}, on="a1")]) == ["a1"]


NAMESPACES = [
    {"metadata": {"name": "team", "labels": {"kind": "work"}}},
    {"metadata": {"name": "default"}},
]


@pytest.mark.parametrize(
    ("said", "there", "apart_from"),
    [
        ({}, "default", True),
        ({}, "team", False),
        ({"namespaces": ["team"]}, "team", True),
        ({"namespaces": ["team"]}, "default", False),
        ({"namespaceSelector": {"matchLabels": {"kind": "work"}}}, "team", True),
        ({"namespaceSelector": {"matchLabels": {"kind": "work"}}}, "default", False),
        ({"namespaceSelector": {}}, "team", True),
        ({"namespaceSelector": {}}, "default", True),
    ],
)
@pytest.mark.parametrize("mine", [True, False])
def test_a_term_names_or_selects_namespaces(
    said: Object, there: str, apart_from: bool, mine: bool
) -> None:
    """Whether the term is that of the pod that comes or of the one that runs."""
    has_term = pod("has", affinity=apart(term(DB, **said)))
    labelled = pod("db", DB, namespace=there)
    new, runs = (has_term, labelled) if mine else (labelled, has_term)
    runs["spec"]["nodeName"] = "a1"
    found = fits(new, ZONES, [runs], namespaces=NAMESPACES)
    assert ("a1" not in found) is apart_from


def test_a_term_without_a_selector_selects_no_pod_and_an_empty_one_every_pod() -> None:
    there = [pod("there", on="a1")]
    assert "a1" in fits(pod(affinity=apart(term(None))), ZONES, there)
    assert "a1" not in fits(pod(affinity=apart(term({}))), ZONES, there)


def test_a_selector_of_namespaces_without_a_label_goes_by_each_namespace() -> None:
    """Up to 1.36, kube-scheduler took it for all namespaces, if the pod that comes has it."""
    unlabelled = {"matchExpressions": [{"key": "kind", "operator": "DoesNotExist"}]}
    new = pod(affinity=apart(term(DB, namespaceSelector=unlabelled)))
    there = pod("db", DB, on="a1", namespace="team")
    assert "a1" in fits(new, ZONES, [there], namespaces=NAMESPACES)
    new, there = there, new
    new["spec"]["nodeName"], there["spec"]["nodeName"] = "", "a1"
    assert "a1" in fits(new, ZONES, [there], namespaces=NAMESPACES)
