"""Which GPUs of a node come from claims, and who has them, whatever comes first."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.extender.state.cache.claims.book import NONE_CLAIMED, ClaimBook
from linkwise.extender.state.cache.claims.records import (
    ClaimRecord,
    GpuDevice,
    PodName,
    PoolName,
    SliceRecord,
)

POOL = PoolName("gpu.nvidia.com", "n1")


def published(
    name: str,
    *uuids: str,
    node: str = "n1",
    generation: int = 1,
    pool: PoolName = POOL,
    size: int = 1,
) -> SliceRecord:
    gpus = tuple(GpuDevice(f"gpu-{uuid}", uuid, tainted=uuid.endswith("!")) for uuid in uuids)
    return SliceRecord(name, node, pool, generation, gpus, tuple(gpu.name for gpu in gpus), size)


def claimed(name: str, *uuids: str, pool: PoolName = POOL, pod: str = "") -> ClaimRecord:
    devices = ((pool, f"gpu-{uuid}") for uuid in uuids)
    pods = (PodName(f"uid-{pod}", f"ml/{pod}"),) if pod else ()
    return ClaimRecord(f"ml/{name}", tuple(devices), pods)


def test_a_node_without_slices_has_no_gpus_from_claims() -> None:
    book = ClaimBook()
    assert book.put_claim(claimed("c", "a")) == set()
    assert book.of_node("n1") is NONE_CLAIMED


def test_the_gpus_are_those_of_the_slices_and_belong_to_claims() -> None:
    book = ClaimBook()
    assert book.put_slice(published("s", "a", "b!", "c")) == {"n1"}
    assert book.put_claim(claimed("one", "c", "a", pod="p")) == {"n1"}
    found = book.of_node("n1")
    assert found.gpus == {"a", "b!", "c"}
    assert found.open == {"a", "c"}
    assert found.pods == {"uid-p"}
    assert found.of_pod("uid-p") == {"ml/one": ("c", "a")}
    assert found.of_pod("uid-q") == {}
    assert (found.name_of("uid-p"), found.name_of("uid-q")) == ("ml/p", None)


def test_one_set_says_that_all_gpus_are_open() -> None:
    book = ClaimBook()
    book.put_slice(published("s", "a", "b"))
    found = book.of_node("n1")
    assert found.open == {"a", "b"}
    assert found.open is found.gpus


def test_a_gpu_that_is_offered_in_parts_alone_is_not_open() -> None:
    book = ClaimBook()
    whole, part = GpuDevice("gpu-0", "a", False), GpuDevice("gpu-0-mig-0", "a", False, whole=False)
    only_part = GpuDevice("gpu-1-mig-0", "b", False, whole=False)
    book.put_slice(SliceRecord("s", "n1", POOL, 1, (whole, part, only_part), ()))
    assert book.of_node("n1").gpus == {"a", "b"}
    assert book.of_node("n1").open == {"a"}


def test_parts_that_have_the_id_of_their_gpu_are_no_whole_ones() -> None:
    book = ClaimBook()
    parts = (GpuDevice(f"gpu-0-cpx-{number}", "0000:05:00.0", False) for number in range(2))
    whole = GpuDevice("gpu-1", "0000:c5:00.0", False)
    book.put_slice(SliceRecord("s", "n1", POOL, 1, (*parts, whole), ()))
    assert book.of_node("n1").gpus == {"0000:05:00.0", "0000:c5:00.0"}
    assert book.of_node("n1").open == {"0000:c5:00.0"}


def test_the_newest_generation_of_a_pool_counts() -> None:
    book = ClaimBook()
    book.put_slice(published("old", "a", "b", generation=1))
    assert book.put_slice(published("new", "a", generation=2)) == {"n1"}
    assert book.of_node("n1").gpus == {"a"}
    assert book.drop_slice("new") == {"n1"}
    assert book.of_node("n1").gpus == {"a", "b"}


def test_slices_of_another_node_take_nothing_from_this_one() -> None:
    """A node's own account may write any pool, and any generation, into slices of its node."""
    book = ClaimBook()
    book.put_slice(published("s", "a", "b"))
    book.put_slice(published("forged", "c", node="evil", generation=999_999))
    assert book.of_node("n1").open == {"a", "b"}
    assert book.of_node("evil").open == {"c"}


@pytest.mark.parametrize("comes", [published("t", "b", size=2), published("t", node="n2", size=2)])
def test_a_pool_that_lacks_slices_is_closed_until_they_come(comes: SliceRecord) -> None:
    book = ClaimBook()
    book.put_slice(published("s", "a", size=2))
    assert book.of_node("n1").gpus == {"a"}
    assert book.of_node("n1").open == set()
    assert "n1" in book.put_slice(comes)
    assert book.of_node("n1").open == book.of_node("n1").gpus


