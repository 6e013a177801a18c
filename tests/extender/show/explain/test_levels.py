"""Explanations give the reasons of `filter`, in the same order."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from linkwise.extender.place.nodes import reasons
from linkwise.extender.state.views import Explanation, SearchView
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.machine.topology_manager import Policy, Scope, Source, TopologyManager
from tests.extender.cluster import Cluster

PAIRS = "a100-pcie-8-bridged"  # NVLink within a pair
ALIGNED = "aligned "
ALL = (0, 1, 2, 3, 4, 5, 6, 7)


class Lack(NamedTuple):
    """The first level that a node fails; but for it, the node would fail the next ones too."""

    level: str
    machine: str
    in_use: tuple[int, ...]
    gpus: int
    said: dict[str, str]


LACKS = (
    Lack("size", PAIRS, ALL, 9, {"gpu_model": "H100", "require_link": "nvlink"}),
    Lack("model", PAIRS, ALL, 7, {"gpu_model": "H100", "require_link": "nvlink"}),
    Lack("link", PAIRS, ALL, 7, {"require_link": "nvlink"}),
    Lack("alignment", ALIGNED + "hgx-h100", ALL, 7, {"require_link": "nvlink"}),
    Lack("free", ALIGNED + "hgx-h100", (2, 3, 4, 5, 6, 7), 4, {"require_link": "nvlink"}),
    Lack("free-link", ALIGNED + PAIRS, (0, 1, 3, 4, 5, 7), 2, {"require_link": "nvlink"}),
    Lack("free-alignment", ALIGNED + "hgx-h100", (0, 1, 4, 5), 4, {"require_link": "nvlink"}),
)


def cluster(machine: str) -> Cluster:
    at = Cluster()
    made = recorded_machine(machine.removeprefix(ALIGNED), node="n1")
    if machine.startswith(ALIGNED):
        one_node = TopologyManager(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER, source=Source.FILE)
        made = replace(made, topology_manager=one_node)
    at.add_node("n1", made)
    return at


def search_of(at: Cluster, pod: str) -> SearchView:
    found = at.core.explain("ml", pod, at.now)
    assert isinstance(found, Explanation)
    assert found.search is not None
    return found.search


def reasons_of(at: Cluster, pod: str) -> tuple[str, str]:
    """That of `filter`, and the first that an explanation gives."""
    answer = at.filter(pod)
    missing = next(level.missing for level in search_of(at, pod).levels if level.missing)
    return {**answer.failed, **answer.unresolvable}["n1"], f"linkwise: {missing[0].reason}"


def test_each_level_has_a_case() -> None:
    levels = [level.name for level in (*reasons.EVER, *reasons.NOW)]
    by_claims = {
        "partition",
        "free-partition",
    }  # see tests/extender/state/cache/claims/test_partitions.py
    assert [lack.level for lack in LACKS] == [name for name in levels if name not in by_claims]


@pytest.mark.parametrize("lack", LACKS, ids=lambda lack: lack.level)
def test_the_first_level_that_a_node_fails_is_the_reason(lack: Lack) -> None:
    at = cluster(lack.machine)
    at.set_in_use("n1", {"ml/busy": {"main": at.uuids("n1", *lack.in_use)}})
    at.add_pod("p", lack.gpus, said=lack.said)
    shown = search_of(at, "p")
    assert next(level.level for level in shown.levels if level.missing) == lack.level
    level = next(each for each in (*reasons.EVER, *reasons.NOW) if each.name == lack.level)
    why = reasons.ONE_NUMA_NODE if callable(level.text) else level.text
    assert reasons_of(at, "p") == (why, why)
    assert bool(at.filter("p").unresolvable) == (level in reasons.EVER)
    assert shown.nearest is not None
    assert bool(shown.nearest.holders) == (level in reasons.NOW)


def test_reserved_gpus_are_the_reason_if_the_pod_would_fit_with_them() -> None:
    at = cluster(PAIRS)
    at.add_pod("busy", 6, node="n1")
    at.set_in_use("n1", {"ml/busy": {"main": at.uuids("n1", 0, 1, 2, 4, 5, 6)}})
    at.add_pod("whole", 8, gates=["linkwise.dev/plan"])
    at.settle()
    at.now += 1
    at.add_pod("any", 2)
    assert reasons_of(at, "any") == ("linkwise: reserved for pod ml/whole",) * 2
    at.add_pod("linked", 2, require_link="nvlink")
    assert reasons_of(at, "linked") == (reasons.FEWER,) * 2
