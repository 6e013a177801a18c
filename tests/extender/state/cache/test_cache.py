"""Who holds which GPU, as far as Node and Pod objects tell. DGX-1V: 8 GPUs, pairs (0,3) (2,3) …"""

from linkwise.extender.state.extender_calls import BindOrder, Outcome
from linkwise.kube.objects import Taint
from linkwise.topology import names
from linkwise.topology.annotations.plan import write_gpus
from tests.extender.cluster import Cluster, change, container


def cluster(nodes: int = 1, machine: str = "dgx1-v100") -> Cluster:
    made = Cluster()
    for number in range(1, nodes + 1):
        made.add_node(f"n{number}", machine)
    return made


def holders(at: Cluster, node: str) -> dict[str, tuple[str, int]]:
    """pod -> state and number of its GPUs."""
    found: dict[str, tuple[str, int]] = {}
    view = next(view for view in at.core.nodes(at.now) if view.name == node)
    for gpu in view.gpus:
        if gpu.holder:
            pod = gpu.holder.removeprefix("ml/")
            found[pod] = (gpu.state, found.get(pod, ("", 0))[1] + 1)
    return found


def test_a_bound_pod_holds_its_planned_gpus_until_the_kubelet_says_what_it_has() -> None:
    at = cluster()
    at.add_pod("a", 2)
    at.schedule("a")
    assert holders(at, "n1") == {"a": ("held", 2)}
    at.start("a")
    assert holders(at, "n1") == {"a": ("used", 2)}
    assert at.sound()


def test_nothing_is_kept_of_a_pod_that_was_listed_and_is_gone() -> None:
    at = cluster()
    at.add_pod("a", 2)
    at.schedule("a")
    at.start("a")
    at.settle()
    info = at.core._cache.nodes["n1"]
    assert info.given == {at.pod("a").metadata.uid}
    at.delete("a")
    at.stop("a", "n1")
    at.settle()
    assert (info.given, info.bound, info.listed_as) == (set(), {}, {})


def test_a_node_that_lacks_gpus_for_a_while_makes_no_promise_of_the_extender_untrue() -> None:
    """Found: the audit blamed the extender for what the node said of itself."""
    at = cluster(machine="dgx-a100")
    at.add_pod("first", 2)
    at.schedule("first")
    known = at.nodes["n1"].metadata.annotations[names.TOPOLOGY]
    one, two = at.gpus("first")["main"]
    last = at.uuids("n1", 7)[0]
    swapped = known.replace(two, "-").replace(last, two).replace('"-"', f'"{last}"')
    at.annotate_node("n1", names.TOPOLOGY, swapped.replace(one, "GPU-other"))
    for number in range(6):
        at.add_pod(f"single-{number}", 1)
        at.schedule(f"single-{number}")
    at.annotate_node("n1", names.TOPOLOGY, known)
    assert at.core.audit() == []


def test_a_pod_that_ended_gives_back_what_it_was_promised_and_keeps_what_it_still_has() -> None:
    at = cluster()
    for name in ("promised", "running"):
        at.add_pod(name, 2)
        at.schedule(name)
    at.start("running")
    at.set_phase("promised", "Failed")
    at.set_phase("running", "Succeeded")
    assert holders(at, "n1") == {"running": ("used", 2)}
    at.stop("running", "n1")
    assert at.free("n1") == 8


def test_a_terminating_or_force_deleted_pod_holds_its_gpus_until_they_are_not_in_use() -> None:
    at = cluster()
    at.add_pod("a", 4)
    at.schedule("a")
    at.start("a")
    at.terminate("a")
    assert at.free("n1") == 4
    at.delete("a")
    assert holders(at, "n1") == {"a": ("used", 4)}
    at.stop("a", "n1")
    assert at.free("n1") == 8


def with_namesake(gpus: int) -> Cluster:
    """`web-0` was created again, while its node still lists the GPUs of the pod before it."""
    at = cluster()
    at.add_pod("web-0", gpus)
    at.schedule("web-0")
    at.start("web-0")
    at.delete("web-0")
    at.add_pod("web-0", gpus)
    at.schedule("web-0")
    return at


