"""`python -m tests.cluster`: what a person, `make e2e` and CI call."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

import click

from linkwise.simulator import tied
from tests.cluster import binaries, images, logs, needs, sandbox

CHECKOUT = Path(__file__).parents[2]


@click.group()
def main() -> None:
    """A real Kubernetes, built here, run in namespaces of its own."""


def check_needs() -> None:
    """Raises ClickException with everything that is missing."""
    if lacks := needs.missing():
        listed = "\n".join(f"  - {lack}" for lack in lacks)
        raise click.ClickException(f"this machine cannot run a cluster:\n{listed}")


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def test(arguments: tuple[str, ...]) -> None:
    """Run the tests that need a cluster, or those that ARGUMENTS, which are pytest's, choose."""
    check_needs()
    build_all()
    if arguments:
        sys.exit(run_tests(arguments))
    shutil.rmtree(logs.KEPT, ignore_errors=True)
    with TemporaryFile() as report:
        # Much of either half is waiting, and a sandbox has room for one cluster with nodes.
        command = [sys.executable, "-m", "tests.cluster", "test", "--deployed=only"]
        ends_with_us = [sys.executable, "-I", "-S", tied.__file__, str(os.getpid())]
        half = subprocess.Popen([*ends_with_us, *command], stdout=report, stderr=subprocess.STDOUT)
        status = run_tests(["--deployed=never"])
        status = half.wait() or status
        report.seek(0)
        click.echo(report.read())
    sys.exit(status)


def run_tests(arguments: Sequence[str]) -> int:
    """Where *arguments* name no tests, it is among all that need a cluster that they choose."""
    all_of_them = "--override-ini=testpaths=tests/cluster tests/contract"
    return sandbox.run([sys.executable, "-m", "pytest", "--real", all_of_them, *arguments])


@main.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(command: tuple[str, ...]) -> None:
    """Run COMMAND inside a sandbox; what it uses must have been built."""
    check_needs()
    sys.exit(sandbox.run(command))


@main.command()
def shell() -> None:
    """Open a shell with kubectl on a cluster with Linkwise; everything ends with it."""
    check_needs()
    build_all()
    sys.exit(sandbox.run([sys.executable, "-m", "tests.cluster.shell"]))


@main.command()
def packages() -> None:
    """Print the Debian packages that are missing, on one line."""
    click.echo(" ".join(needs.missing_packages()))


@main.command()
def build() -> None:
    """Build everything the tests run, into the cache."""
    check_needs()
    build_all()


def build_all() -> None:
    """Inside the sandbox there is no way to the network, so what is built is built before."""
    for version in (binaries.NEWEST, *binaries.OLDER):
        binaries.kubernetes(version)
    binaries.containerd()
    binaries.kubeconform()
    images.linkwise_image()


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    main()
