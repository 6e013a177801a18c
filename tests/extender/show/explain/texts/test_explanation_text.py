"""What a user reads who asks why a pod waits."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.show.explain.explainer import Explainer
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.show.explain.texts.format import gib_in_words
from linkwise.extender.state.views import (
    Explanation,
    GangExplanation,
    GangView,
    PodState,
    RequestView,
)
from linkwise.kube.objects import Condition
from linkwise.topology import names
from tests.extender import late_claims
from tests.extender.cluster import Cluster, change, container


def busy_cluster() -> Cluster:
    """Four machines; what waits has waited for ten minutes."""
    at = Cluster()
    for number in range(1, 4):
        at.add_node(f"gpu-{number}", "hgx-h100")
    at.add_node("old", "p100-pcie-8")
    at.add_pod("notebook", 2, expected_duration="2h")
    assert at.schedule("notebook") == "gpu-1"
    at.start("notebook")
    at.add_pod("eval", 3, node="gpu-2")
    at.add_pod("serve", 8, node="gpu-3")
    return at


def of_pod(at: Cluster, name: str) -> list[str]:
    snapshot = at.core.snapshot(at.now)
    found = Explainer(snapshot).pod("ml", name)
    assert found is not None
    return explanation_text.pod(found, snapshot.at).splitlines()


def of_gang(at: Cluster, name: str) -> list[str]:
    snapshot = at.core.snapshot(at.now)
    found = Explainer(snapshot).gang("ml", name)
    assert found is not None
    return explanation_text.gang(found, snapshot.at).splitlines()


def of_all(at: Cluster) -> list[str]:
    found = Explainer(at.core.snapshot(at.now)).everything()
    return explanation_text.all_that_waits(found).splitlines()


def test_a_pod_of_which_the_kubelet_hands_on_some_gpus_of_an_init_container() -> None:
    at = busy_cluster()
    at.add_pod("p", init=[container("init", 3)], containers=[container("main", 2)])
    node = at.schedule("p")
    places = at.indices("p")
    uuids = at.uuids(node, *places)
    first, second, third = (f"{place} ({uuid})" for place, uuid in zip(places, uuids, strict=True))
    lines = of_pod(at, "p")
    assert f"  GPU       init: {second}" in lines
    assert f"  GPU       main: 2 of {first}, {second}, {third}" in lines


def test_a_pod_that_could_be_handed_on_gpus_without_the_required_link() -> None:
    """GPUs 0, 1, 4 and 5 are a ring of NVLinks, and have none between 0 and 5, or 1 and 4."""
    at = Cluster()
    at.add_node("n1", "dgx1-v100")
    at.add_pod("busy", 4, node="n1")
    at.start("busy", {"main": at.uuids("n1", 2, 3, 6, 7)})
    init, main = [container("init", 4)], [container("main", 2)]
    at.add_pod("p", init=init, containers=main, require_link="nvlink")
    assert at.schedule("p") == ""
    miss = "n1: the best link of any 2 of 4 of its free GPUs is node, nvlink is required"
    assert f"  nearest   {miss}" in of_pod(at, "p")


def test_a_waiting_pod() -> None:
    at = busy_cluster()
    at.add_pod("train", 8, gpu_model="H100", require_link="nvlink")
    at.pass_time(600)
    assert of_pod(at, "train") == [
        "ml/train: has waited 10m",
        "  No node has a GPU set for the pod now.",
        "  wanted    8 GPUs of H100, link nvlink required, 1 CPU, 1 GiB of memory",
        "  nodes     4 of 4  have GPUs that Linkwise knows",
        "            4 of 4  have 8 GPUs or more",
        "            3 of 4  have 8 GPUs of H100",
        "                    - 1: GPU model or memory does not match",
        "            3 of 3  can join 8 GPUs by nvlink or closer",
        "            3 of 3  are ready and take such pods (taints, node selector, affinity)",
        "            0 of 3  have 8 GPUs free and suitable",
        "                    - 3: fewer free GPUs than wanted",
        "  nearest   gpu-1: 6 of 8 suitable GPUs are free, 2 more are needed",
        "  GPUs with 2 GPUs: ml/notebook, in use for 10m, expected to end in 1h50m",
    ]


def test_gpus_are_in_the_order_of_their_indices() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("all", 8)
    at.schedule("all")
    at.start("all")
    gpus = [line.split()[2] for line in of_pod(at, "all") if line.startswith("  GPU ")]
    assert gpus == [str(index) for index in range(8)]


def test_a_member_of_a_gang_without_room() -> None:
    at = busy_cluster()
    at.add_gang("g", 2, 7, gpu_memory="40Gi")
    at.pass_time(90)
    gang = [
        "gang ml/g: has waited 90s",
        "  Gang g: no room for the whole gang.",
        "  pods      2 of 2  exist and may be scheduled",
        "            0 of 2  have room at once",
        "  wanted    by 2 pods, each: 7 GPUs of 40 GiB or more, link nvlink preferred, "
        "1 CPU, 1 GiB of memory",
        "  nodes     4 of 4  have GPUs that Linkwise knows",
        "            4 of 4  have 7 GPUs or more",
        "            3 of 4  have 7 GPUs of 40 GiB or more",
        "                    - 1: GPU model or memory does not match",
        "            3 of 3  are ready and take such pods (taints, node selector, affinity)",
        "            0 of 3  have 7 GPUs free and suitable",
        "                    - 3: fewer free GPUs than wanted",
        "            so there is room for 0 of 2 pods by themselves",
        "  nearest   gpu-1: 6 of 8 suitable GPUs are free, 1 more is needed",
        "  GPUs with 2 GPUs: ml/notebook, in use for 90s, expected to end in 1h58m",
        "  reserved  14 GPUs on gpu-2, gpu-3: 4 free now, when all will be free is unknown",
        "  waits for 7 GPUs: ml/serve, planned, not started yet, end unknown",
        "            3 GPUs: ml/eval, planned, not started yet, end unknown",
        "  gang      g: forming, a gang of 2",
        "            room for 0 of 2 members",
        "                0  g-0  waiting",
        "                1  g-1  waiting",
    ]
    assert of_gang(at, "g") == gang
    assert of_pod(at, "g-1") == [
        "ml/g-1: has waited 90s",
        "  Gang g: no room for the whole gang.",
        "  wanted    7 GPUs of 40 GiB or more, link nvlink preferred, 1 CPU, 1 GiB of memory",
        "",
        *gang,
    ]


def test_nodes_that_take_no_pods_are_named_beside_what_waits() -> None:
    at = busy_cluster()
    at.cordon("old")
    at.cordon("gpu-1")
    at.add_pod("train", 8)
    at.pass_time(600)
    assert of_all(at)[:3] == [
        "19 of 32 GPUs on 4 nodes are free, 2 in use, 11 planned for pods about to start.",
        "gpu-1, old take no new pods: cordoned. 14 GPUs are free there.",
        "0 gangs and 1 pod in no gang wait, the most urgent first.",
    ]


NO_DNS = 'Post "https://x:9402/filter": dial tcp: lookup x on 10.96.0.10:53: no such host'


def break_off(at: Cluster, *names: str) -> None:
    for name in names:
        pod = at.pod(name)
        said = (Condition("PodScheduled", "False", reason="SchedulerError", message=NO_DNS),)
        at.put_pod(change(pod, status=change(pod.status, conditions=said)))


def test_a_planned_gang_that_kube_scheduler_cannot_try_is_told_of() -> None:
    at = busy_cluster()
    at.add_gang("g", 2, 4, gates=[names.GATE])
    at.settle()
    assert of_all(at)[1:] == ["Nothing waits for GPUs."]
    break_off(at, "g-0", "g-1")
    why = f"default-scheduler cannot try pod g-0: {NO_DNS}"
    assert of_all(at)[1:] == [f"default-scheduler cannot try 2 pods, such as ml/g-0: {NO_DNS}"]
    assert f"  {why}." in of_pod(at, "g-0")
    assert f"            {why}" in of_gang(at, "g")


def test_a_pod_that_kube_scheduler_cannot_try_is_told_why() -> None:
    at = busy_cluster()
    at.add_pod("p", 1)
    break_off(at, "p")
    at.settle()
    assert f"  default-scheduler cannot try pod p: {NO_DNS}." in of_pod(at, "p")
    assert at.schedule("p")
    assert of_all(at)[1:] == ["Nothing waits for GPUs."]


def test_a_gang_that_forms_names_the_ranks_that_are_missing() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("g-1", 2, gang="g", gang_size="3", rank="1")
    at.settle()
    assert of_gang(at, "g") == [
        "gang ml/g: has waited 0s",
        "  Gang g waits for its members.",
        "  pods      1 of 3  exist and may be scheduled",
        "                    - 2: do not exist yet",
        "  wanted    by 1 pod: 2 GPUs, link nvlink preferred, 1 CPU, 1 GiB of memory",
        "  nodes     1 of 1  have GPUs that Linkwise knows",
        "            1 of 1  have 2 GPUs or more",
        "            1 of 1  are ready and take such pods (taints, node selector, affinity)",
        "            1 of 1  have 2 GPUs free and suitable",
        "            1 of 1  have 1 CPU, 1 GiB of memory and a place for one more pod left",
        "            so 1 node has room for it by itself",
        "  gang      g: forming, a gang of 3",
        "            1 of 3 members exist",
        "  missing   rank 0, 2",
        "                1  g-1  waiting",
    ]


def test_everything_that_waits_in_short() -> None:
    at = busy_cluster()
    at.add_gang("g", 2, 7)
    at.add_pod("part-0", 1, gang="part", gang_size="2")
    for number in range(3):
        at.add_pod(f"sweep-{number}", 8, gpu_model="H100")
    at.add_pod("wrong", 1, require_link="fast")
    at.pass_time(7000)
    assert of_all(at) == [
        "7 of 32 GPUs on 4 nodes are free, 2 in use, 11 planned for pods about to start, "
        "12 reserved for waiting gangs and pods.",
        "2 gangs and 4 pods in no gang wait, the most urgent first.",
        "",
        "gang ml/g: has waited 1h56m",
        "  Gang g: no room for the whole gang.",
        "  pods      1 of 2  have room at once",
        "  wanted    by 2 pods, each: 7 GPUs, link nvlink preferred, 1 CPU, 1 GiB of memory",
        "  nodes     room for 1 of 2 pods by themselves",
        "  nearest   gpu-1: 6 of 8 suitable GPUs are free, 1 more is needed",
        "  GPUs with 2 GPUs: ml/notebook, in use for 1h56m, expected to end in 3m20s",
        "  reserved  14 GPUs on gpu-1, old: 12 free now, all expected to be free in 3m20s",
        "",
        "gang ml/part: has waited 1h56m",
        "  Gang part waits for its members.",
        "  pods      1 of 2  exist and may be scheduled",
        "                    - 1: do not exist yet",
        "",
        "pod ml/sweep-0, and 2 more like it: has waited 1h56m",
        "  No node has a GPU set for the pod now.",
        "  wanted    8 GPUs of H100, link nvlink preferred, 1 CPU, 1 GiB of memory",
        "  nodes     0 of 3  have 8 GPUs free and suitable",
        "                    - 3: fewer free GPUs than wanted",
        "  nearest   gpu-2: 5 of 8 suitable GPUs are free, 3 more are needed",
        "  GPUs with 3 GPUs: ml/eval, planned, not started yet, end unknown",
        "",
        "pod ml/wrong: has waited 1h56m",
        "  The pod cannot be placed: linkwise.dev/require-link: 'fast': expected one of nvlink, "
        "switch, host-bridge, numa, node",
    ]


def test_what_is_kept_for_others_is_told_so() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("notebook", 3, expected_duration="2h")
    at.schedule("notebook")
    at.start("notebook")
    at.add_gang("first", 1)
    at.add_gang("second", 1)
    at.pass_time(600)
    at.add_pod("late", 4)
    assert of_pod(at, "late")[-5:] == [
        "            0 of 1  have 4 GPUs free and suitable",
        "                    - 1: reserved for gang ml/first",
        "  nearest   n1: 0 of 8 suitable GPUs are free and 5 reserved for others, "
        "4 more are needed",
        "  GPUs with 3 GPUs: ml/notebook, in use for 10m, expected to end in 1h50m",
        "            5 GPUs: free, but reserved for gang ml/first, which can start in 1h50m",
    ]
    assert "  order     1 gang or pod ahead of it has no room either: gang ml/first" in of_gang(
        at, "second"
    )
    assert "  reserved  8 GPUs on n1: 5 free now, all expected to be free in 1h50m" in of_gang(
        at, "first"
    )


def test_an_idle_node_that_is_reserved_is_nearer_than_one_where_a_pod_runs() -> None:
    at = Cluster()
    for name, gpus in (("n1", 2), ("n2", 8)):
        at.add_node(name, "hgx-h100")
        at.add_pod(f"on-{name}", gpus, expected_duration="2h")
        assert at.schedule(f"on-{name}") == name
        at.start(f"on-{name}")
    at.add_node("n3", "hgx-h100")
    at.add_gang("first", 2, 8)
    at.pass_time(600)
    at.add_pod("late", 8)
    assert of_pod(at, "late")[-4:] == [
        "                    - 2: fewer free GPUs than wanted",
        "                    - 1: reserved for gang ml/first",
        "  nearest   n3: 0 of 8 suitable GPUs are free and 8 reserved for others, "
        "8 more are needed",
        "  GPUs with 8 GPUs: free, but reserved for gang ml/first, which can start in 1h50m",
    ]


def test_a_member_is_not_told_that_what_is_kept_for_its_own_gang_is_kept_for_others() -> None:
    at = Cluster()
    for number in range(2):
        at.add_node(f"n{number}", "hgx-h100")
    at.add_pod("notebook", 3, expected_duration="2h")
    at.schedule("notebook")
    at.start("notebook")
    at.add_gang("g", 2, 8)
    at.pass_time(60)
    snapshot = at.core.snapshot(at.now)
    assert {node.name: node.reserved.bit_count() for node in snapshot.nodes} == {"n0": 5, "n1": 8}
    found = Explainer(snapshot).pod("ml", "g-0")
    assert found is not None
    assert found.search is not None
    assert (found.search.room, found.search.nearest) == (1, None)


def test_a_gang_for_which_others_are_evicted_is_told_so() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("batch", 6, preemptible="true")
    at.schedule("batch")
    at.start("batch")
    at.settle()
    said = {"gang": "g", "gang_size": "1"}
    at.add_pod("g-0", 8, priority=100, said=said)
    at.settle()
    assert at.evicted == ["batch"]
    lines = of_gang(at, "g")
    assert "  GPUs with 6 GPUs: ml/batch, is ending" in lines
    kept = "8 GPUs on n1: 2 free now, the pods on the others are being evicted for it"
    assert f"  reserved  {kept}" in lines


def test_a_gang_whose_reservation_has_idled_for_too_long_is_told_so() -> None:
    at = Cluster(settings=CoreSettings(reserve_limit_seconds=3600.0))
    for number in range(2):
        at.add_node(f"n{number}", "hgx-h100")
    at.add_pod("notebook", 1, expected_duration="24h")
    at.schedule("notebook")
    at.start("notebook")
    at.add_gang("g", 2, 8)
    at.settle()
    assert any(line.startswith("  reserved  16 GPUs on n0, n1:") for line in of_gang(at, "g"))
    at.pass_time(3600.0)
    (kept,) = (line for line in of_gang(at, "g") if line.startswith("  reserved"))
    assert kept.endswith("(in 1h): the reservations of its namespace idled for too long")


def test_a_server_is_not_waited_for() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    pod = at.add_pod("server", 3, node="n1")
    at.put_pod(change(pod, spec=change(pod.spec, restart_policy="Always")))
    at.add_pod("late", 8)
    assert of_pod(at, "late")[-1] == (
        "  GPUs with 3 GPUs: ml/server, planned, not started yet, a server: does not end by itself"
    )


def test_where_nothing_waits_that_is_said() -> None:
    at = Cluster()
    at.add_node("n1")
    at.set_health("n1", 7)
    assert of_all(at) == [
        "7 of 8 GPUs on 1 node are free, 0 in use, 1 unhealthy.",
        "Nothing waits for GPUs.",
    ]


def test_who_is_late_or_will_give_back_is_told_so() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("late", 1, expected_duration="1m")
    at.schedule("late")
    at.start("late")
    at.add_gang("g", 2, 2)
    at.settle()
    at.schedule("g-0")
    at.add_pod("dying", 1)
    at.schedule("dying")
    at.start("dying")
    at.terminate("dying")
    at.pass_time(300)
    at.add_pod("a", 8)
    assert of_pod(at, "a")[-4:] == [
        "  GPUs with 1 GPU: ml/dying, is ending",
        "            1 GPU: ml/late, in use for 5m, expected to end 4m ago",
        "            2 GPUs: ml/g-0 of gang ml/g, planned, not started yet, given back in 5m "
        "if it cannot start",
        "            2 GPUs: ml/g-1 of gang ml/g, planned, not started yet, given back in 5m "
        "if it cannot start",
    ]


def test_long_lists_are_cut() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_node("n2", "hgx-h100")
    for number in range(8):
        at.add_pod(f"small-{number}", 1, node="n1")
    at.add_pod("g-0", 8, gang="g", gang_size="60", rank="0")
    for rank in range(20, 60):
        at.add_pod(f"g-{rank}", 8, gang="g", gang_size="60", rank=str(rank))
    at.settle()
    lines = of_gang(at, "g")
    assert "  missing   rank 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, …" in lines
    assert lines[-1] == "            and 1 more"


def test_a_bound_pod_shows_its_gpus_and_what_they_are_worth() -> None:
    text = explanation_text.pod(
        Explanation(
            namespace="ml",
            name="w",
            uid="u",
            state=PodState.BOUND,
            summary="",
            wanted=RequestView(
                3, {"a": 2, "b": 1}, "switch", "nvlink", ("H100 or H200", "40 GiB or more")
            ),
            node="n1",
            gpus={"a": ("GPU-1", "GPU-2"), "b": ("GPU-3",)},
            link="NVLINK",
            gbytes_per_s=362.25,
            search=None,
            gang=None,
            indices={"GPU-1": 4, "GPU-2": 5},
        ),
        at=0.0,
    )

    assert text.splitlines() == [
        "ml/w: bound",
        "  wanted    3 GPUs of H100 or H200 with 40 GiB or more (a 2, b 1), link switch required",
        "  node      n1",
        "  GPU       a: 4 (GPU-1)",
        "  GPU       a: 5 (GPU-2)",
        "  GPU       b: GPU-3",
        "  link      NVLINK, 362 GB/s estimated",
    ]


def test_a_planned_gang_shows_its_plan_and_its_deadline() -> None:
    view = GangView("ml", "g", "planned", "", 1, 1, (), "p-1", 0.0, 600.0, 2, False)
    gang = GangExplanation(view, False, "", (), (), None)
    text = explanation_text.pod(
        Explanation("ml", "w", "u", PodState.PLANNED, "", None, "n1", {}, "", 0.0, None, gang),
        at=60.0,
    )

    assert text.splitlines() == [
        "ml/w: planned",
        "  node      n1",
        "  gang      g: planned, a gang of 1",
        "  plan      p-1 made 1970-01-01 00:00:00 UTC",
        "  deadline  1970-01-01 00:10:00 UTC (in 9m); then a partial gang gives its GPUs back",
        "  refused   2 plans so far",
    ]


@pytest.mark.parametrize(
    ("gib", "text"),
    [(0, "0 GiB"), (1.5, "1.5 GiB"), (999, "999 GiB"), (1120, "1.09 TiB"), (2048, "2 TiB")],
)
def test_memory_is_in_units_that_people_read(gib: float, text: str) -> None:
    assert gib_in_words(int(gib * 2**30)) == text


def test_a_cluster_without_known_gpus_sends_its_user_to_the_doctor() -> None:
    at = Cluster()
    at.add_pod("a", 2, gates=[names.GATE])
    at.settle()
    at.pass_time(20)
    told = "  nodes     none is known to have GPUs: `kubectl linkwise doctor` says why"
    assert told in of_pod(at, "a")


def test_the_gpus_of_a_claim_that_was_planned_are_told_once() -> None:
    at = late_claims.cluster()
    late_claims.add(at, "a", 2)
    at.settle()
    assert at.run_scheduler("a")
    at.start("a", {"trainer": at.gpus("a")["main"]})
    at.settle()
    told = [line.split() for line in of_pod(at, "a")]
    assert ["claim", f"ml/{late_claims.claim_name('a')}"] in told
    assert sum(words[0] == "GPU" for words in told) == 2
