"""The program on a driver that fails it: what the kubelet, the Node and an operator see of it."""

import json
import time
from collections.abc import Iterator
from threading import Event
from typing import Any

import grpc
import pynvml
import pytest

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node
from linkwise.plugin.device_plugin.grpc_channel import reason_of
from linkwise.simulator.api_server import ApiServer
from linkwise.topology.machine.recorded import recorded_machine
from tests.plugin.fake_kubelet import FakeKubelet
from tests.plugin.process import Process
from tests.waiting import wait_for

MACHINE = recorded_machine("hgx-h100", node="n1")
UUIDS = [gpu.uuid for gpu in MACHINE.gpus]
LOST, UNKNOWN = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN
HANGS = [{"hang": True}]
QUICK = ("--health-seconds", "0.2", "--discovery-seconds", "3600", "--driver-seconds", "2")
# Asked to end, the program has 3 s; the rest is for a machine that is busy with other things.
PATIENCE_SECONDS = 9.0
CUDA = "nvidia.com/cuda.runtime-version.full"
DYING = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetNvLinkState",
)


class Day:
    """A plugin, its kubelet, its Node, and the driver's file of faults."""

    def __init__(self, kubelet: FakeKubelet, server: ApiServer) -> None:
        self.kubelet, self.server = kubelet, server
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        self.client.post(
            "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        )
        self._file = kubelet.directory / "driver.json"
        self.driver({})
        self.plugin: Process | None = None

    def driver(self, faults: dict[str, Any]) -> None:
        other = self._file.with_suffix(".new")
        other.write_text(json.dumps(faults))
        other.rename(self._file)  # whole, whenever it is read

    def start(self, *flags: str, ready: bool = True) -> Process:
        plugin = self.plugin = Process(
            self.kubelet.directory,
            *("--api-server", self.server.url, *flags),
            program=("-m", "tests.plugin.played_driver", "hgx-h100", str(self._file)),
        )
        wait_for(lambda: plugin.ready() if ready else plugin.serves, "its start")
        return plugin

    @property
    def labels(self) -> dict[str, str]:
        return self.client.get("/api/v1/nodes/n1", Node).metadata.labels

    def read_again(self, faults: dict[str, Any], cuda: int, label: str) -> None:
        """Wait until a reading that began after this call is published, with *cuda* as *label*."""
        self.driver({**faults, "nvmlSystemGetCudaDriverVersion_v2": [{"answer": cuda}]})
        wait_for(lambda: self.labels[CUDA] == label, "a reading")

    def sick(self) -> list[int]:
        """The indices of the GPUs that the kubelet does not give out."""
        health = self.kubelet.plugin.health
        return [UUIDS.index(uuid) for uuid, told in health.items() if told != "Healthy"]


@pytest.fixture
def day(kubelet: FakeKubelet) -> Iterator[Day]:
    with ApiServer() as server:
        running = Day(kubelet, server)
        yield running
        if running.plugin is not None:
            running.plugin.kill()
            assert "Traceback" not in running.plugin.log, running.plugin.log


def ends(plugin: Process) -> bool:
    began = time.monotonic()
    return plugin.stop() == 0 and time.monotonic() - began < PATIENCE_SECONDS


@pytest.mark.parametrize(
    "call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"]
)
def test_told_to_end_while_its_first_reading_hangs_it_ends(day: Day, call: str) -> None:
    day.driver({call: HANGS})
    plugin = day.start(ready=False)
    assert plugin.get("/readyz") == (503, "no GPUs read yet\n")
    assert plugin.metric("probe_age_seconds") >= 0.0
    assert ends(plugin)


def test_told_to_exit_without_a_driver_it_does_also_where_the_driver_hangs(day: Day) -> None:
    day.driver({"nvmlInit": HANGS})
    plugin = day.start("--no-driver", "exit", "--driver-seconds", "0.5", ready=False)
    assert plugin.process.wait(60) == 1
    assert "Error: nvmlInit: the driver does not answer within 0.5 s" in plugin.log


