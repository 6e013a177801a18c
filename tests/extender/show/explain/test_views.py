"""What the core says of pods, gangs and nodes to people."""

from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.show.explain.usage import view_use
from linkwise.extender.state.views import (
    ClosedNodes,
    Explanation,
    GangExplanation,
    NamespaceUse,
    ReasonCount,
    SearchView,
)
from linkwise.kube.objects import Container, Node, Quantity, Resources, Taint
from tests.extender.cluster import Cluster, change, container
from tests.extender.owned import create, grouped, pod_group, there_is


def explain(at: Cluster, name: str) -> Explanation:
    found = at.core.explain("ml", name, at.now)
    assert found is not None
    return found


def test_a_bound_pod_shows_its_gpus_and_what_they_are_worth() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("a", containers=[container("x", 2), container("y", 1)], prefer_link="switch")
    at.schedule("a")
    found = explain(at, "a")
    assert (found.state, found.node, found.link) == ("bound", "n1", "NVLINK")
    assert found.gpus == at.gpus("a")
    assert found.gbytes_per_s > 0
    assert found.wanted is not None
    assert found.wanted.containers == {"x": 2, "y": 1}
    assert found.wanted.prefer_link == "switch"


def test_the_real_gpus_are_shown_once_the_kubelet_has_said_them() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 2)
    at.schedule("a")
    real = {"main": at.uuids("n1", 6, 7)}
    at.start("a", real)
    found = explain(at, "a")
    assert found.gpus == real
    assert found.indices == dict(zip(real["main"], (6, 7), strict=True))


def test_all_gpus_that_the_kubelet_keeps_for_a_pod_are_shown() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", init=[container("init", 4)], containers=[container("main", 2)])
    at.schedule("a")
    planned = explain(at, "a").gpus
    assert {name: len(gpus) for name, gpus in planned.items()} == {"init": 4, "main": 4}
    real = tuple(sorted(planned["init"]))[:2]
    at.start("a", {"main": real})
    assert explain(at, "a").gpus == {"init": planned["init"], "main": real}


def levels(it: SearchView | None) -> list[tuple[str, int, int]]:
    assert it is not None
    return [(level.level, level.have, level.of) for level in it.levels]


def near(it: SearchView | None) -> tuple[str, str]:
    assert it is not None
    assert it.nearest is not None
    assert it.nearest.level == "node"
    return it.nearest.place, it.nearest.lacks


def test_a_waiting_pod_is_told_why_level_by_level_and_what_came_nearest() -> None:
    at = Cluster()
    for number in range(3):
        at.add_node(f"n{number}", "hgx-h100")
        at.add_pod(f"on-{number}", 4 - number, node=f"n{number}")
    at.add_node("old", "p100-pcie-8")
    at.add_pod("a", 7, require_link="nvlink")
    found = explain(at, "a")
    assert found.state == "waiting"
    assert found.summary == "No node has a GPU set for the pod now."
    assert levels(found.search) == [
        ("topology", 4, 4),
        ("size", 4, 4),
        ("link", 3, 4),
        ("node", 3, 3),
        ("free", 0, 3),
        ("free-link", 0, 0),
        ("resources", 0, 0),
    ]
    assert found.search is not None
    by_name = {level.level: level for level in found.search.levels}
    assert by_name["free"].missing == (ReasonCount("fewer free GPUs than wanted", 3),)
    assert by_name["link"].missing == (
        ReasonCount("no GPU set of this node has the required link", 1),
    )
    # All 8 GPUs of `old` are free, but the link that it lacks will never be there.
    assert near(found.search) == ("n2", "6 of 8 suitable GPUs are free, 1 more is needed")
    at.add_pod("b", 9)
    assert near(explain(at, "b").search) == ("n0", "it has 8 GPUs, 9 are wanted")
    at.add_pod("c", 2, gpu_model="A100")
    lacks = near(explain(at, "c").search)[1]
    assert lacks == "0 of its 8 GPUs have the model and memory wanted, not 2"


def test_a_link_that_is_missing_is_named_with_the_best_there_is() -> None:
    at = Cluster()
    at.add_node("n1", "a100-pcie-8-bridged")
    at.add_pod("busy", 2, node="n1")
    at.set_in_use("n1", {"ml/busy": {"main": at.uuids("n1", 0, 1)}})
    at.add_pod("a", 6, require_link="nvlink")
    lacks = "the best link of 6 of its GPUs is node, nvlink is required"
    assert near(explain(at, "a").search) == ("n1", lacks)


