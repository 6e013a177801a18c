"""What the extender's admission policies cost the API server: its processor time for one request,
without policies and with the deployed ones, in turn on one API server.

Each pod is created gated and gets a label, as any client may do; then the extender's account lifts
the gate and binds the pod. Four connections send the requests. `--beside FILE` also measures the
policies of another manifest. Like the tests under tests/cluster/, it needs root and Go.
"""

import asyncio
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from bench.support.figures import print_table, ratio, this_machine
from bench.support.scheduler_load import Load, Request
from bench.support.scheduler_pods import NAMESPACE, Kind, Length, node_name, nodes, waiting
from bench.support.scheduler_world import cpu_seconds
from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, write_gpus, write_plan
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host import sandbox
from tests.cluster.support.programs.binaries import NEWEST, kubernetes
from tests.cluster.support.scheduling.extender_process import (
    ADMISSION_OFF,
    guard_plans,
    leave_plans_unguarded,
    wait_guarded,
)

_EXTENDER = "system:serviceaccount:kube-system:linkwise-extender"
_TERM = 1
_LEASE = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "linkwise-extender", "namespace": "kube-system"},
    "spec": {"holderIdentity": "bench", "leaseTransitions": _TERM},
}
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WITHOUT, DEPLOYED, BESIDE = "no policies", "deployed", "beside"


def _requests(length: Length, count: int) -> dict[str, tuple[bool, list[Request]]]:
    """For each kind of request, whether the extender sends it, and one for each pod."""
    bodies = waiting(Kind.GATED, length, count, "pod")
    label = msgspec.json.encode({"metadata": {"labels": {"changed": "true"}}})
    lifted = msgspec.json.encode({"spec": {"schedulingGates": None}})
    return {
        "create": (False, [Request("POST", _PODS, body) for body in bodies.values()]),
        "label": (False, [Request("PATCH", f"{_PODS}/{name}", label) for name in bodies]),
        "lift the gate": (True, [Request("PATCH", f"{_PODS}/{name}", lifted) for name in bodies]),
        "bind": (
            True,
            [
                Request("POST", f"{_PODS}/{name}/binding", _binding(name, node_name(number)))
                for number, name in enumerate(bodies)
            ],
        ),
    }


def _binding(pod: str, node: str) -> bytes:
    gpus = write_gpus({"main": tuple(f"GPU-{number:036d}" for number in range(8))})
    plan = write_plan(Plan(id=pod, node=node, leader=_TERM))
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "annotations": {names.GPUS: gpus, names.PLAN: plan}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
    )


async def _round(
    control: ControlPlane, people: Load, extender: Load, length: Length, count: int
) -> dict[str, float]:
    """Milliseconds of kube-apiserver's processor time for one request of each kind."""
    pid = control.parts["kube-apiserver"].pid
    found = {}
    for what, (by_extender, requests) in _requests(length, count).items():
        before = cpu_seconds(pid)
        await (extender if by_extender else people).send([request] for request in requests)
        found[what] = 1000 * (cpu_seconds(pid) - before) / count
    await people.delete_pods()
    return found


@contextmanager
def _control() -> Iterator[ControlPlane]:
    directory = sandbox.directory()
    assert directory is not None
    control = ControlPlane(
        directory / "admission", controllers=False, disable_admission=ADMISSION_OFF
    )
    control.start()
    try:
        control.kubectl("create", "namespace", NAMESPACE)
        control.kubectl("create", "-f=-", stdin=msgspec.json.encode(_LEASE).decode())
        yield control
    finally:
        control.stop()


async def _measure(
    control: ControlPlane, variants: Sequence[str], beside: str, count: int, repeat: int
) -> dict[tuple[str, str, str], float]:
    """(pods, request, variant) -> the median of the rounds."""
    switch: dict[str, Callable[[], None]] = {
        WITHOUT: lambda: leave_plans_unguarded(control),
        DEPLOYED: lambda: guard_plans(control),
        BESIDE: lambda: _guard_by(control, beside),
    }
    rounds: dict[tuple[str, str, str], list[float]] = {}
    guard_plans(control)
    as_extender = control.kubeconfig(_EXTENDER, "system:masters")
    async with Load(control.kubeconfig(), NAMESPACE) as people:
        await people.create(nodes(count), "/api/v1/nodes")
        async with Load(as_extender, NAMESPACE) as extender:
            await _round(control, people, extender, Length.BARE, count)  # the slowest
            for repetition in range(repeat):
                for variant in variants if repetition % 2 == 0 else reversed(variants):
                    switch[variant]()
                    for length in Length:
                        found = await _round(control, people, extender, length, count)
                        for what, cost in found.items():
                            rounds.setdefault((length.value, what, variant), []).append(cost)
                        click.echo(f"{variant}, {length.value}: {found}", err=True)
    return {key: statistics.median(costs) for key, costs in rounds.items()}


def _guard_by(control: ControlPlane, manifest: str) -> None:
    control.kubectl("apply", "-f=-", stdin=manifest)
    wait_guarded(control)


@click.command(help=__doc__)
@click.option("--pods", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--beside",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another admission.yaml.",
)
def main(pods: int, repeat: int, beside: Path | None) -> None:
    if sandbox.directory() is None:
        kubernetes()  # the sandbox has no network to build it from
        command = [sys.executable, "-m", "bench.admission", *sys.argv[1:]]
        raise SystemExit(sandbox.run(command))
    click.echo(f"{NEWEST}, {pods:,} pods, {repeat} rounds each: {this_machine()}\n")
    manifest = "" if beside is None else beside.read_text()
    variants = (WITHOUT, DEPLOYED, *((BESIDE,) if manifest else ()))
    with _control() as control:
        found = asyncio.run(_measure(control, variants, manifest, pods, repeat))
    rows = []
    for length, what in dict.fromkeys((length, what) for length, what, _ in found):
        costs = [found[length, what, variant] for variant in variants]
        ratios = [ratio(cost, costs[0]) for cost in costs[1:]]
        rows.append((f"{length}, {what}", *(f"{cost:.2f}" for cost in costs), *ratios))
    print_table(
        (
            "pods, request",
            *(f"{variant} ms" for variant in variants),
            *(f"{variant}, of none" for variant in variants[1:]),
        ),
        rows,
    )


if __name__ == "__main__":
    main()
