"""`python -m tests.cluster`: the commands for people, `make e2e` and CI."""

import os
import shutil
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from tests.cluster.support.api.chart import for_kubectl
from tests.cluster.support.host import logs, needs, sandbox, side_by_side
from tests.cluster.support.programs import beside as beside_operators
from tests.cluster.support.programs import binaries, images
from tests.cluster.support.programs.newer import newer as newer_of
from tests.cluster.support.programs.newer import pinned
from tests.cluster.support.programs.operators import OPERATORS, SELECTED, Operator, selected

CHECKOUT = Path(__file__).parents[2]


@click.group()
def main() -> None:
    """Build a real Kubernetes and run it in separate namespaces."""
    os.environ["PATH"] = needs.search_path()


def check_needs() -> None:
    """Raises ClickException with everything that the machine lacks."""
    if lacks := needs.missing():
        listed = "\n".join(f"  - {lack}" for lack in lacks)
        raise click.ClickException(f"this machine cannot run a cluster:\n{listed}")


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def test(arguments: tuple[str, ...]) -> None:
    """Run the tests that need a cluster. ARGUMENTS are pytest's: files of tests/ share one
    sandbox; without a file, all tests run, each module in its own."""
    check_needs()
    named = [word for word in arguments if word.startswith("tests/")]
    beside_operator = [word for word in named if word.startswith(str(beside_operators.FOLDER))]
    if beside_operator:
        build_operators(selected())
    if beside_operator != named or not named:
        build_all()
    if named:
        sys.exit(sandbox.run([sys.executable, "-m", "pytest", "--real", *arguments]))
    shutil.rmtree(logs.KEPT, ignore_errors=True)
    sys.exit(side_by_side.run(arguments))


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--with", "names", default="", help="Only these operators, with commas.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def beside(names: str, flags: tuple[str, ...]) -> None:
    """Run the tests beside the real controllers of operators. FLAGS are pytest's. A run of all
    tests writes the table of docs/testing.md."""
    os.environ[SELECTED] = names
    try:
        operators = selected()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    check_needs()
    build_operators(operators)
    ended = side_by_side.run_each(flags, beside_operators.modules(operators))
    if not (names or flags):
        beside_operators.show(one.tests for one in ended if one.status == 0)
    sys.exit(side_by_side.status(ended, flags))


@main.command()
def newer() -> None:
    """List the Go modules that are built here and have newer releases. Needs Go and its proxy."""
    if lack := needs.missing_go():
        raise click.ClickException(lack)
    for module, version, newest in newer_of(pinned()):
        click.echo(f"{module} {version} -> {newest}")


@main.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(command: tuple[str, ...]) -> None:
    """Run COMMAND inside a sandbox. Everything that it uses must be built."""
    check_needs()
    sys.exit(sandbox.run(command))


@main.command()
@click.option("--empty", is_flag=True, help="Without Linkwise: you install it.")
def shell(*, empty: bool) -> None:
    """Open a shell with kubectl on a cluster with Linkwise. Everything ends with the shell."""
    check_needs()
    click.echo("Building what is not in the cache yet: after a change of the checkout, an image.")
    build_all()
    with socket.create_server(("127.0.0.1", 0)) as page:
        program = "tests.cluster.support.nodes.shell"
        command = [sys.executable, "-m", program, str(page.fileno()), *(["--empty"] * empty)]
        sys.exit(sandbox.run(command, sockets=[page]))


@main.command()
def manifests() -> None:
    """Render from the chart what kubectl applies. Needs Go, of which helm is built."""
    if lack := needs.missing_go():
        raise click.ClickException(lack)
    for path, text in for_kubectl().items():
        path.write_text(text)


@main.command()
def packages() -> None:
    """Print the Debian packages that are missing, on one line."""
    click.echo(" ".join(needs.missing_packages()))


@main.command()
def build() -> None:
    """Build everything the tests run, into the cache."""
    check_needs()
    build_all()
    build_operators(OPERATORS)


def build_all() -> None:
    """Build everything first: the sandbox has no network."""
    for version in (binaries.NEWEST, *binaries.OLDER):
        binaries.kubernetes(version)
    binaries.vendor_plugin()
    binaries.filters()
    binaries.devices()
    binaries.containerd()
    binaries.kubeconform()
    binaries.helm()
    binaries.promtool()
    images.linkwise_image()


def build_operators(operators: Iterable[Operator]) -> None:
    """Build them and the Kubernetes on which they run: the tests beside them need nothing else."""
    binaries.kubernetes()
    for operator in operators:
        operator.build()


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    main()
