"""Pods with shares through kube-scheduler's calls: refusals, scores, plans, and what is shown."""

from dataclasses import replace
from itertools import pairwise

import pytest

from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.extender_calls import (
    BindOrder,
    BindRefusal,
    Outcome,
    PreemptCall,
    Victims,
)
from linkwise.extender.state.views import ShareUse
from linkwise.kube.objects import Condition
from linkwise.topology import names
from tests.divided import GPU, MIG_1G, MIG_3G, SHARED, all_three, cut, replicas
from tests.extender.cluster import change
from tests.extender.shares.cluster import ShareCluster, asks
from tests.machines import DGX_1V, PCIE_8

REASON = "linkwise: "


@pytest.fixture
def at() -> ShareCluster:
    found = ShareCluster()
    found.add_divided("n0", all_three(DGX_1V))
    return found


def reason(at: ShareCluster, name: str) -> str:
    answer = at.filter(name)
    (text,) = {*answer.failed.values(), *answer.unresolvable.values()}
    return text.removeprefix(REASON)


def test_a_share_is_planned_to_its_device_in_the_binding(at: ShareCluster) -> None:
    at.add_taker("w", {SHARED: 1})
    assert at.try_to_place("w") == "n0"
    (device,) = at.ids_of("w")
    assert at.planned_shares("w") == {"c0": {SHARED: (device,)}}
    assert at.gpus("w") == {}
    assert device.partition("::")[0] in at.uuids("n0", 3, 4)


def test_what_no_pod_wants_of_us_passes_untouched(at: ShareCluster) -> None:
    at.add_taker("web", {"example.com/nic": 1})
    assert at.filter("web").node_names == ("n0",)
    explained = at.core.explain("ml", "web", at.now)
    assert explained is not None
    assert explained.state == "not-ours"


def test_an_open_gpu_fills_up_before_an_idle_one_is_opened(at: ShareCluster) -> None:
    for number in range(5):
        at.add_taker(f"w{number}", {SHARED: 1})
        assert at.try_to_place(f"w{number}") == "n0"
    gpus = [at.ids_of(f"w{number}")[0].partition("::")[0] for number in range(5)]
    changes = sum(first != second for first, second in pairwise(gpus))
    assert changes == 1
    at.add_taker("w5", {SHARED: 1})
    assert reason(at, "w5") == f"fewer free {SHARED} than wanted"


def test_the_node_on_which_no_gpu_has_to_be_opened_scores_best() -> None:
    at = ShareCluster()
    at.add_divided("a", replicas(DGX_1V, {0: 4}))
    at.add_divided("b", replicas(DGX_1V, {0: 4}))
    at.add_taker("first", {SHARED: 1})
    at.bind_on("first", "b")
    at.add_taker("second", {SHARED: 1})
    assert at.filter("second").node_names == ("a", "b")
    scores = at.prioritize("second").scores
    assert scores["b"] == 100
    assert 0 < scores["a"] < 100
    assert at.try_to_place("second") == "b"


@pytest.mark.parametrize(
    ("limits", "said", "expected", "never"),
    [
        ({SHARED: 6}, {}, f"node offers fewer {SHARED} than wanted", True),
        ({"nvidia.com/mig-7g.80gb": 1}, {}, "node offers fewer nvidia.com/mig-7g.80gb", True),
        ({SHARED: 3}, {"share": "spread"}, "shares on fewer GPUs than a container wants", True),
        ({SHARED: 4}, {"share": "pack"}, "no GPU has all shares that a container wants", True),
        ({SHARED: 1}, {"gpu_model": "H100"}, "GPU model or memory does not match", True),
        (
            {MIG_1G: 2},
            {"require_link": "nvlink"},
            "no free GPU set with the required link",
            True,
        ),
    ],
)
def test_a_refusal_says_what_is_missing_and_whether_that_stays(
    at: ShareCluster, limits: dict[str, int], said: dict[str, str], expected: str, never: bool
) -> None:
    at.add_taker("w", limits, **said)
    answer = at.filter("w")
    assert not answer.node_names
    reasons = answer.unresolvable if never else answer.failed
    assert expected in reasons["n0"]


def test_a_wrong_word_is_refused_with_the_allowed_ones(at: ShareCluster) -> None:
    at.add_taker("w", {SHARED: 1}, share="packed")
    assert reason(at, "w") == "linkwise.dev/share: 'packed': expected spread or pack"