def test_a_link_that_others_took_is_told_from_one_that_never_was() -> None:
    at = Cluster()
    at.add_node("n1", "a100-pcie-8-bridged")
    at.add_pod("busy", 4, node="n1")
    one_of_each_pair = at.uuids("n1", 0, 1, 4, 6)
    at.set_in_use("n1", {"ml/busy": {"main": one_of_each_pair}})
    at.add_pod("a", 2, require_link="nvlink")
    found = explain(at, "a").search
    assert levels(found)[-2] == ("free-link", 0, 1)
    lacks = "the best link of 2 of its free GPUs is node, nvlink is required"
    assert near(found) == ("n1", lacks)


def test_a_node_that_is_closed_to_the_pod_says_why_and_what_it_has() -> None:
    at = Cluster()
    for name in ("n1", "n2", "n3"):
        at.add_node(name, "hgx-h100")
    at.cordon("n1")
    at.cordon("n2", Taint(key="team", value="x", effect="NoSchedule"))
    at.set_ready("n3", ready=False)
    at.add_pod("on-1", 2, node="n1")
    at.add_pod("on-3", 1, node="n3")
    at.add_pod("a", 8)
    found = explain(at, "a").search
    assert found is not None
    (level,) = [level for level in found.levels if level.level == "node"]
    assert (level.have, level.of) == (0, 3)
    assert {reason.reason for reason in level.missing} == {
        "cordoned",
        "node is not ready",
        "taint team not tolerated",
    }
    assert near(found) == ("n2", "taint team not tolerated (it has 8 GPUs free)")


def test_too_little_cpu_is_told_in_numbers() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100", cpu="16")
    at.add_node("n2", "hgx-h100", cpu="32")
    at.add_pod("a", 1, cpu="64")
    found = explain(at, "a").search
    assert levels(found)[-1] == ("resources", 0, 2)
    assert near(found) == ("n1", "16 CPUs left, 64 CPUs wanted")


def test_what_pods_request_beyond_their_node_is_no_amount_that_is_left() -> None:
    """Found: "-0.2 CPUs left"."""
    at = Cluster()
    at.add_node("n1", "hgx-h100", cpu="16")
    other: dict[str, Quantity] = {"memory": str(2**41 + 2**30), "example.com/nic": "3"}
    resources = Resources(requests={"cpu": "16200m", **other}, limits=other)
    at.add_pod("of-the-kubelet", containers=[Container("c", resources)], node="n1")
    wanted: dict[str, Quantity] = {
        "memory": str(2**30),
        "example.com/nic": "1",
        "nvidia.com/gpu": "1",
    }
    at.put_node(with_more(at.nodes["n1"], memory=str(2**41), **{"example.com/nic": "1"}))
    resources = Resources(requests={"cpu": "1", **wanted}, limits=wanted)
    at.add_pod("a", containers=[Container("c", resources)])
    assert near(explain(at, "a").search) == (
        "n1",
        "its pods request 0.2 CPUs more than it has, 1 CPU wanted; "
        "its pods request 1 GiB of memory more than it has, 1 GiB wanted; "
        "its pods request 2 example.com/nic more than it has, 1 wanted",
    )


def with_more(node: Node, **amounts: str) -> Node:
    allocatable = {**node.status.allocatable, **amounts}
    return change(node, status=change(node.status, allocatable=allocatable))


def test_one_gpu_has_no_link() -> None:
    at = Cluster()
    at.add_node("n1", "a100-pcie-8-bridged")
    at.add_pod("a", 1)
    at.schedule("a")
    found = explain(at, "a")
    assert (found.state, found.link) == ("bound", "")
    assert "  link " not in explanation_text.pod(found, at.now)


def test_nodes_that_kube_scheduler_refused_are_a_level_of_their_own() -> None:
    at = Cluster()
    for name in ("n1", "n2"):
        at.add_node(name, "hgx-h100")
    at.add_gang("g", 1)
    at.settle()
    nominated = at.pod("g-0").status.nominated_node_name
    at.filter("g-0", [name for name in at.nodes if name != nominated])
    at.settle()  # and the gang is planned on the other one
    at.add_pod("other", 8)
    found = explain(at, "other").search
    assert levels(found)[-1] == ("kube-scheduler", 0, 1)
    assert near(found)[0] == nominated


