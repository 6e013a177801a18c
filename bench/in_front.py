"""What `--in-front` adds to a vendor's plugin: `python -m bench.in_front`.

Linkwise runs as in a cluster, as a process of its own, between a kubelet and a vendor's plugin. The
vendor's plugin is the tests' scripted one, also a process. This process is the kubelet, and has
two connections: to the vendor's plugin itself (direct) and to Linkwise (in front). It makes each
call on both, in random order. *Added* is the difference of the two round trips of one call.

Health change: the vendor's plugin changes the health of one device; from the order to do so until
the list has arrived. The vendor's plugin sends to both connections, in an order of its own, so
differences of a single change may be negative.

Other work on the machine only adds to a p99, so each row is the round with the least added p99.

Devices: 8 and 16 whole GPUs, and 512 replicas, 32 of each of 16 GPUs under the same resource name.
"""

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import click
import grpc

from bench.preferred_allocation import question
from bench.support.figures import milliseconds, percentile, print_table, this_machine
from bench.support.programs import running
from linkwise.kube.client import KubeClient
from linkwise.plugin.in_front.resource import HEALTHY
from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import DevicePluginStub
from linkwise.simulator.api_server import ApiServer
from linkwise.topology.machine.recorded import recorded_machine
from tests.plugin.fake_kubelet import LOCALHOST, FakeKubelet, Plugin
from tests.plugin.in_front.scripted import GPU, ScriptedVendor

T = TypeVar("T")

NODE = "bench"
BAR_MS = 5.0
SOCKET = "nvidia-gpu.sock"
WARM_UP = 50
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Devices:
    """What the vendor's plugin offers of a recorded machine: *replicas* of each GPU, or 0 for
    whole GPUs."""

    machine: str
    replicas: int

    @property
    def ids(self) -> tuple[str, ...]:
        gpus = [gpu.uuid for gpu in recorded_machine(self.machine, node=NODE).gpus]
        if not self.replicas:
            return tuple(gpus)
        return tuple(f"{gpu}::{number}" for gpu in gpus for number in range(self.replicas))

    @property
    def name(self) -> str:
        count = len(recorded_machine(self.machine).gpus)
        return f"{count} × {self.replicas} replicas" if self.replicas else f"{count} GPUs"


OFFERS = (Devices("hgx-h100", 0), Devices("dgx2-v100", 0), Devices("dgx2-v100", 32))


class Kubelet(FakeKubelet):
    """One that leaves the list to the benchmark."""

    def take(self, request: api.RegisterRequest) -> None:
        self.plugins.append(Plugin(self.directory / request.endpoint, request))


