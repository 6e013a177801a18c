"""Places of the plugin: the driver below it, the kubelet beside it, the pods of its node."""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pynvml

from bench.support.programs import Program, running
from linkwise.kube.client import KubeClient
from linkwise.plugin.device_plugin.grpc_channel import reason_of
from linkwise.plugin.errors import InventoryError
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.plan import write_gpus
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from tests.bad_input.table import Place, Row
from tests.machines import PCIE_8
from tests.plugin.fake_kubelet import FakeKubelet
from tests.plugin.fake_nvml import FakeNvml
from tests.plugin.pods import bind, manifest
from tests.waiting import wait_for

MACHINE = recorded_machine("dgx1-v100", node="n1")
UUIDS = tuple(gpu.uuid for gpu in MACHINE.gpus)
NO_SYSFS = Path("/nonexistent")
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


class DriverAnswers:
    """A driver that is broken in this way: what the plugin warns of, what it finds wrong with a
    GPU, or why it takes no GPU at all. Of its GPUs, 2 is the one that is broken."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._driver = FakeNvml(machine)
        self._inventory = NvmlInventory(self._driver, sys_root=NO_SYSFS)

    def give(self, given: Callable[[FakeNvml], None]) -> str:
        self._driver = FakeNvml(self._machine)
        self._inventory = NvmlInventory(self._driver, sys_root=NO_SYSFS)
        given(self._driver)
        try:
            found = self._inventory.read()
        except InventoryError as error:
            return str(error)
        indices = {gpu.uuid: gpu.index for gpu in found.machine.gpus}
        left_out = [f"GPU {index} is left out: {why}" for index, why in found.left_out.items()]
        problems = [
            f"GPU {indices[uuid]}: {finding.text}"
            for uuid, findings in found.probe.findings.items()
            for finding in findings
        ]
        self._others_are_as_they_are(found.machine)
        return "\n".join([*found.warnings, *left_out, *problems])

    def _others_are_as_they_are(self, found: Machine) -> None:
        place = {gpu.index: position for position, gpu in enumerate(found.gpus)}
        others = [gpu for gpu in self._machine.gpus if gpu.index != 2]
        for gpu in others:
            assert found.gpus[place[gpu.index]].uuid == gpu.uuid
        for first, second in pairwise(others):
            link = found.link(place[first.index], place[second.index])
            assert link == self._machine.link(first.index, second.index)

    def neighbour_goes_on(self) -> None:
        """The next reading, of a driver that is well again, is whole."""
        self._driver.faults.clear()
        self._driver.fields.clear()
        found = self._inventory.read()
        assert (found.machine.links, found.warnings) == (self._machine.links, ())
        assert (found.probe.findings, found.left_out) == ({}, {})


class Node:
    """The program on node n1, its kubelet, and the API server."""

    def __init__(self, kubelet: FakeKubelet, program: Program, client: KubeClient) -> None:
        self.kubelet, self.program, self.client = kubelet, program, client
        self._numbers = count(1)

    def bind(self, size: object, annotations: Mapping[str, str]) -> str:
        """A pod on this node that waits for its start; its name."""
        name = f"w{next(self._numbers)}"
        bind(self.client, manifest(name, ("main", size)), {}, said=annotations)
        return name

    def neighbour_goes_on(self) -> None:
        """A pod with a plan still gets its GPUs, and the list is still open."""
        plan = (UUIDS[1], UUIDS[6], UUIDS[7])
        name = self.bind("3", {names.GPUS: write_gpus({"main": plan})})
        plugin = self.kubelet.plugin
        # The plugin waits for the pod that asks, so there is no race with its watch.
        assert plugin.preferred(UUIDS, 3) == list(plan)
        assert plugin.allocate(plan).envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(plan)
        assert not plugin.ended
        self.client.delete(f"/api/v1/namespaces/ml/pods/{name}", grace_seconds=0)
        assert "Traceback" not in "".join(self.program.lines)


@contextmanager
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="lw-") as temporary, ApiServer() as server:
        client = KubeClient.load(kubeconfig=None, server=server.url)
        client.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
        kubelet = FakeKubelet(Path(temporary))
        kubelet.start()
        flags = f"""--node-name n1 --machine dgx1-v100 --api-server {server.url}
            --kubelet-dir {temporary} --pod-resources-socket {temporary}/pod-resources
            --listen-address 127.0.0.1 --listen-port 0 --pod-wait-seconds 2""".split()
        with running("linkwise.plugin", *flags) as program:
            program.wait(lambda: kubelet.plugins, "its registration")
            yield Node(kubelet, program, client)
        kubelet.stop()


class KubeletCalls:
    """A call of the kubelet: the status and text it fails with, or the GPUs it gets."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.neighbour_goes_on = node.neighbour_goes_on

    def give(self, given: tuple[str, Mapping[str, Any]]) -> str:
        call, arguments = given
        plugin = self._node.kubelet.plugin
        try:
            if call == "Allocate":
                return plugin.allocate(**arguments).envs["NVIDIA_VISIBLE_DEVICES"]
            ids = plugin.preferred(**arguments)
        except grpc.RpcError as error:
            return reason_of(error)
        return f"GPUs {[UUIDS.index(uuid) if uuid in UUIDS else uuid for uuid in ids]}"


