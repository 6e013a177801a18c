"""Pods with replicas or MIG devices, on nodes that a person wants empty."""

from collections.abc import Mapping

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.next.moves.may_move import Stays
from linkwise.extender.next.moves.targets import COME_SECONDS
from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.parts import part_of
from tests.divided import GPU, MIG_1G, MIG_3G, SHARED, cut, replicas
from tests.extender.cluster import change
from tests.extender.next.moves.movers import (
    HOUR,
    MOVABLE,
    empty,
    going,
    owned_by,
    run,
    shown,
    waits,
    why_stays,
)
from tests.extender.next.preemption.victims import budget
from tests.extender.shares.cluster import ShareCluster, asks
from tests.machines import DGX_1V, TWO_ISLANDS, machine

FOUR_EACH = replicas(DGX_1V, {0: 4, 1: 4})
IN_PLACE_OF_GPUS = replicas(TWO_ISLANDS, dict.fromkeys(range(8), 2), GPU)
APART = machine("""
        GPU0  GPU1  GPU2  GPU3
  GPU0   X    SYS   SYS   SYS
  GPU1  SYS    X    SYS   SYS
  GPU2  SYS   SYS    X    SYS
  GPU3  SYS   SYS   SYS    X
""")


def cluster(*machines: Machine, moves: Moves = Moves.CONSENT) -> ShareCluster:
    at = ShareCluster(settings=CoreSettings(moves=MovePolicy(moves)))
    for number, each in enumerate(machines, 1):
        at.add_divided(f"n{number}", each)
    return at


def add(
    at: ShareCluster,
    name: str,
    *limits: Mapping[str, int],
    owner: str = "web",
    kind: str = "ReplicaSet",
    **said: str,
) -> Pod:
    containers = [asks(f"c{number}", each) for number, each in enumerate(limits)]
    words = {**MOVABLE, **said}
    return at.add_pod(name, containers=containers, said=words, alter=owned_by(kind, owner))


def share(
    at: ShareCluster,
    name: str,
    node: str,
    *limits: Mapping[str, int],
    owner: str = "web",
    kind: str = "ReplicaSet",
    **said: str,
) -> None:
    """The pod runs on *node*, and its plan names its shares."""
    add(at, name, *(limits or ({SHARED: 1},)), owner=owner, kind=kind, **said)
    at.settle()
    at.bind_on(name, node)
    at.put_in_use(node, f"ml/{name}", at.planned_shares(name), ())
    at.set_phase(name, "Running")
    at.settle()


def leaves(at: ShareCluster, name: str) -> None:
    """The evicted pod ends, and the kubelet has its shares back."""
    node = at.pod(name).spec.node_name
    at.delete(name)
    at.put_in_use(node, f"ml/{name}", None, ())
    at.stop(name, node)
    at.settle()


def free(at: ShareCluster, node: str, resource: str = SHARED) -> int:
    """Shares that no pod has, and that are reserved for none."""
    return at.core._cache.nodes[node].shares.free[resource]


def moving(resource: str = SHARED, on: Machine = FOUR_EACH) -> ShareCluster:
    """`web` is evicted from n1, and its target is n2."""
    at = cluster(on, on)
    share(at, "web", "n1", {resource: 1})
    empty(at, "n1")
    assert at.evicted == ["web"]
    return at


@pytest.mark.parametrize(
    ("resource", "on"),
    [
        (SHARED, FOUR_EACH),
        (GPU, IN_PLACE_OF_GPUS),
        (MIG_1G, cut(DGX_1V, 0, MIG_1G, MIG_1G)),
        (MIG_3G, cut(DGX_1V, 0, MIG_1G, MIG_3G)),
    ],
)
def test_a_pod_goes_to_a_share_of_another_node(resource: str, on: Machine) -> None:
    at = moving(resource, on)
    reserved = [*at.core._cache.nodes["n2"].shares.reserved]
    add(at, "web-2", {resource: 1})
    leaves(at, "web")
    assert at.schedule("web-2") == "n2"
    assert at.ids_of("web-2") == reserved
    assert at.sound()