def test_a_pool_that_lacks_slices_is_closed_while_another_node_has_a_newer_one() -> None:
    book = ClaimBook()
    book.put_slice(published("s", "a", size=2))
    book.put_slice(published("t", node="n2", size=2))
    book.put_slice(published("u", node="n3", generation=2))
    assert book.of_node("n1").open == set()


def test_a_pool_with_two_devices_of_one_name_is_closed() -> None:
    book = ClaimBook()
    book.put_slice(published("s", "a", "b", size=2))
    book.put_slice(published("t", "b", "c", size=2))
    assert book.of_node("n1").gpus == {"a", "b", "c"}
    assert book.of_node("n1").open == set()


def test_a_claim_counts_on_the_node_of_its_pool_alone() -> None:
    book, other = ClaimBook(), PoolName("gpu.nvidia.com", "n2")
    book.put_slice(published("s1", "a"))
    book.put_slice(published("s2", "a", node="n2", pool=other))
    assert book.put_claim(claimed("c", "a", pool=other, pod="p")) == {"n2"}
    assert book.of_node("n1").given == ()
    assert [each.claim for each in book.of_node("n2").given] == ["ml/c"]


def test_what_does_not_change_concerns_no_node() -> None:
    book = ClaimBook()
    book.put_slice(published("s", "a"))
    book.put_claim(claimed("c", "a", pod="p"))
    assert book.put_slice(published("s", "a")) == set()
    assert book.put_claim(claimed("c", "a", pod="p")) == set()
    assert book.put_claim(claimed("waits")) == set()
    assert book.drop_claim("ml/waits") == set()
    assert book.drop_slice("other") == set()


def test_a_claim_whose_allocation_ends_gives_its_gpus_back() -> None:
    book = ClaimBook()
    book.put_slice(published("s", "a"))
    book.put_claim(claimed("c", "a", pod="p"))
    assert book.put_claim(claimed("c")) == {"n1"}
    assert book.of_node("n1").given == ()


def test_a_claim_that_no_pod_uses_holds_its_gpus_itself() -> None:
    book = ClaimBook()
    book.put_slice(published("s", "a"))
    book.put_claim(claimed("c", "a"))
    assert [each.holder for each in book.of_node("n1").given] == ["ml/c"]


def test_a_list_replaces_what_was_there() -> None:
    book = ClaimBook()
    book.replace_slices([published("s", "a"), published("t", "b")])
    book.replace_claims([claimed("c", "a"), claimed("d", "b")])
    assert book.replace_slices([published("t", "b")]) == {"n1"}
    assert book.replace_claims([claimed("c", "a")]) == {"n1"}
    assert book.of_node("n1").gpus == {"b"}
    assert book.of_node("n1").given == ()


SLICES = st.builds(
    lambda name, uuids, node, generation, size: published(
        name, *uuids, node=node, generation=generation, size=size
    ),
    st.sampled_from("st"),
    st.lists(st.sampled_from("abc"), unique=True),
    st.sampled_from(["n1", "n2", ""]),
    st.integers(1, 2),
    st.integers(1, 2),
)
CLAIMS = st.builds(
    lambda name, uuids: claimed(name, *uuids, pod=name),
    st.sampled_from("cd"),
    st.lists(st.sampled_from("abc"), unique=True, max_size=2),
)


@given(st.lists(st.one_of(SLICES, CLAIMS, st.sampled_from(["s", "t", "ml/c", "ml/d"]))))
def test_it_is_a_function_of_what_there_is_and_names_each_node_that_changes(
    events: list[SliceRecord | ClaimRecord | str],
) -> None:
    book = ClaimBook()
    slices: dict[str, SliceRecord] = {}
    claims: dict[str, ClaimRecord] = {}
    nodes = ("n1", "n2")
    for event in events:
        before = {node: book.of_node(node) for node in nodes}
        if isinstance(event, SliceRecord):
            slices[event.name] = event
            changed = book.put_slice(event)
        elif isinstance(event, ClaimRecord):
            claims[event.key] = event
            changed = book.put_claim(event)
        elif "/" in event:
            claims.pop(event, None)
            changed = book.drop_claim(event)
        else:
            slices.pop(event, None)
            changed = book.drop_slice(event)
        assert {node for node in nodes if book.of_node(node) != before[node]} <= changed
    for ordered in permutations(slices.values()):
        again = ClaimBook()
        again.replace_claims(claims.values())
        again.replace_slices(ordered)
        assert [again.of_node(node) for node in nodes] == [book.of_node(node) for node in nodes]
