"""A plan says what its whole gang was estimated to be worth when it was made."""

import json

import pytest

from linkwise.topology import names
from linkwise.topology.annotations.plan import CommunicatorEstimate
from tests.extender.cluster import Cluster, container

ZONE = "topology.kubernetes.io/zone"


def estimate(at: Cluster, name: str) -> CommunicatorEstimate | None:
    plan = at.plan(name)
    assert plan is not None
    return plan.communicator


def two_idle_nodes(machine: str = "hgx-h100") -> Cluster:
    at = Cluster()
    for number, zone in enumerate("ab"):
        at.add_node(f"n{number}", machine, labels={ZONE: zone})
    return at


def test_on_one_node_it_is_the_ring_there() -> None:
    at = two_idle_nodes("dgx1-v100")
    at.add_gang("g", 4, 1)
    at.settle()
    for rank in range(4):
        assert estimate(at, f"g-{rank}") == CommunicatorEstimate(together=80.0, inside=80.0)
    text = at.pod("g-0").metadata.annotations[names.PLAN]
    assert text.endswith('"communicator":{"together":80.0,"inside":80.0}}')


def test_over_nodes_each_member_is_told_of_the_ring_on_its_own() -> None:
    at = Cluster()
    at.add_node("a", "hgx-h100", labels={ZONE: "a"})
    at.add_node("b", "dgx1-v100", labels={ZONE: "b"})
    at.add_gang("g", 2, 8)
    at.settle()
    found = {at.plan(name).node: estimate(at, name) for name in ("g-0", "g-1")}  # type: ignore[union-attr]
    # Between zones half is left of the 48 GB/s that either node's NICs carry.
    assert found == {
        "a": CommunicatorEstimate(together=24.0, inside=370.8, between=24.0),
        "b": CommunicatorEstimate(together=24.0, inside=120.0, between=24.0),
    }


def test_a_later_member_is_told_of_all_that_it_joins() -> None:
    at = two_idle_nodes("dgx1-v100")
    said = {"gang": "g", "gang_size": "4", "gang_min": "3"}
    for rank in range(3):
        at.add_pod(f"g-{rank}", 1, rank=f"{rank}", said=said)
    at.settle()
    at.pass_time(10)
    for rank in range(3):
        assert at.schedule(f"g-{rank}") == "n0"
    at.add_pod("g-3", 1, rank="3", said=said)
    at.settle()
    (gang,) = at.core.gangs(at.now)
    assert gang.communicator is not None
    assert [(ring.node, ring.gpus) for ring in gang.communicator.rings] == [("n0", 4)]
    told = estimate(at, "g-3")
    assert told is not None
    assert told.together == gang.communicator.gbytes_per_s == 80.0


@pytest.mark.parametrize("said", [{}, {"communicator": "pod"}])
def test_who_talks_to_nobody_else_has_none(said: dict[str, str]) -> None:
    at = two_idle_nodes()
    if said:
        at.add_gang("g", 2, 8, **said)
    else:
        at.add_gang("g", 1, 1)
    at.add_pod("single", 8)
    at.settle()
    assert estimate(at, "g-0") is None
    assert "communicator" not in at.pod("g-0").metadata.annotations[names.PLAN]
    assert [gang.communicator for gang in at.core.gangs(at.now)] == [None]
    if not said:
        at.schedule("single")
        assert estimate(at, "single") is None


def test_a_level_that_only_the_gang_names_counts_as_the_search_counts_it() -> None:
    at = Cluster()
    for number in range(2):
        at.add_node(f"n{number}", "hgx-h100", labels={"rack": f"r{number}", ZONE: "a"})
    at.add_gang("g", 2, 8, prefer_span="rack")
    at.settle()
    told = CommunicatorEstimate(together=43.2, inside=370.8, between=43.2)
    assert estimate(at, "g-0") == told  # a tenth is lost between racks
    (gang,) = at.core.gangs(at.now)
    assert gang.communicator is not None
    assert gang.communicator.gbytes_per_s == told.together


def test_it_is_told_after_a_restart_as_it_was_then() -> None:
    at = two_idle_nodes()
    at.add_gang("g", 2, 8)
    at.settle()
    before = at.core.explain("ml", "g-0", at.now)
    at.restart()
    at.settle()
    after = at.core.explain("ml", "g-0", at.now)
    assert before is not None
    assert after is not None
    assert before.communicator == after.communicator == estimate(at, "g-0")


@pytest.mark.parametrize(
    "forged", [None, 7, {"together": -1}, {"together": 9999.0, "inside": 9999.0}]
)
def test_what_a_plan_says_of_its_worth_decides_nothing(forged: object) -> None:
    at = two_idle_nodes()
    at.add_gang("g", 2, 8)
    at.settle()
    at.schedule("g-0")
    for name in ("g-0", "g-1"):
        plan = json.loads(at.pod(name).metadata.annotations[names.PLAN])
        del plan["communicator"]  # as one from before there was any
        if forged is not None:
            plan["communicator"] = forged
        at.annotate(name, plan=json.dumps(plan))
    at.restart()
    assert at.settle() == []
    (gang,) = at.core.gangs(at.now)
    assert gang.phase == "binding"
    assert gang.communicator is not None
    assert gang.communicator.gbytes_per_s == 24.0
    assert at.schedule("g-1") == "n1"
    assert at.core.audit() == []


def test_a_plan_that_is_corrected_says_nothing_more_of_the_gang() -> None:
    at = Cluster()
    at.add_node("n0", "dgx1-v100")
    at.add_gang("g", 2, 2)
    at.settle()
    for name in ("g-0", "g-1"):
        at.schedule(name)
    first, second = at.gpus("g-0"), at.gpus("g-1")
    at.start("g-0", second)
    at.start("g-1", first)
    at.settle()
    assert at.gpus("g-0") == second
    assert estimate(at, "g-0") is None


def test_gpus_of_an_init_container_count_until_its_pod_ends() -> None:
    at = two_idle_nodes("dgx1-v100")
    for rank in range(2):
        at.add_pod(
            f"g-{rank}",
            init=[container("init", 4)],
            containers=[container("main", 2)],
            rank=f"{rank}",
            said={"gang": "g", "gang_size": "2"},
            require_link="nvlink",
        )
    at.settle()
    whole_machine = CommunicatorEstimate(together=120.0, inside=120.0)
    for rank in range(2):
        assert estimate(at, f"g-{rank}") == whole_machine
        shares = at.gpus(f"g-{rank}")
        assert set(shares["init"]) == set(shares["main"])
        # any two of these four are linked
        assert set(at.indices(f"g-{rank}")) in ({0, 1, 2, 3}, {4, 5, 6, 7})
        assert at.schedule(f"g-{rank}") == at.pod("g-0").spec.node_name
    for rank in range(2):
        at.start(f"g-{rank}", {"main": at.gpus(f"g-{rank}")["init"][1:3]})
    at.settle()
    assert [len(at.gpus(f"g-{rank}")["init"]) for rank in range(2)] == [4, 4]
    assert at.sound()
