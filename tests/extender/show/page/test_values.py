"""What the page shows of GPUs, of those who wait, and of a gang's steps."""

from dataclasses import replace

import pytest

from linkwise.drawing.tables import Link, Links
from linkwise.drawing.times import PodTimes
from linkwise.extender.next.queue.run_times import ENOUGH
from linkwise.extender.show.explain.idle.idle_pods import idle_pods, view_idle
from linkwise.extender.show.explain.node_arrays import why_closed
from linkwise.extender.show.page.elements import changes, clock
from linkwise.extender.show.page.explained import pod_page
from linkwise.extender.show.page.gpu_states import STATES, count, draw_small, masks_of
from linkwise.extender.show.page.group_page import GroupPage, group_page
from linkwise.extender.show.page.groups import Grouper
from linkwise.extender.show.page.idle_rows import MOST_FIRST, idle_page
from linkwise.extender.show.page.overview import Overview, Overviews
from linkwise.extender.show.page.queue_rows import MOST_ROWS, QueueRow, queue_of
from linkwise.extender.show.page.search import MOST_FOUND, search
from linkwise.extender.show.page.timeline import drawn, picture_of, timeline_of
from linkwise.kube.objects import Condition, NodeSpec, Pod, Taint
from linkwise.topology import names
from linkwise.topology.annotations.activity import Activity, PodActivity, write_activity
from linkwise.topology.machine.recorded import recorded_machine
from tests.divided import SHARED, replicas
from tests.extender.cluster import START, Cluster, change
from tests.extender.shares.cluster import ShareCluster
from tests.extender.show.page.example_cluster import example, large, one_node


def overview(cluster: Cluster) -> Overview:
    snapshot = cluster.core.snapshot(cluster.now)
    return Overviews().of(snapshot, Grouper().groups(snapshot))


def page(cluster: Cluster, title: str) -> GroupPage:
    snapshot = cluster.core.snapshot(cluster.now)
    (group,) = (each for each in Grouper().groups(snapshot) if each.title == title)
    return group_page(snapshot, group)


def lines(page: GroupPage, node: str) -> list[tuple[str, str, str]]:
    """GPUs, state and holder of each line that is shown."""
    (card,) = (card for card in page.cards if card.name == node)
    names_of_lines = [f"n{card.number}-{line}" for line in range(card.lines)]
    return [
        (
            page.slots[f"{name}-gpus"]["text"],
            page.slots[f"{name}-state"]["text"],
            page.slots[f"{name}-who"]["text"] + page.slots[f"{name}-none"]["text"],
        )
        for name in names_of_lines
        if not page.slots[name]["hidden"]
    ]


def rows(cluster: Cluster) -> dict[str, QueueRow]:
    return {row.who: row for row in queue_of(cluster.core.snapshot(cluster.now)).rows}


def test_every_gpu_is_in_one_state() -> None:
    cluster = example()
    for node in cluster.core.snapshot(cluster.now).nodes:
        masks = masks_of(node)
        assert node.machine is not None
        assert sum(masks.values()) == node.machine.all_gpus
        assert sum(count([masks]).values()) == len(node.machine.gpus)


def test_the_first_page_counts_what_kubectl_linkwise_counts() -> None:
    cluster = example()
    slots, counts = overview(cluster).slots, cluster.core.counts(cluster.now)
    for state in ("used", "held", "reserved", "free", "unhealthy"):
        assert slots[f"all-{state}"]["text"] == str(counts.gpus[state])
    assert slots["q-waiting"]["text"] == "3"


def test_each_gpu_has_a_cell_of_its_state() -> None:
    cluster = one_node()
    (node,) = cluster.core.snapshot(cluster.now).nodes
    drawing = draw_small([node], [masks_of(node)], {})
    assert drawing.paths["used"] == "M0 6.5h5M0 12.5h5"
    assert drawing.paths["free"].count("M") == 6
    assert (drawing.width, drawing.height) == (6, 52)


def test_a_node_that_takes_no_pods_is_marked_with_the_reason() -> None:
    cluster = example()
    closed = {n.name: why_closed(n) for n in cluster.core.snapshot(cluster.now).nodes}
    assert closed["gpu-7"] == "node is not ready"
    assert [name for name, why in closed.items() if why] == ["gpu-7"]
    cluster.cordon("gpu-1")
    assert why_closed(cluster.core.snapshot(cluster.now).node_named["gpu-1"]) == "cordoned"


