"""Where a gang goes among domains, against a judge that tries every set of nodes.

The judge shares no code with the search. It knows small clusters only, of machines on which all GPU
sets of one size are worth the same, so that nodes and domains alone decide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from linkwise.extender.place.request import NoRoom
from tests.extender.place.spanned import LEVELS, Case, Node, nodes_of, searched


@st.composite
def cases(draw: st.DrawFn, flavour: str) -> Case:
    nodes = []
    for number in range(draw(st.integers(3, 8))):
        zone = draw(st.sampled_from("ab"))
        leaf = zone + draw(st.sampled_from("12"))
        clique = leaf + draw(st.sampled_from("12"))
        said = draw(st.sampled_from([(clique, leaf, zone)] * 4 + [("", leaf, zone), ("", "", "")]))
        nodes.append(Node(f"n{number}", draw(st.sampled_from([4, 4, 4, 3, 2, 1, 0])), said))
    levels = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=2, unique=True).map(tuple)
    some = st.lists(st.integers(0, len(nodes) - 1), min_size=1, max_size=2, unique=True).map(tuple)
    return Case(
        tuple(nodes),
        size=draw(st.sampled_from([4, 2, 1])),
        wanted=draw(st.sampled_from([2, 3, 4, 5, 1, 8])),
        require=draw(levels) if "requires" in flavour else (),
        prefer=draw(levels) if "prefers" in flavour else (),
        company=draw(some) if "joins" in flavour else (),
    )


few = settings(max_examples=60, deadline=None, derandomize=True)
of_every_flavour = pytest.mark.parametrize(
    "flavour", ["says nothing", "requires", "prefers", "joins", "requires, prefers and joins"]
)


# The judge.


def one_domain(case: Case, level: str, nodes: Sequence[int]) -> bool:
    shared = {case.domain(node, level) for node in nodes}
    return len(shared) == 1 and "" not in shared


def near(case: Case, level: str, nodes: Sequence[int]) -> bool:
    """As `one_domain`; a node without the label is in one of its own."""
    return len(set(nodes)) == 1 or one_domain(case, level, nodes)


def all_ways(case: Case) -> Iterator[tuple[int, ...]]:
    """Every set of nodes that has room for all, keeps to what is required, and needs each one."""
    able = [number for number in range(len(case.nodes)) if case.room(number)]
    for count in range(1, min(case.wanted, len(able)) + 1):
        for nodes in combinations(able, count):
            if sum(map(case.room, nodes)) >= case.wanted and all(
                one_domain(case, level, (*nodes, *case.company)) for level in case.require
            ):
                yield nodes


def rated(case: Case, nodes: Sequence[int]) -> tuple[int, ...]:
    """Less is better: the first preferred level kept, the nearest level that holds all, as it
    decides how fast the nodes reach each other, nodes, and domains of the nearer levels."""
    everyone = (*nodes, *case.company)
    preferred = [near(case, level, everyone) for level in case.prefer if occurs(case, level)]
    nearest = first_kept([near(case, level, everyone) for level in LEVELS])
    # A node without the label is in a domain of its own.
    domains = (
        len({case.domain(node, level) or node for node in everyone})
        for level in reversed(LEVELS[:nearest])
    )
    return first_kept(preferred), nearest, len(nodes), *domains


def occurs(case: Case, level: str) -> bool:
    return any(case.domain(node, level) for node in range(len(case.nodes)))


def first_kept(kept: list[bool]) -> int:
    return kept.index(True) if True in kept else len(kept)


@of_every_flavour
@few
@given(st.data())
def test_no_set_of_nodes_is_nearer_and_none_that_is_as_near_has_fewer(
    flavour: str, data: st.DataObject
) -> None:
    case = data.draw(cases(flavour))
    spots = searched(case)
    best = min((rated(case, nodes) for nodes in all_ways(case)), default=None)
    if isinstance(spots, NoRoom):
        assert best is None
    else:
        assert rated(case, sorted(set(nodes_of(case, spots)))) == best


@of_every_flavour
@few
@given(st.data())
def test_what_is_required_is_never_broken_and_no_gpu_is_given_twice(
    flavour: str, data: st.DataObject
) -> None:
    case = data.draw(cases(flavour))
    spots = searched(case)
    if isinstance(spots, NoRoom):
        return
    nodes = nodes_of(case, spots)
    assert len(nodes) == case.wanted
    for level in case.require:
        assert one_domain(case, level, (*nodes, *case.company))
    for node in set(nodes):
        sets = [spot.gpus for spot, at in zip(spots, nodes, strict=True) if at == node]
        assert all(gpus.bit_count() == case.size for gpus in sets)
        assert sum(sets).bit_count() == sum(gpus.bit_count() for gpus in sets)
        assert not sum(sets) & ~((1 << case.nodes[node].free) - 1)


@of_every_flavour
@few
@given(st.data())
def test_neighbours_in_rank_share_their_node_and_their_domains(
    flavour: str, data: st.DataObject
) -> None:
    case = data.draw(cases(flavour))
    spots = searched(case)
    if isinstance(spots, NoRoom):
        return
    nodes = nodes_of(case, spots)
    assert len(list(groupby(nodes))) == len(set(nodes))
    for level in LEVELS:
        # A node without the label is in a domain of its own.
        of = [case.domain(node, level) or node for node in nodes]
        assert len(list(groupby(of))) == len(set(of))


@of_every_flavour
@few
@given(st.data(), st.randoms(use_true_random=False))
def test_the_same_cluster_gets_the_same_plan_however_it_was_learned(
    flavour: str, data: st.DataObject, random: Random
) -> None:
    case = data.draw(cases(flavour))
    order = list(range(len(case.nodes)))
    random.shuffle(order)
    assert searched(case, order) == searched(case)


@of_every_flavour
@few
@given(st.data())
def test_a_refusal_says_how_near_it_came(flavour: str, data: st.DataObject) -> None:
    case = data.draw(cases(flavour))
    spots = searched(case)
    if not isinstance(spots, NoRoom):
        return
    assert spots.wanted == case.wanted
    assert 0 <= spots.nearest_had <= spots.had < case.wanted
    if spots.level:
        assert spots.level in case.require
        everywhere = Case(case.nodes, case.size, case.wanted, company=case.company)
        assert not isinstance(searched(everywhere), NoRoom)


def test_a_refusal_names_the_required_level_that_fails_and_the_domain_that_comes_nearest() -> None:
    nodes = (
        Node("n0", 4, ("a11", "a1", "a")),
        Node("n1", 4, ("a12", "a1", "a")),
        Node("n2", 2, ("b11", "b1", "b")),
        Node("n3", 4, ("", "", "")),
    )
    four = Case(nodes, size=2, wanted=4, require=("zone",))
    assert not isinstance(searched(four), NoRoom)
    assert searched(replace(four, wanted=5)) == NoRoom(5, 4, "a", 4, "zone")
    assert searched(replace(four, require=("leaf", "clique"))) == NoRoom(4, 2, "a11", 2, "clique")
    # Where there is no room anywhere, no span is to blame.
    assert searched(replace(four, wanted=8)) == NoRoom(8, 7, "n0", 2)
    # Beside members that live, their domain is the only one; and there is none where they are not.
    assert searched(replace(four, wanted=2, company=(2,))) == NoRoom(2, 1, "b", 1, "zone")
    assert searched(replace(four, wanted=1, company=(2, 3))) == NoRoom(1, 0, "", 0, "zone")


def in_cliques(*sizes: int) -> tuple[Node, ...]:
    """Idle nodes, so many in each of the cliques a, b …"""
    cliques = [clique for clique, size in zip("abc", sizes, strict=False) for _ in range(size)]
    return tuple(Node(f"n{n}", 4, (clique, "l", "z")) for n, clique in enumerate(cliques))


def cliques_of(case: Case) -> str:
    """The clique of each member."""
    spots = searched(case)
    assert not isinstance(spots, NoRoom)
    return "".join(case.domain(node, "clique") for node in nodes_of(case, spots))


def test_members_that_belong_together_are_not_torn_between_domains() -> None:
    jobs = Case(in_cliques(5, 5), size=4, wanted=8)
    assert cliques_of(jobs) == "aaaaabbb"
    assert cliques_of(replace(jobs, unit=4)) == "aaaabbbb"
    assert cliques_of(replace(jobs, unit=2)) == "aaaabbbb"
    # Two of them on a node: what belongs together fills whole nodes.
    assert cliques_of(replace(jobs, size=2, wanted=16, unit=8)) == "a" * 8 + "b" * 8


def test_members_that_belong_together_are_torn_where_it_would_take_more_nodes() -> None:
    jobs = Case(in_cliques(5, 3), size=4, wanted=8, unit=4)
    assert cliques_of(jobs) == "aaaaabbb"
    # And where no domain holds one of them, whole domains are filled.
    assert cliques_of(replace(jobs, nodes=in_cliques(3, 3, 3), unit=4)) == "aaabbbcc"
