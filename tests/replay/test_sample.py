"""The sample of nodes, as kube-scheduler takes it."""

import numpy as np
import pytest

from bench.replay.openb.sample import Sample, most_nodes


@pytest.mark.parametrize(
    ("percent", "nodes", "most"),
    [  # of kube-scheduler's own Test_numFeasibleNodesToFind, and small clusters
        (0, 10, 10),
        (40, 10, 10),
        (0, 1000, 420),
        (40, 1000, 400),
        (0, 6000, 300),
        (40, 6000, 2400),
        (5, 1000, 100),
        (5, 5000, 250),
        (100, 300, 300),
    ],
)
def test_how_many_nodes_are_enough(percent: int, nodes: int, most: int) -> None:
    assert most_nodes(percent, nodes) == most


def test_each_search_goes_on_where_the_last_one_ended() -> None:
    sample = Sample(10, 1000)
    fits = np.arange(1000) % 2 == 0
    first, second = sample.take(fits), sample.take(fits)
    assert first.tolist() == [*range(0, 200, 2)]
    assert second.tolist() == [*range(200, 400, 2)]  # from node 199 on
    for _ in range(2):
        sample.take(fits)
    assert sample.take(fits).tolist() == [*range(800, 1000, 2)]
    assert sample.take(fits).tolist() == [*range(0, 200, 2)]


def test_fewer_nodes_that_fit_than_the_sample_are_all_taken() -> None:
    sample = Sample(10, 1000)
    fits = np.zeros(1000, dtype=np.bool_)
    fits[[7, 990]] = True
    for _ in range(3):
        assert sample.take(fits).tolist() == [7, 990]
    assert sample.take(np.zeros(1000, dtype=np.bool_)).tolist() == []