def test_a_namesake_is_not_taken_for_the_pod_before_it() -> None:
    at = with_namesake(2)
    assert at.free("n1") == 4
    at.settle()
    assert at.events == []
    at.stop("web-0", "n1")
    at.start("web-0")
    assert holders(at, "n1") == {"web-0": ("used", 2)}


def test_a_new_leader_takes_no_namesake_for_the_pod_before_it_either() -> None:
    at = with_namesake(4)
    at.add_pod("next", 4)
    for _ in range(2):
        assert at.free("n1") == 0
        assert at.schedule("next") == ""
        at.restart()
    at.start("web-0")
    assert holders(at, "n1") == {"web-0": ("used", 4)}


def test_a_namesake_with_the_same_gpus_holds_no_others_besides() -> None:
    at = cluster()
    at.add_pod("foreign", 3, node="n1")
    at.set_in_use("n1", {"ml/foreign": {"main": at.uuids("n1", 0, 1, 4)}})
    at.delete("foreign")
    at.add_pod("foreign", 3, node="n1")  # before the extender saw a list without the name
    assert holders(at, "n1") == {"foreign": ("used", 3)}
    assert at.free("n1") == 5
    at.set_in_use("n1", {"ml/foreign": {"main": at.uuids("n1", 2, 3, 5)}})
    assert holders(at, "n1") == {"foreign": ("used", 3)}
    at.restart()
    assert at.free("n1") == 5


def test_containers_not_yet_listed_keep_what_was_planned_for_them() -> None:
    at = cluster()
    at.add_pod("a", containers=[container("main", 2), container("side", 1)])
    at.schedule("a")
    at.start("a", {"main": at.gpus("a")["main"]})
    assert at.free("n1") == 5
    assert at.sound()


def test_a_pod_bound_past_us_is_presumed_to_hold_gpus() -> None:
    at = cluster()
    at.add_pod("foreign", 2, node="n1")
    assert at.free("n1") == 6
    at.set_in_use("n1", {"ml/foreign": {"main": at.uuids("n1", 6, 7)}})
    assert holders(at, "n1") == {"foreign": ("used", 2)}
    assert at.free("n1") == 6


def test_a_presumption_spoils_no_plan_while_other_gpus_are_there() -> None:
    at = cluster()
    at.add_gang("g", 1, 4)
    at.settle()
    planned = at.indices("g-0")
    at.add_pod("foreign", 4, node="n1")
    at.settle()
    assert at.indices("g-0") == planned
    assert at.plan("g-0") is not None
    assert at.free("n1") == 0


def test_a_foreign_pod_on_planned_gpus_makes_the_plan_again() -> None:
    at = cluster()
    at.add_gang("g", 1, 4)
    at.settle()
    first = at.plan("g-0")
    at.add_pod("foreign", 2, node="n1")
    at.set_in_use("n1", {"ml/foreign": {"main": at.uuids("n1", *at.indices("g-0")[:2])}})
    at.settle()
    second = at.plan("g-0")
    assert first is not None
    assert second is not None
    assert second.epoch == first.epoch + 1
    assert at.sound()
    at.schedule("g-0")
    assert at.free("n1") == 2


def test_a_swap_is_the_truth_it_is_counted_said_once_and_written_on_the_pods() -> None:
    at = cluster()
    for name in ("a", "b"):
        at.add_pod(name, 2)
        at.schedule(name)
    mine, theirs = at.gpus("a"), at.gpus("b")
    at.start("a", theirs)
    at.start("b", mine)
    at.settle()
    assert at.gpus("a") == theirs
    assert at.gpus("b") == mine
    assert at.core.counts(at.now).swaps == 2
    assert [(event.pod.name, event.reason) for event in at.events] == [
        ("a", "GpuSwap"),
        ("b", "GpuSwap"),
    ]
    assert at.pass_time(60) == []
    assert at.sound()


def test_a_swap_on_a_node_whose_topology_cannot_be_read_waits_until_it_can() -> None:
    at = cluster(nodes=2)
    at.add_pod("a", 2)
    node = at.schedule("a")
    topology = at.nodes[node].metadata.annotations[names.TOPOLOGY]
    real = {"main": tuple(set(at.uuids(node, *range(8))) - set(at.gpus("a")["main"]))[:2]}
    at.annotate_node(node, names.TOPOLOGY, '{"v":99}')
    at.start("a", real)
    at.add_gang("other", 1)  # of which nothing of this is to be felt
    at.settle()
    assert at.phase("other") == "planned"
    assert at.gpus("a") != real
    at.annotate_node(node, names.TOPOLOGY, topology)
    at.settle()
    assert at.gpus("a") == real
    assert at.sound()


