"""kube-scheduler alone, as the replay of the past models it."""

from random import Random

import msgspec
import pytest

from linkwise.cli.what_if.given.machines import know_machines
from linkwise.cli.what_if.past.figures import Fate, GpuUse, outcome
from linkwise.cli.what_if.past.ground import Ground, ground_of
from linkwise.cli.what_if.past.jobs import PastJob
from linkwise.cli.what_if.past.lives import Life
from linkwise.cli.what_if.past.stock import KubeScheduler
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.kube.objects import Container, ObjectMeta, Pod, PodSpec, Resources
from linkwise.replay.driver import replay
from linkwise.replay.jobs import Job, Run
from linkwise.topology.names import DEFAULT_RESOURCE, DEFAULT_RESOURCES
from tests.cli.what_if.asking import cluster


def ground(*machines: str) -> Ground:
    nodes = [*cluster(*machines).nodes.values()]
    return ground_of(know_machines(nodes, (), DEFAULT_RESOURCE), CoreSettings())


def pod(gpus: int) -> Pod:
    container = Container(name="main", resources=Resources(limits={DEFAULT_RESOURCE: gpus}))
    return Pod(metadata=ObjectMeta(name="p", namespace="ml"), spec=PodSpec(containers=(container,)))


def run(jobs: list[Job], *machines: str) -> list[Run]:
    def pods_of(job: Job, _number: int, _now: float) -> list[Pod]:
        return [pod(gpus) for gpus in job.pods]

    return replay(jobs, KubeScheduler(ground(*machines), pods_of, DEFAULT_RESOURCES))


@pytest.mark.parametrize("seed", range(5))
def test_no_gpu_has_two_jobs_at_a_time_and_every_job_has_its_gpus(seed: int) -> None:
    random, at, jobs = Random(seed), 0.0, []
    for number in range(60):
        at += random.choice((0.0, 5.0, 50.0))
        gpus, of = random.choice(((1, 1), (2, 2), (4, 1), (6, 4), (8, 8), (12, 4)))
        jobs.append(Job(f"j{number}", at, random.choice((10.0, 90.0)), gpus, "ml", of))
    runs = run(jobs, "dgx1-v100", "juwels-booster", "hgx-h100")
    assert len(runs) == len(jobs)
    for one in runs:
        assert one.start >= one.job.submit
        assert sum(part.gpus.bit_count() for part in one.parts) == one.job.gpus
        for other in runs:
            if one is not other and one.start < other.end and other.start < one.end:
                mine = {(p.node, bit) for p in one.parts for bit in range(16) if p.gpus >> bit & 1}
                its = {(p.node, bit) for p in other.parts for bit in range(16) if p.gpus >> bit & 1}
                assert not mine & its


def test_pods_go_one_by_one_to_the_emptiest_node() -> None:
    """By share: two of eight in use leave more than one of four."""
    jobs = [
        Job("a", 0.0, 9.0, 2, "ml", 2),
        Job("b", 0.0, 9.0, 1, "ml"),
        Job("c", 0.0, 9.0, 1, "ml"),
    ]
    first, second, third = run(jobs, "dgx1-v100", "juwels-booster")
    assert [r.parts[0].node for r in (first, second, third)] == [0, 1, 0]


def test_a_gang_is_spread_and_starts_when_all_of_it_has_room() -> None:
    jobs = [Job("full", 0.0, 9.0, 8, "ml", 8), Job("gang", 1.0, 9.0, 16, "ml", 8)]
    full, gang = run(jobs, "dgx1-v100", "dgx1-v100")
    assert (full.end, gang.start, len(gang.parts)) == (9.0, 9.0, 2)


def test_gpus_are_those_that_nvidias_plugin_prefers() -> None:
    """Of a DGX-1V, 0 and 3 have two NVLinks."""
    (pair,) = run([Job("pair", 0.0, 9.0, 2, "ml", 2)], "dgx1-v100")
    assert pair.parts[0].gpus == 0b1001


def test_gpus_count_as_unallocated_only_while_somebody_waits() -> None:
    """Of eight, `a` has six from 0 to 2 h. `b` waits from 1 to 3 h for eight: 1 h with two free, 1
    h with eight."""
    there, hour = ground("dgx1-v100"), 3600.0
    jobs = [past("a", 6, 0.0), past("b", 8, hour)]
    fates = {"a": Fate(0.0, None), "b": Fate(3 * hour, None)}
    uses = [GpuUse(0.0, 2 * hour, 6), GpuUse(3 * hour, float("inf"), 8)]
    found = outcome(jobs, fates, uses, {}, there, 10 * hour)
    assert (found.waited_hours, found.idle_gpu_hours) == (2.0, 10.0)
    assert (found.queue_mean_s, found.large_queue_mean_s) == (hour, 2 * hour)
    assert (found.gbytes_per_s, found.waiting) == (None, 0)


def past(name: str, gpus: int, created: float) -> PastJob:
    life = Life(msgspec.structs.replace(pod(gpus)), gpus, created, None, None)
    return PastJob(name, False, (life,), None, False)
