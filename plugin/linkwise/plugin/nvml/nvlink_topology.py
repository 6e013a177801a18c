"""PURE. What the driver says about each GPU's NVLinks and about pairs of GPUs -> links.

If the answers contradict each other, the smaller claim counts, with a warning: links that one side
counts and the other does not, ends that no GPU has, distances that the driver does not know.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from linkwise.topology.machine.link_words import peer_by_name
from linkwise.topology.machine.model import Link, LinkClass


class End(Enum):
    """What the other end of an NVLink is."""

    GPU = "GPU"
    SWITCH = "NVSwitch"
    OTHER = "other"  # a CPU, or unknown
    UNTOLD = "untold"  # the driver is too old to know; the bus id shows it


@dataclass(frozen=True, slots=True)
class ActiveLink:
    """One NVLink that is up; `bus_id` is that of its other end, if the driver reports it."""

    number: int
    end: End
    bus_id: str | None = None


@dataclass(frozen=True, slots=True)
class RawGpu:
    """What the driver said about one GPU.

    `fabric` names its NVSwitch fabric partition, which is unknown unless `settled`. If `troubled`,
    contradictions between its answers and those of others are expected.
    """

    index: int
    model: str
    bus_id: str | None
    numa_nodes: tuple[int, ...]
    nvlinks: tuple[ActiveLink, ...]
    fabric: str | None = None
    settled: bool = True
    troubled: bool = False


def link_all(
    gpus: Sequence[RawGpu],
    distances: Mapping[tuple[int, int], LinkClass],
    peers: Mapping[tuple[int, int], bool],
    *,
    absent: Collection[str] = (),
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """The links of all pairs, in the order of `Machine.links`, and warnings.

    *distances* maps pairs of positions to their PCIe distance, and *peers* to whether they have
    peer-to-peer access, if the driver knew it. *absent* are bus ids of GPUs that are known to be on
    this machine and could not be read.
    """
    warnings: list[str] = []
    direct = _direct_links(gpus, absent, warnings)
    links: list[Link] = []
    unknown: list[str] = []
    for first, second in combinations(range(len(gpus)), 2):
        pcie = distances.get((first, second))
        if pcie is None:
            pcie = _distance_by_numa(gpus[first], gpus[second])
            unknown.append(f"{gpus[first].index}-{gpus[second].index} {pcie.name}")
        there, back = direct[first, second], direct[second, first]
        if there != back and not (gpus[first].troubled or gpus[second].troubled):
            warnings.append(
                f"NVLink: GPU {gpus[first].index} counts {there} to GPU {gpus[second].index}, "
                f"which counts {back} back; {min(there, back)} taken"
            )
        nvlinks = min(there, back)
        switched = _switched_links(gpus[first], gpus[second])
        most = max(nvlinks, switched)
        by_name = peer_by_name(gpus[first].model, gpus[second].model, most)
        peer = peers.get((first, second), by_name)
        links.append(Link(pcie, most, through_switch=switched > nvlinks, peer_to_peer=peer))
    if unknown:  # in many virtual machines all of them
        warnings.append(
            f"the driver does not know the distance of {len(unknown)} pairs of GPUs; "
            f"taken from their NUMA nodes: {', '.join(unknown)}"
        )
    return tuple(links), tuple(dict.fromkeys(warnings))


def _direct_links(
    gpus: Sequence[RawGpu], absent: Collection[str], warnings: list[str]
) -> Counter[tuple[int, int]]:
    """Links from GPU to GPU, counted from each side."""
    position = {gpu.bus_id: place for place, gpu in enumerate(gpus) if gpu.bus_id}
    counted: Counter[tuple[int, int]] = Counter()
    for place, gpu in enumerate(gpus):
        astray: list[str] = []
        for link in gpu.nvlinks:
            other = position.get(link.bus_id) if link.bus_id else None
            if link.end is End.SWITCH:
                continue
            if other is not None and other != place:
                counted[place, other] += 1
            elif link.bus_id not in absent:
                where = link.bus_id or "an unknown place"
                astray.append(f"{link.number} at {where} ({link.end.value})")
        if astray and not gpu.troubled:
            warnings.append(
                f"NVLinks of GPU {gpu.index} end at what is no other GPU here, and are left out: "
                + ", ".join(astray)
            )
    return counted


def _switched_links(first: RawGpu, second: RawGpu) -> int:
    """Links through NVSwitches: the smaller number of the two ends, within one fabric partition."""
    if first.fabric and second.fabric and first.fabric != second.fabric:
        return 0
    return min(sum(link.end is End.SWITCH for link in gpu.nvlinks) for gpu in (first, second))


def _distance_by_numa(first: RawGpu, second: RawGpu) -> LinkClass:
    shared = set(first.numa_nodes) & set(second.numa_nodes)
    return LinkClass.NODE if any(node >= 0 for node in shared) else LinkClass.SYS


def clique_of(gpus: Sequence[RawGpu]) -> tuple[str | None, tuple[str, ...]]:
    """The one multi-node NVLink clique that all GPUs of the node share, or None; and warnings.

    GPUs whose fabric has not reported yet do not count."""
    told = [gpu.fabric for gpu in gpus if gpu.settled]
    named = {clique for clique in told if clique}
    if not named:
        return None, ()
    if len(named) == 1 and all(told):
        return named.pop(), ()
    shown = ", ".join(sorted(named))
    return None, (f"fabric: cliques {shown} among {len(gpus)} GPUs: expected one; none taken",)