def test_gpus_dealt_otherwise_among_a_pods_own_containers_are_corrected_without_alarm() -> None:
    at = cluster()
    at.add_pod("a", containers=[container("x", 2), container("y", 2)])
    at.schedule("a")
    planned = at.gpus("a")
    at.start("a", {"x": planned["y"], "y": planned["x"]})
    at.settle()
    assert at.gpus("a") == {"x": planned["y"], "y": planned["x"]}
    assert at.core.counts(at.now).swaps == 0
    assert at.events == []


def test_an_init_container_that_has_ended_claims_nothing_that_another_pod_has() -> None:
    """podresources lists it no more, so only the others tell that it never had what was planned."""
    at = cluster()
    at.add_pod("a", init=[container("init", 1)], containers=[container("main", 1)])
    at.add_pod("b", 1)
    for name in ("a", "b"):
        at.schedule(name)
    mine, theirs = at.gpus("a")["main"], at.gpus("b")["main"]
    assert at.gpus("a")["init"] == mine
    at.start("a", {"main": theirs})
    at.start("b", {"main": mine})
    at.settle()
    assert at.gpus("a") == {"main": theirs}
    assert at.gpus("b") == {"main": mine}
    at.set_in_use("n1", {})  # both have ended, and their pods are still there
    assert at.sound()


def test_a_pod_keeps_all_gpus_of_a_larger_init_container_of_which_its_containers_get_some() -> None:
    at = cluster()
    at.add_pod("a", init=[container("init", 4)], containers=[container("main", 2)])
    at.schedule("a")
    four = set(at.gpus("a")["init"])
    assert len(four) == 4
    assert set(at.gpus("a")["main"]) == four, "any two of them"
    real = {"main": tuple(sorted(four))[1:3]}
    at.start("a", real)
    at.settle()
    assert at.gpus("a").keys() == {"init", "main"}
    assert set(at.gpus("a")["init"]) == four
    assert at.gpus("a")["main"] == real["main"]
    assert at.free("n1") == 4
    assert at.core.counts(at.now).swaps == 0
    assert at.events == []
    assert at.sound()


def test_a_pod_that_follows_one_of_its_name_with_the_same_gpus_is_the_one_that_is_listed() -> None:
    """An init container that has ended is not listed, so these are fewer than planned."""
    at = cluster()
    init, main = [container("init", 4)], [container("main", 2)]
    at.add_pod("a", init=init, containers=main)
    at.schedule("a")
    plan, gpus = at.plan("a"), at.gpus("a")
    assert plan is not None
    real = gpus["init"][:2]
    at.start("a", {"main": real})
    at.delete("a")
    at.add_pod("a", init=init, containers=main)
    at.write_plan("a", plan, gpus)
    at.put_pod(change(at.pod("a"), spec=change(at.pod("a").spec, node_name="n1")))
    at.settle()
    assert at.gpus("a")["main"] == real


def test_what_a_pod_has_given_back_may_go_to_others_before_its_end_is_heard() -> None:
    """The watch of nodes may be ahead of that of pods, which then tells late of a correction."""
    at = cluster()
    at.add_pod("a", 4)
    at.schedule("a")
    others = tuple(u for u in at.uuids("n1", *range(8)) if u not in at.gpus("a")["main"])
    at.start("a", {"main": others})
    at.set_in_use("n1", {})  # its containers have ended
    at.add_pod("b", 4)
    assert at.schedule("b") == "n1"
    assert at.gpus("b") == {"main": others}
    at.annotate("a", gpus=write_gpus({"main": others}))  # as written before that
    assert at.sound()


