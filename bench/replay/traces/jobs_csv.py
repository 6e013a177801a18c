"""Reads traces of jobs: a CSV file with one job per line and the columns' names in the first line.

Required: job_id, submit_s, duration_s, num_gpus. Optional: vc or namespace (the job's owner),
gpus_per_pod, expected_s (the author's estimate of the run time; empty: none). Other columns are
ignored. `published` makes the same of files that others published.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from bench.replay.errors import TraceError
from bench.replay.traces.published import reader_of
from linkwise.replay.jobs import Fleet, Job

NEEDED = ("job_id", "submit_s", "duration_s", "num_gpus")
MOST_MOVABLE = 4  # GPUs of a job that may be moved
_NUMBER = "seconds, 0 or more"


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a file. `gpus_per_pod` is for jobs whose line gives none; None: 1."""

    fleet: Fleet
    gpus_per_pod: int = 1
    durations_known: bool = False
    begin: float = 0.0  # skip jobs submitted before
    end: float = math.inf  # and those submitted from then on
    first: int | None = None  # keep only so many of the rest
    longest: float = math.inf  # cut run times to this
    jitter: float = 0.0  # submit each job later by a random time up to this
    seed: int = 0  # of these times
    move_cost: float = 600.0  # seconds of its run that a move takes from a job
    movable: float = 0.0  # the share of the jobs of up to MOST_MOVABLE GPUs that may be moved
    movable_after: float = 0.0  # once they have run for so many seconds


def read_jobs(file: Path, reading: Reading) -> list[Job]:
    """Return the jobs by time of submission, equal times in the file's order. Raises TraceError.

    The window applies to the times in the file: with every jitter it has the same jobs.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            jobs = list(_jobs(file, csv.DictReader(lines, strict=True), reading))
    except OSError as error:
        raise TraceError(file, None, error.strerror or str(error), "a readable file") from error
    except UnicodeDecodeError as error:
        raise TraceError(file, None, f"byte {error.start} is not UTF-8", "a text file") from error
    kept = [job for job in jobs if reading.begin <= job.submit < reading.end]
    kept.sort(key=lambda job: job.submit)
    kept = kept[: reading.first]
    if reading.movable:
        kept = [
            replace(job, move_cost=reading.move_cost, movable_after=reading.movable_after)
            if _may_move(job, reading)
            else job
            for job in kept
        ]
    if not kept:
        raise TraceError(file, None, "no job in the window", "at least one job")
    if reading.jitter:
        draw = Random(reading.seed)
        kept = [replace(job, submit=job.submit + draw.uniform(0, reading.jitter)) for job in kept]
        kept.sort(key=lambda job: job.submit)
    return kept


def _may_move(job: Job, reading: Reading) -> bool:
    """By the job's name, so that the same jobs may be moved whatever else is asked."""
    drawn = Random(f"{reading.seed} {job.name}").random()
    return job.gpus <= MOST_MOVABLE and len(job.pods) == 1 and drawn < reading.movable


def _jobs(file: Path, rows: "csv.DictReader[str]", reading: Reading) -> Iterator[Job]:
    names: dict[str, int] = {}
    try:
        columns = rows.fieldnames or ()
        read = reader_of(columns)
        for name in () if read else NEEDED:
            if name not in columns:
                found = ", ".join(columns) or "nothing"
                expected = f"the columns {', '.join(NEEDED)}"
                raise TraceError(file, 1, f"no column {name} in: {found}", expected)
        for row in read(rows) if read else rows:
            if row is None:
                continue
            job = _Row(file, rows.line_num, row).job(reading)
            if job.name in names:
                problem = f"job_id {job.name!r} stands in line {names[job.name]} too"
                raise TraceError(file, rows.line_num, problem, "an id once")
            names[job.name] = rows.line_num
            yield job
    except csv.Error as error:
        raise TraceError(
            file, rows.reader.line_num, str(error), "comma-separated values"
        ) from error


@dataclass(frozen=True, slots=True)
class _Row:
    file: Path
    line: int
    texts: Mapping[str, str | None]

    def job(self, reading: Reading) -> Job:
        name = self._text("job_id")
        if not name:
            raise self._error("job_id ''", "a name")
        gpus = self._count("num_gpus")
        largest = reading.fleet.gpus_per_node
        said_per_pod = self._text("gpus_per_pod")
        if said_per_pod:
            per_pod = self._count("gpus_per_pod")
            if per_pod > largest:
                raise self._error(f"gpus_per_pod {per_pod}", f"at most {largest}, a node's GPUs")
        else:
            per_pod = reading.gpus_per_pod
        per_pod = min(per_pod, gpus)
        seconds = min(self._seconds("duration_s"), reading.longest)
        expected = self._seconds("expected_s") if self._text("expected_s") else None
        if reading.durations_known and expected is None:
            expected = seconds
        job = Job(
            name=name,
            submit=self._seconds("submit_s"),
            seconds=seconds,
            gpus=gpus,
            namespace=self._text("namespace") or self._text("vc") or "default",
            gpus_per_pod=per_pod,
            expected=expected,
        )
        if reading.fleet.fewest_nodes(job) > reading.fleet.nodes:
            there = f"{reading.fleet.nodes} nodes of {largest} GPUs"
            raise self._error(f"num_gpus {gpus}", f"a job that fits {there}")
        return job

    def _text(self, column: str) -> str:
        return (self.texts.get(column) or "").strip()

    def _count(self, column: str) -> int:
        text = self._text(column)
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
            raise self._error(f"{column} {text!r}", "a whole number, 1 or more")
        return int(text)

    def _seconds(self, column: str) -> float:
        text = self._text(column)
        try:
            seconds = float(text)
        except ValueError:
            raise self._error(f"{column} {text!r}", _NUMBER) from None
        if not 0.0 <= seconds < 1e12:
            raise self._error(f"{column} {text!r}", _NUMBER)
        return seconds

    def _error(self, problem: str, expected: str) -> TraceError:
        return TraceError(self.file, self.line, problem, expected)