def test_a_container_may_get_the_shares_of_an_init_container() -> None:
    at = cluster(FOUR_EACH, replicas(DGX_1V, {0: 1}))

    def add_both(name: str) -> None:
        main, init = asks("c0", {SHARED: 1}), asks("i0", {SHARED: 1})
        alter = owned_by("ReplicaSet", "web")
        at.add_pod(name, containers=[main], init=[init], said=MOVABLE, alter=alter)

    add_both("web")
    at.bind_on("web", "n1")
    at.set_phase("web", "Running")
    empty(at, "n1")
    assert at.evicted == ["web"]
    add_both("web-2")
    leaves(at, "web")
    assert at.schedule("web-2") == "n2"
    assert at.core._planner.targets.counts.arrived == 1


def test_its_target_is_for_the_replacement_alone() -> None:
    at = moving()
    assert (free(at, "n2"), free(at, "n1")) == (7, 7)
    add(at, "pair", {SHARED: 8}, owner="other")
    assert at.filter("pair").node_names == ()
    for number in range(7):
        add(at, f"w{number}", {SHARED: 1}, owner="other")
        assert at.schedule(f"w{number}") == "n2"
    add(at, "one-more", {SHARED: 1}, owner="other")
    assert at.schedule("one-more") == ""
    add(at, "web-2", {SHARED: 1})
    assert at.schedule("web-2") == "n2"
    assert at.sound()


def test_no_eviction_makes_it_free_for_others() -> None:
    book = moving().core._cache.nodes["n2"].shares
    assert book.without(["anyone"], 0) == book


def test_its_gpu_counts_as_in_use_so_others_open_none() -> None:
    at = cluster(replicas(DGX_1V, {0: 8}), replicas(DGX_1V, {0: 8, 1: 2}))
    share(at, "web", "n1", {SHARED: 3}, share="pack")
    empty(at, "n1")
    add(at, "other", {SHARED: 1}, owner="other")
    assert at.schedule("other") == "n2"
    assert part_of(*at.ids_of("other")) in at.uuids("n2", 0)


def test_two_pods_of_one_owner_have_a_target_each() -> None:
    at = cluster(FOUR_EACH, FOUR_EACH, replicas(DGX_1V, {0: 1}))
    share(at, "a", "n1")
    share(at, "b", "n1")
    for number in range(7):
        share(at, f"w{number}", "n2", owner="other")
    empty(at, "n1")
    assert sorted(at.evicted) == ["a", "b"]
    for new in ("a-2", "b-2"):
        add(at, new, {SHARED: 1})
    assert at.filter("a-2") != at.filter("b-2")
    assert {at.schedule("a-2"), at.schedule("b-2")} == {"n2", "n3"}
    add(at, "third", {SHARED: 1})
    assert at.schedule("third") == ""


def test_a_replacement_counts_as_moved() -> None:
    at = moving()
    add(at, "web-2", {SHARED: 1})
    leaves(at, "web")
    at.schedule("web-2")
    at.put_in_use("n2", "ml/web-2", at.planned_shares("web-2"), ())
    at.set_phase("web-2", "Running")
    empty(at, "n1", said=None)
    empty(at, "n2")
    assert (at.evicted, why_stays(at)) == (["web"], {"web-2": Stays.AGAIN.value})
    counts = at.core._planner.targets.counts
    assert (counts.begun, counts.arrived, counts.given_back) == (1, 1, 0)


def test_pods_are_shown_with_their_targets_before_the_node_is_emptied() -> None:
    at = cluster(FOUR_EACH, replicas(DGX_1V, {0: 1}), replicas(DGX_1V, {0: 1}), moves=Moves.ADVISE)
    for name in ("a", "b", "c"):
        share(at, name, "n1")
    assert (going(at, "n1"), why_stays(at, "n1")) == (
        {"a": "n2", "b": "n3"},
        {"c": Stays.NO_PLACE.value},
    )
    empty(at, "n1")
    assert at.evicted == []