def test_nodes_without_gpus_are_nobodys_question() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    node = at.add_node("cpu", "hgx-h100")
    metadata = change(node.metadata, annotations={})
    offers = {"cpu": "8", "memory": "1Gi", "pods": "10"}
    at.put_node(change(node, metadata=metadata, status=change(node.status, allocatable=offers)))
    at.add_pod("a", 9)
    assert levels(explain(at, "a").search)[0] == ("topology", 1, 1)


def test_a_pod_that_fits_says_on_how_many_nodes() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")
    at.add_pod("a", 8)
    found = explain(at, "a")
    assert found.search is not None
    assert (found.search.room, found.search.nearest) == (1, None)
    assert found.summary.startswith("2 nodes have GPUs for the pod; kube-scheduler has not tried")
    at.remove_node("n2")
    assert explain(at, "a").summary.startswith("1 node has GPUs for the pod; kube-scheduler has")


def test_who_holds_what_is_missing_is_named_with_the_end_that_is_known() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("known", 2, expected_duration="1h")
    at.schedule("known")
    at.start("known")
    since = at.now
    at.now += 60
    at.add_pod("unknown", 3)
    at.schedule("unknown")
    at.add_pod("dying", 1)
    at.schedule("dying")
    at.start("dying")
    at.terminate("dying")
    at.add_pod("a", 4)
    found = explain(at, "a").search
    assert found is not None
    assert found.nearest is not None
    assert [(h.pod, h.gpus, h.state, h.until, h.because) for h in found.nearest.holders] == [
        ("ml/dying", 1, "ending", None, ""),
        ("ml/known", 2, "used", since + 3600, "expected-duration"),
        ("ml/unknown", 3, "held", None, ""),
    ]
    assert found.nearest.holders[1].since == since
    at.delete("dying")  # its node still says that it has its GPU
    found = explain(at, "a").search
    assert found is not None
    assert found.nearest is not None
    assert found.nearest.holders[0].pod == "ml/dying"


def test_a_partial_gang_holds_until_its_timeout_at_most() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_gang("g", 2, 4, expected_duration="1h")
    at.settle()
    at.schedule("g-0")
    at.settle()
    at.add_pod("a", 8)
    found = explain(at, "a").search
    assert found is not None
    assert found.nearest is not None
    holders = {(h.pod, h.gang, h.until, h.because) for h in found.nearest.holders}
    assert holders == {
        ("ml/g-0", "ml/g", at.now + 600, "gang-timeout"),
        ("ml/g-1", "ml/g", at.now + 600, "gang-timeout"),
    }


def gang(at: Cluster, name: str) -> GangExplanation:
    found = Explainer(at.core.snapshot(at.now)).gang("ml", name)
    assert found is not None
    return found


def test_a_gang_without_room_says_for_how_many_there_is_and_what_one_more_lacks() -> None:
    at = Cluster()
    for name in ("n1", "n2"):
        at.add_node(name, "hgx-h100")
    at.add_pod("busy", 3, node="n2")
    at.add_gang("g", 4, 4)
    at.settle()
    found = gang(at, "g")
    assert found.waits
    assert found.summary == "Gang g: no room for the whole gang."
    assert [(level.level, level.have, level.of) for level in found.levels] == [
        ("members", 4, 4),
        ("room", 3, 4),
    ]
    (search,) = found.searches
    assert (search.pods, search.room) == (4, 3)
    text = "room for 1 pod; 3 GPUs more would make room for 2"
    assert near(search) == ("n2", text)
    assert search.nearest is not None
    assert [holder.pod for holder in search.nearest.holders] == ["ml/busy"]


ZONE = "topology.kubernetes.io/zone"


def test_a_gang_that_must_be_in_one_domain_is_told_the_nearest_and_who_holds_it() -> None:
    at = Cluster()
    for number in range(6):
        node = at.add_node(f"n{number}", "hgx-h100")
        labels = {**node.metadata.labels, ZONE: "a" if number < 4 else "b"}
        at.put_node(change(node, metadata=change(node.metadata, labels=labels)))
    at.add_pod("busy", 1, node="n0")
    at.add_gang("g", 4, require_span=ZONE)
    at.settle()
    found = gang(at, "g")
    assert found.gang.reason.startswith("room for 3 of 4 members; ")
    assert [(level.level, level.have, level.of) for level in found.levels] == [
        ("members", 4, 4),
        (ZONE, 3, 4),
    ]
    assert found.nearest is not None
    assert (found.nearest.place, found.nearest.level) == ("a", ZONE)
    assert found.nearest.lacks == "lacks room for 1 of 4 pods"
    assert [holder.pod for holder in found.nearest.holders] == ["ml/busy"]