def test_a_plan_for_another_node_than_the_pods_is_made_to_say_what_it_has() -> None:
    """Another scheduler bound a planned member without the extender."""
    at = cluster(2)
    members = at.add_gang("g", 2, gpus=8)
    at.settle()
    pod = at.pod(members[0])
    plan = at.plan(members[0])
    assert plan is not None
    elsewhere = next(node for node in at.nodes if node != plan.node)
    at.put_pod(change(pod, spec=change(pod.spec, node_name=elsewhere)))
    real = {"main": at.uuids(elsewhere, *range(8))}
    at.start(members[0], real)
    at.settle()
    corrected = at.plan(members[0])
    assert corrected is not None
    assert (corrected.node, corrected.id) == (elsewhere, plan.id)
    assert at.gpus(members[0]) == real
    assert at.core.counts(at.now).swaps == 0  # the kubelet did as it was asked
    assert at.sound()


def test_an_unhealthy_gpu_is_not_free() -> None:
    at = cluster()
    at.set_health("n1", 0, 1)
    assert at.free("n1") == 6
    assert at.core.counts(at.now).gpus["unhealthy"] == 2
    at.set_health("n1")
    assert at.free("n1") == 8


def test_a_plan_whose_gpu_falls_ill_is_made_again() -> None:
    at = cluster()
    at.add_gang("g", 1, 2)
    at.settle()
    ill = at.indices("g-0")[0]
    at.set_health("n1", ill)
    at.settle()
    assert ill not in at.indices("g-0")


def test_a_mangled_annotation_takes_one_node_out_and_says_why() -> None:
    at = cluster(2)
    for key in (names.TOPOLOGY, names.IN_USE):
        before = at.nodes["n1"].metadata.annotations.get(key)
        at.annotate_node("n1", key, '{"v":')
        at.add_pod("a", 8)
        assert at.filter("a").node_names == ("n2",)
        view = at.core.nodes(at.now)[0]
        assert not view.usable
        assert key in view.reason
        at.annotate_node("n1", key, before)
        assert at.filter("a").node_names == ("n1", "n2")
        at.delete("a")


def test_what_was_in_use_stays_held_while_the_truth_cannot_be_read() -> None:
    at = cluster()
    at.add_pod("a", 2)
    at.schedule("a")
    at.start("a")
    listed = at.nodes["n1"].metadata.annotations[names.IN_USE]
    at.annotate_node("n1", names.IN_USE, "mangled")
    at.delete("a")
    at.annotate_node("n1", names.IN_USE, listed)
    assert holders(at, "n1") == {"a": ("used", 2)}


def test_a_newer_annotation_names_both_versions() -> None:
    at = cluster()
    at.annotate_node("n1", names.TOPOLOGY, '{"v":99}')
    assert "99" in at.core.nodes(at.now)[0].reason


def test_a_restart_finds_the_same_books() -> None:
    at = cluster(2)
    at.add_pod("a", 2)
    at.schedule("a")
    at.start("a")
    at.add_pod("ended", 1)
    at.schedule("ended")
    at.set_phase("ended", "Succeeded")
    at.add_pod("foreign", 1, node="n2")
    at.add_gang("g", 2, 4)
    at.settle()
    at.schedule("g-0")
    before = at.core.nodes(at.now)
    at.restart()
    assert at.core.nodes(at.now) == before
    assert at.sound()


def test_names_vanish_from_the_books_with_the_last_that_uses_them() -> None:
    at = cluster(2)
    at.add_pod("a", 2, node="n2")
    at.remove_node("n2")
    assert [view.name for view in at.core.nodes(at.now)] == ["n1"]
    at.delete("a")
    at.add_node("n3")
    at.add_pod("b", 8)
    assert at.filter_again("b").node_names == ("n1", "n3")
    assert at.sound()


def test_listing_again_drops_what_is_not_named_any_more() -> None:
    at = cluster(2)
    at.add_pod("a", 2)
    at.schedule("a")
    at.core.replace_pods([], at.now)
    at.core.replace_nodes([at.nodes["n2"]], at.now)
    assert [view.name for view in at.core.nodes(at.now)] == ["n2"]
    assert at.sound()


def test_a_plan_for_another_node_than_the_pods_own_counts_for_nothing() -> None:
    at = cluster(2)
    at.add_pod("a", 2)
    at.schedule("a")
    copied = {
        key.removeprefix(names.PREFIX): at.pod("a").metadata.annotations[key]
        for key in (names.GPUS, names.PLAN)
    }
    at.add_pod("copy", 2, node="n2", said=copied)
    assert at.free("n1") == 6
    assert at.free("n2") == 6  # presumed, as for any pod without a plan