def test_a_node_says_who_has_which_gpu_and_for_whom_the_rest_is_reserved() -> None:
    shown = page(example(), "leaf leaf-1")
    assert lines(shown, "gpu-1") == [("0-7", "in use", "ml/train-0")]
    assert lines(shown, "gpu-3") == [
        ("0-3", "in use", "ml/finetune"),
        ("4-5", "in use, idle for 60s", "ml/eval"),
        ("6-7", "reserved for", "ml/pretrain"),
    ]


def test_gpus_of_idle_pods_are_marked_and_the_others_are_not() -> None:
    cluster = example()
    shown = page(cluster, "leaf leaf-1")
    notes = [shown.slots[f"n2-i{gpu}"]["text"] for gpu in range(8)]
    assert notes == ["", "", "", "", "idle", "idle", "", ""]
    assert "in use, idle: ml/eval" in shown.slots["n2-t4"]["text"]
    busy = [shown.slots[f"n2-{line}-busy"]["text"] for line in range(3)]
    assert busy == ["100 % or less", "5 % or less", ""]
    slots = overview(cluster).slots
    assert slots["g0-n-idle"]["text"] == "2"
    assert slots["g0-idle"]["d"] == "M13.5 30.5h2M13.5 36.5h2"


def test_the_first_page_lists_the_idle_pods_that_kubectl_linkwise_lists() -> None:
    cluster = example()
    slots = overview(cluster).slots
    view = view_idle(cluster.core.snapshot(cluster.now))
    assert len(view.pods) == 2
    assert slots["i-pods"]["text"] == "2"
    assert slots["i-held"]["text"] == "2 pods with 3 GPUs"
    assert [slots[f"i{n}-who"]["text"] for n in range(3)] == [*(p.pod for p in view.pods), ""]
    assert slots["i0-gpus"]["text"] == "2"
    assert slots["i0-busy"]["text"] == "5 % or less"
    assert slots["i2"]["hidden"]
    cluster.annotate_node("gpu-3", names.ACTIVITY, None)
    assert overview(cluster).slots["i-pods"]["text"] == "1"


def test_more_idle_pods_than_the_first_page_has_rows_are_counted() -> None:
    cluster = large(MOST_FIRST + 3)
    for number in range(MOST_FIRST + 3):
        pods = {f"ml/tenant-{number}": PodActivity(since=0, idle=0)}
        text = write_activity(Activity(at=int(cluster.now), pods=pods))
        cluster.annotate_node(f"gpu-{number}", names.ACTIVITY, text)
    assert overview(cluster).slots["i-more"]["text"] == "and 3 more"


def test_a_group_in_which_a_pod_becomes_idle_is_drawn_again_and_the_others_are_not() -> None:
    cluster, grouper, overviews = large(64), Grouper(), Overviews()
    snapshot = cluster.core.snapshot(cluster.now)
    before = overviews.of(snapshot, grouper.groups(snapshot))
    text = write_activity(
        Activity(at=int(cluster.now), pods={"ml/tenant-40": PodActivity(since=0, idle=0)})
    )
    cluster.annotate_node("gpu-40", names.ACTIVITY, text)
    snapshot = cluster.core.snapshot(cluster.now)
    after = overviews.of(snapshot, grouper.groups(snapshot))
    assert after.rows[0] is before.rows[0]
    assert {name for name in changes(before.slots, after.slots) if name[0] == "g"} == {
        "g1-idle",
        "g1-n-idle",
        "g1-all",
    }


def test_the_page_of_idle_pods_says_when_each_may_be_evicted() -> None:
    cluster = example()
    snapshot = cluster.core.snapshot(cluster.now)
    first, second = (each.record.uid for each in idle_pods(snapshot))
    begins = {first: snapshot.at + 3600, second: snapshot.at}
    for known, words in (({}, ["never", "never"]), (begins, ["in 1h", "now"])):
        shown = idle_page(view_idle(replace(snapshot, reclaim_from=known)))
        assert [shown.slots[f"i{n}-evicted"]["text"] for n in range(2)] == words