def test_whole_gpus_come_first_and_then_replicas_under_the_same_name(at: ShareCluster) -> None:
    for number in range(3):
        at.add_taker(f"whole{number}", {GPU: 1})
        assert at.try_to_place(f"whole{number}") == "n0"
        assert len(at.gpus(f"whole{number}")["c0"]) == 1
    at.add_taker("shared", {GPU: 2})
    assert at.try_to_place("shared") == "n0"
    uuid = at.uuids("n0", 5)[0]
    assert at.planned_shares("shared") == {"c0": {GPU: (f"{uuid}::0", f"{uuid}::1")}}
    at.add_taker("late", {GPU: 1})
    assert reason(at, "late") == f"fewer free {GPU} than wanted"


def test_a_pod_with_whole_gpus_and_shares_gets_both_or_waits(at: ShareCluster) -> None:
    at.add_taker("w", {GPU: 2}, {MIG_3G: 1})
    assert at.try_to_place("w") == "n0"
    assert len(at.gpus("w")["c0"]) == 2
    assert at.planned_shares("w")["c1"][MIG_3G]
    at.add_taker("v", {GPU: 1}, {MIG_3G: 1})
    assert reason(at, "v") == f"fewer free {MIG_3G} than wanted"


def test_a_bound_pod_without_a_plan_counts_for_what_it_asks(at: ShareCluster) -> None:
    at.add_taker("w", {SHARED: 3})
    at.put_pod(change(at.pod("w"), spec=change(at.pod("w").spec, node_name="n0")))
    (use,) = (use for use in at.core.nodes(at.now)[0].shares if use.resource == SHARED)
    assert use == ShareUse(SHARED, 2, 5)
    at.sound()


def test_the_kubelets_word_comes_before_the_plan(at: ShareCluster) -> None:
    at.add_taker("w", {SHARED: 1})
    at.try_to_place("w")
    other = f"{at.uuids('n0', 4)[0]}::2"
    assert other not in at.ids_of("w")
    at.put_in_use("n0", "ml/w", {"c0": {SHARED: (other,)}}, ())
    parts = [part for gpu in at.core.nodes(at.now)[0].gpus for part in gpu.parts if part.holders]
    assert [(part.uuid, part.holders) for part in parts] == [(at.uuids("n0", 4)[0], {"ml/w": 1})]
    explained = at.core.explain("ml", "w", at.now)
    assert explained is not None
    assert explained.shares == {"c0": {SHARED: (other,)}}
    text = explanation_text.pod(explained, at.now)
    assert f"share     c0: {other} ({SHARED})" in text


def test_a_recreated_pod_is_not_its_predecessor(at: ShareCluster) -> None:
    """The kubelet still reports the old one's share when the new one gets its plan."""
    at.add_taker("w", {MIG_1G: 1})
    at.try_to_place("w")
    (old,) = at.ids_of("w")
    at.put_in_use("n0", "ml/w", {"c0": {MIG_1G: (old,)}}, ())
    at.delete("w")
    at.add_taker("w", {MIG_1G: 1})
    assert at.try_to_place("w") == "n0"
    (new,) = at.ids_of("w")
    assert new != old
    at.restart()  # and so it is for a new leader
    at.add_taker("x", {MIG_1G: 1})
    assert at.try_to_place("x") == "n0"
    assert not {old, new} & set(at.ids_of("x"))


def test_a_gpu_with_shares_of_an_old_layout_in_use_is_not_free() -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {0: 2}))
    at.add_taker("w", {SHARED: 1})
    at.try_to_place("w")
    at.put_in_use("n0", "ml/w", at.planned_shares("w"), ())
    whole = ShareCluster()
    whole.add_divided("whole", DGX_1V)
    at.annotate_node(
        "n0", names.TOPOLOGY, whole.nodes["whole"].metadata.annotations[names.TOPOLOGY]
    )
    uuid = at.machine("n0").gpus[0].uuid
    at.put_in_use("n0", "ml/w", {"c0": {SHARED: (f"{uuid}::0",)}}, ())
    assert at.free("n0") == 7
    at.sound()


def test_a_gpu_that_a_pod_has_whole_gives_no_shares() -> None:
    at = ShareCluster()
    at.add_divided("n0", DGX_1V)
    at.add_taker("w", {GPU: 1})
    at.try_to_place("w")
    (uuid,) = at.gpus("w")["c0"]
    position = [gpu.uuid for gpu in DGX_1V.gpus].index(uuid)
    at.put_in_use("n0", "ml/w", None, (uuid,))
    after = ShareCluster()
    after.add_divided("n0", replicas(DGX_1V, {position: 2}))
    text = after.nodes["n0"].metadata.annotations[names.TOPOLOGY]
    at.annotate_node("n0", names.TOPOLOGY, text)
    at.add_taker("v", {SHARED: 1})
    assert not at.filter("v").node_names
    at.put_in_use("n0", "ml/w", None, ())
    at.delete("w")
    assert at.filter("v").node_names == ("n0",)


