"""Consecutive ranks are neighbours, and the same cluster always gives the same plan."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given, settings

from tests.extender.cluster import Cluster

SIZE = 10
NODES = ("n0", "n1", "n2", "n3")


def plans(ranks: list[int], nodes: list[str], gpus: int) -> list[tuple[str, tuple[int, ...]]]:
    """Where each rank goes, if members and nodes appear in this order."""
    at = Cluster()
    for node in nodes:
        at.add_node(node, "hgx-h100" if node == "n3" else "dgx1-v100")
    at.add_pod("busy", 3, node="n1")
    for rank in ranks:
        said = {"gang": "g", "gang_size": str(SIZE), "rank": str(rank)}
        at.add_pod(f"pod-{rank * 7 % SIZE}", gpus, said=said)  # names tell nothing
    at.settle()
    by_rank = {
        pod.metadata.annotations["linkwise.dev/rank"]: pod.metadata.name
        for pod in at.pods.values()
        if "linkwise.dev/rank" in pod.metadata.annotations
    }
    found = []
    for rank in range(SIZE):
        name = by_rank[str(rank)]
        plan = at.plan(name)
        assert plan is not None
        found.append((plan.node, at.indices(name)))
    return found


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    ranks=st.permutations(range(SIZE)),
    nodes=st.permutations(NODES),
    gpus=st.sampled_from([1, 2]),
)
def test_in_whatever_order_pods_and_nodes_appear_the_plan_is_the_same(
    ranks: list[int], nodes: list[str], gpus: int
) -> None:
    assert plans(ranks, nodes, gpus) == plans(list(range(SIZE)), list(NODES), gpus)


def test_consecutive_ranks_share_a_node_before_the_next_one_is_begun() -> None:
    nodes = [node for node, _ in plans(list(range(SIZE)), list(NODES), 2)]
    changes = sum(one != other for one, other in pairwise(nodes))
    assert changes == len(set(nodes)) - 1