def test_a_single_pods_plan_counts_from_its_binding_on() -> None:
    """Annotations copied from another pod with its manifest promise nothing."""
    at = cluster()
    at.add_pod("a", 2)
    at.schedule("a")
    copied = {
        key.removeprefix(names.PREFIX): at.pod("a").metadata.annotations[key]
        for key in (names.GPUS, names.PLAN)
    }
    at.delete("a")
    at.add_pod("copy", 2, said=copied)
    at.settle()
    assert at.free("n1") == 8


def test_cpu_and_pods_are_counted_for_what_is_planned_too() -> None:
    at = Cluster()
    at.add_node("n1", cpu="4")
    at.add_node("n2", cpu="4")
    at.add_pod("eater", 0, cpu="3", node="n1")
    at.add_gang("g", 1, 1)
    at.settle()
    at.add_pod("h-0", 1, cpu="4", gang="h", gang_size="1")
    at.settle()
    # 1 is left on n1 and taken by g-0, or 4 on n2: wherever g-0 went, h-0 needs all of n2.
    first, second = at.plan("g-0"), at.plan("h-0")
    assert first is not None
    assert first.node == "n1"
    assert second is not None
    assert second.node == "n2"


def test_a_tainted_node_keeps_its_bound_pods_and_loses_its_plans() -> None:
    at = cluster(2)
    at.add_pod("a", 2)
    at.schedule("a")
    at.add_gang("g", 1, 8)
    at.settle()
    plan = at.plan("g-0")
    assert plan is not None
    assert plan.node == "n2"
    at.cordon("n2", Taint(key="maintenance", effect="NoSchedule"))
    at.settle()
    assert at.plan("g-0") is None
    assert at.pod("g-0").status.nominated_node_name == ""
    assert holders(at, "n1") == {"a": ("held", 2)}


def test_a_namesake_without_a_deletion_seen_is_another_pod() -> None:
    at = cluster()
    at.add_pod("a", 4)
    at.schedule("a")
    lost = at.pod("a").metadata.uid
    del at.pods[lost]  # its DELETED event was missed
    at.add_pod("a", 2)
    assert at.free("n1") == 8
    at.schedule("a")
    assert at.free("n1") == 6
    assert at.sound()


def test_gpus_that_come_free_by_the_kubelets_word_alone_are_room_for_a_gang() -> None:
    at = cluster()
    at.add_pod("a", 4)
    at.schedule("a")
    at.start("a")
    at.delete("a")
    at.add_gang("g", 1, 8)
    assert at.settle_but_notes() == []
    at.stop("a", "n1")
    at.settle()
    assert at.plan("g-0") is not None


def test_cpu_that_comes_free_is_room_for_a_gang() -> None:
    at = Cluster()
    at.add_node("n1", cpu="4")
    at.add_pod("eater", 0, cpu="4", node="n1")
    at.add_gang("g", 1, 1)
    assert at.settle() == []
    at.set_phase("eater", "Succeeded")
    at.settle()
    assert at.plan("g-0") is not None


def test_of_two_unbound_plans_for_one_gpu_the_newer_counts() -> None:
    """The older was about to be withdrawn when the extender before this one died."""
    at = cluster()
    at.add_pod("first-by-uid", 0, gang="a", gang_size="1")
    at.add_gang("g", 1, 8)
    at.settle()
    old, gpus = at.plan("g-0"), at.gpus("g-0")
    assert old is not None
    at.delete("g-0")
    at.now += 10
    at.add_gang("new", 1, 8)
    at.settle()
    at.delete("first-by-uid")
    at.made = 0  # so that the older plan comes first by uid, and only by uid
    at.add_pod("a-0", 8, gang="a", gang_size="1")
    at.write_plan("a-0", old, gpus)
    at.restart()
    at.settle()
    assert at.plan("new-0") is not None
    assert at.plan("a-0") is None
    assert at.sound()


def test_a_binding_on_its_way_holds_its_gpus() -> None:
    at = cluster()
    at.add_pod("a", 8)
    order = at.begin_bind("a", "n1")
    assert isinstance(order, BindOrder)
    assert at.free("n1") == 0
    at.core.end_bind(order, Outcome.REFUSED, at.now)
    assert at.free("n1") == 8
    assert at.sound()