class Side:
    """A connection to one plugin, as a kubelet has it: calls, and the list of devices."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=LOCALHOST)
        self.stub = DevicePluginStub(self._channel)
        self._lists: SimpleQueue[tuple[float, frozenset[str]]] = SimpleQueue()
        Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        try:
            for message in self.stub.ListAndWatch(api.Empty()):
                arrived = time.perf_counter()
                sick = (device.ID for device in message.devices if device.health != HEALTHY)
                self._lists.put((arrived, frozenset(sick)))
        except grpc.RpcError:  # closed
            return

    def arrival(self, unhealthy: frozenset[str]) -> float:
        """When the list with exactly these unhealthy devices arrived. Raises queue.Empty."""
        while True:
            arrived, sick = self._lists.get(timeout=_PATIENCE_SECONDS)
            if sick == unhealthy:
                return arrived

    def close(self) -> None:
        self._channel.close()


Pairs = list[tuple[float, float]]
"""Seconds of the same thing, direct and in front."""


def added(pairs: Pairs) -> list[float]:
    return [front - direct for direct, front in pairs]


def added_p99(pairs: Pairs) -> float:
    return percentile(added(pairs), 99)


class Bench:
    """The two connections to one offer."""

    def __init__(
        self, ids: tuple[str, ...], direct: Side, front: Side, vendor: ScriptedVendor, seed: int
    ) -> None:
        self._ids, self._vendor, self._draw = ids, vendor, random.Random(seed)
        self._direct, self._front = direct, front
        for side in (direct, front):
            side.arrival(frozenset())

    def measure(self, count: int, rounds: int) -> dict[str, Pairs]:
        """Return the best round of each."""
        measured: dict[str, Callable[[int], Pairs]] = {
            "Allocate": self._allocate,
            "GetPreferredAllocation": self._prefer,
            "PreStartContainer": self._pre_start,
            "health change": self._health,
        }
        for measure in measured.values():
            measure(WARM_UP)
        # In turn, so that other work on the machine does not meet all rounds of one kind.
        made = [{name: measure(count) for name, measure in measured.items()} for _ in range(rounds)]
        return {name: min((each[name] for each in made), key=added_p99) for name in measured}

    def _allocate(self, count: int) -> Pairs:
        def ask(side: Side, ids: Sequence[str]) -> object:
            asked = api.ContainerAllocateRequest(devices_ids=ids)
            request = api.AllocateRequest(container_requests=[asked])
            return side.stub.Allocate(request, timeout=10)

        return self._calls(count, ask, must_agree=True)

    def _pre_start(self, count: int) -> Pairs:
        def ask(side: Side, ids: Sequence[str]) -> object:
            return side.stub.PreStartContainer(
                api.PreStartContainerRequest(devices_ids=ids), timeout=10
            )

        return self._calls(count, ask, must_agree=True)

    def _prefer(self, count: int) -> Pairs:
        questions = iter([question(self._ids, self._draw) for _ in range(count)])

        def ask(side: Side, request: api.PreferredAllocationRequest) -> object:
            return side.stub.GetPreferredAllocation(request, timeout=10)

        return [self._pair(ask, request, must_agree=False) for request in questions]

    def _calls(
        self, count: int, ask: Callable[[Side, Sequence[str]], object], *, must_agree: bool
    ) -> Pairs:
        most = min(8, len(self._ids))
        return [
            self._pair(
                ask,
                self._draw.sample(self._ids, self._draw.randint(1, most)),
                must_agree=must_agree,
            )
            for _ in range(count)
        ]

    def _pair(
        self, ask: Callable[[Side, T], object], what: T, *, must_agree: bool
    ) -> tuple[float, float]:
        sides = [self._direct, self._front]
        self._draw.shuffle(sides)
        seconds: dict[Side, float] = {}
        answers = []
        for side in sides:
            began = time.perf_counter()
            answers.append(ask(side, what))
            seconds[side] = time.perf_counter() - began
        if must_agree and answers[0] != answers[1]:
            raise RuntimeError(f"asked {what}: answered {answers}")
        return seconds[self._direct], seconds[self._front]

    def _health(self, count: int) -> Pairs:
        pairs: Pairs = []
        for number in range(count + count % 2):  # at the end all are healthy
            sick = frozenset([self._draw.choice(self._ids)] if number % 2 == 0 else [])
            began = time.perf_counter()
            self._vendor.set(unhealthy=sorted(sick))
            direct, front = (side.arrival(sick) for side in (self._direct, self._front))
            pairs.append((direct - began, front - began))
        return pairs


def measure(devices: Devices, count: int, rounds: int, seed: int) -> dict[str, Pairs]:
    with tempfile.TemporaryDirectory(prefix="lw-") as temporary, ApiServer() as server:
        directory = Path(temporary)
        client = KubeClient.load(kubeconfig=None, server=server.url)
        client.post("/api/v1/nodes", {"metadata": {"name": NODE}})
        kubelet = Kubelet(directory)
        kubelet.start()
        vendor = ScriptedVendor(directory, directory / "linkwise" / "kubelet.sock")
        options = {"get_preferred_allocation_available": True, "pre_start_required": True}
        vendor.offer(GPU, devices.ids, socket=SOCKET, options=options)
        flags = f"""--in-front --node-name {NODE} --kubelet-dir {directory}
            --api-server {server.url} --pod-resources-socket {kubelet.pod_resources_socket}
            --listen-address 127.0.0.1 --listen-port 0 --machine {devices.machine}
            --pod-wait-seconds 0""".split()
        try:
            with running("linkwise.plugin", *flags) as program:
                program.wait(lambda: kubelet.plugins, "its registration")
                front = Side(directory / kubelet.plugin.request.endpoint)
                direct = Side(directory / SOCKET)
                bench = Bench(devices.ids, direct, front, vendor, seed)
                measured = bench.measure(count, rounds)
                for side in (front, direct):
                    side.close()
        finally:
            vendor.kill()
            kubelet.stop()
    return measured


def row(devices: Devices, what: str, pairs: Pairs) -> tuple[str, ...]:
    direct, front = zip(*pairs, strict=True)
    more = added(pairs)
    figures = [
        percentile(seconds, percent) for seconds in (direct, front, more) for percent in (50, 99)
    ]
    return (f"{devices.name}, {what}", *map(milliseconds, figures), milliseconds(max(more) * 1000))


HEADER = (
    "devices, call",
    "direct p50",
    "direct p99",
    "in front p50",
    "in front p99",
    "added p50",
    "added p99",
    "added max",
)


@click.command(help=__doc__)
@click.option("--calls", type=click.IntRange(100), default=500, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(calls: int, rounds: int, seed: int) -> None:
    title = f"In front of a vendor's plugin, best of {rounds} rounds of {calls} calls, ms"
    click.echo(f"{title}: {this_machine()}\n")
    rows, worst = [], 0.0
    for devices in OFFERS:
        for what, pairs in measure(devices, calls, rounds, seed).items():
            rows.append(row(devices, what, pairs))
            worst = max(worst, added_p99(pairs))
    print_table(HEADER, rows)
    verdict = "kept" if worst <= BAR_MS else "MISSED"
    click.echo(f"\nBar: added p99 at most {BAR_MS:g} ms: {milliseconds(worst)}, {verdict}")
    raise SystemExit(worst > BAR_MS)


if __name__ == "__main__":
    main()
