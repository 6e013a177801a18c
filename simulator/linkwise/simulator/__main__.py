"""`linkwise-simulator` runs the user's manifests on a simulated cluster with the real programs.

Only this module exits. The exit status is 0 if everything is as planned; 1 if it is not, if no pod
got GPUs, if a pod asks for something wrong, or if a program failed; 2 if the command line or a
manifest is wrong; and 128 + N after signal N. No process is left running.
"""

import logging
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import NoReturn

import click

from linkwise.kube.client import ApiError
from linkwise.simulator.demo.cluster import ClusterTimeoutError, SimulatedNode
from linkwise.simulator.demo.simulation import Simulation
from linkwise.simulator.manifests.object_reader import ManifestError
from linkwise.simulator.manifests.read_manifests import read_manifest_files
from linkwise.simulator.processes.child_process import ChildError
from linkwise.simulator.report.model import Rival
from linkwise.topology.errors import MachineError
from linkwise.topology.machine.recorded import recorded_machine

DEFAULT_NODES = (
    *(SimulatedNode(f"hgx-h100-{number}", "hgx-h100") for number in range(1, 5)),
    SimulatedNode("dgx-a100", "dgx-a100"),
    SimulatedNode("dgx1-v100", "dgx1-v100"),
    SimulatedNode("a100-pcie", "a100-pcie-8-bridged"),
    SimulatedNode("h200-nvl", "h200-nvl-2x4"),
)
"""A mixed cluster: NVSwitch of two generations, a mesh of NVLinks, pairs and islands of four."""

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


class _InterruptedError(BaseException):
    """A signal ends the program. A BaseException, so that no `except Exception` catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Node(click.ParamType[SimulatedNode]):
    name = "name=machine"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> SimulatedNode:
        if isinstance(value, SimulatedNode):
            return value
        name, equals, machine = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r}: expected NAME=MACHINE", param, ctx)
        if not _NODE_NAME.fullmatch(name):
            expected = "lower-case letters, digits, - and ., at most 63"
            self.fail(f"{value!r}: node name {name!r}: expected {expected}", param, ctx)
        try:
            recorded_machine(machine)
        except MachineError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        return SimulatedNode(name, machine)


@click.command(
    context_settings={
        "auto_envvar_prefix": "LINKWISE_SIMULATOR",
        "show_default": True,
        "help_option_names": ["-h", "--help"],
    },
    epilog="\b\nExample:\n  linkwise-simulator --node a=dgx-a100 --no-baseline --keep job.yaml",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE.yaml...")
@click.option(
    "--node",
    "nodes",
    type=_Node(),
    multiple=True,
    default=DEFAULT_NODES,
    show_default="a mixed cluster of eight",
    help="A node and its recorded machine (`linkwise machines` lists them). Repeat for more nodes.",
)
@click.option(
    "--report",
    "report_file",
    envvar="LINKWISE_SIMULATOR_REPORT",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report as HTML.",
)
@click.option("--seed", default=1, help="Seed of all random choices in the simulation.")
@click.option(
    "--draws",
    type=click.IntRange(1),
    default=3,
    help="Number of runs with kube-scheduler and kubelet alone.",
)
@click.option(
    "--rival",
    type=click.Choice([rival.value for rival in Rival]),
    default=Rival.NVIDIA.value,
    help="Who chooses GPUs on a node in these runs: NVIDIA's plugin, or chance.",
)
@click.option("--no-baseline", is_flag=True, help="Skip the runs without Linkwise.")
@click.option("--moves", is_flag=True, help="Move pods that consent, so that others fit.")
@click.option(
    "--keep",
    is_flag=True,
    help="Leave everything running until Ctrl-C, for kubectl linkwise and a browser.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    help="Longest time for each run until nothing changes any more, in seconds.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    help="The form of the report on standard output.",
)
@click.option("--fail-if-waiting", is_flag=True, help="Exit with 1 if a pod still waits for GPUs.")
@click.option("-v", "--verbose", is_flag=True, help="Show the logs of the programs.")
@click.version_option(package_name="linkwise")
def command(
    files: Sequence[str],
    nodes: Sequence[SimulatedNode],
    report_file: Path | None,
    seed: int,
    draws: int,
    rival: str,
    no_baseline: bool,
    moves: bool,
    keep: bool,
    timeout: float,
    output: str,
    fail_if_waiting: bool,
    verbose: bool,
) -> None:
    """Run Kubernetes manifests on a simulated GPU cluster with the real Linkwise programs, and show
    which pod got which GPUs."""
    if twice := next((n.name for n in nodes if [m.name for m in nodes].count(n.name) > 1), ""):
        raise click.BadParameter(f"{twice} is given twice", param_hint="--node")
    try:
        manifests = read_manifest_files(files)
    except ManifestError as error:
        _end(str(error), 2)
    if report_file is not None:
        _make_writable(report_file)
    simulation = Simulation(
        manifests=manifests,
        nodes=nodes,
        report_file=report_file,
        seed=seed,
        draws=0 if no_baseline else draws,
        moves=moves,
        rival=Rival(rival),
        timeout=timeout,
        keep=keep,
        verbose=verbose,
        as_json=output == "json",
    )
    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR, format="%(name)s: %(message)s"
    )
    for number in _ENDING_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        report = simulation.run()
    except (ChildError, ClusterTimeoutError, ApiError, OSError) as error:
        _end(str(error), 1)
    except _InterruptedError as interrupt:
        _end(f"{interrupt}: ended, nothing is left running", 128 + interrupt.number)
    waiting = [pod.pod for pod in report.waiting] if fail_if_waiting else []
    if waiting:
        _end(f"--fail-if-waiting: no GPUs for {', '.join(waiting)}", 1)
    sys.exit(1 if report.problems else 0)


def _make_writable(file: Path) -> None:
    """Create the report's folder and try to write there before the run, not after it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            file.open("ab").close()
        else:
            TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise click.BadParameter(
            f"{file}: {error.strerror or error}", param_hint="--report"
        ) from error


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    # The first signal starts the cleanup. Ignore later ones, so that they cannot interrupt it.
    for each in _ENDING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise _InterruptedError(number)


def _end(text: str, status: int) -> NoReturn:
    click.echo(f"linkwise-simulator: {text}", err=True)
    sys.exit(status)


def main() -> None:
    command(prog_name="linkwise-simulator")


if __name__ == "__main__":
    main()