def test_the_gpus_are_shown_of_which_pods_have_shares() -> None:
    at = cluster(replicas(DGX_1V, {3: 4}), replicas(DGX_1V, {5: 4}))
    share(at, "a", "n1")
    share(at, "b", "n1")
    found = shown(at, "n1", "n2")
    assert [(node.node, node.gpus) for node in found.nodes] == [("n1", 1), ("n2", 0)]
    found = shown(at, "n1")
    assert [(move.gpus, move.lost_gpu_seconds) for move in found.moves] == [((5,), 0.0)] * 2


def test_the_pods_with_most_shares_are_placed_first() -> None:
    at = cluster(FOUR_EACH, replicas(DGX_1V, {0: 4}))
    share(at, "a", "n1", owner="a")
    share(at, "b", "n1", {SHARED: 4}, share="pack", owner="b")
    assert (going(at, "n1"), why_stays(at, "n1")) == ({"b": "n2"}, {"a": Stays.NO_PLACE.value})


def test_a_target_is_where_kube_schedulers_filters_let_the_pod() -> None:
    at = cluster(FOUR_EACH)
    at.add_divided("n2", FOUR_EACH)
    share(at, "web", "n1")
    node = at.nodes["n2"]
    at.put_node(change(node, spec=change(node.spec, unschedulable=True)))
    assert why_stays(at, "n1") == {"web": Stays.NO_PLACE.value}
    at.put_node(change(node, spec=change(node.spec, unschedulable=False)))
    assert going(at, "n1") == {"web": "n2"}
    at.add_pod("all-cpu", node="n2", cpu="96")
    assert why_stays(at, "n1") == {"web": Stays.NO_PLACE.value}


def test_no_target_is_where_the_kubelet_refuses_such_pods() -> None:
    at = cluster(FOUR_EACH, FOUR_EACH)
    share(at, "web", "n1")
    template = at.core._cache.pods[at.pod("web").metadata.uid].template
    assert template is not None
    at.core._cache.turn_away(template, "n2", "refused", trial=False)
    assert why_stays(at, "n1") == {"web": Stays.NO_PLACE.value}


def test_pods_take_cpu_and_places_from_each_other() -> None:
    at = cluster(FOUR_EACH, FOUR_EACH)
    at.add_pod("most-cpu", node="n2", cpu="95")
    share(at, "a", "n1")
    share(at, "b", "n1")
    assert sorted([*going(at, "n1"), *why_stays(at, "n1")]) == ["a", "b"]
    assert len(going(at, "n1")) == 1


def test_no_two_pods_are_shown_with_the_same_shares() -> None:
    at = cluster(FOUR_EACH, replicas(DGX_1V, {0: 2, 1: 1, 2: 1}))
    share(at, "a", "n1", {SHARED: 2}, share="pack")
    share(at, "b", "n1", {SHARED: 2}, share="pack")
    assert (len(going(at, "n1")), len(why_stays(at, "n1"))) == (1, 1)


def test_no_share_of_a_node_that_is_emptied_too_is_a_target() -> None:
    at = cluster(FOUR_EACH, FOUR_EACH)
    share(at, "a", "n1")
    share(at, "b", "n2")
    assert why_stays(at, "n1", "n2") == dict.fromkeys("ab", Stays.NO_PLACE.value)


def test_each_that_stays_has_its_reason() -> None:
    at = cluster(FOUR_EACH, FOUR_EACH)
    at.budgets = [budget(0, app="kept")]
    at.restart()
    share(at, "kept", "n1", owner="kept")
    share(at, "says-no", "n1", movable="false")
    share(at, "short", "n1", expected_duration="5m")
    for name, asked in (("by-others", {SHARED: 1}), ("both-by-others", {GPU: 1, SHARED: 1})):
        pod = add(at, name, asked)
        at.put_pod(change(pod, spec=change(pod.spec, node_name="n1")))
        at.set_phase(name, "Running")
    assert why_stays(at, "n1") == {
        "kept": Stays.BUDGET.value,
        "says-no": Stays.NO_CONSENT.value,
        "short": Stays.ENDS.value,
        "by-others": Stays.SHARES.value,
        "both-by-others": Stays.SHARES.value,
    }