class PodsOfTheNode:
    """A pod that is bound to the node and says this: what is logged of it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.neighbour_goes_on = node.neighbour_goes_on

    def give(self, given: tuple[object, Mapping[str, str]]) -> str:
        size, notes = given
        name = self._node.bind(size, {names.PREFIX + key: text for key, text in notes.items()})
        found = re.compile(rf"WARNING \S+ pod ml/{name}: (.*)\n")
        lines = self._node.program.lines
        wait_for(lambda: any(map(found.search, lines)), "a warning")
        self._node.client.delete(f"/api/v1/namespaces/ml/pods/{name}", grace_seconds=0)
        (said,) = [match[1] for line in lines if (match := found.search(line))]
        return said


def places(node: Node) -> dict[str, Place]:
    return {
        "NVML": DriverAnswers(PCIE_8),
        "kubelet call": KubeletCalls(node),
        "pod on the node": PodsOfTheNode(node),
    }


def _fails(call: str, error: int, *, gpu: object = 2) -> Callable[[FakeNvml], None]:
    return lambda driver: driver.fail(call, error, gpu=gpu)


def _answers(call: str, answer: Callable[..., Any], *, gpu: int = 2) -> Callable[[FakeNvml], None]:
    """*answer* instead of the driver's, for one GPU."""
    right = getattr(FakeNvml, call)

    def give(driver: FakeNvml) -> None:
        driver.faults[call] = lambda handle, *rest: (
            answer(handle, *rest) if handle == gpu else right(driver, handle, *rest)
        )

    return give


def _asks(available: Sequence[str], size: int, must: Sequence[str] = ()) -> tuple[str, Any]:
    return "GetPreferredAllocation", {"available": available, "size": size, "must": must}


ROWS = (
    Row(
        "NVML",
        "a lost GPU",
        _fails("nvmlDeviceGetUUID", LOST),
        "GPU 2 is left out: GPU is lost: no handle or no uuid",
    ),
    Row(
        "NVML",
        "memory fails",
        _fails("nvmlDeviceGetMemoryInfo", UNKNOWN),
        "GPU 2 is left out: nvmlDeviceGetMemoryInfo: Unknown Error",
    ),
    Row(
        "NVML",
        "no bus id",
        _fails("nvmlDeviceGetPciInfo", UNKNOWN),
        "GPU 2: nvmlDeviceGetPciInfo: Unknown Error",
    ),
    Row(
        "NVML",
        "a bus id that is none",
        _answers("nvmlDeviceGetPciInfo", lambda *_: SimpleNamespace(busId=b"[N/A]")),
        "GPU 2 is left out: PCI bus id '[n/a]:': expected like 0000:1a:00.0",
    ),
    Row(
        "NVML",
        "an empty uuid",
        _answers("nvmlDeviceGetUUID", lambda *_: ""),
        "GPU 2 is left out: uuid '': expected 1 to 63 characters, no blanks",
    ),
    Row("kubelet call", "more than there are", _asks(UUIDS[:2], 4), "GPUs [0, 1]"),
    Row(
        "kubelet call",
        "an unknown id is available",
        _asks(["GPU-x", *UUIDS[4:6]], 2),
        "GPUs [4, 5]",
    ),
    Row("kubelet call", "must not among available", _asks(UUIDS[4:], 2, UUIDS[:1]), "GPUs [0, 4]"),
    Row("kubelet call", "one id twice", _asks([UUIDS[0], UUIDS[0]], 2), "GPUs [0]"),
    Row("kubelet call", "Allocate nothing", ("Allocate", {"ids": []}), ""),
    Row(
        "pod on the node",
        "gpus is a list",
        ("1", {"gpus": '["GPU-a"]'}),
        'linkwise.dev/gpus: \'["GPU-a"]\': expected JSON like {"main":["GPU-8f…"]} '
        "(Expected `object`, got `array`)",
    ),
    Row(
        "pod on the node",
        "unknown link word",
        ("1", {"prefer-link": "fast"}),
        "linkwise.dev/prefer-link: 'fast': expected one of nvlink, switch, host-bridge, numa, node",
    ),
)
