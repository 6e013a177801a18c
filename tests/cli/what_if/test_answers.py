"""Where a job goes, when it starts, and what would make room for it."""

from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from linkwise.cli.what_if.cluster import ListedCluster
from linkwise.cli.what_if.given.listing import Listing
from linkwise.cli.what_if.given.machines import Known
from linkwise.cli.what_if.live_listing import LiveListing
from linkwise.cli.what_if.room import fewest_to_go
from linkwise.cli.what_if.trials import Trials
from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.kube.objects import Pod, Resources
from tests.cli.what_if.asking import (
    NOW,
    a_list,
    answer,
    cluster,
    job,
    listed,
    manifest,
    pod,
    runs,
    what_if,
)
from tests.extender.cluster import change
from tests.pods.podgrouper.pods import template


def test_a_pod_is_told_its_node_gpus_and_bandwidth(tmp_path: Path) -> None:
    it = cluster("dgx1-v100")
    runs(it, "old", 1, "n1")
    status, found = answer(tmp_path, listed(it), pod("new", 2))
    (part,) = found["parts"]
    (place,) = part["places"]
    assert (status, found["fits"], part["state"]) == (0, True, "fits")
    assert place["node"] == "n1"
    assert place["uuids"] == list(it.uuids("n1", *place["gpus"]))
    assert (place["link"], place["gbytes_per_s"]) == ("NVLINK", 40.0)


def test_what_is_answered_is_what_the_extender_then_does(tmp_path: Path) -> None:
    it = cluster("hgx-h100", "dgx1-v100", "dgx-a100")
    for name, gpus, node in (("a", 3, "n1"), ("b", 2, "n2"), ("c", 5, "n3"), ("d", 1, "n2")):
        runs(it, name, gpus, node)
    given = listed(it)
    for gpus, members in ((1, 4), (2, 2), (4, 2), (3, 3)):
        words = {"gang": "g", "gang-size": str(members)}
        pods = [pod(f"g-{rank}", gpus, {**words, "rank": str(rank)}) for rank in range(members)]
        _, found = answer(tmp_path, given, a_list(pods))
        told = [(place["node"], tuple(place["gpus"])) for place in found["parts"][0]["places"]]
        names = it.add_gang("g", members, gpus)
        it.settle()
        assert told == [(plan.node, it.indices(n)) for n in names if (plan := it.plan(n))]
        for name in names:
            it.delete(name)
        it.settle()


def test_a_gang_is_told_what_its_members_share(tmp_path: Path) -> None:
    zone = "topology.kubernetes.io/zone"
    it = cluster("dgx-a100", "dgx-a100", "dgx-a100", n1={zone: "a"}, n2={zone: "b"}, n3={zone: "b"})
    _, found = answer(tmp_path, listed(it), job("train", 2, 8))
    (gang,) = found["parts"]
    assert {place["node"] for place in gang["places"]} == {"n2", "n3"}
    assert gang["span"] == f"{zone}=b"


def test_it_waits_for_the_pods_whose_ends_are_known(tmp_path: Path) -> None:
    it = cluster("dgx-a100", "dgx-a100")
    runs(it, "long", 1, "n1", expected_duration="5h")
    runs(it, "short", 1, "n2", expected_duration="3h")
    status, found = answer(tmp_path, listed(it), pod("new", 8))
    (part,) = found["parts"]
    assert (status, part["state"]) == (1, "waits")
    assert part["start"]["at"] == pytest.approx(NOW + 3 * 3600, abs=5)
    assert part["start"]["places"][0]["node"] == "n2"
    assert [(held["pod"], held["until"]) for held in part["waits_for"]] == [
        ("ml/short", NOW + 3 * 3600)
    ]


def test_no_start_is_made_up_where_an_end_is_unknown(tmp_path: Path) -> None:
    it = cluster("dgx-a100", "dgx-a100")
    runs(it, "silent", 1, "n1")
    runs(it, "short", 1, "n2", expected_duration="3h")
    status, found = answer(tmp_path, listed(it), job("train", 2, 8))
    (part,) = found["parts"]
    assert (status, part["start"]) == (1, None)
    assert part["why"]["reservation"]["start"] is None
    text = what_if(tmp_path, listed(it), job("train", 2, 8)).stdout
    assert "when      unknown" in text
    assert "by an estimate" not in text


