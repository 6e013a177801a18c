"""Which devices are taken on a node in a run without Linkwise.

NVIDIA's plugin answers GetPreferredAllocation by go-gpuallocator's best-effort policy
(NVIDIA/k8s-device-plugin `internal/rm/allocate.go`).
"""

from collections.abc import Sequence

from linkwise.simulator.kubelet import Adviser
from linkwise.simulator.report.model import Rival
from linkwise.topology.machine.model import Machine
from linkwise.topology.sets.partition import choose_partition


def adviser_of(rival: Rival, machine: Machine) -> Adviser:
    """Return who advises the kubelet; without any preference it draws devices by its seed."""
    return _nvidias_choice(machine) if rival is Rival.NVIDIA else lambda *_: ()


def _nvidias_choice(machine: Machine) -> Adviser:
    def advise(available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        must = machine.mask_of(must_include)
        chosen = choose_partition(machine, machine.mask_of(available), size, must=must)
        return () if chosen is None else machine.uuids_of(chosen)

    return advise