def test_a_pod_with_whole_gpus_without_a_plan_is_presumed_on_whole_ones() -> None:
    at = ShareCluster()
    at.add_divided("n0", cut(replicas(DGX_1V, {0: 2, 1: 2}), 2, MIG_1G))
    at.add_taker("w", {GPU: 6})
    at.put_pod(change(at.pod("w"), spec=change(at.pod("w").spec, node_name="n0")))
    states = [(gpu.state, gpu.holder) for gpu in at.core.nodes(at.now)[0].gpus]
    assert states == [("divided", "")] * 3 + [("held", "ml/w")] * 5
    at.sound()


def test_an_unhealthy_share_is_not_given() -> None:
    at = ShareCluster()
    machine = cut(DGX_1V, 0, MIG_1G, MIG_1G)
    at.add_divided("n0", machine)
    (first, second) = machine.gpus[0].parts or ()
    text = at.nodes["n0"].metadata.annotations[names.TOPOLOGY]
    sick = text.replace(f'["{first.uuid}",0,true]', f'["{first.uuid}",0,false]')
    assert sick != text
    at.annotate_node("n0", names.TOPOLOGY, sick)
    at.add_taker("w", {MIG_1G: 1})
    assert at.try_to_place("w") == "n0"
    assert at.ids_of("w") == [second.uuid]
    at.add_taker("v", {MIG_1G: 1})
    assert reason(at, "v") == f"fewer free {MIG_1G} than wanted"


def test_a_share_of_a_binding_in_flight_is_no_other_pods_until_it_is_refused(
    at: ShareCluster,
) -> None:
    at.add_taker("w", {MIG_3G: 1})
    at.filter("w")
    order = at.begin_bind("w", "n0")
    assert isinstance(order, BindOrder)
    at.add_taker("v", {MIG_3G: 1})
    assert not at.filter("v").node_names
    refused = at.begin_bind("v", "n0")
    assert isinstance(refused, BindRefusal)
    at.land(order, Outcome.REFUSED)
    assert at.filter("v").node_names == ("n0",)


def test_a_pod_that_waits_for_a_share_is_woken_when_one_comes_free(at: ShareCluster) -> None:
    at.add_taker("w", {MIG_3G: 1})
    at.try_to_place("w")
    at.add_taker("v", {MIG_3G: 1})
    assert not at.try_to_place("v")
    why = "0/1 nodes are available: 1 linkwise: fewer free"
    unschedulable = Condition("PodScheduled", "False", "Unschedulable", why)
    pod = at.pod("v")
    at.put_pod(change(pod, status=change(pod.status, conditions=(unschedulable,))))
    at.pass_time(2)
    assert not at.pod("v").status.nominated_node_name
    at.delete("w")
    at.pass_time(2)
    at.pass_time(2)
    assert at.pod("v").status.nominated_node_name == "n0"
    assert at.try_to_place("v") == "n0"


def test_a_kubelet_that_refuses_a_pod_with_shares_gets_no_other_until_a_trial(
    at: ShareCluster,
) -> None:
    at.add_taker("w", {SHARED: 1})
    at.try_to_place("w")
    refused = at.pod("w").status
    refused = change(refused, phase="Failed", reason="OutOfnvidia.com/gpu.shared")
    at.put_pod(change(at.pod("w"), status=refused))
    at.add_taker("v", {SHARED: 1})
    assert reason(at, "v") == "kubelet refuses pods with GPUs"
    at.pass_time(31)
    assert at.try_to_place("v") == "n0"
    at.add_taker("x", {SHARED: 1})
    assert not at.try_to_place("x")
    at.set_phase("v", "Running")
    at.settle()
    assert at.try_to_place("x") == "n0"


def test_kube_schedulers_choice_of_victims_stands_where_there_are_only_shares() -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(PCIE_8, dict.fromkeys(range(8), 2), GPU))
    at.add_taker("low", {GPU: 2})
    at.try_to_place("low")
    at.add_pod("high", 16, priority=5)
    uid = at.pod("low").metadata.uid
    call = PreemptCall(at.pod("high"), {"n0": Victims((uid,))})
    at.filter("high")
    assert at.core.preempt(call, at.now).victims == {"n0": Victims((uid,))}