def test_a_driver_that_hangs_is_seen_and_ends_nothing_but_what_it_hangs_in(day: Day) -> None:
    plugin = day.start(*QUICK)
    wait_for(lambda: plugin.metric("probe_age_seconds") < 2.0, "probes")
    day.driver({"nvmlDeviceGetMemoryInfo": HANGS})
    wait_for(lambda: plugin.get("/readyz")[0] == 503, "the end of readiness")
    assert "the last complete probe of the GPUs is" in plugin.get("/readyz")[1]
    assert plugin.metric("probe_age_seconds") > 2.2
    wait_for(lambda: len(day.sick()) == 8, "GPUs that no container gets")
    day.kubelet.plugin.allocate(UUIDS[:1])  # the plugin still answers the kubelet
    assert plugin.get("/healthz")[0] == 200
    day.driver({})
    wait_for(lambda: not day.sick() and plugin.ready(), "all well again")
    assert ends(plugin)


def test_told_to_end_while_the_driver_hangs_it_ends(day: Day) -> None:
    plugin = day.start(*QUICK)
    day.driver({"nvmlDeviceGetMemoryInfo": HANGS, "nvmlEventSetWait_v2": HANGS})
    wait_for(lambda: plugin.get("/readyz")[0] == 503, "the end of readiness")
    assert ends(plugin)
    assert list(day.kubelet.directory.glob("linkwise-*")) == []


def test_one_gpu_that_hangs_takes_no_other_with_it(day: Day) -> None:
    day.start(*QUICK)
    day.driver({"nvmlDeviceGetMemoryInfo": [{"gpu": 3, "hang": True}]})
    wait_for(lambda: day.sick() == [3], "the GPU that hangs")
    day.driver(
        {
            "nvmlDeviceGetMemoryInfo": [{"gpu": 3, "hang": True}],
            "nvmlDeviceGetMigMode": [{"gpu": 6, "answer": [1, 0]}],
        }
    )
    wait_for(lambda: day.sick() == [3, 6], "what is wrong with another")


def test_a_gpu_that_dies_leaves_the_labels_of_its_node_as_they_were(day: Day) -> None:
    plugin = day.start(*QUICK, "--discovery-seconds", "0.5")
    before = day.labels
    assert before["linkwise.dev/gpu.model"] == "NVIDIA-H100-80GB-HBM3"
    log = len(plugin.log)
    dying = {call: [{"gpu": 7, "error": LOST}] for call in DYING}
    day.driver(dying)
    wait_for(lambda: day.sick() == [7], "the GPU that died")
    day.read_again(dying, 13010, "13.1")
    day.read_again(dying, 12040, before[CUDA])
    assert day.labels == before
    said = [line for line in plugin.log[log:].splitlines() if " INFO " not in line]
    assert len(said) == 1
    assert f"GPU 7 ({UUIDS[7]}) is unhealthy: NVML: GPU is lost" in said[0]


def test_another_gpus_device_file_is_never_handed_out(day: Day) -> None:
    minors = {gpu: gpu + 1 if gpu < 3 else gpu - 1 for gpu in (0, 1, 4, 5, 6, 7)}
    day.driver(
        {
            "nvmlDeviceGetMinorNumber": [
                *({"gpu": gpu, "answer": minor} for gpu, minor in minors.items()),
                {"gpu": 3, "error": UNKNOWN},
            ]
        }
    )
    day.start(*QUICK, "--host-dev", "/nonexistent")
    wait_for(lambda: day.sick() == [3], "the GPU whose file is not known")
    with pytest.raises(grpc.RpcError) as refused:
        day.kubelet.plugin.allocate([UUIDS[3]])
    assert f"GPU 3 ({UUIDS[3]}): its device file is not known" in reason_of(refused.value)
    given = day.kubelet.plugin.allocate([UUIDS[4]])
    assert [device.host_path for device in given.devices] == ["/dev/nvidia3"]


