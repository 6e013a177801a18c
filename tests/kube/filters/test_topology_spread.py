from typing import Any

from tests.kube.filters.cases import WEB, ZONE, Object, case, fits, node, pod, refused, spread
from tests.kube.filters.verdicts import rejections

ZONES = [node("a", {ZONE: "a"}), node("b", {ZONE: "b"}), node("c", {ZONE: "c"})]


def web(*constraints: Object, **spec: Any) -> Object:
    return pod("new", WEB, topologySpreadConstraints=list(constraints), **spec)


def there(*nodes: str, labels: Object = WEB, **more: Any) -> list[Object]:
    return [pod(f"web-{n}", labels, on=name, **more) for n, name in enumerate(nodes)]


def test_a_domain_may_have_max_skew_more_than_the_emptiest() -> None:
    assert fits(web(spread()), ZONES, there("a", "b")) == ["c"]
    assert fits(web(spread(2)), ZONES, there("a", "a", "b")) == ["b", "c"]
    found = refused(web(spread()), node("d", {}), there("d"))
    assert found is not None
    assert found.reasons == (
        "node(s) didn't match pod topology spread constraints (missing required label)",
    )
    found = rejections(case(web(spread()), ZONES, there("a")))["a"]
    assert found is not None
    assert (found.plugin, found.resolvable) == ("PodTopologySpread", True)


def test_a_wish_is_no_filter() -> None:
    assert len(fits(web(spread(whenUnsatisfiable="ScheduleAnyway")), ZONES, there("a"))) == 3


def test_pods_that_leave_or_live_elsewhere_do_not_count() -> None:
    assert len(fits(web(spread()), ZONES, there("a", leaving=True))) == 3
    assert len(fits(web(spread()), ZONES, there("a", namespace="other"))) == 3


def test_a_pod_that_the_selector_does_not_select_adds_nothing() -> None:
    other = pod("new", {"app": "other"}, topologySpreadConstraints=[spread()])
    assert len(fits(other, ZONES, there("a"))) == 3
    assert fits(other, ZONES, there("a", "a")) == ["b", "c"]


def test_without_a_selector_no_pod_counts_and_with_an_empty_one_only_the_new_one() -> None:
    assert len(fits(web(spread(labels=None)), ZONES, there("a", "a"))) == 3
    assert len(fits(web(spread(labels={})), ZONES, there("a", "a"))) == 3


def test_with_too_few_domains_the_emptiest_counts_as_empty() -> None:
    full = there("a", "b", "c")
    assert len(fits(web(spread(minDomains=3)), ZONES, full)) == 3
    assert fits(web(spread(minDomains=4)), ZONES, full) == []


def test_only_nodes_that_the_pod_selects_count_unless_it_says_otherwise() -> None:
    nodes = [node("a", {ZONE: "a", "pool": "x"}), node("b", {ZONE: "b"})]
    assert fits(web(spread(), nodeSelector={"pool": "x"}), nodes, there("a")) == ["a"]
    ignoring = spread(nodeAffinityPolicy="Ignore")
    assert fits(web(ignoring, nodeSelector={"pool": "x"}), nodes, there("a")) == []


def test_tainted_nodes_count_unless_it_says_otherwise() -> None:
    closed = node("b", {ZONE: "b"}, taints=[{"key": "x", "effect": "NoSchedule"}])
    nodes = [ZONES[0], closed]
    assert fits(web(spread()), nodes, there("a")) == []
    assert fits(web(spread(nodeTaintsPolicy="Honor")), nodes, there("a")) == ["a"]


def test_nodes_without_the_label_of_any_constraint_do_not_count() -> None:
    nodes = [node("a", {ZONE: "a", "rack": "1"}), node("b", {ZONE: "b"})]
    both = web(spread(), spread(key="rack"))
    assert fits(both, nodes, there("b", "b")) == ["a"]
    assert fits(both, nodes, there("a")) == ["a"]  # the only domain is also the emptiest


def test_match_label_keys_count_pods_of_the_same_revision_alone() -> None:
    new = pod("new", WEB | {"rev": "2"}, topologySpreadConstraints=[spread(matchLabelKeys=["rev"])])
    assert len(fits(new, ZONES, there("a", labels=WEB | {"rev": "1"}))) == 3
    assert fits(new, ZONES, there("a", labels=WEB | {"rev": "2"})) == ["b", "c"]
