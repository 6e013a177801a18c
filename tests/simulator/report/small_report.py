"""One small run for the tests of the printers: which pod has which GPUs, and why others wait."""

from dataclasses import replace

from linkwise.drawing.times import PodTimes
from linkwise.simulator.report.build_report import report_of
from linkwise.simulator.report.model import NodeReport, Report, SeenPod
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from tests.machines import MIXED_5

BRIDGED_4 = recorded_machine("a100-pcie-4-bridged")  # NVLink pairs (0,1) and (2,3)
ODD_5 = replace(  # GPU 0 alone on its NUMA node, GPU 4 broken
    MIXED_5, gpus=(*MIXED_5.gpus[:4], replace(MIXED_5.gpus[4], healthy=False))
)
NODES = (
    NodeReport("bridged", "4x A100 PCIe, two bridges", BRIDGED_4),
    NodeReport("odd", "5 GPUs of several models", ODD_5),
)
_RUNS = PodTimes(100.0, 100.25, 100.5)
_MACHINES = {node.name: node.machine for node in NODES}


def uuids(machine: Machine, *indices: int) -> tuple[str, ...]:
    """Return the uuids of the GPUs at these positions."""
    return tuple(machine.gpus[index].uuid for index in indices)


def on(
    node: str,
    *indices: int,
    pod: str,
    workload: str,
    member: str,
    needed: int = 0,
    times: PodTimes = _RUNS,
) -> SeenPod:
    """Return a pod that holds these GPUs, as planned."""
    gpus = {"trainer": uuids(_MACHINES[node], *indices)}
    return SeenPod(
        f"default/{pod}",
        workload,
        needed,
        member,
        times,
        node=node,
        planned=gpus,
        held=gpus,
        had=frozenset(),
    )


def off(*, pod: str, workload: str, member: str, needed: int = 0, waits: str = "") -> SeenPod:
    return SeenPod(f"default/{pod}", workload, needed, member, PodTimes(101.0), waits=waits)


OURS = (
    on("bridged", 0, 1, pod="train-x", workload="train", member="0", needed=2),
    on(
        "bridged",
        2,
        3,
        pod="train-y",
        workload="train",
        member="1",
        needed=2,
        times=PodTimes(100.125, 100.5, 101.0),
    ),
    on("odd", 0, pod="lone", workload="lone", member="0"),
    SeenPod(
        "default/done-z",
        "done",
        0,
        "0",
        PodTimes(100.5, 100.75, 101.0, 102.5),
        node="odd",
        had=frozenset(uuids(ODD_5, 1)),
        ended=True,
    ),
    off(pod="big-u", workload="big", member="0", needed=2, waits="No node has 9 GPUs."),
    off(pod="big-v", workload="big", member="1", needed=2, waits="No node has 9 GPUs."),
)
ALONE = (
    (
        on("bridged", 0, 2, pod="train-1", workload="train", member="0", needed=2),
        on("bridged", 1, 3, pod="train-2", workload="train", member="1", needed=2),
        on("odd", 2, pod="lone", workload="lone", member="0"),
        on("odd", 0, pod="done-3", workload="done", member="0"),
        off(pod="big-4", workload="big", member="0", needed=2),
        off(pod="big-5", workload="big", member="1", needed=2),
    ),
)


def small_report(*, baseline: bool = True) -> Report:
    return report_of(NODES, OURS, ALONE if baseline else (), seed=7, at=104.0)
