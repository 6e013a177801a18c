"""What is remembered of filter's answers, so that bind can go by them."""

from sys import getsizeof

from hypothesis import given
from hypothesis import strategies as st

from linkwise.extender.run.ports.dispatch import PassedNodes
from linkwise.kube.objects import ObjectMeta, Pod, PodSpec


def pod(uid: str, scheduler: str = "default-scheduler") -> Pod:
    return Pod(metadata=ObjectMeta(uid=uid), spec=PodSpec(scheduler_name=scheduler))


def test_only_the_nodes_that_were_named_for_that_very_pod_count() -> None:
    known = PassedNodes()
    known.note(pod("a"), ("n1", "n2"))
    known.note(pod("b", "other"), ("n3",))
    assert known.as_whose("a", "n1") == known.as_whose("a", "n2") == "default-scheduler"
    assert known.as_whose("b", "n3") == "other"
    assert known.as_whose("a", "n3") == known.as_whose("c", "n1") == ""


def test_earlier_answers_count_until_the_pod_is_bound() -> None:
    """kube-scheduler tries several placements of a PodGroup, and binds to the best of them."""
    known = PassedNodes()
    known.note(pod("a"), ("n1",))
    known.note(pod("a"), ())
    known.note(pod("a"), ("n2",))
    assert known.as_whose("a", "n1") == known.as_whose("a", "n2") == "default-scheduler"
    known.forget("a")
    known.forget("a")
    assert known.as_whose("a", "n1") == ""


def test_of_two_answers_with_a_node_the_later_one_says_whose_the_pod_is() -> None:
    known = PassedNodes()
    known.note(pod("a"), ("n1", "n2"))
    known.note(pod("a", "other"), ("n2",))
    assert known.as_whose("a", "n1") == "default-scheduler"
    assert known.as_whose("a", "n2") == "other"


@given(
    notes=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=60),
    most=st.integers(1, 30),
)
def test_it_keeps_no_more_than_it_may_and_the_last_in_any_case(
    notes: list[tuple[int, int]], most: int
) -> None:
    known = PassedNodes(most)
    for uid, count in notes:
        nodes = tuple(f"n{number}" for number in range(count))
        known.note(pod(f"{uid}"), nodes)
        assert all(known.as_whose(f"{uid}", node) for node in nodes)
        kept = [len(nodes) for answers in known._answers.values() for _, nodes in answers]
        assert known._names == sum(kept)
        assert sum(kept) <= most or len(kept) == 1


def test_a_full_memory_costs_little() -> None:
    known = PassedNodes()
    for number in range(1000):
        nodes = tuple(f"gpu-node-{each:05}.eu-west.example.internal" for each in range(500))
        known.note(pod(f"uid-{number % 900}"), nodes)
    answers = [nodes for of_pod in known._answers.values() for _, nodes in of_pod]
    assert 300 < len(answers) <= 400
    size = sum(getsizeof(nodes) + sum(map(getsizeof, nodes)) for nodes in answers)
    assert size < 24 << 20