def test_nodes_show_each_gpu_as_what_it_is(at: ShareCluster) -> None:
    (node,) = at.core.nodes(at.now)
    assert [gpu.state for gpu in node.gpus] == ["free"] * 3 + ["divided"] * 5
    assert node.shares == (
        ShareUse(GPU, 2, 2),
        ShareUse(SHARED, 5, 5),
        ShareUse(MIG_1G, 3, 3),
        ShareUse(MIG_3G, 1, 1),
    )
    assert [part.profile for part in node.gpus[6].parts] == ["1g.10gb", "1g.10gb", "3g.40gb"]
    counts = at.core.counts(at.now).gpus
    assert (counts["free"], counts["divided"], counts["unhealthy"]) == (3, 5, 0)


def test_a_pod_that_waits_is_explained(at: ShareCluster) -> None:
    at.add_taker("w", {MIG_3G: 1})
    at.try_to_place("w")
    at.add_taker("v", {MIG_3G: 1})
    explained = at.core.explain("ml", "v", at.now)
    assert explained is not None
    assert explained.state == "waiting"
    assert explained.search is not None
    (level,) = explained.search.levels
    assert (level.have, level.of) == (0, 1)
    assert [(each.reason, each.nodes) for each in level.missing] == [
        (f"fewer free {MIG_3G} than wanted", 1)
    ]
    text = explanation_text.pod(explained, at.now)
    assert f"wanted    1 {MIG_3G}" in text
    assert f"nearest   n0: fewer free {MIG_3G} than wanted (0 free)" in text
    at.delete("w")
    again = at.core.explain("ml", "v", at.now)
    assert again is not None
    assert again.search is not None
    assert (again.search.room, again.search.nearest) == (1, None)


def test_what_is_wanted_of_shares_is_said_once(at: ShareCluster) -> None:
    at.add_taker("w", {SHARED: 2})
    at.try_to_place("w")
    explained = at.core.explain("ml", "w", at.now)
    assert explained is not None
    text = explanation_text.pod(explained, at.now)
    assert f"wanted    2 {SHARED}, 1 CPU\n" in text


def test_a_share_of_a_gpu_that_is_divided_no_more_is_no_gpu_of_its_holder(
    at: ShareCluster,
) -> None:
    """The pod still runs there, so no other gets the GPU."""
    at.add_taker("w", {SHARED: 1})
    at.try_to_place("w")
    held = at.planned_shares("w")
    at.add_divided("n0", DGX_1V)
    at.put_in_use("n0", "ml/w", held, ())
    at.add_taker("v", {GPU: 8})
    at.filter("v")
    explained = at.core.explain("ml", "v", at.now)
    assert explained is not None
    text = explanation_text.pod(explained, at.now)
    assert "GPUs with a share of 1 GPU: ml/w, in use" in text


def test_a_member_of_a_gang_gets_its_shares_by_itself(at: ShareCluster) -> None:
    at.add_taker("m0", {SHARED: 1}, gang="g", gang_size="2")
    assert at.try_to_place("m0") == "n0"
    assert at.ids_of("m0")
    at.settle()
    at.sound()


def test_a_gated_pod_with_shares_alone_is_let_go(at: ShareCluster) -> None:
    at.add_taker("w", {SHARED: 1})
    gated = at.add_pod("g", containers=at.pod("w").spec.containers, gates=[names.GATE])
    at.settle()
    assert not at.gates(gated.metadata.name)


def test_where_the_vendors_plugin_is_alone_shares_go_by_count(at: ShareCluster) -> None:
    """kube-scheduler names the node because it has counted the shares there."""
    at.add_divided("bare", all_three(DGX_1V))
    at.annotate_node("bare", names.TOPOLOGY, None)
    at.add_taker("w", {SHARED: 1})
    at.add_taker("strict", {SHARED: 1}, require_link="nvlink")
    at.add_taker("both", {SHARED: 1, GPU: 1})
    assert at.filter("w", ["bare"]).node_names == ("bare",)
    assert at.filter("both", ["bare"]).node_names == ("bare",)
    assert not at.filter("strict", ["bare"]).node_names
    order = at.begin_bind("w", "bare")
    assert isinstance(order, BindOrder)
    assert order.annotations == {}
    assert at.prioritize("strict").scores["bare"] == 0


