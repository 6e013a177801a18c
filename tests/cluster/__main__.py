"""`python -m tests.cluster`: the commands for people, `make e2e` and CI."""

import os
import shutil
import socket
import sys
from pathlib import Path

import click

from tests.cluster.support.api.chart import for_kubectl
from tests.cluster.support.host import logs, needs, sandbox, side_by_side
from tests.cluster.support.programs import binaries, images
from tests.cluster.support.programs.operators import OPERATORS

CHECKOUT = Path(__file__).parents[2]
BESIDE = Path("tests/beside")


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
    build_all()
    if any(word.startswith(str(BESIDE)) for word in arguments):
        build_operators()
    if any(word.startswith("tests/") for word in arguments):
        sys.exit(sandbox.run([sys.executable, "-m", "pytest", "--real", *arguments]))
    shutil.rmtree(logs.KEPT, ignore_errors=True)
    sys.exit(side_by_side.run(arguments))


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def beside(flags: tuple[str, ...]) -> None:
    """Run the tests beside the real controllers of operators. FLAGS are pytest's."""
    check_needs()
    build_all()
    build_operators()
    sys.exit(side_by_side.run(flags, side_by_side.modules(BESIDE)))


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
    build_operators()


def build_all() -> None:
    """Build everything first: the sandbox has no network."""
    for version in (binaries.NEWEST, *binaries.OLDER):
        binaries.kubernetes(version)
    binaries.vendor_plugin()
    binaries.filters()
    binaries.containerd()
    binaries.kubeconform()
    binaries.helm()
    binaries.promtool()
    images.linkwise_image()


def build_operators() -> None:
    for operator in OPERATORS:
        operator.build()


if __name__ == "__main__":
    os.chdir(CHECKOUT)
    main()
