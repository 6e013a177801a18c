"""Who has the GPUs that a pod waits for: reported where it is worth knowing, and only there."""

from linkwise.extender.next.queue.run_times import ENOUGH
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.views import Explanation
from linkwise.kube.objects import Taint
from tests.extender.cluster import Cluster


def busy() -> Cluster:
    """Three machines: a job of two hours on one, a pod that says nothing on another."""
    at = Cluster()
    for number in range(1, 4):
        at.add_node(f"gpu-{number}", "hgx-h100")
    at.add_pod("job", 8, expected_duration="2h")
    at.add_pod("notebook", 3)
    for name in ("job", "notebook"):
        at.schedule(name)
        at.start(name)
    return at


def explain(at: Cluster, name: str) -> Explanation:
    at.settle()
    found = at.core.explain("ml", name, at.now)
    assert found is not None
    return found


def holders(it: Explanation) -> list[str]:
    assert it.search is not None
    assert it.search.nearest is not None
    return [holder.pod for holder in it.search.nearest.holders]


def test_a_gang_with_a_reservation_is_told_who_has_the_rest_of_it_and_until_when() -> None:
    """The nearest node is the notebook's, but the gang waits for the job too."""
    at = busy()
    at.add_gang("g", 3)
    at.pass_time(600)
    found = explain(at, "g-0").gang
    assert found is not None
    assert found.reservation is not None
    assert [(holder.pod, holder.gpus) for holder in found.reservation.holders] == [
        ("ml/job", 8),
        ("ml/notebook", 3),
    ]
    assert found.reservation.holders[0].until == at.now - 600 + 7200
    told = explanation_text.gang(found, at.now).splitlines()
    after = told.index(
        "  reserved  24 GPUs on gpu-1, gpu-2, gpu-3: 13 free now, when all will be free is unknown"
    )
    assert told[after + 1 : after + 3] == [
        "  waits for 8 GPUs: ml/job, in use for 10m, expected to end in 1h50m",
        "            3 GPUs: ml/notebook, in use for 10m, end unknown",
    ]


def test_when_the_gpus_are_free_is_an_estimate_once_pods_like_those_that_have_them_ended() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    for number in range(ENOUGH):
        at.add_pod(f"ended-{number}", 8)
        at.schedule(f"ended-{number}")
        at.start(f"ended-{number}")
        at.pass_time(3600)
        at.set_phase(f"ended-{number}", "Succeeded")
        at.stop(f"ended-{number}", "n1")
    at.add_pod("runs", 8)
    at.schedule("runs")
    at.start("runs")
    at.add_gang("g", 1, 8)
    at.pass_time(600)
    found = explain(at, "g-0").gang
    assert found is not None
    told = explanation_text.gang(found, at.now)
    assert "8 GPUs on n1: 0 free now, all free in 50m, by an estimate" in told


def test_who_was_named_already_is_not_named_again() -> None:
    at = busy()
    at.delete("job")
    at.stop("job", "gpu-1")
    at.add_gang("g", 3)
    at.pass_time(600)
    found = explain(at, "g-0").gang
    assert found is not None
    told = explanation_text.gang(found, at.now)
    assert "  GPUs with 3 GPUs: ml/notebook" in told
    assert "waits for" not in told


def test_who_is_on_a_node_but_not_on_the_gpus_that_are_kept_is_not_waited_for() -> None:
    at = Cluster()
    at.add_node("n1", "dgx1-v100")
    at.add_node("n2", "dgx1-v100")
    for name, node, places in (("a", "n1", (0, 1, 2, 3)), ("b", "n1", (4,)), ("c", "n2", (0,))):
        at.add_pod(name, len(places), node=node)
        at.set_in_use(
            node, {**at.in_use(node).pods, f"ml/{name}": {"main": at.uuids(node, *places)}}
        )
    at.add_pod("d", 4, node="n2")
    at.set_in_use("n2", {**at.in_use("n2").pods, "ml/d": {"main": at.uuids("n2", 1, 2, 3, 4)}})
    at.add_gang("g", 1, 4)
    found = explain(at, "g-0").gang
    assert found is not None
    assert found.reservation is not None
    names = {holder.pod for holder in found.reservation.holders}
    assert found.reservation.gpus == 4
    assert sum(holder.gpus for holder in found.reservation.holders) == 4 - found.reservation.free
    assert names < {"ml/a", "ml/b", "ml/c", "ml/d"}


