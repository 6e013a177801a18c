"""A pod that asks for more GPUs than any machine has costs itself alone."""

from collections.abc import Callable

import numpy as np
import pytest

from linkwise.extender.place.room import _sets
from linkwise.kube.objects import (
    Affinity,
    Container,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Requirement,
    Resources,
    Toleration,
)
from linkwise.pods import annotations
from linkwise.pods.annotations import (
    MOST_CONTAINERS,
    MOST_NAMES,
    MOST_TESTS,
    MOST_VALUES,
    shares_of,
)
from linkwise.topology import names
from linkwise.topology.demand import ContainerDemand, Role
from tests.extender.cached import cached
from tests.extender.cluster import GPU, Cluster, change, container


@pytest.mark.parametrize("gpus", [113, 128, 1000, 2**31, 2**63 - 1])
def test_it_is_refused_in_words_and_others_are_placed(gpus: int) -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("slip", gpus)
    at.add_pod("gated-slip", gpus, gates=[names.GATE])
    at.settle()
    at.add_pod("single", 1)
    at.add_pod("gated", 2, gates=[names.GATE])
    at.add_gang("gang", 2, 2)
    at.settle()
    assert at.schedule("single") == "n1"
    assert at.places("gated", "gang-0", "gang-1") == ["n1"] * 3
    (why,) = at.filter("slip").unresolvable.values()
    assert why.startswith(f"linkwise: nvidia.com/gpu: {gpus} in one pod: expected 112 at most")
    assert "expected 112 at most" in repr(at.core.explain("ml", "gated-slip", at.now))
    assert not at.core.take_defects()


def test_112_are_no_slip_and_wait_for_a_machine_that_has_them() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("large", 112)
    assert at.filter("large").failed.keys() | at.filter("large").unresolvable.keys() == {"n1"}
    assert "expected" not in repr(at.filter("large"))


@pytest.mark.parametrize("size", [9, 127, 128, 2**40])
def test_no_machine_has_room_for_more_gpus_than_it_has(size: int) -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    kind = cached(at).nodes["n1"].kind
    assert kind is not None
    assert not np.any(_sets(kind, size, 0.0))


def requires(*values: int) -> Callable[[Pod], Pod]:
    """A required node affinity of a term with one expression, with so many values, for each."""
    terms = [
        NodeSelectorTerm(
            match_expressions=(Requirement(f"k{number}", "NotIn", tuple(map(str, range(many)))),)
        )
        for number, many in enumerate(values)
    ]
    required = NodeSelector(node_selector_terms=tuple(terms))
    of_nodes = NodeAffinity(required_during_scheduling_ignored_during_execution=required)
    return lambda pod: change(pod, spec=change(pod.spec, affinity=Affinity(node_affinity=of_nodes)))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1] * MOST_TESTS, ""),
        ([1] * (MOST_TESTS + 1), "501 expressions with 501 values: expected 500 and 5000 at most"),
        ([MOST_VALUES], ""),
        ([MOST_VALUES, 1], "2 expressions with 5001 values: expected 500 and 5000 at most"),
    ],
)
def test_an_affinity_that_no_user_writes_is_refused_in_words(values: list[int], why: str) -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("p", 1, alter=requires(*values))
    at.add_pod("no-gpus", 0, alter=requires(*values))
    assert at.filter("no-gpus").node_names == ("n1",)
    if why:
        assert at.filter("p").unresolvable == {
            "n1": f"linkwise: node selector and required node affinity: {why}"
        }
    else:
        assert at.schedule("p") == "n1"


def test_more_containers_with_gpus_than_users_write_are_refused_in_words() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("few", containers=[container(f"c{n}", 1) for n in range(MOST_CONTAINERS)])
    at.add_pod("many", containers=[container(f"c{n}", 1) for n in range(MOST_CONTAINERS + 1)])
    others = [container(f"c{n}", 0) for n in range(100)]
    at.add_pod("others", containers=[container("main", 1), *others])
    assert "expected" not in repr(at.filter("few"))
    (why,) = at.filter("many").unresolvable.values()
    assert why == f"linkwise: {GPU}: 65 containers of one pod: expected 64 at most"
    assert at.schedule("others") == "n1"


def with_shares(count: int) -> list[Container]:
    """Each of another name."""
    profiles = (f"nvidia.com/mig-1g.{number}gb" for number in range(count))
    return [
        change(container(f"c{number}", 0), resources=Resources(limits={name: "1"}))
        for number, name in enumerate(profiles)
    ]


def test_more_names_of_gpus_than_users_write_are_refused_in_words() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("few", containers=with_shares(MOST_NAMES - 1))
    at.add_pod("many", containers=with_shares(MOST_NAMES))
    assert "expected" not in repr(at.filter("few"))
    (why,) = at.filter("many").unresolvable.values()
    assert why == "linkwise: 17 names of GPUs in one pod: expected 16 at most"


def test_each_container_is_looked_at_once_however_many_names_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    look = annotations._demand

    def counted(asks: Container, role: Role, name: str) -> list[ContainerDemand]:
        looks.append(name)
        return look(asks, role, name)

    monkeypatch.setattr(annotations, "_demand", counted)
    pod = Pod(spec=PodSpec(containers=tuple(with_shares(500))))
    assert len(shares_of(pod, GPU)) == len(looks) == 500


def with_tolerations(count: int) -> Callable[[Pod], Pod]:
    those = tuple(Toleration(key=f"k{number}", operator="Exists") for number in range(count))
    return lambda pod: change(pod, spec=change(pod.spec, tolerations=those))


def with_selector(count: int) -> Callable[[Pod], Pod]:
    labels = {f"k{number}": "v" for number in range(count)}
    return lambda pod: change(pod, spec=change(pod.spec, node_selector=labels))


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (with_tolerations(MOST_TESTS), ""),
        (with_tolerations(MOST_TESTS + 1), "501 tolerations: expected 500 at most"),
        (with_selector(MOST_TESTS), ""),
        (
            with_selector(MOST_TESTS + 1),
            "node selector and required node affinity: 501 expressions",
        ),
    ],
)
def test_so_are_as_many_tolerations_and_labels(alter: Callable[[Pod], Pod], why: str) -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("p", 1, alter=alter)
    at.settle()
    told = repr(at.filter("p"))
    assert ("expected" in told) is bool(why)
    assert why in told