def test_there_is_no_room_for_more_pods_than_have_their_cpu() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100", cpu="20")
    for rank in range(4):
        at.add_pod(f"g-{rank}", 1, cpu="8", gang="g", gang_size="4")
    at.settle()
    (search,) = gang(at, "g").searches
    assert (search.pods, search.room) == (4, 2)


def test_a_node_that_lacks_less_for_its_first_pod_is_nearer_than_one_for_its_second() -> None:
    at = Cluster()
    for name, taken in (("n1", 4), ("n2", 5)):
        at.add_node(name, "hgx-h100")
        at.add_pod(f"on-{name}", taken, node=name)
    at.add_gang("g", 4, 4)
    at.settle()
    (search,) = gang(at, "g").searches
    assert search.room == 1
    assert near(search) == ("n2", "3 of 8 suitable GPUs are free, 1 more is needed")


def test_what_is_kept_for_others_is_open_to_a_pod_that_ends_before_they_can_start() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("busy", 3, expected_duration="2h")
    at.schedule("busy")
    at.add_gang("first", 1)
    at.settle()
    at.add_pod("long", 4, expected_duration="3h")
    at.add_pod("quick", 4, expected_duration="1h")
    rooms = {name: explain(at, name).search for name in ("long", "quick")}
    assert {name: found and found.room for name, found in rooms.items()} == {"long": 0, "quick": 1}


def test_members_that_differ_are_sought_apart() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("g-0", 8, gang="g", gang_size="3")
    at.add_pod("g-1", 2, gang="g", gang_size="3")
    at.add_pod("g-2", 2, gang="g", gang_size="3")
    at.settle()
    searches = gang(at, "g").searches
    assert [(search.wanted.gpus, search.pods, search.room) for search in searches] == [
        (8, 1, 1),
        (2, 2, 2),
    ]


def test_a_gang_that_forms_says_which_ranks_are_missing() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("g-0", 1, gang="g", gang_size="4", rank="0")
    at.add_pod("g-2", 1, gates=["theirs"], gang="g", gang_size="4", rank="2")
    at.settle()
    found = gang(at, "g")
    assert found.gang.missing_ranks == (1, 3)
    (members,) = found.levels
    assert (members.have, members.of) == (1, 4)
    assert members.missing == (
        ReasonCount("do not exist yet", 2),
        ReasonCount("behind another scheduling gate", 1),
    )


def test_a_gang_with_more_pods_than_its_size_lacks_none() -> None:
    """Groups may grow, and YuniKorn's placeholders are pods of the group too."""
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    there_is(at, pod_group("g", 2))
    create(at, *(grouped(f"p{number}", "g") for number in range(4)))
    members, _ = gang(at, "PodGroup.scheduling.x-k8s.io/g").levels
    assert (members.have, members.of, members.missing) == (4, 2, ())


def test_a_gang_that_runs_does_not_wait() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_gang("g", 1, 4)
    at.settle()
    at.schedule("g-0")
    at.settle()
    found = gang(at, "g")
    assert (found.waits, found.searches, found.levels) == (False, (), ())
    assert Explainer(at.core.snapshot(at.now)).gang("ml", "none") is None


def test_everything_that_waits_comes_by_priority_and_age() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("runs", 1)
    at.schedule("runs")
    at.add_pod("late", 8)
    at.add_pod("urgent", 8, priority=10)
    at.now += 60
    at.add_gang("young", 2)
    at.add_pod("wrong", 1, require_link="fast")
    at.add_gang("important", 2)
    at.add_pod("important-2", 8, priority=5, gang="important", gang_size="3")
    for name in ("important-0", "important-1"):
        at.delete(name)
    at.settle()
    found = Explainer(at.core.snapshot(at.now)).everything()
    assert [each.gang.name for each in found.gangs] == ["important", "young"]
    assert [each.name for each in found.pods] == ["urgent", "late", "wrong"]
    titles = ["pod ml/urgent", "gang ml/important", "pod ml/late", "pod ml/wrong", "gang ml/young"]
    assert list(found.order) == titles
    told = explanation_text.all_that_waits(found).splitlines()
    assert [line.partition(":")[0] for line in told if line.startswith(("pod", "gang"))] == titles
    assert found.gpus == {"free": 7, "reserved": 0, "held": 1, "used": 0, "unhealthy": 0}
    assert found.at == at.now
    elsewhere = Explainer(at.core.snapshot(at.now)).everything("theirs")
    assert (elsewhere.gangs, elsewhere.pods) == ((), ())


