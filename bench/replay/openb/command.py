"""`python -m bench.replay openb`: unallocated GPUs, compared with other policies."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from bench.replay import plots
from bench.replay.checkpoint import Checkpoint, digest_of, key_of
from bench.replay.openb.run import NOT_BELOW, POLICIES, PUBLISHED, allocated_curve
from bench.replay.openb.sample import Sample
from bench.replay.shell import ending_well, progress, write_file
from bench.replay.traces.openb import OpenbTrace, read_openb, read_published
from bench.support.figures import markdown
from linkwise.replay.errors import ReplayError

TOLERANCE = 0.01  # points: the published curves have two decimals
_FILE = click.Path(dir_okay=False, path_type=Path)
_PLOT_FROM = 80  # % of arrivals; below that all policies give every pod its GPUs
_SHOWN = (50, 90, 100, 130)  # % of arrivals


class _Result(NamedTuple):
    policy: str
    seed: int
    curve: dict[int, float]
    published: Mapping[int, float]  # the published values of the same curve
    difference: float | None  # largest difference of the two, in points; of our own, downwards


class _Curve(msgspec.Struct, frozen=True):
    percent: dict[int, float]


@click.command(context_settings={"show_default": True})
@click.argument("data", type=click.Path(file_okay=False, path_type=Path))
@click.option("--trace", default="default", help="Name of the trace: openb_pod_list_<trace>.csv.")
@click.option(
    "--policy",
    "policies",
    type=click.Choice([*POLICIES]),
    multiple=True,
    default=[*PUBLISHED, *NOT_BELOW],
    help="A policy to replay with. Repeat for more policies.",
)
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    default=[42],
    help="Seed of an order of arrival. Repeatable.",
)
@click.option(
    "--sample",
    type=click.IntRange(0, 100),
    default=None,
    show_default="all nodes are compared",
    help="Compare the nodes that kube-scheduler would name with this percentageOfNodesToScore."
    " 0: its own formula.",
)
@click.option("--check", is_flag=True, help="Compare with the published curves; status 1 if off.")
@click.option("--csv", "csv_file", type=_FILE, help="Also write the curves as CSV.")
@click.option(
    "--plot", type=_FILE, help="Also draw the curves as SVG; with --check, the published ones too."
)
@click.option(
    "--resume", type=_FILE, help="Keep results in this file, and reuse those that it has."
)
def openb(
    data: Path,
    trace: str,
    policies: Iterable[str],
    seeds: Iterable[int],
    sample: int | None,
    check: bool,
    csv_file: Path | None,
    plot: Path | None,
    resume: Path | None,
) -> None:
    """Replay Alibaba's openb: the pods of DATA arrive one after the other until they request 130 %
    of the GPUs, and none ends. Prints the share of the GPUs that is allocated."""
    if check and sample is not None:
        raise click.UsageError("--check with --sample: the published policies compare all nodes")
    with ending_well():
        results = list(_replay(data, trace, policies, seeds, sample, check, resume))
        write_file(csv_file, lambda: _as_csv(results))
        write_file(plot, lambda: _as_plot(results))
    cells = [["policy", "seed", *(f"{p} %" for p in _SHOWN)] + ["off by"] * check]
    for found in results:
        row = [found.policy, str(found.seed), *(_text(found.curve.get(p)) for p in _SHOWN)]
        cells.append(row + [_text(found.difference, 4)] * check)
    click.echo(markdown(cells))
    off = [found for found in results if (found.difference or 0.0) > TOLERANCE]
    if off:
        names = ", ".join(f"{found.policy} with seed {found.seed}" for found in off)
        click.echo(f"more than {TOLERANCE} points off the published curve: {names}", err=True)
        sys.exit(1)


def _replay(
    data: Path,
    trace: str,
    policies: Iterable[str],
    seeds: Iterable[int],
    sample: int | None,
    check: bool,
    resume: Path | None,
) -> Iterable[_Result]:
    checkpoint = Checkpoint(resume, _Curve)
    for seed in dict.fromkeys(seeds):
        there = read_openb(data, trace, seed)
        published = read_published(data, trace, seed) if check else {}
        contents = digest_of(*sorted(data.glob("*.csv")), *sorted(data.glob("replay/*.npz")))
        for name in dict.fromkeys(policies):
            title = PUBLISHED.get(NOT_BELOW.get(name, name), "")
            if check and title not in published:
                known = ", ".join(n for n, of in PUBLISHED.items() if of in published)
                raise ReplayError(f"--check: {name} has no published curve: expected {known}")
            key = key_of("openb", contents, trace, seed, name, sample)
            found = checkpoint.get(key)
            if found is None:
                found = _Curve(_curve(there, name, seed, sample))
                checkpoint.keep(key, found)
            curve = found.percent
            points = published[title] if check else {}
            missing = [percent for percent in points if percent not in curve]
            if missing:
                raise ReplayError(
                    f"--check: no arrivals at {missing[0]} %: expected the whole trace"
                )
            below = [share - curve[p] for p, share in points.items()]
            if name in NOT_BELOW:
                yield _Result(name, seed, curve, {}, max(0.0, *below) if check else None)
            else:
                yield _Result(name, seed, curve, points, max(map(abs, below), default=None))


def _curve(trace: OpenbTrace, name: str, seed: int, percent: int | None) -> dict[int, float]:
    sample = None if percent is None else Sample(percent, len(trace.nodes))
    with progress(f"{name}, seed {seed}", len(trace.arrivals)) as advance:
        return allocated_curve(trace, POLICIES[name](trace, seed), advance, sample)


def _text(value: float | None, places: int = 2) -> str:
    return "–" if value is None else f"{value:.{places}f}"


def _as_csv(results: Iterable[_Result]) -> str:
    lines = ["policy,seed,arrived_percent,allocated_percent"]
    for found in results:
        lines += [f"{found.policy},{found.seed},{p},{a}" for p, a in sorted(found.curve.items())]
    return "\n".join(lines) + "\n"


def _as_plot(results: Iterable[_Result]) -> str:
    """Plot each policy's mean over the seeds, from where the first policy drops pods."""
    by_policy: dict[str, list[_Result]] = {}
    for found in results:
        by_policy.setdefault(found.policy, []).append(found)
    lines = [
        plots.Curve(name, _mean([r.curve for r in those]), _mean([r.published for r in those]))
        for name, those in by_policy.items()
    ]
    x = plots.Axis("GPUs that the pods asked for so far, in % of all", _PLOT_FROM)
    return plots.curves(lines, x, plots.Axis("GPUs allocated, in % of all"))


def _mean(curves: Sequence[Mapping[int, float]]) -> list[tuple[float, float]]:
    """Average at the levels that all curves have."""
    levels = sorted(set(curves[0]).intersection(*curves[1:]))
    return [(p, sum(curve[p] for curve in curves) / len(curves)) for p in levels if p >= _PLOT_FROM]
