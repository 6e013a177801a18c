"""What a node's GPUs count as is worked out in two ways: as a whole, and after a reservation."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.extender.state.records import GangKey
from tests.extender.cached import cached
from tests.extender.cluster import Cluster

NODES = ("n1", "n2")


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from("pqr"), st.dictionaries(st.sampled_from(NODES), st.integers(0, 255))
        ),
        max_size=6,
    ),
    queue_first=st.booleans(),
)
def test_a_reservation_settles_its_nodes_as_if_they_were_settled_as_a_whole(
    steps: list[tuple[str, dict[str, int]]], queue_first: bool
) -> None:
    at = Cluster()
    for name in NODES:
        at.add_node(name, "dgx1-v100")
    for name, gpus in (("promised", 3), ("running", 2)):
        at.add_pod(name, gpus)
        at.schedule(name)
    at.start("running")
    cache = cached(at)
    cache.queue_first = queue_first
    for who, reserved in steps:
        before = {name: cache.nodes[name].settled for name in reserved}
        cache.reserve(GangKey("ml", who), reserved)
        assert all(cache.nodes[name].settled > times for name, times in before.items())
        shown = [*cache.rows.free], [*cache.rows.set_aside]
        for name in NODES:
            info = cache.nodes[name]
            settled = info.free, info.set_aside, info.fresh, info.used, dict(info.owned)
            info.settle(queue_first=queue_first)
            assert settled == (info.free, info.set_aside, info.fresh, info.used, info.owned)
            assert (shown[0][info.row], shown[1][info.row]) == (info.free, info.set_aside)


def test_nothing_is_sought_for_pods_that_no_gpu_is_left_for() -> None:
    """Found: 20 ms for each change beside 3,000 pods that a kubelet had created."""
    at = Cluster()
    at.add_node("n1", "dgx1-v100")
    for number in range(20):
        at.add_pod(f"static-{number}", 4, node="n1")
    info = cached(at).nodes["n1"]
    with patch.object(MachineKind, "take", autospec=True, side_effect=MachineKind.take) as take:
        info.settle()
    assert take.call_count == 2
    assert sorted(info.owned.values()) == [0x0F, 0xF0]