def test_device_files_are_passed_unless_an_operator_says_no(day: Day) -> None:
    host_dev = day.kubelet.directory / "dev"
    host_dev.mkdir()
    (host_dev / "nvidiactl").touch()
    (host_dev / "nvidia-uvm").touch()
    plugin = day.start(*QUICK, "--host-dev", str(host_dev))
    given = day.kubelet.plugin.allocate([UUIDS[2]])
    wanted = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia102"]
    assert [device.host_path for device in given.devices] == wanted
    assert [device.container_path for device in given.devices] == wanted
    assert {device.permissions for device in given.devices} == {"rw"}
    assert plugin.stop() == 0
    day.start(*QUICK, "--no-pass-device-specs")
    assert list(day.kubelet.plugin.allocate([UUIDS[2]]).devices) == []


def test_an_xid_takes_its_gpu_out_until_its_probation_is_over(day: Day) -> None:
    plugin = day.start(*QUICK, "--probation-seconds", "4")
    day.driver({"xids": [[3, 48], [5, 31]]})
    wait_for(lambda: day.sick() == [3], "the GPU with a memory error")
    reason = "XID 48: uncorrectable memory error"
    unhealthy = f'device_unhealthy{{gpu="{UUIDS[3]}",reason="{reason}"}}'
    wait_for(lambda: plugin.metric(unhealthy) == 1.0, "the GPU, shown as unhealthy")
    counted = [
        f'xids_total{{gpu="{UUIDS[3]}",xid="48"}}',
        f'xids_total{{gpu="{UUIDS[5]}",xid="31"}}',
    ]
    wait_for(
        lambda: [plugin.metric(line) for line in counted] == [1.0, 1.0], "both errors, counted"
    )
    wait_for(lambda: not day.sick(), "the end of the probation")
    assert plugin.log.count("is unhealthy") == 1


def test_an_operator_chooses_what_comes_of_an_xid(day: Day) -> None:
    day.start(*QUICK, "--treat", "xid-31=unhealthy", "--treat", "xid-48=ignore")
    day.driver({"xids": [[3, 48], [5, 31]]})
    wait_for(lambda: day.sick() == [5], "the GPU that was chosen")


def test_what_is_wrong_at_the_start_is_said_and_counted(day: Day) -> None:
    day.driver(
        {
            "nvmlDeviceGetMigMode": [{"gpu": 1, "answer": [1, 0]}],
            "nvmlDeviceGetUUID": [{"gpu": 5, "error": LOST}],
        }
    )
    plugin = day.start(*QUICK)
    assert plugin.metric('devices{health="healthy"}') == 6.0
    assert plugin.metric('devices{health="unhealthy"}') == 1.0
    assert plugin.metric('devices{health="left-out"}') == 1.0
    assert plugin.metric('device_left_out{index="5"') == 1.0
    assert f"GPU 1 ({UUIDS[1]}) is unhealthy: MIG mode is on" in plugin.log
    assert "GPU 5 is left out: GPU is lost: no handle or no uuid" in plugin.log
    assert day.labels["linkwise.dev/gpu.model"] == "NVIDIA-H100-80GB-HBM3"


def test_told_to_end_while_everything_hangs_it_ends(
    day: Day, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver, the API server, and the kubelet in the midst of a registration."""
    plugin = day.start(*QUICK, "--daemonset", "kube-system/linkwise-plugin")
    registering, released = Event(), Event()

    def hang(request: object) -> None:  # noqa: ARG001 - as the kubelet's
        registering.set()
        released.wait(60)

    monkeypatch.setattr(day.kubelet, "take", hang)
    day.kubelet.plugin.cancel()  # and it registers again
    day.driver({"nvmlDeviceGetMemoryInfo": HANGS})
    day.server.pause()
    assert registering.wait(60)
    assert ends(plugin)
    released.set()