def test_the_page_of_idle_pods_says_who_would_start_without_which() -> None:
    cluster = Cluster()
    cluster.add_node("n1")
    for name in ("a", "b"):
        cluster.add_pod(name, 4)
        assert cluster.schedule(name)
        cluster.start(name)
    cluster.add_pod("next", 3)
    text = write_activity(
        Activity(at=int(cluster.now), pods={"ml/a": PodActivity(since=0, whole=True, idle=0)})
    )
    cluster.annotate_node("n1", names.ACTIVITY, text)
    cluster.settle()
    found = idle_page(view_idle(cluster.core.snapshot(cluster.now)))
    assert (
        found.slots["counts"]["text"]
        == "Pods with whole GPUs: 1 idle, with 4 GPUs, 0 not idle, 1 unknown."
    )
    ((who, _, without),) = found.would_start.rows
    assert str(who) == "pod ml/next"
    assert without == Links((Link("pod ml/a", "pod?namespace=ml&name=a"),), 0)
    cluster.delete("next")
    cluster.settle()
    found = idle_page(view_idle(cluster.core.snapshot(cluster.now)))
    assert found.slots["verdict"]["text"] == "No gang and no pod waits for room."


def test_the_page_of_a_pod_says_what_it_does_with_its_gpus() -> None:
    cluster = example()
    snapshot = cluster.core.snapshot(cluster.now)
    pages = {name: pod_page(snapshot, (), "ml", name) for name in ("eval", "finetune", "huge")}
    use = {name: page.slots["use"]["text"] for name, page in pages.items() if page is not None}
    assert use["eval"].startswith("It has been idle for 60s: none of its GPUs has worked since.")
    assert use["finetune"] == "In the last 24 hours, its GPUs worked 100 % or less of the time."
    assert use["huge"] == ""
    assert pod_page(snapshot, (), "ml", "nothing") is None


def test_a_node_names_its_taints() -> None:
    shown = page(example(), "leaf leaf-2")
    assert shown.slots["n3-taints"]["text"] == "takes only pods that tolerate repair"
    assert shown.slots["n2-taints"] == {"hidden": "hidden", "text": ""}


def test_a_cordoned_node_says_so_once() -> None:
    cluster = Cluster()
    cluster.add_node("n1")
    taint = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    spec = NodeSpec(unschedulable=True, taints=(taint,))
    cluster.put_node(change(cluster.nodes["n1"], spec=spec))
    (group,) = Grouper().groups(cluster.core.snapshot(cluster.now))
    shown = group_page(cluster.core.snapshot(cluster.now), group)
    assert shown.slots["n0-closed"]["text"] == "takes no pods now: cordoned"
    assert shown.slots["n0-taints"] == {"hidden": "hidden", "text": ""}


def test_planned_free_and_unhealthy_gpus_have_lines_too() -> None:
    cluster = example()
    states = {state for _, state, _ in lines(page(cluster, "leaf leaf-2"), "gpu-5")}
    assert states == {"planned"}
    assert ("2", "unhealthy", "") in lines(page(cluster, "old-1"), "old-1")
    assert ("1,3-7", "free", "") in lines(page(cluster, "old-1"), "old-1")


def test_members_of_a_gang_have_one_colour_on_all_nodes() -> None:
    shown = page(example(), "leaf leaf-1")
    classes = {shown.slots[f"n{node}-g{gpu}"]["class"] for node in (0, 1) for gpu in range(8)}
    assert len(classes) == 1
    assert next(iter(classes)).startswith("gpu taken f")


def test_up_to_eight_pods_in_no_gang_have_eight_colours_on_one_node() -> None:
    cluster = Cluster()
    cluster.add_node("gpu-1", "hgx-h100")
    for name in ("notebook", "eval", "serve", "sweep", "tune", "probe", "label", "embed"):
        cluster.add_pod(name, 1)
        cluster.schedule(name)
        cluster.start(name)
    shown = page(cluster, "gpu-1")
    assert len({shown.slots[f"n0-g{gpu}"]["class"] for gpu in range(8)}) == 8
    assert len({shown.slots[f"n0-{line}-label"]["class"] for line in range(8)}) == 8


def test_gangs_on_one_node_have_a_colour_each() -> None:
    cluster = Cluster()
    cluster.add_node("gpu-1", "hgx-h100")
    for gang in ("c", "d", "e", "h"):  # c and h by themselves would have the same
        cluster.add_gang(gang, 2, 1)
    cluster.settle()
    shown = page(cluster, "gpu-1")
    assert len({shown.slots[f"n0-g{gpu}"]["class"] for gpu in range(8)}) == 4


