"""What is remembered of filter's answers, so that bind can go by them."""

import gc
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from linkwise.extender.let_through import LetThrough
from linkwise.kube.objects import ObjectMeta, Pod, PodSpec


def pod(uid: str, scheduler: str = "default-scheduler") -> Pod:
    return Pod(metadata=ObjectMeta(uid=uid), spec=PodSpec(scheduler_name=scheduler))


def test_only_the_nodes_that_were_named_for_that_very_pod_count() -> None:
    known = LetThrough()
    known.note(pod("a"), ("n1", "n2"))
    known.note(pod("b", "other"), ("n3",))
    assert known.as_whose("a", "n1") == known.as_whose("a", "n2") == "default-scheduler"
    assert known.as_whose("b", "n3") == "other"
    assert known.as_whose("a", "n3") == known.as_whose("c", "n1") == ""


def test_earlier_answers_count_until_the_pod_is_bound() -> None:
    """kube-scheduler tries several placements of a PodGroup, and binds to the best of them."""
    known = LetThrough()
    known.note(pod("a"), ("n1",))
    known.note(pod("a"), ())
    known.note(pod("a"), ("n2",))
    assert known.as_whose("a", "n1") == known.as_whose("a", "n2") == "default-scheduler"
    known.forget("a")
    known.forget("a")
    assert known.as_whose("a", "n1") == ""


@given(
    notes=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=60),
    most=st.integers(1, 30),
)
def test_it_keeps_no_more_than_it_may_and_the_last_in_any_case(
    notes: list[tuple[int, int]], most: int
) -> None:
    known = LetThrough(most)
    for uid, count in notes:
        nodes = tuple(f"n{number}" for number in range(count))
        known.note(pod(f"{uid}"), nodes)
        assert all(known.as_whose(f"{uid}", node) for node in nodes)
        kept = [len(of_pod) for of_pod in known._nodes.values()]
        assert known._names == sum(kept)
        assert sum(kept) <= most or len(kept) == 1


def test_a_hundred_pods_with_answers_of_five_hundred_nodes_cost_little() -> None:
    def answer() -> tuple[str, ...]:
        return tuple(f"gpu-node-{number:05}.example.internal" for number in range(500))

    def size(root: dict[str, Any]) -> int:
        return sum(sys.getsizeof(of_pod) for of_pod in root.values())

    known = LetThrough()
    for number in range(100):
        known.note(pod(f"uid-{number}"), answer())
    gc.collect()
    assert size(known._nodes) < 4 << 20
    names = {id(node) for of_pod in known._nodes.values() for node in of_pod}
    assert len(names) == 500, "each name is kept once"
