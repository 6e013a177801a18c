"""A snapshot of a large cluster is made in parts, so that no call waits for all of it."""

from unittest.mock import patch

from linkwise.extender.show.explain import snapshot as module
from tests.extender.cluster import Cluster


def test_nodes_that_changed_are_made_ready_some_at_a_time() -> None:
    cluster = Cluster()
    for number in range(7):
        cluster.add_node(f"n{number}")
    core = cluster.core
    with patch.object(module, "_AT_ONCE", 3):
        taken = [core.begin_snapshot(cluster.now) for _ in range(4)]
    assert [each is None for each in taken] == [True, True, False, False]
    before = core.snapshot(cluster.now).node_named
    cluster.set_health("n3", 1)
    cluster.remove_node("n5")
    with patch.object(module, "_AT_ONCE", 1):
        found = core.begin_snapshot(cluster.now)
    assert found is not None
    after = found.node_named
    assert [name for name in before if before[name] is not after.get(name)] == ["n3", "n5"]
    assert after["n3"].free == before["n3"].free & ~0b10
