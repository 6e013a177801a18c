"""`python -m bench.replay`: traces in simulated time, with the core that runs in production."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from bench.replay import report
from bench.replay.checkpoint import Checkpoint, digest_of, key_of
from bench.replay.measure import BySize, figures
from bench.replay.openb.command import openb
from bench.replay.schedulers import DEFAULT, SCHEDULERS
from bench.replay.shell import ending_well, progress, write_file
from bench.replay.traces.jobs_csv import Reading, read_jobs
from linkwise.replay.driver import replay as run_trace
from linkwise.replay.jobs import Fleet, Job, Run, evenly
from linkwise.topology.errors import MachineError

_FILE = click.Path(dir_okay=False, path_type=Path)
_SECONDS, _WHOLE_SECONDS = click.FloatRange(min=0), click.IntRange(min=0)
_MOST_NODES = 100_000


class _JobsUnlessNamed(click.Group):
    """`replay TRACE` is `replay jobs TRACE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] in self.get_help_option_names(ctx))
        return super().parse_args(ctx, args if named or not args else ["jobs", *args])


@click.group(cls=_JobsUnlessNamed, context_settings={"show_default": True})
def command() -> None:
    """Replay a trace in simulated time: TRACE (jobs, a CSV file), or `openb DATA`."""


command.add_command(openb)


@command.command()
@click.argument("trace", type=_FILE)
@click.option(
    "--nodes",
    type=click.IntRange(1),
    default=80,
    help="Number of nodes of each machine that --machine gives without a number.",
)
@click.option(
    "--machine",
    "machines",
    multiple=True,
    default=["hgx-h100"],
    metavar="NAME[=NODES]",
    help="Recorded machine of the nodes (`linkwise machines` lists them). Repeat for a mixed"
    " cluster; all must have equally many GPUs.",
)
@click.option(
    "--leaf",
    type=click.IntRange(1),
    metavar="NODES",
    help="Put so many nodes on each leaf switch. Without it, all are equally near.",
)
@click.option(
    "--scheduler",
    "chosen",
    type=click.Choice([*SCHEDULERS]),
    multiple=True,
    default=DEFAULT,
    help="A scheduler to replay with. Repeat for more schedulers.",
)
@click.option(
    "--pods-of",
    type=click.IntRange(1),
    default=None,
    show_default="a node's GPUs",
    help="GPUs of each pod of a job, if the trace gives none. A smaller job is one pod.",
)
@click.option(
    "--durations",
    type=click.Choice(["known", "unknown"]),
    default="unknown",
    help="known: pods state their true run time (`linkwise.dev/expected-duration`).",
)
@click.option(
    "--longest", type=_SECONDS, default=math.inf, help="Cut run times to this many seconds."
)
@click.option(
    "--from", "begin", type=_SECONDS, default=0.0, help="Skip jobs submitted before this second."
)
@click.option(
    "--until", type=_SECONDS, default=math.inf, help="Skip jobs submitted from this second on."
)
@click.option("--first", type=click.IntRange(1), help="Keep only this many of the remaining jobs.")
@click.option(
    "--jitter",
    type=_SECONDS,
    default=0.0,
    help="Submit each job later by a random time up to this many seconds.",
)
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    default=[0],
    help="Seed of --jitter. Repeat for means over as many traces, with their standard errors.",
)
@click.option(
    "--communication",
    type=click.FloatRange(0, 1),
    default=0.3,
    help="Share of communication in a job's run time on its best GPUs.",
)
@click.option(
    "--stretched",
    is_flag=True,
    help="Let jobs on slow GPUs run longer. Without it, the figures only estimate that.",
)
@click.option(
    "--nic",
    type=click.FloatRange(min=0, min_open=True),
    default=48.0,
    help="GB/s between nodes per GPU: its share of the node's NICs.",
)
@click.option(
    "--movable",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Share of the jobs of up to 4 GPUs that consent to be moved.",
)
@click.option(
    "--movable-after",
    type=_WHOLE_SECONDS,
    default=0,
    help="Seconds of their run after which these jobs consent.",
)
@click.option(
    "--move-cost", type=_SECONDS, default=600.0, help="Seconds of its run that a moved job loses."
)
@click.option("--csv", "csv_file", type=_FILE, help="Also write the figures as CSV.")
@click.option("--plot", type=_FILE, help="Also draw mean queues and localities as SVG.")
@click.option(
    "--resume", type=_FILE, help="Keep results in this file, and reuse those that it has."
)
def jobs(
    trace: Path,
    nodes: int,
    machines: Sequence[str],
    leaf: int | None,
    chosen: Iterable[str],
    pods_of: int | None,
    durations: str,
    longest: float,
    begin: float,
    until: float,
    first: int | None,
    jitter: float,
    seeds: Sequence[int],
    communication: float,
    stretched: bool,
    nic: float,
    movable: float,
    movable_after: int,
    move_cost: float,
    csv_file: Path | None,
    plot: Path | None,
    resume: Path | None,
) -> None:
    """Replay the jobs of TRACE: a CSV file with the columns job_id, submit_s, duration_s and
    num_gpus, or a published file of Helios or Kalos. The columns vc or namespace, gpus_per_pod and
    expected_s are optional."""
    try:
        fleet = Fleet(evenly([_group(said, nodes) for said in machines]), nic, leaf or 0)
    except MachineError as error:
        raise click.BadParameter(str(error), param_hint="--machine") from error
    if pods_of is not None and pods_of > fleet.gpus_per_node:
        expected = f"at most {fleet.gpus_per_node}, a node's GPUs"
        raise click.BadParameter(f"{pods_of}: expected {expected}", param_hint="--pods-of")
    if len(set(seeds)) > 1 and not jitter:
        raise click.UsageError("several --seed: expected --jitter, or all traces are the same")
    reading = Reading(
        fleet=fleet,
        gpus_per_pod=pods_of or fleet.gpus_per_node,
        durations_known=durations == "known",
        longest=longest,
        begin=begin,
        end=until,
        first=first,
        jitter=jitter,
        movable=movable,
        movable_after=movable_after,
        move_cost=move_cost,
    )
    questions = {
        seed: _Question(replace(reading, seed=seed), communication, stretched) for seed in seeds
    }
    with ending_well():
        results = _replay(trace, questions, dict.fromkeys(chosen), resume)
        write_file(csv_file, lambda: report.as_csv(results))
        write_file(plot, lambda: report.as_plot(results))
    click.echo(report.table(results))


def _group(said: str, nodes: int) -> tuple[str, int]:
    """Read NAME or NAME=NODES."""
    name, given, number = said.partition("=")
    if not given:
        return name, nodes
    if not (number.isascii() and number.isdigit() and 0 < int(number) <= _MOST_NODES):
        expected = f"NAME=NODES, with 1 to {_MOST_NODES:,} nodes"
        raise click.BadParameter(f"{said}: expected {expected}", param_hint="--machine")
    return name, int(number)


@dataclass(frozen=True)
class _Question:
    """All options except the trace and the scheduler. Its `repr` is part of a checkpoint's key."""

    reading: Reading
    communication: float
    stretched: bool


def _replay(
    trace: Path, questions: Mapping[int, _Question], chosen: Iterable[str], resume: Path | None
) -> report.Results:
    """Replay one scheduler after the other, each with all questions."""
    checkpoint = Checkpoint(resume, BySize)
    contents = digest_of(trace)
    there = {seed: read_jobs(trace, question.reading) for seed, question in questions.items()}
    results: report.Results = {}
    for name in chosen:
        results[name] = {}
        for seed, question in questions.items():
            key = key_of("jobs", contents, question, name)
            found = checkpoint.get(key)
            if found is None:
                found = _run(
                    name, there[seed], question, f" with seed {seed}" * (len(questions) > 1)
                )
                checkpoint.keep(key, found)
            results[name][seed] = found
    return results


def _run(name: str, there: Sequence[Job], question: _Question, aside: str) -> BySize:
    fleet = question.reading.fleet

    def stretch(run: Run) -> float:
        return fleet.stretch(run, question.communication) if question.stretched else 1.0

    with progress(name + aside, len(there)) as advance:
        runs = run_trace(there, SCHEDULERS[name](fleet), advance, stretch)
    return figures(runs, fleet, question.communication)


if __name__ == "__main__":
    command(prog_name="python -m bench.replay")
