"""What the extender's admission policies cost the API server: its processor time for one request,
without policies and with the deployed ones, in turn on one API server.

An update costs as much in every form: most of it is `managedFields`, which a Binding does not
update. Single rows are uncertain by a third, because Go's garbage collector runs when it likes.

Each pod is created gated and gets a label, as any client may do; then the extender's account lifts
the gate and binds the pod. Four connections send the requests. Like the tests under tests/cluster/,
it needs root and Go.
"""

import asyncio
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from bench.support.figures import print_table, ratio, this_machine
from bench.support.programs import in_sandbox
from bench.support.scheduler_load import Load, Request
from bench.support.scheduler_pods import NAMESPACE, Kind, Length, node_name, nodes, waiting
from bench.support.scheduler_world import cpu_seconds
from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, write_gpus, write_plan
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.programs.binaries import NEWEST
from tests.cluster.support.scheduling.extender_process import (
    ADMISSION_OFF,
    guard_plans,
    leave_plans_unguarded,
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
WITHOUT, DEPLOYED = "no policies", "deployed"


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
def _control(directory: Path) -> Iterator[ControlPlane]:
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
    control: ControlPlane, count: int, repeat: int
) -> dict[tuple[str, str, str], float]:
    """(pods, request, variant) -> the median of the rounds."""
    variants = {WITHOUT: leave_plans_unguarded, DEPLOYED: guard_plans}
    rounds: dict[tuple[str, str, str], list[float]] = {}
    guard_plans(control)
    as_extender = control.kubeconfig(_EXTENDER, "system:masters")
    async with Load(control.kubeconfig(), NAMESPACE) as people:
        await people.create(nodes(count), "/api/v1/nodes")
        async with Load(as_extender, NAMESPACE) as extender:
            await _round(control, people, extender, Length.BARE, count)  # the slowest
            for repetition in range(repeat):
                for variant in variants if repetition % 2 == 0 else reversed(variants):
                    variants[variant](control)
                    for length in Length:
                        found = await _round(control, people, extender, length, count)
                        for what, cost in found.items():
                            rounds.setdefault((length.value, what, variant), []).append(cost)
                        click.echo(f"{variant}, {length.value}: {found}", err=True)
    return {key: statistics.median(costs) for key, costs in rounds.items()}


@click.command(help=__doc__)
@click.option("--pods", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=4, show_default=True)
def main(pods: int, repeat: int) -> None:
    directory = in_sandbox("bench.admission")
    click.echo(f"{NEWEST}, {pods:,} pods, {repeat} rounds each: {this_machine()}\n")
    with _control(directory) as control:
        found = asyncio.run(_measure(control, pods, repeat))
    rows = []
    for length, what in dict.fromkeys((length, what) for length, what, _ in found):
        without, deployed = (found[length, what, variant] for variant in (WITHOUT, DEPLOYED))
        title = f"{length}, {what}"
        rows.append((title, f"{without:.2f}", f"{deployed:.2f}", ratio(deployed, without)))
    header = ("pods, request", f"{WITHOUT} ms", f"{DEPLOYED} ms", f"{DEPLOYED}, of none")
    print_table(header, rows)


if __name__ == "__main__":
    main()