def test_a_pod_stays_that_has_replicas_for_gpus_and_was_placed_without_the_extender() -> None:
    at = cluster(*[IN_PLACE_OF_GPUS] * 2)
    pod = add(at, "by-others", {GPU: 1})
    at.put_pod(change(pod, spec=change(pod.spec, node_name="n1")))
    at.set_phase("by-others", "Running")
    empty(at, "n1")
    assert (at.evicted, why_stays(at)) == ([], {"by-others": Stays.SHARES.value})


def test_one_with_replicas_for_gpus_gets_whole_gpus_where_there_are_some() -> None:
    at = cluster(IN_PLACE_OF_GPUS)
    share(at, "web", "n1", {GPU: 1})
    at.add_node("n2", DGX_1V)
    empty(at, "n1")
    assert at.evicted == ["web"]
    add(at, "web-2", {GPU: 1})
    assert at.schedule("web-2") == "n2"
    assert len(at.gpus("web-2")["c0"]) == 1
    assert at.sound()


def test_one_with_whole_gpus_does_not_get_replicas_for_them() -> None:
    at = cluster(DGX_1V, IN_PLACE_OF_GPUS)
    run(at, "web", 1, "n1", said=MOVABLE)
    empty(at, "n1")
    assert why_stays(at) == {"web": Stays.NO_PLACE.value}


def test_a_container_keeps_links_as_good_between_its_shares() -> None:
    linked, apart = (replicas(each, {0: 2, 1: 2}) for each in (TWO_ISLANDS, APART))
    at = cluster(linked, apart)
    share(at, "web", "n1", {SHARED: 2}, share="spread")
    share(at, "alone", "n1", {SHARED: 1}, owner="alone")
    empty(at, "n1")
    assert (at.evicted, why_stays(at)) == (["alone"], {"web": Stays.NO_PLACE.value})
    at.add_divided("n3", linked)
    at.pass_time(HOUR)
    assert at.evicted == ["alone", "web"]


def test_whole_gpus_in_place_of_shares_are_linked_as_well() -> None:
    at = cluster(IN_PLACE_OF_GPUS)
    share(at, "web", "n1", {GPU: 2}, share="spread")
    at.add_node("n2", APART)
    empty(at, "n1")
    assert why_stays(at) == {"web": Stays.NO_PLACE.value}
    at.add_node("n3", TWO_ISLANDS)
    assert going(at) == {"web": "n3"}


def test_whole_gpus_beside_shares_are_linked_as_well() -> None:
    at = cluster(replicas(TWO_ISLANDS, {0: 2}), replicas(APART, {0: 2}))
    share(at, "web", "n1", {GPU: 2, SHARED: 1})
    at.start("web", at.gpus("web"))
    assert why_stays(at, "n1") == {"web": Stays.NO_PLACE.value}
    at.add_divided("n3", replicas(TWO_ISLANDS, {0: 2}))
    assert going(at, "n1") == {"web": "n3"}


def test_it_gets_its_whole_gpus_beside_its_shares() -> None:
    both = replicas(DGX_1V, {0: 2})
    at = cluster(both, replicas(DGX_1V, {0: 2}), both)
    run(at, "full", 6, "n2")
    asked = {GPU: 4, SHARED: 1}
    share(at, "web", "n1", asked)
    at.start("web", at.gpus("web"))
    empty(at, "n1")
    assert at.evicted == ["web"]
    add(at, "gpus", {GPU: 4}, owner="other")
    assert at.filter("gpus").node_names == ()
    add(at, "web-2", asked)
    assert at.schedule("web-2") == "n3"
    assert (len(at.gpus("web-2")["c0"]), len(at.ids_of("web-2"))) == (4, 1)
    assert at.sound()


# What becomes of the target.


def test_the_target_is_given_back_if_no_pod_comes() -> None:
    at = moving()
    leaves(at, "web")
    assert free(at, "n2") == 7
    at.pass_time(COME_SECONDS)
    assert free(at, "n2") == 8


@pytest.mark.parametrize("asked", [{SHARED: 2}, {MIG_1G: 1}, {GPU: 1}, {GPU: 1, SHARED: 1}])
def test_a_pod_that_asks_for_something_else_is_no_replacement(asked: dict[str, int]) -> None:
    at = moving()
    add(at, "web-2", asked)
    at.schedule("web-2")
    assert at.core._cache.nodes["n2"].shares.reserved