def test_a_pod_that_the_api_server_has_deleted_still_has_its_gpus() -> None:
    cluster = one_node()
    cluster.delete("notebook")
    (first, *_) = lines(page(cluster, "gpu-1"), "gpu-1")
    assert first == ("0-1", "in use, deleted", "ml/notebook")


def test_a_divided_gpu_says_how_much_of_it_is_left() -> None:
    cluster = ShareCluster()
    cluster.add_divided("n1", replicas(recorded_machine("hgx-h100", node="n1"), {3: 4}))
    cluster.add_taker("some", {SHARED: 1})
    assert cluster.try_to_place("some") == "n1"
    found = lines(page(cluster, "n1"), "n1")
    assert found[0] == ("0-2,4-7", "free", "")
    assert found[1] == ("3", "divided, 3 of 4 shares not taken", "ml/some")


def test_the_queue_says_what_each_wants_why_it_waits_and_what_is_reserved() -> None:
    found = rows(example())
    gang = found["gang ml/pretrain"]
    assert gang.wants == "48 GPUs for 6 pods"
    assert gang.why.startswith("room for 3 of 6 members")
    assert gang.reserved == "48 GPUs on gpu-1, gpu-2 and 4 more; when all will be free is unknown"
    assert gang.link == "gang?namespace=ml&name=pretrain"
    assert found["pod ml/broken"].why.startswith("it cannot be placed: linkwise.dev/gpu-memory")
    assert found["pod ml/huge"].wants == "16 GPUs"
    assert found["pod ml/huge"].why == "no node has room for it, even without other pods"
    assert "gang ml/next" not in found


def test_the_queue_tells_an_estimate_once_there_is_one() -> None:
    cluster = Cluster()
    cluster.add_node("n1", "hgx-h100")
    for number in range(ENOUGH + 1):
        cluster.add_pod(f"pod-{number}", 8)
        cluster.schedule(f"pod-{number}")
        cluster.start(f"pod-{number}")
        if number < ENOUGH:
            cluster.pass_time(3600)
            cluster.set_phase(f"pod-{number}", "Succeeded")
            cluster.stop(f"pod-{number}", "n1")
    cluster.add_gang("g", 1, 8)
    cluster.settle()
    assert (
        rows(cluster)["gang ml/g"].reserved
        == f"8 GPUs on n1, free about {clock(cluster.now + 3600)}"
    )


@pytest.mark.parametrize(
    ("ends", "gpus", "model", "why"),
    [
        (True, 8, "", "no node has room for it now"),
        (
            False,
            8,
            "",
            "no node has room for it, until pods that run forever are deleted "
            "(restartPolicy Always)",
        ),
        (True, 8, "L40S", "no node has room for it, even without other pods"),
        (True, 16, "", "no node has room for it, even without other pods"),
    ],
)
def test_the_queue_says_whether_a_wait_can_help(
    ends: bool, gpus: int, model: str, why: str
) -> None:
    def busy(pod: Pod) -> Pod:
        policy = "Never" if ends else "Always"
        return change(pod, spec=change(pod.spec, restart_policy=policy))

    def turned_away(pod: Pod) -> Pod:
        told = Condition("PodScheduled", "False", "Unschedulable", "1 Insufficient nvidia.com/gpu.")
        return change(pod, status=change(pod.status, conditions=(told,)))

    cluster = Cluster()
    cluster.add_node("n1", "dgx1-v100")
    cluster.add_pod("first", 8, alter=busy)
    cluster.schedule("first")
    cluster.start("first")
    said = {"gpu-model": model} if model else {}
    cluster.add_pod("w", gpus, alter=turned_away, said=said)
    cluster.pass_time(60)
    assert rows(cluster)["pod ml/w"].why == why


def test_the_queue_is_in_the_order_of_urgency_and_shows_its_head() -> None:
    cluster = one_node()
    for number in range(MOST_ROWS + 5):
        cluster.add_pod(f"w{number}", 16, priority=number)
    shown = queue_of(cluster.core.snapshot(cluster.now))
    assert shown.waiting == MOST_ROWS + 5
    assert [row.who for row in shown.rows][:2] == ["pod ml/w44", "pod ml/w43"]
    assert len(shown.rows) == MOST_ROWS
    slots = overview(cluster).slots
    assert slots["q-more"]["text"] == "and 5 more; kubectl linkwise explain shows all"