def test_who_waits_already_comes_before_the_job(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    runs(it, "short", 8, "n1", expected_duration="3h")
    it.add_pod("first", 8, expected_duration="2h")
    it.now += 60
    _, found = answer(tmp_path, listed(it), pod("new", 8))
    (part,) = found["parts"]
    assert part["start"]["at"] == pytest.approx(NOW + 5 * 3600, abs=10)
    assert [each["pod"] for each in found["room"][0]["pods"]] == ["ml/short"]


def test_a_waiting_pod_that_has_room_gets_it_first_and_is_named(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    it.add_pod("first", 8)
    status, found = answer(tmp_path, listed(it), pod("new", 8))
    assert status == 1
    assert any("ml/first" in note for note in found["notes"])


def test_the_fewest_pods_make_room(tmp_path: Path) -> None:
    it = cluster("dgx-a100", "dgx-a100")
    for number in range(4):
        runs(it, f"small-{number}", 2, "n1")
    runs(it, "half", 4, "n2")
    runs(it, "quarter", 3, "n2")
    _, found = answer(tmp_path, listed(it), pod("new", 4))
    (room,) = found["room"]
    assert [each["pod"] for each in room["pods"]] == ["ml/quarter"]
    assert (room["fewest"], room["by"]) == (True, "end")


def test_room_names_the_gang_that_would_lose_a_member(tmp_path: Path) -> None:
    it = cluster("dgx-a100", "dgx-a100")
    for node in ("n1", "n2"):
        runs(it, f"single-{node}", 5, node)
    it.add_gang("train", 2, 3)
    it.settle()
    for member in ("train-0", "train-1"):
        it.start(member) if it.schedule(member) else None
    given = listed(it)
    _, found = answer(tmp_path, given, pod("new", 3))
    (room,) = found["room"]
    assert [(each["pod"], each["gang"]) for each in room["pods"]] == [("ml/train-0", "ml/train")]
    text = what_if(tmp_path, given, pod("new", 3)).stdout
    assert "ml/train-0  n1       3         0  unknown  ml/train\n" in text
    _, found = answer(tmp_path, given, pod("new", 5))
    assert [each["gang"] for each in found["room"][0]["pods"]] == [""]
    assert "GANG" not in what_if(tmp_path, given, pod("new", 5)).stdout


def test_room_counts_links_and_not_gpus_alone(tmp_path: Path) -> None:
    """Two free GPUs of different bridges, and a pod on each bridge."""
    it = cluster("a100-pcie-4-bridged")
    for name, gpu in (("a", 0), ("b", 2), ("c", 1), ("d", 3)):
        it.add_pod(name, 1, node="n1")
        it.start(name, {"main": it.uuids("n1", gpu)})
    it.stop("b", "n1")
    it.delete("b")
    _, found = answer(tmp_path, listed(it), pod("new", 2, {"require-link": "nvlink"}))
    (room,) = found["room"]
    mate = {place for place in range(4) if it.machine("n1").link(2, place).nvlinks}
    names = {0: "ml/a", 1: "ml/c", 3: "ml/d"}
    assert [each["pod"] for each in room["pods"]] == [names[place] for place in mate]
    assert room["fewest"]


def test_a_gang_that_has_to_share_a_zone_makes_room_in_one(tmp_path: Path) -> None:
    zone = "topology.kubernetes.io/zone"
    labels = {f"n{n}": {zone: "a" if n < 3 else "b"} for n in range(1, 5)}
    it = cluster(*["dgx-a100"] * 4, **labels)
    runs(it, "in-a", 8, "n1")
    runs(it, "b1", 1, "n3")
    runs(it, "b2", 1, "n4")
    _, found = answer(tmp_path, listed(it), job("train", 2, 8, {"require-span": zone}))
    (room,) = found["room"]
    assert [each["pod"] for each in room["pods"]] == ["ml/in-a"]


@pytest.mark.parametrize("seed", range(12))
def test_no_fewer_pods_would_do(seed: int) -> None:
    """Compared with all choices there are, each checked by the core."""
    random = Random(seed)
    it = cluster("dgx1-v100", "a100-pcie-4-bridged")
    for number in range(6):
        node = random.choice(["n1", "n2"])
        gpus = random.choice([1, 1, 2, 3])
        if it.free(node) >= gpus:
            runs(it, f"p{number}", gpus, node)
    words = {"gang": "g", "gang-size": "2", "require-link": random.choice(["node", "nvlink"])}
    sizes = random.choice([(2, 2), (4, 4), (4, 2), (5, 3), (6, 6)])
    known = Known((*it.nodes.values(),), (), ())
    listed_cluster = ListedCluster(Listing(), known, CoreSettings(), NOW)
    live = LiveListing(listed_cluster, it.pods.values(), preempt=Preempt.NEVER, ends=False)
    for rank, gpus in enumerate(sizes):
        it.add_pod(f"g-{rank}", gpus, gates=["linkwise.dev/plan"], said=words)
    trials = Trials(live, [it.pod(f"g-{rank}") for rank in range(2)], {})
    there = [record.uid for record in trials.may_go()]
    enough = next(
        (
            count
            for count in range(len(there) + 1)
            for uids in combinations(there, count)
            if trials.starts_without(uids)
        ),
        None,
    )
    found = fewest_to_go(trials, lambda _: True)
    assert (found is None) == (enough is None)
    if found is not None:
        assert len(found.uids) == enough or not found.fewest
        assert trials.starts_without(found.uids)


def test_a_job_that_no_end_helps_is_told_so(tmp_path: Path) -> None:
    it = cluster("a100-pcie-4-bridged")
    runs(it, "old", 1, "n1")
    status, found = answer(tmp_path, listed(it), pod("new", 8))
    assert status == 1
    assert found["room"] == []
    assert "even without other pods" in found["never"]["why"][0]["summary"]
    assert found["parts"][0]["start"] is None
    text = what_if(tmp_path, listed(it), pod("new", 8)).stdout
    assert "It can never start on these nodes" in text
    assert "8 GPUs or more" in text


def test_a_gang_larger_than_the_cluster_never_starts(tmp_path: Path) -> None:
    _, found = answer(tmp_path, listed(cluster("dgx-a100")), job("train", 3, 8))
    assert found["never"]["why"][0]["levels"][-1]["have"] == 1


def test_linkwise_evicts_whom_it_may_for_a_more_important_gang(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    runs(it, "cheap", 8, "n1", preemptible="true")
    important = job("train", 2, 4)
    important["spec"]["template"]["spec"]["priority"] = 100
    status, found = answer(tmp_path, listed(it), important)
    (part,) = found["parts"]
    assert (status, part["evicts"]) == (1, ["ml/cheap"])
    assert part["start"]["at"] < NOW + 120
    assert found["notes"] == ["PodDisruptionBudgets were not given: none is counted"]
    _, never = answer(tmp_path, listed(it), important, "--preempt", "never")
    assert (never["parts"][0]["evicts"], never["parts"][0]["start"]) == ([], None)


def test_kube_scheduler_may_evict_for_a_single_pod(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    runs(it, "old", 8, "n1")
    given = listed(it)
    given["items"].append(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "high"},
            "value": 1000,
        }
    )
    _, found = answer(tmp_path, given, pod("new", 8, priorityClassName="high"))
    assert [room["by"] for room in found["room"]] == ["eviction"]
    _, polite = answer(
        tmp_path, given, pod("new", 8, priorityClassName="high", preemptionPolicy="Never")
    )
    assert [room["by"] for room in polite["room"]] == ["end"]


def test_replicas_are_placed_one_by_one(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    spec = {"replicas": 3, "template": template(4)}
    status, found = answer(tmp_path, listed(it), manifest("apps/v1 Deployment", "serve", spec))
    assert status == 1
    assert [part["state"] for part in found["parts"]] == ["fits", "fits", "waits"]


def test_a_gang_that_may_start_with_fewer_starts(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    words = {"gang": "g", "gang-size": "3", "gang-min": "2"}
    pods = [pod(f"g-{rank}", 4, words) for rank in range(3)]
    status, found = answer(tmp_path, listed(it), a_list(pods))
    assert (status, found["parts"][0]["state"]) == (0, "starts")
    text = what_if(tmp_path, listed(it), a_list(pods)).stdout
    assert "It starts now, though not with all of its pods." in text


def test_a_pod_without_gpus_that_has_the_cpus_makes_room_too(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    runs(it, "gpus", 2, "n1")
    it.add_pod("cpus", cpu="80", node="n1")
    hungry = pod("new", 1)
    hungry["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "40"}
    _, found = answer(tmp_path, listed(it), hungry)
    assert [each["pod"] for each in found["room"][0]["pods"]] == ["ml/cpus"]


def test_the_pod_that_has_the_scarce_resource_makes_room(tmp_path: Path) -> None:
    efa = "vpc.amazonaws.com/efa"

    def asks(pod: Pod, amount: int) -> Pod:
        resources = Resources(requests={**pod.spec.containers[0].resources.requests, efa: amount})
        container = change(pod.spec.containers[0], resources=resources)
        return change(pod, spec=change(pod.spec, containers=(container,)))

    it = cluster("dgx-a100")
    node = it.nodes["n1"]
    offers = {**node.status.allocatable, efa: "4"}
    it.put_node(change(node, status=change(node.status, allocatable=offers)))
    for name, amount in (("b-has-none", 0), ("c-has-it", 4), ("d-has-none", 0)):
        runs(it, name, 1, "n1")
        it.put_pod(asks(it.pod(name), amount))
    new = pod("new", 2)
    new["spec"]["containers"][0]["resources"]["limits"][efa] = "4"
    _, found = answer(tmp_path, listed(it), new)
    assert [each["pod"] for each in found["room"][0]["pods"]] == ["ml/c-has-it"]
    assert found["room"][0]["fewest"]


def test_of_several_parts_the_one_that_never_fits_is_named(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    runs(it, "old", 4, "n1")
    text = what_if(tmp_path, listed(it), a_list([job("large", 3, 8), job("all", 1, 8)])).stdout
    large, single = text[text.index("\ngang ml/Job.batch/large") + 1 :].split("\n\n")[:2]
    assert "  when      never" in large
    assert "even without other pods" in large
    assert "  when      never" not in single


def test_of_two_that_are_too_large_each_is_named(tmp_path: Path) -> None:
    """Found: the second waited for the first to end."""
    parts = [job("one", 2, 8), job("two", 2, 8)]
    for each in parts:
        (container,) = each["spec"]["template"]["spec"]["containers"]
        container["resources"]["requests"] = {"cpu": "5000"}
    text = what_if(tmp_path, listed(cluster("dgx-a100")), a_list(parts)).stdout
    assert text.count("  when      never") == 2


def test_an_idle_cluster_says_whether_it_is_never(tmp_path: Path) -> None:
    """Random jobs on random clusters: a job "never" starts if it would not start on the empty
    cluster."""
    machines = ["dgx1-v100", "dgx-a100", "a100-pcie-4-bridged", "l40s-4"]
    for seed in range(20):
        random = Random(seed)
        it = cluster(*random.choices(machines, k=random.randint(1, 4)))
        idle = listed(it)
        for number in range(8):
            node, gpus = random.choice([*it.nodes]), random.choice([1, 2, 4])
            if it.free(node) >= gpus:
                runs(it, f"p{number}", gpus, node)
        words = {"require-link": random.choice(["node", "nvlink"])}
        asked = job("new", random.randint(2, 4), random.choice([2, 4, 8]), words)
        status, found = answer(tmp_path, listed(it), asked)
        when_idle, _ = answer(tmp_path, idle, asked)
        assert (found["never"] is not None) == (when_idle == 1), seed
        assert status == 1 or when_idle == 0


def test_what_is_not_linkwises_to_say_is_noted(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    asked = pod("new", 1, schedulerName="volcano", schedulingGates=gates)
    status, found = answer(tmp_path, listed(it), asked)
    assert (status, len(found["notes"])) == (0, 2)
    assert "kueue.x-k8s.io/admission count as lifted" in found["notes"][0]
    assert "scheduler volcano" in found["notes"][1]