def test_one_that_wants_its_shares_elsewhere_is_no_replacement() -> None:
    at = cluster(FOUR_EACH, FOUR_EACH)
    share(at, "web", "n1", {SHARED: 2}, share="spread")
    empty(at, "n1")
    add(at, "web-2", {SHARED: 2}, share="pack")
    at.schedule("web-2")
    assert at.core._cache.nodes["n2"].shares.reserved


def test_a_pod_of_a_stateful_set_is_known_by_its_name() -> None:
    at = cluster(FOUR_EACH, FOUR_EACH, FOUR_EACH)
    share(at, "db-0", "n1", owner="db", kind="StatefulSet")
    empty(at, "n1")
    target = going(at)["db-0"]
    add(at, "db-1", {SHARED: 1}, owner="db", kind="StatefulSet")
    at.schedule("db-1")
    assert at.core._cache.nodes[target].shares.reserved
    leaves(at, "db-0")
    add(at, "db-0", {SHARED: 1}, owner="db", kind="StatefulSet")
    assert at.schedule("db-0") == target
    assert not at.core._cache.nodes[target].shares.reserved


def test_where_kube_scheduler_does_not_want_it_the_replacement_is_placed_like_any_other() -> None:
    at = cluster(FOUR_EACH, FOUR_EACH, FOUR_EACH)
    share(at, "web", "n1")
    empty(at, "n1")
    target = going(at)["web"]
    other = "n3" if target == "n2" else "n2"
    add(at, "web-2", {SHARED: 1})
    assert at.filter("web-2", [other]).node_names == (other,)
    assert (free(at, "n2"), free(at, "n3")) == (8, 8)


@pytest.mark.parametrize("what", ["gone", "ill", "taken", "emptied"])
def test_a_target_that_is_no_good_is_given_back(what: str) -> None:
    at = moving()
    at.add_divided("n3", FOUR_EACH)
    [taken] = at.core._cache.nodes["n2"].shares.reserved
    add(at, "web-2", {SHARED: 1})
    if what == "gone":
        at.remove_node("n2")
    elif what == "ill":
        at.add_divided("n2", replicas(DGX_1V, {5: 4}))
    elif what == "taken":
        at.put_in_use("n2", "ml/stranger", {"c0": {SHARED: (taken,)}}, ())
    else:
        at.annotate_node("n2", names.EMPTY, "true")
    node = at.schedule("web-2")
    assert node == "n3" or (node == "n2" and taken not in at.ids_of("web-2"))
    assert at.core._planner.targets.counts.given_back == 1
    assert at.sound()


def test_one_that_comes_before_the_pod_is_evicted_is_no_replacement() -> None:
    at = cluster(FOUR_EACH, FOUR_EACH)
    at.spared.add("web")
    share(at, "web", "n1")
    empty(at, "n1")
    assert free(at, "n2") == 7
    add(at, "web-2", {SHARED: 1})
    assert at.schedule("web-2") == "n2"
    assert free(at, "n2") == 6


def test_a_target_whose_kubelet_refuses_such_pods_is_given_back() -> None:
    at = moving()
    at.add_divided("n3", FOUR_EACH)
    pod = add(at, "web-2", {SHARED: 1})
    template = at.core._cache.pods[pod.metadata.uid].template
    assert template is not None
    at.core._cache.turn_away(template, "n2", "refused", trial=False)
    assert at.schedule("web-2") == "n3"
    assert free(at, "n2") == 8


def test_a_new_leader_keeps_no_target_that_another_pod_has() -> None:
    at = moving()
    at.terminate("web")
    [taken] = at.core._cache.nodes["n2"].shares.reserved
    at.put_in_use("n2", "ml/stranger", {"c0": {SHARED: (taken,)}}, ())
    at.restart()
    at.settle()
    assert at.core._planner.targets.counts.begun == 0


def test_a_replacement_that_goes_again_leaves_the_target_to_the_next() -> None:
    at = moving()
    add(at, "web-2", {SHARED: 1})
    assert at.filter("web-2").node_names == ("n2",)
    at.delete("web-2")
    add(at, "web-3", {SHARED: 1})
    assert at.schedule("web-3") == "n2"
    assert free(at, "n2") == 7