def test_the_steps_of_a_gang_say_what_is_done_and_what_it_waits_for() -> None:
    cluster = example()
    snapshot = cluster.core.snapshot(cluster.now)
    by_name = {gang.key.name: timeline_of(snapshot, gang, {}) for gang in snapshot.gangs}
    assert [(step.what, step.state) for step in by_name["pretrain"]] == [
        ("first member created", "done"),
        ("6 of 6 members exist", "done"),
        ("GPUs planned for 0 of 6 members", "now"),
        ("0 of 6 members bound", "ahead"),
        ("0 of 6 members run", "ahead"),
    ]
    planned = by_name["next"]
    assert [step.what for step in planned if step.state == "now"] == ["0 of 2 members bound"]
    assert planned[2].at == cluster.now - 60
    assert planned[-1].what == "gives its GPUs back if it has not started"
    running = by_name["train"]
    assert [step.state for step in running] == ["done"] * 5 + ["ahead"]
    assert running[-1].what == "expected to end"
    assert running[-1].at == cluster.now - 60 + 7200


def test_the_steps_have_the_time_of_the_last_pod_and_none_if_one_is_not_known() -> None:
    cluster = example()
    snapshot = cluster.core.snapshot(cluster.now)
    (gang,) = (each for each in snapshot.gangs if each.key.name == "train")
    first, second = (pod.uid for pod in drawn(gang))
    times = {
        first: PodTimes(START, START + 1, START + 30),
        second: PodTimes(START, START + 3, START + 20),
    }
    assert [step.at for step in timeline_of(snapshot, gang, times)][3:5] == [START + 3, START + 30]
    del times[second]
    assert [step.at for step in timeline_of(snapshot, gang, times)][3:5] == [None, None]


def test_the_picture_has_each_members_wait_start_and_run() -> None:
    cluster = example()
    snapshot = cluster.core.snapshot(cluster.now)
    gangs = {gang.key.name: gang for gang in snapshot.gangs}
    first, second = (pod.uid for pod in drawn(gangs["train"]))
    times = {
        first: PodTimes(START, START + 10, START + 20),
        second: PodTimes(START, START + 10, START + 40),
    }
    shown = picture_of(gangs["train"], times, snapshot.at)
    assert shown.pods == ("ml/train-0", "ml/train-1")
    # 40 s until the last change, 6 s and 5 s more: 51 s are 300 pixels.
    assert shown.slots["m0-waits"]["d"] == "M0 8H58.8"
    assert shown.slots["m0-starts"]["d"] == "M58.8 8H117.6"
    assert shown.slots["m0-runs"]["d"] == "M117.6 8H300"
    assert shown.slots["m1-running"]["text"] == "40s"
    waits = picture_of(gangs["pretrain"], {}, snapshot.at)
    assert waits.slots["m0-waits"]["d"]
    assert not waits.slots["m0-runs"]["d"]
    assert (waits.slots["m0-state"]["text"], waits.slots["m0-bound"]["text"]) == ("waits", "")
    unread = picture_of(gangs["train"], {}, snapshot.at).slots
    assert (unread["m0-bound"]["text"], unread["m0-waits"]["d"]) == ("not known", "")


@pytest.mark.parametrize("wrong", [-1e12, 0.0, START + 1e9, 1e300])
def test_a_time_that_cannot_be_leaves_every_bar_in_the_picture(wrong: float) -> None:
    cluster = example()
    snapshot = cluster.core.snapshot(cluster.now)
    (gang,) = (each for each in snapshot.gangs if each.key.name == "train")
    times = {pod.uid: PodTimes(pod.created, wrong, wrong, wrong) for pod in drawn(gang)}
    for name, values in picture_of(gang, times, snapshot.at).slots.items():
        if values.get("d") and name.endswith(("waits", "starts", "runs")):
            left, _, right = values["d"].removeprefix("M").replace(" 8H", " ").partition(" ")
            assert 0 <= float(left) < float(right) <= 300


def test_a_gang_that_lacks_members_waits_for_them() -> None:
    cluster = one_node()
    cluster.add_pod("a-0", 1, gang="a", gang_size="3")
    cluster.settle()
    snapshot = cluster.core.snapshot(cluster.now)
    (gang,) = (each for each in snapshot.gangs if each.key.name == "a")
    steps = [(step.what, step.state) for step in timeline_of(snapshot, gang, {})]
    assert steps[1] == ("1 of 3 members exist", "now")


