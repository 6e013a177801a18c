"""Recognises what a program prints of a machine, and reads it: `nvidia-smi topo -m`,
`rocm-smi --showtopo`, `amd-smi topology`, or the file of NCCL_TOPO_DUMP_FILE."""

from dataclasses import dataclass

from linkwise.topology.machine.amd_prints import is_amd_print, read_amd_print
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.nccl_dump import UNTOLD, is_nccl_dump, read_nccl_dump
from linkwise.topology.machine.topo_matrix import UNKNOWN_MODEL, lacks_nvlinks, read_matrix

NO_NVLINKS = (
    "rests on a table without NVLinks: `nvidia-smi topo -mp` leaves them out, `nvidia-smi topo -m` "
    "shows them"
)


@dataclass(frozen=True, slots=True)
class Printed:
    """`untold` is what such a print cannot tell of the machine: a clause without a subject."""

    machine: Machine
    untold: str = ""


def read_print(text: str, *, model: str = UNKNOWN_MODEL, node: str = "") -> Printed:
    """Return the machine in *text*: all GPUs of one *model*, with uuids generated from *node*.

    Raises MachineError with the place of what it cannot read.
    """
    if is_nccl_dump(text):
        return Printed(read_nccl_dump(text, model=model, node=node), UNTOLD)
    if is_amd_print(text):
        return Printed(*read_amd_print(text, model=model, node=node))
    machine = read_matrix(text, model=model, node=node)
    return Printed(machine, NO_NVLINKS if lacks_nvlinks(machine) else "")
