"""Small traces and clusters for the replay's tests."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random

from linkwise.replay.jobs import Fleet, Job, Run


@cache
def fleet(nodes: int, machine: str = "hgx-h100") -> Fleet:
    return Fleet((machine,) * nodes)


def job(name: str, gpus: int, *, at: float = 0.0, seconds: float = 100.0, pods_of: int = 8) -> Job:
    return Job(name, at, seconds, gpus, "ml", min(pods_of, gpus))


def random_jobs(seed: int, count: int, *, pods_of: int = 8, known: bool = False) -> list[Job]:
    """Return enough simultaneous jobs that many wait, on two or three nodes of eight."""
    random, at, jobs = Random(seed), 0.0, []
    for number in range(count):
        at += random.choice((0.0, 0.0, 10.0, 300.0))
        gpus = random.choice((1, 1, 1, 2, 3, 4, 8, 12, 16))
        seconds = random.choice((0.0, 30.0, 400.0, 3000.0))
        space = random.choice(("a", "b"))
        expected = seconds if known else None
        jobs.append(Job(f"j{number}", at, seconds, gpus, space, min(pods_of, gpus), expected))
    return jobs


def by_name(runs: Iterable[Run]) -> dict[str, Run]:
    return {run.job.name: run for run in runs}


def assert_possible(
    runs: Sequence[Run], jobs: Sequence[Job], there: Fleet, *, in_cells: bool = False
) -> None:
    """Check that each job ran once, not before its submission, with its GPUs, and that no GPU had
    two jobs at a time.

    *in_cells* of two, four or eight, a job may have more than it asks for.
    """
    assert sorted(run.job.name for run in runs) == sorted(job.name for job in jobs)
    taken: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        assert run.start >= run.job.submit
        gpus = sum(part.gpus.bit_count() for part in run.parts)
        assert gpus >= run.job.gpus if in_cells else gpus == run.job.gpus
        assert len({part.node for part in run.parts}) == len(run.parts)
        for part in run.parts:
            assert part.node in range(there.nodes)
            for gpu in range(there.gpus_per_node):
                if part.gpus >> gpu & 1:
                    taken.setdefault((part.node, gpu), []).append(run)
    for users in taken.values():
        users.sort(key=lambda run: (run.start, run.end))
        for before, after in pairwise(users):
            assert before.end <= after.start, f"{before} and {after}"


def write_csv(file: Path, jobs: Iterable[Job]) -> Path:
    lines = ["job_id,submit_s,duration_s,num_gpus,vc"]
    lines += [f"{j.name},{j.submit},{j.seconds},{j.gpus},{j.namespace}" for j in jobs]
    file.write_text("\n".join(lines) + "\n")
    return file