def test_the_states_of_gpus_differ_in_shape_and_not_in_colour_alone() -> None:
    """In use and free have the same shape, and differ in how dark they are."""
    states = [state for state in STATES if state != "free"]
    node = example().core.snapshot(0.0).nodes[0]
    shapes = {}
    for state in states:
        drawing = draw_small([node], [{state: 0b1}], {})
        assert [each for each in STATES if drawing.paths[each]] == [state]
        shapes[state] = drawing.paths[state]
    assert len(set(shapes.values())) == len(states)
    assert all(path.startswith("M0 6.5") for path in shapes.values())


def test_search_finds_parts_of_names_in_any_case() -> None:
    cluster = example()
    snapshot = cluster.core.snapshot(cluster.now)
    groups = Grouper().groups(snapshot)
    found = search(snapshot, groups, " TRAIN ").hits
    assert {(hit.kind, hit.name) for hit in found} >= {
        ("gang", "ml/train"),
        ("pod", "ml/train-0"),
        ("gang", "ml/pretrain"),
    }
    (node,) = search(snapshot, groups, "gpu-7").hits
    assert node.link == "group?key=leaf-2%2C0#n2"
    assert [hit.kind for hit in search(snapshot, groups, "ml").hits if hit.name == "ml"] == [
        "namespace"
    ]
    assert search(snapshot, groups, "  ").hits == ()
    assert search(snapshot, groups, "no such thing").hits == ()


def test_search_for_a_mistyped_name_finds_those_that_are_alike() -> None:
    snapshot = example().core.snapshot(0.0)
    groups = Grouper().groups(snapshot)
    found = search(snapshot, groups, "Trian")
    assert found.alike
    assert found.hits == search(snapshot, groups, "train").hits != ()
    assert "gpu-7" in [hit.name for hit in search(snapshot, groups, "gpu_7").hits]
    assert not search(snapshot, groups, "train").alike


def test_search_shows_some_of_many_and_says_that_there_are_more() -> None:
    cluster = large(MOST_FOUND + 10)
    snapshot = cluster.core.snapshot(cluster.now)
    found = search(snapshot, Grouper().groups(snapshot), "gpu-")
    assert (len(found.hits), found.more) == (MOST_FOUND, True)


def test_only_what_differs_is_a_change() -> None:
    cluster = large(64)
    snapshots, grouper, overviews = [], Grouper(), Overviews()
    for _ in range(2):
        snapshot = cluster.core.snapshot(cluster.now)
        snapshots.append(overviews.of(snapshot, grouper.groups(snapshot)))
        cluster.set_health("gpu-40", 6)
    before, after = snapshots
    assert before.shape == after.shape
    assert changes(before.slots, before.slots) == {}
    changed = changes(before.slots, after.slots)
    assert {name for name in changed if name[0] == "g"} == {
        "g1-free",
        "g1-unhealthy",
        "g1-n-free",
        "g1-n-unhealthy",
        "g1-all",
    }
    assert {name for name in changed if name[0] != "g"} == {"all-free", "all-unhealthy"}


def test_a_node_more_or_other_links_are_another_shape() -> None:
    cluster = one_node()
    first, first_page = overview(cluster).shape, page(cluster, "gpu-1").shape
    cluster.set_health("gpu-1", 1)
    assert (overview(cluster).shape, page(cluster, "gpu-1").shape) == (first, first_page)
    cluster.add_node("gpu-1", "dgx1-v100")
    assert page(cluster, "gpu-1").shape != first_page
    cluster.add_node("gpu-2", "dgx1-v100")
    assert overview(cluster).shape != first


@pytest.mark.parametrize("seconds", [None, 0.0, float("inf"), 1e30])
def test_an_unknown_time_is_no_time(seconds: float | None) -> None:
    assert clock(seconds) == ""


def test_times_are_in_utc() -> None:
    assert clock(1_750_000_000.0) == "2025-06-15 15:06:40"


def test_a_node_that_publishes_no_topology_is_shown_by_its_count() -> None:
    cluster = one_node()
    cluster.annotate_node("gpu-1", names.TOPOLOGY, None)
    (node,) = cluster.core.snapshot(cluster.now).nodes
    assert node.by_count is not None
    shown = page(cluster, "gpu-1")
    assert shown.cards[0].drawing is None
    assert lines(shown, "gpu-1")