def test_what_is_alike_is_sought_once() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("busy", 1, node="n1")
    for number in range(3):
        at.add_pod(f"a-{number}", 8)
    at.add_pod("b", 8, cpu="2")
    first, second, third, other = Explainer(at.core.snapshot(at.now)).everything().pods
    assert first.search is second.search is third.search
    assert first.search is not other.search


def test_a_snapshot_stays_as_it_was() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("a", 8)
    snapshot = at.core.snapshot(at.now)
    before = Explainer(snapshot).everything()
    at.add_pod("busy", 1, node="n1")
    at.schedule("a")
    at.add_node("n2", "hgx-h100")
    at.remove_node("n1")
    assert Explainer(snapshot).everything() == before


def test_states_in_words() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("web")
    at.add_pod("wrong", 1, require_link="fast")
    at.add_pod("ended", 1)
    at.schedule("ended")
    at.set_phase("ended", "Succeeded")
    at.add_gang("g", 1, 2)
    at.settle()
    states = {name: explain(at, name).state for name in ("web", "wrong", "ended", "g-0")}
    assert states == {"web": "not-ours", "wrong": "invalid", "ended": "ended", "g-0": "planned"}
    assert "linkwise.dev/require-link" in explain(at, "wrong").summary
    assert at.core.explain("ml", "none", at.now) is None


def test_a_pod_that_ends_says_for_how_long_its_gpus_are_taken() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 2)
    at.schedule("a")
    at.start("a")
    at.terminate("a")
    held = "Its node still reports 2 of its GPUs in use."
    assert explain(at, "a").summary == f"The pod is ending on node n1. {held}"
    at.set_phase("a", "Succeeded")
    assert explain(at, "a").summary == f"The pod has ended. {held}"
    at.stop("a", "n1")
    assert explain(at, "a").summary == "The pod has ended."


def test_the_next_snapshot_shows_what_happened_to_a_node_since_the_last() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_node("n2", "hgx-h100")

    def shown() -> dict[str, tuple[int, bool]]:
        return {view.name: (view.free, view.usable) for view in at.core.nodes(at.now)}

    assert shown() == {"n1": (8, True), "n2": (8, True)}
    at.add_pod("a", 2, node="n1")
    at.annotate_node("n2", "linkwise.dev/topology", "mangled")
    assert shown() == {"n1": (6, True), "n2": (0, False)}
    at.set_in_use("n1", {"ml/stranger": {"main": at.uuids("n1", 0, 1, 2)}})
    at.remove_node("n2")
    assert shown() == {"n1": (3, True)}
    at.delete("a")
    at.remove_node("n1")
    at.add_node("n1", "dgx1-v100")
    assert shown() == {"n1": (8, True)}
    assert at.core.nodes(at.now)[0].kind == "8 x Tesla V100-SXM2"
    at.remove_node("n1")
    at.add_node("n1", "hgx-h100")
    assert at.core.nodes(at.now)[0].kind == "8 x NVIDIA H100 80GB HBM3"


def test_a_gang_shows_its_members_its_plan_and_its_deadline() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_gang("g", 2, 4)
    at.settle()
    at.schedule("g-0")
    at.settle()
    of_pod = explain(at, "g-1").gang
    assert of_pod is not None
    found = of_pod.gang
    assert (found.phase, found.size, found.started) == ("binding", 2, False)
    assert found.deadline == at.now + 600
    assert [(m.pod, m.rank, m.state, m.node) for m in found.members] == [
        ("g-0", 0, "bound", "n1"),
        ("g-1", 1, "planned", "n1"),
    ]
    plan = at.plan("g-1")
    assert plan is not None
    assert found.plan == plan.id


def test_a_gang_that_forms_says_who_is_missing() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("g-0", 2, gang="g", gang_size="3")
    at.settle()
    assert at.core.gangs(at.now)[0].reason == "1 of 3 members exist"
    assert explain(at, "g-0").summary == "Gang g waits for its members."


def test_counts_are_of_everything_there_is() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")
    at.annotate_node("n2", "linkwise.dev/topology", "mangled")
    at.set_health("n1", 7)
    at.add_pod("a", 2)
    at.schedule("a")
    at.start("a")
    at.add_gang("g", 1, 3)
    at.settle()
    counts = at.core.counts(at.now)
    assert counts.gpus == {"used": 2, "held": 3, "reserved": 0, "free": 2, "unhealthy": 1}
    assert counts.nodes == {"usable": 1, "unusable": 1, "emptied": 0, "by-count": 0, "claims": 0}
    assert counts.gangs == {"planned": 1}


