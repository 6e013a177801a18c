"""How long the kubelet waits for GetPreferredAllocation: `python -m bench.preferred_allocation`.

The plugin runs as in a cluster, as a process of its own that registers with a kubelet. The kubelet
here calls it over the unix socket with random free GPUs, sizes and GPUs that must be included, ids
in random order. Nearly every call is new, so caches hardly help.

Round trip: from the call to its answer, in this process. Server: the program's own measurement
(`linkwise_plugin_call_seconds`, by buckets), without decoding. The plugin waits for no pod: that
would measure the watch and not the choice.
"""

import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from bench.support.figures import milliseconds, percentile, print_table, ratio, this_machine
from bench.support.programs import running
from linkwise.kube.client import KubeClient
from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import DevicePluginStub
from linkwise.simulator.api_server import ApiServer
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from linkwise.topology.machine.topo_matrix import write_matrix
from tests.plugin.fake_kubelet import FakeKubelet

NODE = "bench"
BAR_MS = 5.0
POLICIES = ("ring", "partition")
PCIE_TREE = "pcie-tree-16"
MACHINES = ("dgx2-v100", PCIE_TREE)


def pcie_tree_16() -> Machine:
    """16 GPUs without NVLink: two on a switch, four on a board, eight on a socket."""
    gpus = tuple(Gpu(f"GPU-{n}", n, "GPU", 0, numa_nodes=(n // 8,)) for n in range(16))

    def link(first: int, second: int) -> Link:
        for group, near in ((2, LinkClass.PIX), (4, LinkClass.PXB), (8, LinkClass.NODE)):
            if first // group == second // group:
                return Link(near)
        return Link(LinkClass.SYS)

    return Machine(gpus, tuple(link(i, j) for i in range(16) for j in range(i + 1, 16)))


@dataclass(frozen=True, slots=True)
class Run:
    machine: str
    policy: str
    ready_seconds: float
    round_trips: tuple[float, ...]  # seconds
    server: "ServerTime"


@dataclass(frozen=True, slots=True)
class ServerTime:
    mean_seconds: float
    p99_at_most_seconds: float  # the upper bound of its bucket


def question(ids: tuple[str, ...], draw: random.Random) -> api.PreferredAllocationRequest:
    """A random call: ids in random order, sizes from one GPU to all that are free."""
    available = draw.sample(ids, draw.randint(1, len(ids)))
    size = draw.randint(1, len(available))
    must = draw.sample(available, draw.randint(0, min(2, size))) if draw.random() < 0.3 else []
    asked = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    return api.PreferredAllocationRequest(container_requests=[asked])


def ask_all(
    stub: DevicePluginStub, questions: list[api.PreferredAllocationRequest]
) -> tuple[float, ...]:
    """Make the calls one after the other, as the kubelet does, and check each answer. Return the
    seconds of each."""
    seconds = []
    for request in questions:
        began = time.perf_counter()
        answer = stub.GetPreferredAllocation(request, timeout=10)
        seconds.append(time.perf_counter() - began)
        asked, ids = request.container_requests[0], answer.container_responses[0].deviceIDs
        fits = set(asked.must_include_deviceIDs) <= set(ids) <= set(asked.available_deviceIDs)
        if not fits or len(set(ids)) != asked.allocation_size:
            raise RuntimeError(f"asked {asked}: answered {ids}")
    return tuple(seconds)


def server_time(port: str) -> ServerTime:
    """The figures of all calls so far, from the program's own histogram."""
    text = urllib3.request("GET", f"http://127.0.0.1:{port}/metrics", timeout=5).data.decode()
    buckets: list[tuple[float, float]] = []
    total = calls = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("call") != "GetPreferredAllocation":
                continue
            if sample.name.endswith("_bucket"):
                buckets.append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_sum"):
                total = sample.value
            elif sample.name.endswith("_count"):
                calls = sample.value
    edge = next(edge for edge, below in sorted(buckets) if below >= 0.99 * calls)
    return ServerTime(total / calls, edge)


def measure(name: str, policy: str, calls: int, seed: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="lw-") as temporary, ApiServer() as server:
        directory = Path(temporary)
        client = KubeClient.load(kubeconfig=None, server=server.url)
        client.post("/api/v1/nodes", {"metadata": {"name": NODE}})
        kubelet = FakeKubelet(directory)
        kubelet.start()
        flags = f"""--node-name {NODE} --kubelet-dir {directory} --api-server {server.url}
            --pod-resources-socket {directory}/none --listen-address 127.0.0.1 --listen-port 0
            {machine_flag(name, directory)} --policy {policy} --pod-wait-seconds 0""".split()
        with running("linkwise.plugin", *flags) as program:
            ready = program.wait(lambda: kubelet.plugins, "its registration")
            program.wait(lambda: kubelet.plugin.lists, "its devices")
            ids = tuple(device.ID for device in kubelet.plugin.lists[0].devices)
            draw, stub = random.Random(seed), kubelet.plugin.stub
            ask_all(stub, [question(ids, draw) for _ in range(100)])  # warm-up
            round_trips = ask_all(stub, [question(ids, draw) for _ in range(calls)])
            told = server_time(program.logged(r"HTTP on port (\d+)"))
        kubelet.stop()
    return Run(name, policy, ready, round_trips, told)


def machine_flag(name: str, directory: Path) -> str:
    if name != PCIE_TREE:
        return f"--machine {name}"
    file = directory / "machine.txt"
    file.write_text(write_matrix(pcie_tree_16()))
    return f"--machine-file {file}"


def row(run: Run, base: Run) -> tuple[str, ...]:
    p50, p99 = percentile(run.round_trips, 50), percentile(run.round_trips, 99)
    return (
        f"{run.machine}, {run.policy}",
        milliseconds(p50),
        milliseconds(p99),
        milliseconds(max(run.round_trips) * 1000),
        milliseconds(run.server.mean_seconds * 1000),
        f"≤ {run.server.p99_at_most_seconds * 1000:g}",
        ratio(p50, percentile(base.round_trips, 50)),
        f"{run.ready_seconds:.1f} s",
    )


HEADER = (
    "machine, policy",
    "p50 ms",
    "p99 ms",
    "max ms",
    "server mean ms",
    "server p99 ms",
    "p50, of ring's",
    "ready after",
)


@click.command(help=__doc__)
@click.option("--calls", type=click.IntRange(100), default=2000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(calls: int, seed: int) -> None:
    click.echo(f"GetPreferredAllocation, {calls} calls each: {this_machine()}\n")
    rows, worst = [], 0.0
    for name in MACHINES:
        runs = [measure(name, policy, calls, seed) for policy in POLICIES]
        rows += [row(run, runs[0]) for run in runs]
        worst = max(worst, percentile(runs[0].round_trips, 99))
    print_table(HEADER, rows)
    verdict = "kept" if worst <= BAR_MS else "MISSED"
    click.echo(f"\nBar: ring, p99 of the round trip at most {BAR_MS:g} ms: {verdict}")
    raise SystemExit(worst > BAR_MS)


if __name__ == "__main__":
    main()