def test_nobody_is_waited_for_where_no_node_could_take_the_pod_when_idle() -> None:
    at = busy()
    at.add_pod("large", 16)
    found = explain(at, "large")
    assert found.summary == "No node has a GPU set for the pod, even without other pods."
    assert holders(found) == []


def test_nor_where_the_nodes_are_closed_to_it() -> None:
    at = busy()
    at.add_pod("filler", 8, node="gpu-3")
    for node in at.nodes.copy():
        at.cordon(node, Taint(key="team", value="x", effect="NoSchedule"))
    at.add_pod("stranger", 8)
    assert holders(explain(at, "stranger")) == []


def test_who_has_the_gpus_of_a_node_that_would_do_is_told() -> None:
    at = busy()
    at.add_pod("filler", 8, node="gpu-3")
    at.add_pod("next", 8)
    found = explain(at, "next")
    assert found.summary == "No node has a GPU set for the pod now."
    assert holders(found) == ["ml/notebook"]


def test_everything_that_waits_tells_it_in_short_too() -> None:
    at = busy()
    at.add_gang("g", 3)
    at.pass_time(600)
    told = explanation_text.all_that_waits(Explainer(at.core.snapshot(at.now)).everything())
    assert "  waits for 8 GPUs: ml/job, in use for 10m, expected to end in 1h50m" in told


def test_a_gang_that_no_waiting_helps_is_told_so_until_the_nodes_change() -> None:
    at = busy()
    at.add_gang("fits", 3)
    at.add_gang("large", 4)
    at.pass_time(60)
    never = "; not for enough of them, even without other pods"
    # What is left is kept for the other.
    assert _reason(at, "large-0") == f"room for 0 of 4 members{never}"
    told = at.core.explain("ml", "large-0", at.now)
    assert told is not None
    assert told.summary.count("even without other pods") == 1
    for rank in range(3):
        at.delete(f"fits-{rank}")
    at.pass_time(60)  # its reservation is given up
    at.pass_time(60)  # and what there is now is looked at
    reason = "room for 1 of 4 members; most on one node: gpu-3, 1"
    assert _reason(at, "large-0") == f"{reason}{never}"
    at.add_node("gpu-4", "hgx-h100")
    at.pass_time(60)
    assert _reason(at, "large-0") == "room for 2 of 4 members; most on one node: gpu-3, 1"


def test_room_that_others_took_is_told_no_longer() -> None:
    at = Cluster()
    for node in ("n1", "n2"):
        at.add_node(node, "dgx1-v100")
    at.add_gang("huge", 3)
    at.add_gang("train", 1, 6)
    at.settle()
    assert at.plan("train-0") is not None
    at.pass_time(60)
    assert _reason(at, "huge-0").startswith("room for 1 of 3 members; ")


def test_unequal_members_do_not_count_the_same_gpus_twice() -> None:
    at = Cluster()
    at.add_node("n1", "dgx1-v100")
    for rank, gpus in enumerate((8, 7, 6, 2)):
        said = {"gang": "g", "gang_size": "4", "rank": str(rank)}
        at.add_pod(f"g-{rank}", gpus, said=said)
    at.pass_time(60)
    assert _reason(at, "g-0").startswith("room for 2 of 4 members")


def _reason(at: Cluster, name: str) -> str:
    found = explain(at, name).gang
    assert found is not None
    return found.gang.reason
