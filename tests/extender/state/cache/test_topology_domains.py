"""The domains of a level are read once: when a node comes, or when a pod first asks for them."""

from unittest.mock import patch

from linkwise.extender.state.cache import node_table
from linkwise.extender.state.cache.node_table import Domains


def test_levels_that_are_kept_are_read_as_nodes_come_and_not_all_at_once() -> None:
    """Found: the first gang's search read all levels of all nodes, and held up others."""
    domains = Domains()
    domains.keep(["rack"])
    for row in range(100):
        domains.put(row, {"rack": f"r{row % 4}", "row": "a"})
    with patch.object(node_table, "_Level", side_effect=AssertionError("all are read")):
        assert domains.numbers("rack").tolist() == [row % 4 for row in range(100)]
    assert domains.numbers("row").tolist() == [0] * 100


def test_levels_that_no_node_has_are_not_remembered() -> None:
    domains = Domains()
    for number in range(1000):
        assert not domains.known([f"label-{number}"])
    assert not domains._levels