def test_a_nodes_gpus_show_state_and_holder() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 1)
    at.schedule("a")
    at.start("a")
    (index,) = at.indices("a")
    (view,) = at.core.nodes(at.now)
    gpu = view.gpus[index]
    assert (gpu.state, gpu.holder) == ("used", "ml/a")
    assert view.free == 7
    assert 0 < view.future < 1
    at.delete("a")
    assert at.core.nodes(at.now)[0].gpus[index].holder == "ml/a"  # the kubelet says so


def test_a_node_that_takes_no_pods_says_why() -> None:
    at = Cluster()
    for name in ("n1", "n2", "n3"):
        at.add_node(name)
    at.cordon("n2")
    at.set_ready("n3", ready=False)
    told = {view.name: (view.usable, view.reason) for view in at.core.nodes(at.now)}
    assert told == {
        "n1": (True, ""),
        "n2": (False, "cordoned"),
        "n3": (False, "node is not ready"),
    }


def test_what_fits_counts_no_node_that_takes_no_pods() -> None:
    at = Cluster()
    for name in ("n1", "n2", "n3"):
        at.add_node(name)
    at.cordon("n2")
    at.set_ready("n3", ready=False)
    use = view_use(at.core.snapshot(at.now))
    (kind,) = use.kinds
    assert (kind.largest_free, kind.room) == (8, {1: 8, 2: 4, 4: 2, 8: 1})
    assert use.closed == (
        ClosedNodes("cordoned", ("n2",), 8),
        ClosedNodes("node is not ready", ("n3",), 8),
    )


def test_a_node_that_is_only_counted_is_closed_by_the_cluster_alone() -> None:
    at = Cluster()
    for name in ("n1", "n2"):
        at.add_node(name)
        at.annotate_node(name, "linkwise.dev/topology", None)
    at.cordon("n2")
    assert view_use(at.core.snapshot(at.now)).closed == (ClosedNodes("cordoned", ("n2",), 0),)


def test_nodes_without_gpus_are_left_out() -> None:
    at = Cluster()
    at.add_node("n1")
    at.annotate_node("n1", "linkwise.dev/topology", None)
    assert [view.reason for view in at.core.nodes(at.now)] == ["no topology published"]


def test_free_gpus_that_are_apart_are_worth_less_than_those_of_one_node() -> None:
    halves, whole = Cluster(), Cluster()
    for at, taken in ((halves, (4, 4)), (whole, (8, 0))):
        for number, gpus in enumerate(taken):
            at.add_node(f"n{number}", "hgx-h100")
            if gpus:
                at.add_pod(f"on-{number}", gpus, node=f"n{number}")
    (apart,) = view_use(halves.core.snapshot(halves.now)).kinds
    (together,) = view_use(whole.core.snapshot(whole.now)).kinds
    assert (apart.largest_free, together.largest_free) == (4, 8)
    assert (apart.room, together.room) == ({1: 8, 2: 4, 4: 2, 8: 0}, {1: 8, 2: 4, 4: 2, 8: 1})
    assert together.fragmented == 0
    assert 0 < apart.fragmented < 1


def test_use_is_told_by_namespace() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("runs", 2)
    at.schedule("runs")
    at.start("runs")
    at.add_pod("planned", 3)
    at.schedule("planned")
    at.add_pod("waits", 8)
    use = view_use(at.core.snapshot(at.now))
    assert use.namespaces == (NamespaceUse("ml", 2, 3, 2, 1, 8),)
    assert use.gpus == {"used": 2, "held": 3, "free": 3, "reserved": 0, "unhealthy": 0}


def test_what_waits_is_counted_with_the_wait_of_the_oldest() -> None:
    at = Cluster()
    at.add_node("n1", "dgx1-v100")
    at.settle()
    assert (at.core.counts(at.now).waiting, at.core.counts(at.now).longest_wait_seconds) == (0, 0)
    at.add_gang("first", 2)
    at.pass_time(60)
    at.add_gang("second", 3)
    at.pass_time(60)
    counts = at.core.counts(at.now)
    assert (counts.waiting, counts.longest_wait_seconds) == (2, 120)
    at.add_node("n2", "dgx1-v100")
    at.pass_time(60)
    counts = at.core.counts(at.now)
    assert (counts.waiting, counts.longest_wait_seconds) == (1, 120)
