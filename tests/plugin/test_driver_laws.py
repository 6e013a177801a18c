"""Whatever a GPU, or the driver as a whole, answers in whatever order: what must stay true."""

from contextlib import closing
from typing import Any

import pynvml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linkwise.plugin.errors import InventoryError
from linkwise.plugin.health.book import DeviceBook
from linkwise.plugin.health.faults import Policy
from linkwise.plugin.nvml.library import Nvml
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.machine.model import Machine
from tests.machines import BRIDGED_8, DGX_1V, HGX_H100
from tests.plugin.fake_nvml import NO_SYSFS, FakeNvml

BAD = 3
OF_A_GPU = sorted(
    name
    for name in vars(Nvml)
    if name.startswith("nvmlDevice") and name not in ("nvmlDeviceGetCount",)
)
OF_THE_DRIVER = [
    *("nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlSystemGetDriverVersion"),
    *("nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree"),
]
TROUBLES = [
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_TIMEOUT,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_IN_USE,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
]
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(OF_A_GPU), st.sampled_from(TROUBLES)),
        st.tuples(st.sampled_from(OF_THE_DRIVER), st.sampled_from(TROUBLES)),
        st.sampled_from(["heal", "read", "probe", "xids"]),
        st.tuples(st.just("count"), st.integers(0, 8)),
    ),
    max_size=25,
)


class FailingDriver:
    """A driver that may fail, and what the plugin makes of it. `of_all`: more than the one GPU has
    been in trouble."""

    def __init__(self, machine: Machine) -> None:
        self.driver = FakeNvml(machine)
        self.source = NvmlInventory(self.driver, sys_root=NO_SYSFS)
        self.first = self.source.read()
        self.book = DeviceBook(self.first, Policy(clean_probes=1, probe_seconds=0), now=0)
        self.uuids = [gpu.uuid for gpu in machine.gpus]
        self.of_all, self._now = False, 0.0

    def happen(self, happening: Any) -> None:
        self._now += 1.0
        if isinstance(happening, str):
            getattr(self, happening)()
            return
        call, what = happening
        self.of_all |= call not in OF_A_GPU
        if call == "count":
            self.driver.faults["nvmlDeviceGetCount"] = lambda: what
        elif call in OF_THE_DRIVER:
            self.driver.fail(call, what)
        else:
            whom = self.uuids[BAD] if call == "nvmlDeviceGetHandleByUUID" else BAD
            self.driver.fail(call, what, gpu=whom)

    def heal(self) -> None:
        self.driver.faults.clear()

    def xids(self) -> None:
        self.source.events(self.first.machine, 0.001)

    def probe(self) -> None:
        self.book.probed(self.source.probe(self.book.now.machine), now=self._now)

    def read(self) -> None:
        try:
            self.book.discovered(self.source.read(), now=self._now)
        except InventoryError:
            self.of_all = True

    def a_day_passes(self) -> None:
        self._now += 100_000.0

    def keeps_its_facts(self) -> None:
        now = self.book.now
        assert node_labels(now.machine) == node_labels(self.first.machine)
        assert [gpu.uuid for gpu in now.machine.gpus] == self.uuids
        for uuid, minor in (now.minors or {}).items():
            assert minor == self.uuids.index(uuid) + 100
        if not self.of_all:
            assert {gpu.index for gpu in now.machine.gpus if not gpu.healthy} <= {BAD}


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([DGX_1V, BRIDGED_8, HGX_H100]), steps)
@example(DGX_1V, [("nvmlDeviceGetMinorNumber", pynvml.NVML_ERROR_UNKNOWN), "read"])
@example(DGX_1V, [("count", 6), "read", "probe", "probe", "heal", "read", "probe"])
def test_one_gpus_trouble_is_its_own_and_facts_stay_facts(
    machine: Machine, happenings: list[Any]
) -> None:
    world = FailingDriver(machine)
    with closing(world.source):
        for happening in [*happenings, "read", "probe"]:
            world.happen(happening)
            world.keeps_its_facts()
        for happening in ["heal", *["a_day_passes", "read", "probe"] * 3]:
            world.happen(happening)
        assert world.book.now.machine == world.first.machine  # all healthy, too
        assert world.book.now.minors == world.first.minors
