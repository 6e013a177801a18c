"""The table of what nodes have left, beside a plain recount; and columns that a search adds."""

from collections import Counter
from dataclasses import replace
from itertools import chain, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from linkwise.extender.place.cluster_view import ClusterView, cluster_view
from linkwise.extender.place.gang_placement import place, pod_sets_of
from linkwise.extender.place.request import NoRoom, PodSet
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.cache.resources import Ints, ResourcesLeft, node_offers
from linkwise.extender.state.records import ResourceList
from linkwise.extender.state.timers import Agenda
from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import Container, Pod, Resources
from tests.extender.cached import cached
from tests.extender.cluster import GPU, Cluster, change

NAMES = ("example.com/a", "example.com/b", "ephemeral-storage", "hugepages-2Mi")
NODES = ("n0", "n1", "n2")
amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9), max_size=3)
nodes = st.sampled_from(NODES)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("offers"), nodes, amounts),
        st.tuples(st.just("runs"), nodes, amounts),
        st.tuples(st.just("ends"), nodes, st.just({})),
        st.tuples(st.just("copies"), nodes, st.just({})),
    ),
    max_size=20,
)


class Recount:
    """A cluster, and in plain dictionaries what its nodes offer and its pods request."""

    def __init__(self) -> None:
        self.at = Cluster()
        self.offered: dict[str, dict[str, int]] = {name: {} for name in NODES}
        self.pods: dict[str, tuple[str, dict[str, int]]] = {}
        self.counted: set[str] = set()  # what a node listed while a pod requested it
        self.copied: list[tuple[ResourcesLeft, Ints]] = []
        for name in NODES:
            self.at.add_node(name)
        self.table = self.at.core._cache.rows

    def offers(self, name: str, of: dict[str, int]) -> None:
        self.offered[name] = of
        self.count()
        made = self.at.nodes[name]
        kept = {k: v for k, v in made.status.allocatable.items() if k not in NAMES}
        listed = {**kept, **{k: str(v) for k, v in of.items()}}
        self.at.put_node(change(made, status=change(made.status, allocatable=listed)))

    def runs(self, name: str, of: dict[str, int]) -> None:
        asks = Resources(requests={k: str(v) for k, v in of.items()})
        pod = self.at.add_pod(
            f"p{self.at.now}", containers=[Container(name="c", resources=asks)], node=name
        )
        self.pods[pod.metadata.name] = name, of
        self.count()

    def count(self) -> None:
        listed = {*chain(*self.offered.values())}
        requested = {name for _, of in self.pods.values() for name in of if of[name]}
        self.counted |= listed & requested

    def ends(self, name: str, _: dict[str, int]) -> None:
        gone = next((pod for pod, (on, _) in self.pods.items() if on == name), None)
        if gone is not None:
            self.at.delete(gone)
            del self.pods[gone]

    def copies(self, _: str, __: dict[str, int]) -> None:
        left = self.table.left.of_rows(slice(len(self.table)))
        self.copied.append((left, left.amounts.copy()))

    def left(self, name: str) -> dict[str, int]:
        spent: Counter[str] = Counter()
        for on, of in self.pods.values():
            spent.update(of if on == name else {})
        return {k: self.offered[name].get(k, 0) - spent[k] for k in self.counted}

    def room(self, name: str, key: str, need: int) -> int:
        places = 110 - sum(on == name for on, _ in self.pods.values())
        return min(max(self.left(name).get(key, 10**9), 0) // need, places)


@given(steps)
def test_the_table_is_what_a_recount_of_nodes_and_pods_says(
    taken: list[tuple[str, str, dict[str, int]]],
) -> None:
    it = Recount()
    for what, name, of in taken:
        it.at.now += 1
        getattr(it, what)(name, of)
    table = it.table
    for name, key, need in product(NODES, NAMES, range(1, 4)):
        row, needs = table.row_of[name], ResourceList(others=((key, need),))
        room = it.room(name, key, need)
        assert dict(table.left.on(row).others) == it.left(name)
        assert table.pods_that_fit(needs)[row] == room
        assert table.fits(needs)[row] == table.left.fits_on(row, needs) == (room > 0)
    assert all(np.array_equal(copy.amounts, before) for copy, before in it.copied)
    assert it.at.sound()


def test_a_sum_leaves_out_what_there_is_none_of() -> None:
    some = ResourceList(1, 2, 3, (("a", 1), ("c", 3)))
    more = ResourceList(10, 20, 30, (("b", 2), ("c", 4)))
    assert some + more == ResourceList(11, 22, 33, (("a", 1), ("b", 2), ("c", 7)))
    assert some + more - more == some
    assert some - some == ResourceList()
    assert (some + some).room_for(some) == 2
    assert some.room_for(more) == 0


def view(extra: dict[str, list[int]]) -> ClusterView:
    """Two idle nodes of eight GPUs, and more resources on each."""
    at = Cluster()
    for name in ("n0", "n1"):
        at.add_node(name, "hgx-h100")
    cache = cached(at)
    columns = {name: np.array(left) for name, left in extra.items()}
    return cluster_view(cache, cache.rows.with_columns(columns), ())


def pod_sets(*sizes: int, extra: str) -> list[PodSet]:
    """A pod of each size, which needs 1 of the *extra* resource."""
    at = Cluster()
    for number, size in enumerate(sizes):
        at.add_pod(f"p{number}", size)
    found = pod_sets_of([*cached(at).pods.values()], lambda _: np.ones(2, dtype=np.bool_))
    one = ResourceList(others=((extra, 1),))
    return [replace(pods, needs=pods.needs + one) for pods in found]


def test_equal_members_are_spread_by_a_column_of_the_searchs_own() -> None:
    pods = pod_sets(2, 2, extra="apart")
    assert nodes_of(view({}), pods) == ["n0", "n0"]
    assert nodes_of(view({"apart": [1, 1]}), pods) == ["n0", "n1"]
    assert nodes_of(view({"apart": [0, 5]}), pods) == ["n1", "n1"]
    assert nodes_of(view({"apart": [1, 0]}), pods) == []


def test_unequal_members_are_spread_by_a_column_of_the_searchs_own() -> None:
    pods = pod_sets(4, 2, 1, extra="apart")
    assert nodes_of(view({}), pods) == ["n0", "n0", "n0"]
    assert sorted(nodes_of(view({"apart": [1, 2]}), pods)) == ["n0", "n1", "n1"]
    assert nodes_of(view({"apart": [0, 5]}), pods) == ["n1", "n1", "n1"]
    assert nodes_of(view({"apart": [1, 1]}), pods) == []


def nodes_of(view: ClusterView, pods: list[PodSet]) -> list[str]:
    found = place(view, pods)
    return [] if isinstance(found, NoRoom) else [spot.node for spot in found]


def test_a_copy_with_columns_of_its_own_equals_the_table_that_it_was_made_from() -> None:
    at = Cluster()
    at.add_node("n0")
    cache = cached(at)
    table = cache.rows
    copy = table.with_columns({"apart": np.array([1])})
    assert table.equals(copy, [0])
    wants = Container(name="c", resources=Resources(requests={"example.com/a": "1"}))
    cache.put_pod(Ingest((GPU,), Agenda()).pod(at.add_pod("p", containers=[wants])))
    made = at.nodes["n0"]
    listed = {**made.status.allocatable, "example.com/a": "1"}
    cache.put_node(
        Ingest((GPU,), Agenda()).node(change(made, status=change(made.status, allocatable=listed)))
    )
    assert not table.equals(copy, [0])  # it was searched without what counts now
    copy.left.show(0, ResourceList(gpus=8), 1)
    assert copy.left.on(0).others == (("apart", 1),)
    assert GPU not in dict(table.left.on(0).others)


EFA = "vpc.amazonaws.com/efa"


def lists(at: Cluster, name: str, **more: str) -> None:
    node = at.nodes[name]
    listed = {**node.status.allocatable, **more}
    at.put_node(change(node, status=change(node.status, allocatable=listed)))


def requests(at: Cluster, pod: str, *of: str, static: bool = False) -> None:
    def alter(made: Pod) -> Pod:
        said = {MIRROR_POD: "hash"} if static else {}
        return change(made, metadata=change(made.metadata, annotations=said))

    wants = Container(name="c", resources=Resources(requests=dict.fromkeys(of, "1")))
    at.add_pod(pod, containers=[wants], node="evil" if static else "", alter=alter)


def counted(at: Cluster, *of: str) -> tuple[str, ...]:
    needs = ResourceList(others=tuple((name, 1) for name in of))
    return tuple(name for name, _ in cached(at).rows.left.counted(needs).others)


def made_up(first: int = 0) -> list[str]:
    return [f"x.y/{number}" for number in range(first, first + 300)]


def test_what_one_node_lists_takes_no_place_from_what_pods_request() -> None:
    """A kubelet may list what it likes, and create static pods that request it."""
    at = Cluster()
    for name in ("evil", "n1"):
        at.add_node(name)
    lists(at, "evil", **dict.fromkeys(made_up(), "1"))
    requests(at, "static", *made_up(), static=True)
    lists(at, "n1", **{EFA: "4"})
    requests(at, "p", EFA)
    assert counted(at, EFA, *made_up()) == (EFA,)
    assert at.sound()


def test_what_is_listed_or_requested_no_more_makes_room() -> None:
    at = Cluster()
    at.add_node("n1")
    lists(at, "n1", **dict.fromkeys([*made_up(), *made_up(300), EFA], "1"))
    requests(at, "many", EFA, *made_up())
    assert len(counted(at, EFA, *made_up())) == 256
    at.delete("many")
    requests(at, "others", EFA, *made_up(300))
    assert counted(at, *made_up()) == ()
    assert len(counted(at, EFA, *made_up(300))) == 256
    assert at.sound()


def test_a_node_lists_no_more_than_a_machine_could_have() -> None:
    """Found: 70 ms for each of a kubelet's writes, while kube-scheduler's calls waited."""
    at = Cluster()
    node = at.add_node("n0")
    standard = {key: node.status.allocatable[key] for key in ("cpu", "memory", "pods", GPU)}
    made_up = {f"a.example.com/r{number}": "1" for number in range(30_000)}
    listed = {**made_up, **standard}
    offers = node_offers(change(node, status=change(node.status, allocatable=listed)), GPU)
    assert len(offers.others) == 1024
    assert (offers.gpus, offers.milli_cpu) == (8, 96_000)
    assert offers == replace(node_offers(node, GPU), others=offers.others)
