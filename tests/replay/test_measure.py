"""The figures, computed by hand."""

import pytest

from bench.replay.measure import figures
from bench.replay.schedulers import SCHEDULERS
from linkwise.replay.driver import replay
from linkwise.replay.jobs import Fleet, OnNode, Run
from tests.replay.made_up import fleet, job

ALL = 0xFF


def test_figures_of_three_runs() -> None:
    runs = [
        Run(job("one", 1, at=0.0, seconds=100.0), 0.0, (OnNode(0, 1),)),
        Run(job("split", 8, at=0.0, seconds=50.0), 100.0, (OnNode(0, 0x0F), OnNode(1, 0x0F))),
        Run(job("whole", 16, at=200.0, seconds=50.0), 200.0, (OnNode(0, ALL), OnNode(1, ALL))),
    ]
    by_size = figures(runs, fleet(2), communication=0.5)
    assert {least: each.jobs for least, each in by_size.items()} == {1: 3, 8: 2}
    found, large = by_size[1], by_size[8]
    assert found.queue_mean_s == pytest.approx(100 / 3)
    assert found.queue_p50_s == 0.0
    assert (large.queue_mean_s, large.queue_max_s) == (50.0, 100.0)
    assert large.queue_p99_s == pytest.approx(99.0)
    assert found.locality == 0.5
    assert found.nodes_per_fewest == 1.5
    # From 0 to 200: one GPU for 100 s and eight for 50 s, of sixteen for 200 s.
    assert found.allocated == pytest.approx((100 + 8 * 50) / (16 * 200))
    assert large.allocated == pytest.approx(8 * 50 / (16 * 200))
    # Four NICs of 48 GB/s a node, where the NVSwitch has 371.
    split = 0.5 + 0.5 * fleet(2).best_bandwidth(runs[1].job) / (4 * 48.0)
    assert split > 1.4
    assert found.stretch == pytest.approx((split * 8 + 1.0 * 16) / 24)
    assert found.slowdown == pytest.approx((1.0 + (100 + 50 * split) / 50 + 1.0) / 3)
    assert large.slowdown == pytest.approx(((100 + 50 * split) / 50 + 1.0) / 2)
    whole = fleet(2).bandwidth(runs[2].parts)
    assert (found.gbytes_2, found.gbytes_4) == (None, None)
    assert (found.gbytes_8, found.gbytes_more) == (4 * 48.0, whole)


def test_gbytes_are_means_over_the_jobs_of_about_a_size() -> None:
    sets = {2: 0b1001, 3: 0b0111, 4: 0b1111, 5: 0x1F, 8: ALL}
    there = Fleet(("dgx1-v100",), nic_gbytes_per_s=10.0)
    runs = [Run(job(f"of-{n}", n), 0.0, (OnNode(0, gpus),)) for n, gpus in sets.items()]
    got = [there.bandwidth(run.parts) for run in runs]
    found = figures(runs, there, 0.3)[1]
    assert found.gbytes_2 == got[0]
    assert found.gbytes_4 == pytest.approx((got[1] + got[2]) / 2)
    assert found.gbytes_8 == pytest.approx((got[3] + got[4]) / 2)


def test_the_shortest_jobs_count_as_ten_seconds() -> None:
    runs = [Run(job("short", 1, at=0.0, seconds=0.0), 40.0, (OnNode(0, 1),))]
    assert figures(runs, fleet(1), 0.3)[1].slowdown == 4.0


def test_a_trace_without_jobs_of_several_gpus_has_no_locality() -> None:
    by_size = figures([Run(job("one", 1), 0.0, (OnNode(0, 1),))], fleet(1), 0.3)
    assert [*by_size] == [1]
    assert (by_size[1].locality, by_size[1].stretch) == (None, None)


def test_a_job_is_local_by_leaf_if_it_is_on_the_fewest_leaves() -> None:
    there = Fleet(("hgx-h100",) * 4, nodes_per_leaf=2)
    runs = [
        Run(job("on-one-leaf", 16), 0.0, (OnNode(2, ALL), OnNode(3, ALL))),
        Run(job("across-two", 16), 0.0, (OnNode(1, ALL), OnNode(2, ALL))),
        Run(job("needs-two", 24), 0.0, (OnNode(0, ALL), OnNode(1, ALL), OnNode(2, ALL))),
    ]
    found = figures(runs, there, 0.3)[1]
    assert found.locality == 1.0
    assert found.leaf_locality == pytest.approx(2 / 3)
    assert figures(runs, fleet(4), 0.3)[1].leaf_locality is None
    (run,) = replay([job("pair", 16)], SCHEDULERS["linkwise"](there))
    assert there.leaves(part.node for part in run.parts) == 1


@pytest.mark.parametrize(
    ("gpus", "pods_of", "fewest"),
    [(1, 1, 1), (8, 1, 1), (9, 1, 2), (12, 8, 2), (16, 8, 2), (7, 3, 1), (9, 3, 2), (14, 3, 2)],
)
def test_the_fewest_nodes_of_eight_that_hold_a_job(gpus: int, pods_of: int, fewest: int) -> None:
    assert fleet(4).fewest_nodes(job("j", gpus, pods_of=pods_of)) == fewest


def test_on_one_node_the_set_decides_and_between_nodes_the_slowest_share_of_nics() -> None:
    there = Fleet(("dgx1-v100",) * 2, nic_gbytes_per_s=10.0)
    pair = job("pair", 2)
    assert there.best_bandwidth(pair) == there.bandwidth((OnNode(0, 0b1001),))
    assert there.bandwidth((OnNode(0, 0b0011),)) < there.best_bandwidth(pair)
    assert there.bandwidth((OnNode(0, 1), OnNode(1, 1))) == 10.0
    assert there.stretch(Run(pair, 0.0, (OnNode(0, 0b1001),)), 0.3) == 1.0


def test_in_a_mixed_cluster_the_best_machines_are_what_a_job_could_have_had() -> None:
    there = Fleet(("rtx4090-8-phb", "hgx-h100", "hgx-h100"))
    whole, twice, thrice = (job(f"j{gpus}", gpus) for gpus in (8, 16, 24))
    slow, fast = (there.bandwidth((OnNode(node, ALL),)) for node in (0, 1))
    assert slow < fast / 4
    assert there.best_bandwidth(whole) == fast
    assert there.best_bandwidth(twice) == 8 * 48.0 < fast  # the NICs of a node
    assert there.best_bandwidth(thrice) == slow
    assert there.bandwidth((OnNode(0, ALL), OnNode(1, ALL))) == slow
    run = Run(whole, 0.0, (OnNode(0, ALL),))
    assert there.stretch(run, 0.5) == pytest.approx(0.5 + 0.5 * fast / slow)


def test_the_core_of_a_mixed_cluster_takes_the_machine_with_the_links() -> None:
    there = Fleet(("rtx4090-8-phb", "hgx-h100"))
    (run,) = replay([job("whole", 8)], SCHEDULERS["linkwise"](there))
    assert [part.node for part in run.parts] == [1]
    (run,) = replay([job("whole", 8)], SCHEDULERS["greedy"](there))
    assert [part.node for part in run.parts] == [0]
