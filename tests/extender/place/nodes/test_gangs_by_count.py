"""Gangs whose own selectors keep them on nodes that a vendor's plugin has alone."""

import pytest

from linkwise.extender.state.extender_calls import PreemptCall, Victims
from linkwise.kube.objects import Pod, SchedulingGate
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.owned import SURELY, create, job, member, there_is
from tests.extender.place.nodes.bare_nodes import lose_topology
from tests.extender.place.nodes.refusals import NO_PLUGIN, refuse

POOL = "pool"


def two_pools() -> Cluster:
    """Pool `ours` publishes its topology, pool `theirs` does not."""
    at = Cluster()
    for number in range(2):
        at.add_node(f"ours-{number}", "dgx-a100", labels={POOL: "ours"})
        at.add_node(f"theirs-{number}", "dgx-a100", labels={POOL: "theirs"})
        lose_topology(at, f"theirs-{number}")
    return at


def in_pool(pod: Pod, pool: str, *, gated: bool = False) -> Pod:
    gates = (SchedulingGate(name=names.GATE),) if gated else ()
    spec = change(pod.spec, node_selector={POOL: pool}, scheduling_gates=gates)
    return change(pod, spec=spec)


def train(at: Cluster, pool: str, *, gated: bool = False, **said: str) -> list[str]:
    made = job("train", 2)
    there_is(at, made)
    words = {names.PREFIX + key.replace("_", "-"): text for key, text in said.items()}
    create(at, *(in_pool(member(made, i, said=words), pool, gated=gated) for i in range(2)))
    at.pass_time(SURELY)
    return ["train-0-0", "train-1-0"]


@pytest.mark.parametrize("gated", [False, True])
def test_its_pods_go_by_count_one_by_one_as_before_linkwise(gated: bool) -> None:
    at = two_pools()
    pods = train(at, "theirs", gated=gated)
    assert [at.gates(name) for name in pods] == [[], []]
    assert [at.schedule(name) for name in pods] in (["theirs-0"] * 2, ["theirs-0", "theirs-1"])
    assert [at.plan(name) for name in pods] == [None, None]
    for _ in range(24):
        at.pass_time(3600.0)
    assert at.evicted == []
    assert at.sound()


def test_where_a_node_with_topology_would_do_it_waits_for_a_plan() -> None:
    at = two_pools()
    at.add_pod("busy-0", 8, node="ours-0")
    pods = train(at, "ours")
    assert [at.schedule(name) for name in pods] == ["", ""]
    at.delete("busy-0")
    at.pass_time(SURELY)
    assert all(at.plan(name) is not None for name in pods)


def test_a_node_with_topology_that_is_cordoned_is_waited_for() -> None:
    at = two_pools()
    for number in range(2):
        at.add_node(f"more-{number}", "dgx-a100", labels={POOL: "theirs"})
        at.cordon(f"more-{number}")
    pods = train(at, "theirs")
    assert [at.schedule(name) for name in pods] == ["", ""]
    for number in range(2):
        at.uncordon(f"more-{number}")
    at.pass_time(SURELY)
    assert all(at.plan(name) is not None for name in pods)


def test_one_with_requirements_waits() -> None:
    at = two_pools()
    pods = train(at, "theirs", require_link="nvlink")
    assert [at.schedule(name) for name in pods] == ["", ""]


def test_one_that_names_itself_in_linkwises_words_waits() -> None:
    at = two_pools()
    said = {"gang": "g", "gang_size": "2"}
    for name in ("g-0", "g-1"):
        at.add_pod(name, 8, said=said, alter=lambda pod: in_pool(pod, "theirs"))
    at.pass_time(SURELY)
    assert [at.schedule(name) for name in ("g-0", "g-1")] == ["", ""]


def test_when_the_pool_gets_its_topology_the_next_gang_is_planned() -> None:
    at = two_pools()
    at.add_node("theirs-2", "dgx-a100", labels={POOL: "theirs"})
    at.add_node("theirs-3", "dgx-a100", labels={POOL: "theirs"})
    pods = train(at, "theirs")
    assert {at.pod(name).status.nominated_node_name for name in pods} == {"theirs-2", "theirs-3"}


def test_it_waits_while_the_kubelets_of_its_pool_refuse_pods() -> None:
    at = two_pools()
    at.add_node("elsewhere", "dgx-a100", labels={POOL: "elsewhere"})
    lose_topology(at, "elsewhere")
    (first, _) = train(at, "theirs")
    pool = ("theirs-0", "theirs-1")
    for node in pool:
        at.add_pod(f"on-{node}", 1, node=node)
        refuse(at, f"on-{node}", NO_PLUGIN)
    assert at.filter(first, pool).node_names == ()
    at.pass_time(31.0)  # then one on each as a trial
    assert at.filter(first, pool).node_names == pool


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        ("theirs", "kube-scheduler places the pod there by count"),
        ("ours", "not used for gangs"),
    ],
)
def test_explain_says_which_of_the_two_it_is(pool: str, why: str) -> None:
    at = two_pools()
    at.add_pod("busy-0", 8, node="ours-0")
    (first, _) = train(at, pool)
    explained = at.core.explain("ml", first, at.now)
    assert explained is not None
    assert explained.search is not None
    (missing,) = explained.search.levels[0].missing
    assert (missing.nodes, missing.reason) == (2, f"no topology published: {why}")


def test_explain_says_of_a_member_that_waits_what_it_waits_for() -> None:
    at = two_pools()
    (first, _) = train(at, "theirs", require_link="nvlink")
    assert reason_of(at, first) == "no topology published: cannot tell its links, models and memory"
    at = two_pools()
    at.add_node("more-0", "dgx-a100", labels={POOL: "theirs"})
    at.cordon("more-0")
    (first, _) = train(at, "theirs")
    assert reason_of(at, first) == "no topology published: not used for gangs"


def reason_of(at: Cluster, name: str) -> str:
    explained = at.core.explain("ml", name, at.now)
    assert explained is not None
    assert explained.search is not None
    (missing,) = explained.search.levels[0].missing
    return missing.reason


def test_a_member_by_count_preempts_as_a_single_pod_does() -> None:
    at = two_pools()
    (first, _) = train(at, "theirs")
    for number in range(2):
        at.add_pod(f"low-{number}", 8, node=f"theirs-{number}")
    at.put_pod(change(at.pod(first), spec=change(at.pod(first).spec, priority=10)))
    at.filter(first)
    asked = {"theirs-0": Victims((at.pod("low-0").metadata.uid,), 0)}
    assert at.core.preempt(PreemptCall(at.pod(first), asked), at.now).victims == asked