def test_one_that_is_bound_elsewhere_gives_its_target_back() -> None:
    at = moving()
    pod = add(at, "web-2", {SHARED: 1})
    assert at.filter("web-2").node_names == ("n2",)
    at.put_pod(change(pod, spec=change(pod.spec, node_name="n1")))
    assert free(at, "n2") == 8


@pytest.mark.parametrize("standby", [False, True])
@pytest.mark.parametrize("came", [False, True])
def test_a_new_leader_keeps_the_target_of_a_pod_that_is_ending(standby: bool, came: bool) -> None:
    at = moving()
    at.terminate("web")
    if came:
        add(at, "web-2", {SHARED: 1})
    if standby:
        at.core.lead(at.core.latest_term(1 << 30) + 1, at.now)
    else:
        at.restart()
    at.settle()
    assert free(at, "n2") == 7
    if not came:
        add(at, "web-2", {SHARED: 1})
    assert at.schedule("web-2") == "n2"
    assert free(at, "n2") == 7
    assert at.sound()


# Moves for others.


def test_no_pod_with_shares_alone_moves_for_one_that_waits_for_whole_gpus() -> None:
    """A divided GPU is given to none as a whole."""
    at = cluster(replicas(DGX_1V, {7: 4}), FOUR_EACH)
    share(at, "web", "n1")
    waits(at)
    at.pass_time(5 * HOUR)
    assert at.evicted == []


def test_one_of_two_that_share_a_gpu_makes_no_room_once_the_gpu_is_not_divided_any_more() -> None:
    at = cluster(replicas(DGX_1V, dict.fromkeys(range(8), 2), GPU), DGX_1V)
    share(at, "web", "n1", {GPU: 1})
    share(at, "other", "n1", {GPU: 1}, movable="false")
    assert part_of(*at.ids_of("web")) == part_of(*at.ids_of("other"))
    at.annotate_node("n1", names.TOPOLOGY, write_topology(DGX_1V))
    run(at, "stays", 2, "n2")
    at.pass_time(5 * HOUR)
    waits(at, gpus=7)
    assert at.evicted == []


def one_moves_for_another(moves: Moves = Moves.CONSENT) -> ShareCluster:
    """`web` has whole GPUs and a share, and `seven` fits without it."""
    both = replicas(DGX_1V, {7: 1})
    at = cluster(both, both, moves=moves)
    share(at, "web", "n1", {GPU: 2, SHARED: 1})
    at.start("web", at.gpus("web"))
    run(at, "stays", 3, "n2")
    at.pass_time(5 * HOUR)
    waits(at, "seven", gpus=7)
    return at


def test_a_pod_with_whole_gpus_and_shares_moves_for_one_that_waits() -> None:
    at = one_moves_for_another()
    assert at.evicted == ["web"]
    add(at, "other", {SHARED: 1}, owner="other")
    assert at.schedule("other") == ""
    add(at, "web-2", {GPU: 2, SHARED: 1})
    leaves(at, "web")
    assert at.schedule("web-2") == "n2"
    assert at.places("seven") == ["n1"]
    assert at.sound()


@pytest.mark.parametrize("asked", [{GPU: 2}, {SHARED: 1}, {GPU: 2, SHARED: 2}])
def test_a_new_leader_knows_its_replacement_by_all_that_it_asks_for(asked: dict[str, int]) -> None:
    at = one_moves_for_another()
    leaves(at, "web")
    at.restart()
    at.settle()
    add(at, "another", asked)
    at.schedule("another")
    assert at.core._cache.nodes["n2"].shares.reserved
    add(at, "web-2", {GPU: 2, SHARED: 1})
    assert at.schedule("web-2") == "n2"


def test_advice_is_gone_once_the_shares_of_a_target_are() -> None:
    at = one_moves_for_another(Moves.ADVISE)
    assert at.core.moves.advice
    add(at, "other", {SHARED: 1}, owner="other")
    assert at.schedule("other") == "n2"
    at.pass_time(1.0)
    assert not at.core.moves.advice
