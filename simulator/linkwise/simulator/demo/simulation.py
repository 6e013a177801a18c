"""One simulation, step by step: start the cluster, draw the baseline, run with Linkwise, report."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from linkwise.simulator.demo import baseline
from linkwise.simulator.demo.cluster import SimulatedCluster, SimulatedNode
from linkwise.simulator.demo.progress import Progress
from linkwise.simulator.demo.run import ManifestRun
from linkwise.simulator.manifests.read_manifests import Manifest
from linkwise.simulator.report.as_json import render_json
from linkwise.simulator.report.build_report import report_of
from linkwise.simulator.report.html import render_html
from linkwise.simulator.report.model import NodeReport, Report, Rival, SeenPod
from linkwise.simulator.report.text import render
from linkwise.topology.machine.recorded import records

_KEEP_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What the command line asks for. `draws` 0: no baseline."""

    manifests: Sequence[Manifest]
    nodes: Sequence[SimulatedNode]
    report_file: Path | None
    seed: int
    draws: int
    moves: bool  # planned moves
    rival: Rival
    timeout: float
    keep: bool
    verbose: bool
    as_json: bool

    def run(self) -> Report:
        """Run everything, print the report, and return it.

        Raises ChildError, ClusterTimeoutError, ApiError, and OSError if it cannot write the report.
        """
        began = time.monotonic()
        # Progress goes to standard error; standard output holds the report alone.
        progress = Progress(Console(stderr=True))
        with ExitStack() as things:
            nodes = "1 node" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"
            with progress.step(f"Start {nodes}, a linkwise-plugin on each"):
                tell = _teller(progress) if self.verbose else None
                cluster = things.enter_context(SimulatedCluster(self.nodes, tell=tell))
            self._name_what_does_nothing(progress)
            stock = self._draw(cluster, progress)
            with progress.step("Start linkwise-extender"):
                cluster.start_extender(moves=self.moves)
            run = ManifestRun(cluster, self.manifests, seed=self.seed, rival=None)
            with progress.step("Run the manifests with Linkwise") as say:
                things.enter_context(run)
                run.settle(self.timeout, lambda counts: say(str(counts)))
                report = report_of(
                    _reports(self.nodes),
                    run.seen(),
                    stock,
                    seed=self.seed,
                    rival=self.rival,
                    at=time.monotonic(),  # the clock of `PodRecorder`
                    moved=run.moved(),
                    without_gpus=run.waiting_members(),
                    to_come=run.to_come(),
                )
            self._show(report, progress)
            progress.line(f"{time.monotonic() - began:.1f} s in all")
            if self.keep:
                _stay(cluster, report, progress)
        return report

    def _name_what_does_nothing(self, progress: Progress) -> None:
        for manifest in self.manifests:
            if not manifest.collection:
                what = f"{manifest.kind} {manifest.namespace}/{manifest.name} has no pods: left out"
                why = manifest.left_out or what
                progress.line(f"{manifest.file}:{manifest.line}: {why}")
            for miss in manifest.near_misses:
                progress.line(f"{manifest.file}:{manifest.line}: {miss}")

    def _draw(
        self, cluster: SimulatedCluster, progress: Progress
    ) -> tuple[tuple[SeenPod, ...], ...]:
        if not self.draws:
            return ()
        with progress.step("Run them with kube-scheduler and kubelet alone") as say:
            return baseline.draw(
                cluster,
                self.manifests,
                draws=self.draws,
                rival=self.rival,
                seed=self.seed,
                seconds=self.timeout,
                say=say,
            )

    def _show(self, report: Report, progress: Progress) -> None:
        if self.as_json:
            sys.stdout.write(render_json(report))
        else:
            out = Console(highlight=False)
            out.print()
            out.print(render(report))
            out.print()
        if self.report_file is not None:
            self.report_file.write_text(render_html(report), encoding="utf-8")
            progress.line(f"Report with drawings: {self.report_file}")


def _reports(nodes: Sequence[SimulatedNode]) -> tuple[NodeReport, ...]:
    recorded = records()
    return tuple(
        NodeReport(node.name, recorded[node.machine_name].title, node.machine) for node in nodes
    )


def _teller(progress: Progress) -> Callable[[str, str], None]:
    return lambda program, line: progress.line(f"{program}: {line}")


def _stay(cluster: SimulatedCluster, report: Report, progress: Progress) -> None:
    """Wait for a signal. Name each program that ends meanwhile."""
    pods = (*report.waiting, *(pod for _, pod in report.pods))
    shown = pods[0].pod if pods else "NAMESPACE/POD"
    namespace, _, name = shown.partition("/")
    progress.line(
        f"""Everything still runs; Ctrl-C ends it. The live page: {cluster.status_url}/ui/
In another terminal:
  export KUBECONFIG={cluster.write_kubeconfig()}
  kubectl linkwise explain -n {namespace} {name}
  kubectl linkwise gangs -A
  kubectl linkwise nodes
Logs of the programs: {cluster.directory}/*.log"""
    )
    named: set[str] = set()
    while True:
        for child in cluster.dead():
            if child.name not in named:
                named.add(child.name)
                progress.line(child.obituary())
        time.sleep(_KEEP_LOOK_SECONDS)
