"""The extender's core in simulated time."""

from dataclasses import replace
from math import inf

import msgspec
import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.kube.objects import Pod, Resources
from linkwise.replay.core import objects
from linkwise.replay.core.contestant import LinkwiseContestant
from linkwise.replay.driver import replay
from linkwise.replay.jobs import Job, Run
from tests.replay.made_up import assert_possible, by_name, fleet, job, random_jobs


def replayed(jobs: list[Job], nodes: int, machine: str = "hgx-h100") -> list[Run]:
    return replay(jobs, LinkwiseContestant(objects.nodes([machine] * nodes)))


@pytest.mark.parametrize("pods_of", [1, 8])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_every_job_runs_and_no_gpu_has_two_at_a_time(seed: int, known: bool, pods_of: int) -> None:
    jobs = random_jobs(seed, 40, pods_of=pods_of, known=known)
    assert_possible(replayed(jobs, 3), jobs, fleet(3))


def test_the_same_trace_comes_to_the_same_runs() -> None:
    jobs = random_jobs(7, 30, pods_of=1)
    assert replayed(jobs, 2) == replayed(jobs, 2)


def test_a_gang_of_one_gpu_pods_starts_whole_on_one_node() -> None:
    runs = by_name(replayed([job("small", 1), job("gang", 8, at=5.0, pods_of=1)], 2))
    assert runs["gang"].start == 5.0
    assert len(runs["gang"].parts) == 1


def test_a_gang_waits_until_all_of_it_fits_and_starts_when_it_does() -> None:
    jobs = [job("first", 12, seconds=70.0), job("gang", 12, at=1.0, pods_of=4)]
    assert by_name(replayed(jobs, 2))["gang"].start == 70.0


def test_a_single_pod_that_was_turned_away_starts_when_gpus_come_free() -> None:
    jobs = [job("first", 8, seconds=70.0), job("small", 2, at=1.0)]
    assert by_name(replayed(jobs, 1))["small"].start == 70.0


def test_gpus_are_those_that_the_core_planned_and_not_the_lowest() -> None:
    """Of a DGX-1V, 0 and 1 have one NVLink, 0 and 3 have two."""
    run = replayed([job("pair", 2)], 1, "dgx1-v100")[0]
    there = fleet(1, "dgx1-v100")
    assert there.bandwidth(run.parts) == there.best_bandwidth(run.job)


def test_a_cluster_may_be_of_any_machines_and_its_pods_of_any_sizes() -> None:
    small, _ = objects.nodes(["juwels-booster"] * 2)
    _, large = objects.nodes(["hgx-h100"] * 2)

    def unequal(job: Job, number: int, now: float) -> list[Pod]:
        """4 and 2 GPUs, which fit only the larger machine."""
        first, second = objects.pods(job, number, now)
        container = msgspec.structs.replace(
            second.spec.containers[0], resources=Resources(limits={"nvidia.com/gpu": "2"})
        )
        spec = msgspec.structs.replace(second.spec, containers=(container,))
        return [first, msgspec.structs.replace(second, spec=spec)]

    there = LinkwiseContestant([small, large], pods_of=unequal)
    run = replay([job("six", 6, pods_of=4)], there)[0]
    assert [(part.node, part.gpus.bit_count()) for part in run.parts] == [(1, 6)]


def test_what_has_not_ended_at_the_end_of_the_window_is_left_as_it_is() -> None:
    jobs = [job("endless", 8, seconds=inf), job("waits", 8, at=5.0), job("late", 1, at=90.0)]
    runs = replay(jobs, LinkwiseContestant(objects.nodes(["hgx-h100"] * 1)), until=50.0)
    assert [run.job.name for run in runs] == ["endless"]


def test_a_pod_that_names_its_nodes_gets_one_of_them() -> None:
    def on_the_second(job: Job, number: int, now: float) -> list[Pod]:
        pods = objects.pods(job, number, now)
        selector = {"kubernetes.io/hostname": "node-00001"}
        return [
            msgspec.structs.replace(
                pod, spec=msgspec.structs.replace(pod.spec, node_selector=selector)
            )
            for pod in pods
        ]

    there = LinkwiseContestant(objects.nodes(["hgx-h100"] * 2), pods_of=on_the_second)
    runs = replay([job("one", 8), job("two", 8, at=1.0)], there)
    assert [(run.start, run.parts[0].node) for run in runs] == [(0.0, 1), (100.0, 1)]


def test_a_job_that_consents_moves_so_that_a_larger_one_starts() -> None:
    """It goes on where it was put, and loses what its move costs; the larger one would have waited
    for its end."""
    long, short = 50_000.0, 1_000.0
    small = [
        replace(job("moves", 4, seconds=long), move_cost=600.0),
        job("goes", 4, seconds=short),
        job("stays", 4, at=1.0, seconds=long),
        job("goes-too", 4, at=1.0, seconds=short),
    ]
    jobs = [*small, job("large", 8, at=8_000.0)]
    moves = CoreSettings(moves=MovePolicy(Moves.CONSENT))
    there = LinkwiseContestant(objects.nodes(["hgx-h100"] * 2), moves)
    runs = by_name(replay(jobs, there))
    moved, large = runs["moves"], runs["large"]
    assert moved.moves == (large.start,)
    assert (moved.lost, moved.end) == (600.0, 50_600.0)
    assert moved.parts[0].node == runs["stays"].parts[0].node
    assert large.start < 9_000.0 < by_name(replayed(jobs, 2))["large"].start


def test_a_job_that_consents_later_moves_only_then() -> None:
    long = 50_000.0
    first = replace(job("moves", 4, seconds=long), move_cost=600.0, movable_after=12_000.0)
    small = [
        first,
        job("goes", 4, seconds=1_000.0),
        job("stays", 4, at=1.0, seconds=long),
        job("goes-too", 4, at=1.0, seconds=1_000.0),
    ]
    moves = CoreSettings(moves=MovePolicy(Moves.CONSENT))
    there = LinkwiseContestant(objects.nodes(["hgx-h100"] * 2), moves)
    runs = by_name(replay([*small, job("large", 8, at=8_000.0)], there))
    assert runs["moves"].moves == (runs["large"].start,)
    assert 12_000.0 <= runs["large"].start < 15_000.0