def test_a_gated_pod_with_both_is_let_go_and_gets_both(at: ShareCluster) -> None:
    at.add_taker("w", {GPU: 2}, {MIG_3G: 1})
    at.add_pod("g", containers=at.pod("w").spec.containers, gates=[names.GATE])
    at.delete("w")
    at.settle()
    assert not at.gates("g")
    assert at.plan("g") is None
    assert at.try_to_place("g") == "n0"
    assert len(at.gpus("g")["c0"]) == 2
    assert at.planned_shares("g")["c1"][MIG_3G]


def test_a_gangs_plan_of_whole_gpus_gets_its_shares_in_the_binding(at: ShareCluster) -> None:
    at.add_divided("n1", all_three(DGX_1V))
    for name in ("m0", "m1"):
        at.add_taker(name, {GPU: 1}, {MIG_3G: 1}, gang="g", gang_size="2")
    at.settle()
    assert {at.try_to_place("m0"), at.try_to_place("m1")} == {"n0", "n1"}
    for name in ("m0", "m1"):
        assert len(at.gpus(name)["c0"]) == 1
        assert at.planned_shares(name)["c1"][MIG_3G]
    at.settle()
    at.sound()


def test_a_gang_whose_nodes_have_too_few_mig_devices_gets_no_plan(at: ShareCluster) -> None:
    for name in ("m0", "m1"):
        at.add_taker(name, {GPU: 1}, {MIG_3G: 1}, gang="g", gang_size="2")
    at.settle()
    assert [at.plan(name) for name in ("m0", "m1")] == [None, None]


def test_whole_gpus_of_a_plan_are_free_once_the_pod_has_replicas_in_their_place() -> None:
    at = ShareCluster()
    at.add_divided("n0", replicas(DGX_1V, {7: 2}, GPU))
    at.add_taker("w", {GPU: 2})
    assert at.try_to_place("w") == "n0"
    uuid = at.uuids("n0", 7)[0]
    at.put_in_use("n0", "ml/w", {"c0": {GPU: (f"{uuid}::0", f"{uuid}::1")}}, ())
    at.add_taker("v", {GPU: 7})
    assert at.try_to_place("v") == "n0"
    at.sound()


def test_a_pod_with_both_is_explained_by_both(at: ShareCluster) -> None:
    at.add_divided("whole", DGX_1V)
    at.add_taker("w", {MIG_3G: 1})
    at.try_to_place("w")
    at.add_taker("v", {GPU: 2}, {MIG_3G: 1})
    explained = at.core.explain("ml", "v", at.now)
    assert explained is not None
    assert explained.search is not None
    assert explained.search.room == 0
    assert explained.search.nearest is not None
    assert explained.search.nearest.lacks == f"fewer free {MIG_3G} than wanted (0 free)"
    at.delete("w")
    explained = at.core.explain("ml", "v", at.now)
    assert explained is not None
    assert explained.search is not None
    assert explained.search.room == 1


def test_a_bound_pod_without_a_plan_is_presumed_on_healthy_shares() -> None:
    machine = replicas(DGX_1V, {0: 1, 1: 2})
    parts = tuple(replace(part, healthy=False) for part in machine.gpus[0].parts or ())
    sick = replace(machine.gpus[0], parts=parts)
    at = ShareCluster()
    at.add_divided("n0", replace(machine, gpus=(sick, *machine.gpus[1:])))
    at.add_taker("w", {SHARED: 1})
    at.put_pod(change(at.pod("w"), spec=change(at.pod("w").spec, node_name="n0")))
    assert at.core.nodes(at.now)[0].shares == (ShareUse(SHARED, 1, 3),)
    at.add_taker("v", {SHARED: 2})
    assert reason(at, "v") == f"fewer free {SHARED} than wanted"


def test_of_nodes_that_open_as_many_gpus_later_pods_lose_least_on_the_best() -> None:
    """Pods that came needed much CPU, which n1 has no longer."""
    at = ShareCluster()
    for name in ("n0", "n1"):
        at.add_divided(name, replicas(DGX_1V, {0: 4}))
    for number in range(3):
        wide = asks("c0", {SHARED: 1})
        requests = {**wide.resources.requests, "cpu": "12"}
        at.add_pod(
            f"past-{number}",
            containers=[change(wide, resources=change(wide.resources, requests=requests))],
        )
        at.delete(f"past-{number}")
    at.add_taker("before", {SHARED: 1})
    assert at.try_to_place("before") == "n0"  # by name
    at.delete("before")
    at.add_pod("web", cpu="90", node="n1")
    at.add_taker("small", {SHARED: 1})
    assert at.try_to_place("small") == "n1"
