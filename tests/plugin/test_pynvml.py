"""What the plugin asks the driver goes through pynvml's own code, to C functions."""

from collections.abc import Iterator
from dataclasses import dataclass

import pynvml
import pytest

from linkwise.plugin.gpus.inventory import Probe, Stock, Xid
from linkwise.plugin.nvml.library import Nvml
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.topology.machine.model import Machine
from tests.machines import BRIDGED_8, DGX_1V, DGX_2, DGX_A100, GEFORCE_4, HGX_H100, PCIE_8
from tests.plugin.c_library import CLibrary
from tests.plugin.fake_nvml import NO_SYSFS, Fabric, FakeNvml

MIG_UUIDS = [f"MIG-00000000-0000-0000-0000-{place:012}" for place in range(2)]


def driver_of(machine: Machine) -> FakeNvml:
    """One GPU is divided, one works, one has lost a memory row, and the first has had an XID."""
    played = FakeNvml(machine, fabric={0: Fabric(), 2: Fabric(clique=9, health=1)})
    played.mig[1] = [(MIG_UUIDS[0], 3, 3, 20_000), None, (MIG_UUIDS[1], 4, 4, 20_000)]
    played.busy[2], played.used_mib[2] = 73, 5_000
    played.samples[2] = [(1_000, 4, 0), (2_000, 0, 9)]
    played.fields[3, pynvml.NVML_FI_DEV_REMAPPED_FAILURE] = 1
    played.xids.put((0, 79))
    return played


@dataclass
class Library:
    """What pynvml has loaded."""

    functions: CLibrary | None = None


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    loaded = Library()

    def load(name: str) -> CLibrary:
        assert name == "libnvidia-ml.so.1"
        assert loaded.functions is not None
        return loaded.functions

    monkeypatch.setattr(pynvml, "CDLL", load)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield loaded
    assert loaded.functions is not None
    assert loaded.functions.defects == []


def asked(source: NvmlInventory) -> tuple[Stock, Probe, tuple[Xid, ...] | None]:
    """All that the plugin asks of a driver."""
    stock = source.read()
    probe = source.probe(stock.machine)
    return stock, probe, source.events(stock.machine, 0.01)


@pytest.mark.parametrize(
    "machine", [DGX_1V, BRIDGED_8, DGX_A100, HGX_H100, DGX_2, PCIE_8, GEFORCE_4]
)
def test_through_pynvml_the_driver_says_the_same(library: Library, machine: Machine) -> None:
    library.functions = CLibrary(driver_of(machine))
    through = asked(NvmlInventory(sys_root=NO_SYSFS))
    assert through == asked(NvmlInventory(driver_of(machine), sys_root=NO_SYSFS))
    stock, probe, xids = through
    assert stock.machine.link(0, 3) == machine.link(0, 3)
    assert probe.loads[machine.gpus[2].uuid].memory_mib == 5_000
    assert xids is not None
    assert [xid.number for xid in xids] == [79]


def test_every_function_that_the_plugin_calls_is_among_them(library: Library) -> None:
    played = driver_of(DGX_1V)
    library.functions = CLibrary(played)
    source = NvmlInventory(sys_root=NO_SYSFS)
    asked(source)
    played.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_UNKNOWN)  # a new set replaces the old one
    source.events(source.read().machine, 0.01)
    source.close()
    assert played.opened == 0
    assert {name for name in vars(Nvml) if name.startswith("nvml")} == set(played.calls)


def test_a_function_that_an_old_driver_lacks_is_an_answer(library: Library) -> None:
    library.functions = CLibrary(driver_of(HGX_H100), lacks="nvmlDeviceGetGpuFabricInfoV")
    stock = NvmlInventory(sys_root=NO_SYSFS).read()
    assert stock.warnings == ()
    assert stock.machine.link(0, 3) == HGX_H100.link(0, 3)
