"""Compares on many seeds: `python -m tests.cluster.support.filters --seeds 0-1999`."""

import sys
import time

import click

from tests.cluster.support.filters.cases import PLUGINS, draw_case
from tests.cluster.support.filters.differences import compare
from tests.cluster.support.filters.kube_scheduler import plugins
from tests.cluster.support.filters.left_out import LEFT_OUT
from tests.cluster.support.filters.report import Report
from tests.end_to_end.random_workload import seeds_of
from tests.kube.filters.verdicts import verdicts


@click.command()
@click.option("--seeds", default="0-1999", show_default=True, help="Like 7 or 0-199 or 3,10-19.")
@click.option("--about", type=click.Choice(PLUGINS), help="Only cases that are about this plugin.")
@click.option("--show", default=3, show_default=True, help="Kinds of differences to show in full.")
def main(seeds: str, about: str | None, show: int) -> None:
    """Compare Linkwise's filters with kube-scheduler's own on random clusters."""
    began = time.monotonic()
    drawn = (draw_case(seed) for seed in seeds_of(seeds))
    chosen = (each for each in drawn if about is None or about in each.about)
    report = Report()
    with plugins() as asked:
        for compared in compare(chosen, asked, verdicts, LEFT_OUT):
            report.add(compared)
        click.echo(report.told(asked, verdicts, LEFT_OUT, show))
    click.echo(f"{report.histogram()}\n{time.monotonic() - began:.0f} s")
    sys.exit(bool(report.kinds))


if __name__ == "__main__":
    main()
