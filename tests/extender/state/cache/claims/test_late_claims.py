"""Pods whose GPUs come from a claim: they are planned like others, and the claim that is created
for a plan names its GPUs."""

from contextlib import AbstractContextManager
from unittest.mock import patch

from linkwise.extender.state.actions import WithdrawPlan, WritePlan
from linkwise.extender.state.cache.pending_writes import SETTLE_SECONDS
from linkwise.kube.device_claims import ResourceClaim
from linkwise.kube.objects import Condition
from linkwise.topology import names
from tests.extender import claimed
from tests.extender.cluster import Cluster, change
from tests.extender.late_claims import ClaimCluster, add, add_gang, claim_name, cluster, with_claim


def test_a_pod_gets_a_claim_for_its_planned_gpus_and_then_loses_its_gate() -> None:
    at = cluster()
    add(at, "a", 2)
    kinds = [type(action).__name__ for action in at.settle()]
    assert kinds == ["WritePlan", "CreateClaim", "LiftGate"]
    created = at.created["a"]
    assert created.gpus == at.gpus("a")
    assert (created.name, created.driver) == (claim_name("a"), "gpu.nvidia.com")
    assert at.run_scheduler("a") == tuple(at.gpus("a")["main"])
    assert at.pod("a").spec.node_name == "n1"
    assert at.free("n1") == 6
    assert at.sound()


def test_the_claim_is_for_the_driver_of_the_planned_gpus() -> None:
    """Another one may offer something on the same node, as that of the GPU in its CPU does."""
    at = cluster()
    other = claimed.slice_of("n1", ["other"], driver="another.example", name="other")
    at.slice_event("ADDED", other)
    add(at, "a", 2)
    at.settle()
    assert at.created["a"].driver == "gpu.nvidia.com"


def test_the_best_linked_gpus_are_planned() -> None:
    at = cluster()
    claimed.add_pod(at, "other", "n1", 0, 1, 2)
    add(at, "a", 2)
    at.settle()
    plan = at.plan("a")
    assert plan is not None
    assert plan.link == "NVLINK"


def test_no_gate_of_a_gang_is_lifted_before_all_its_claims_are_there() -> None:
    at = cluster("n1", "n2")
    at.denied.add("g-1")
    add_gang(at, "g", 2, 8)
    at.settle()
    assert at.gates("g-0") == at.gates("g-1") == [names.GATE]


def test_a_gang_has_its_plan_then_its_claims_then_no_gates() -> None:
    at = cluster("n1", "n2")
    add_gang(at, "g", 2, 8)
    kinds = [type(action).__name__ for action in at.settle()]
    assert kinds == ["WritePlan"] * 2 + ["CreateClaim"] * 2 + ["LiftGate"] * 2
    assert at.run_scheduler("g-0")
    assert at.run_scheduler("g-1")
    assert at.places("g-0", "g-1") == ["n1", "n2"]
    assert at.phase("g") == "running"
    assert at.sound()


def test_pods_without_such_a_claim_go_to_nodes_of_a_device_plugin_only() -> None:
    at = cluster("n1")
    at.add_node("n2")
    at.add_pod("plain", 2, gates=[names.GATE])
    add(at, "claims", 2)
    at.settle()
    assert at.places("plain", "claims") == ["n2", "n1"]
    at.add_pod("more", 8)
    assert at.filter("more").node_names == ()


def test_a_pod_waits_while_only_a_device_plugin_has_room() -> None:
    at = Cluster()
    at.add_node("n1")
    add(at, "a", 2)
    at.settle()
    assert at.plan("a") is None
    assert at.gates("a") == [names.GATE]


def test_somebody_else_is_faster_and_the_pod_gets_a_claim_for_other_gpus() -> None:
    at = cluster("n1", "n2")
    add(at, "a", 8)
    at.settle()
    before = at.created["a"]
    first = at.plan("a")
    assert first is not None
    claimed.add_pod(at, "faster", first.node, 0)
    at.settle()
    assert at.dropped == ["a"]
    after, plan = at.created["a"], at.plan("a")
    assert plan is not None
    assert plan.node != first.node
    assert after.edition != before.edition
    assert after.gpus == at.gpus("a")
    assert len(at.run_scheduler("a")) == 8
    assert at.sound()


def test_a_pod_that_waits_after_that_has_no_claim() -> None:
    at = cluster("n1")
    add(at, "a", 8)
    at.settle()
    claimed.add_pod(at, "faster", "n1", 0)
    at.settle()
    assert at.plan("a") is None
    assert ("ml", claim_name("a")) not in at.claims
    at.delete("faster")
    claimed.drop_claim(at, "faster-gpus")
    at.pass_time(60)
    assert len(at.run_scheduler("a")) == 8


def test_an_allocated_claim_stays_whatever_becomes_of_the_plan() -> None:
    at = cluster("n1")
    add(at, "a", 8)
    at.settle()
    there = at.claims["ml", claim_name("a")]
    allocated = claimed.claim_of(claim_name("a"), "n1", *range(8), pods=[at.pod("a")])
    at.put_claim(change(there, status=allocated.status))
    claimed.publish(at, claimed.slice_of("n1", claimed.uuids(at, "n1"), tainted=[0]))
    at.settle()
    assert at.dropped == []


def test_a_person_deletes_the_claim_and_it_is_created_again() -> None:
    at = cluster("n1")
    add(at, "a", 2)
    at.settle()
    at.remove_claim("ml", claim_name("a"))
    at.pass_time(60)
    assert at.run_scheduler("a")


def test_a_new_leader_goes_on_between_claim_and_gate() -> None:
    at = cluster("n1")
    add(at, "a", 2)
    for _ in range(10):
        for action in at.core.decide(at.now):
            at.core.done(action, at.carry_out(action), at.now)
        if at.created:
            break
    assert at.gates("a") == [names.GATE]
    at.restart()
    at.settle()
    assert at.gates("a") == []
    assert at.run_scheduler("a") == tuple(at.gpus("a")["main"])


def test_a_claim_of_a_namesake_that_is_gone_does_not_count() -> None:
    at = cluster("n1")
    add(at, "a", 2)
    at.settle()
    at.delete("a")
    add(at, "a", 2)
    at.settle()
    assert at.gates("a") == [names.GATE]  # the garbage collector has not deleted the old claim yet
    at.remove_claim("ml", claim_name("a"))
    at.pass_time(60)
    assert at.run_scheduler("a")


def test_a_quota_that_refuses_the_claim_is_told() -> None:
    at = cluster("n1")
    at.denied.add("a")
    add(at, "a", 2)
    at.settle()
    at.pass_time(10)
    assert at.gates("a") == [names.GATE]
    told = [event.message for event in at.events]
    assert any("does not let ResourceClaim" in message for message in told), told


def test_equal_pods_share_a_template_whatever_their_claims_are_called() -> None:
    at = cluster("n1", "n2")
    add_gang(at, "g", 2, 4)
    records = at.core.snapshot(at.now).pods
    assert len({record.template for record in records}) == 1


def test_a_node_whose_gpus_the_claim_cannot_have_is_left_out() -> None:
    """The template's own selectors may forbid them."""
    at = cluster("n1", "n2")
    add(at, "a", 2, template="own")
    at.settle()
    first = at.plan("a")
    assert first is not None
    at.refuse_everywhere("a")
    at.settle()
    after = at.plan("a")
    assert after is not None
    assert {first.node, after.node} == {"n1", "n2"}
    assert at.run_scheduler("a")


def test_each_node_that_refuses_the_pod_is_left_out_though_kube_scheduler_repeats_itself() -> None:
    at = cluster("n1", "n2", "n3")
    add(at, "a", 2)
    at.settle()
    tried = at.places("a")
    for _ in range(2):
        at.refuse_everywhere("a", keeps_nomination=True)
        at.settle()
        tried += at.places("a")
    assert sorted(tried) == ["n1", "n2", "n3"]
    assert at.run_scheduler("a")


def test_only_a_new_plan_of_a_pod_without_the_gate_removes_what_kube_scheduler_said() -> None:
    """A gated pod's condition says that it is gated; a nomination is renewed for a plan that
    kube-scheduler may have judged."""
    at = cluster("n1", "n2")
    add(at, "a", 2)
    other = Condition(type="Other", status="True")
    gated = Condition(type="PodScheduled", status="False", reason="SchedulingGated")
    pod = at.pod("a")
    at.put_pod(change(pod, status=change(pod.status, conditions=(other, gated))))
    at.settle()
    assert at.pod("a").status.conditions == (other, gated)
    at.refuse_everywhere("a")
    pod = at.pod("a")
    at.put_pod(change(pod, status=change(pod.status, conditions=(other, *pod.status.conditions))))
    (plan,) = [action for action in at.settle() if isinstance(action, WritePlan)]
    assert plan.unsays
    assert at.pod("a").status.conditions == (other,)
    pod = at.pod("a")
    at.put_pod(change(pod, status=change(pod.status, nominated_node_name="")))
    at.now += 60
    (renewed,) = [action for action in at.settle() if isinstance(action, WritePlan)]
    assert (renewed.node, renewed.again, renewed.unsays) == (plan.node, True, False)


def test_a_round_at_once_follows_a_plan_on_which_a_claim_waits() -> None:
    at = cluster("n1", "n2")
    add(at, "a", 2)
    at.settle()
    assert not at.core.any_urgent()
    at.core._planner.claim_changed(at.pod("a").metadata.uid)
    assert at.core.any_urgent()


def test_a_new_leader_learns_from_what_kube_scheduler_said_before() -> None:
    at = cluster("n1", "n2")
    add(at, "a", 2)
    at.settle()
    first = at.places("a")
    at.refuse_everywhere("a")
    at.restart()
    at.settle()
    assert at.places("a") != first
    assert at.run_scheduler("a")


def test_plans_without_an_election_differ_from_each_other_also_after_one_with() -> None:
    at = cluster("n1", "n2", "n3")
    at.core.lead(1, at.now)
    add(at, "a", 2)
    at.settle()
    tried = at.places("a")
    at.restart()
    for _ in range(2):
        at.refuse_everywhere("a")
        at.settle()
        tried += at.places("a")
    assert sorted(tried) == ["n1", "n2", "n3"]
    assert at.run_scheduler("a")


def test_of_a_node_that_takes_one_member_alone_the_others_go_elsewhere() -> None:
    at = cluster("n1", "n2")
    add_gang(at, "g", 2, 4)
    at.settle()
    (node, _) = at.places("g-0", "g-1")
    assert at.places("g-1") == [node]
    assert at.run_scheduler("g-0")
    at.refuse_everywhere("g-1")
    at.settle()
    assert at.places("g-0", "g-1") == [node, "n1" if node == "n2" else "n2"]
    add(at, "alike", 4, gang="h", gang_size="1")  # of the same template
    at.settle()
    assert at.run_scheduler("alike")
    assert at.places("alike") == [node]


def test_a_gang_is_spread_if_no_node_takes_two_of_its_members() -> None:
    """kube-scheduler lets no member of a native gang go then, and says the same of each plan."""
    at = cluster("n1", "n2")
    add_gang(at, "g", 2, 4)
    for _ in range(8):
        at.settle()
        if len(set(at.places("g-0", "g-1"))) == 2:
            break
        at.refuse_everywhere("g-1", keeps_nomination=True)
    assert sorted(at.places("g-0", "g-1")) == ["n1", "n2"]
    assert at.run_scheduler("g-0")
    assert at.run_scheduler("g-1")


def test_what_kube_scheduler_said_before_it_allocated_the_claim_does_not_count() -> None:
    at = cluster("n1", "n2")
    add(at, "a", 8)
    at.settle()
    (node,) = at.places("a")
    at.allocate("a")
    at.refuse_everywhere("a", keeps_nomination=True)
    at.settle()
    assert at.places("a") == [node]
    assert at.core.counts(at.now).refusals == 0


def test_no_scheduler_has_to_call() -> None:
    at = cluster("n1", "n2")
    at.is_asked = False
    at.restart()
    add(at, "a", 2)
    at.settle()
    at.refuse_everywhere("a")
    at.settle()
    assert at.run_scheduler("a")


def test_a_claim_that_was_deleted_is_not_deleted_again() -> None:
    at = cluster("n1", "n2")
    add(at, "a", 2)
    at.settle()
    there = at.claims["ml", claim_name("a")]
    claimed.add_pod(at, "faster", at.places("a")[0], *range(8))
    at.settle()
    at.core.claim_event("MODIFIED", there, at.now)  # the watch is late
    at.settle()
    assert at.dropped == ["a"]


def to_claim(at: ClaimCluster) -> None:
    """Until a claim has been created; its gate is still there."""
    while not at.created:
        at.decide()


def test_a_copy_of_the_claim_under_another_name_changes_nothing() -> None:
    """`kubectl get -o yaml` has owner and edition, too."""
    at = cluster("n1")
    add(at, "a", 2)
    to_claim(at)
    there = at.claims["ml", claim_name("a")]
    at.put_claim(change(there, metadata=change(there.metadata, name="copy", uid="copy")))
    at.settle()
    assert at.gates("a") == []
    at.remove_claim("ml", "copy")
    at.settle()
    assert at.dropped == []
    assert at.run_scheduler("a")


def test_a_claim_of_the_last_process_does_not_pass_for_that_of_a_new_plan() -> None:
    """Without an election, both count their plans alike. The last one withdrawn the plan, and died
    before it could delete the claim."""
    at = cluster("n1")
    add(at, "a", 8)
    to_claim(at)
    at.cordon("n1")
    for action in at.core.decide(at.now):
        if isinstance(action, WithdrawPlan):
            at.carry_out(action)
    claimed.add_node(at, "n2")
    at.restart()
    at.settle()
    assert at.dropped == ["a"]
    assert at.created["a"].gpus == at.gpus("a")
    assert at.run_scheduler("a") == claimed.uuids(at, "n2")


def test_a_gpu_that_the_driver_does_not_publish_is_not_planned() -> None:
    at = cluster("n1")
    claimed.publish(at, claimed.slice_of("n1", claimed.uuids(at, "n1")[:7]))
    add(at, "a", 8)
    at.settle()
    assert at.places("a") == [""]
    assert at.free("n1") == 7


def test_each_claim_that_is_outdated_is_deleted() -> None:
    at = cluster("n1", "n2", "n3")
    add(at, "a", 8)
    at.settle()
    for name in ("faster", "fastest"):
        claimed.add_pod(at, name, at.places("a")[0], 0)
        at.settle()
    assert at.dropped == ["a", "a"]
    assert len(at.run_scheduler("a")) == 8


def test_pods_whose_claims_come_of_other_templates_differ() -> None:
    """What one template's selectors forbid, another's may allow."""
    at = cluster("n1", "n2")
    add(at, "a", 2, template="forbids")
    at.settle()
    (first,) = at.places("a")
    at.refuse_everywhere("a")
    at.settle()
    assert at.places("a") != [first]
    add(at, "b", 2, template="forbids")
    add(at, "c", 2, template="allows")
    at.settle()
    assert at.places("b") == at.places("a")
    records = {record.ref.name: record for record in at.core.snapshot(at.now).pods}
    assert records["a"].template is records["b"].template is not records["c"].template


def test_the_plan_stays_on_the_pod_until_its_claim_is_gone() -> None:
    """Else a pod whose claim is allocated meanwhile would be bound without its plan."""
    at = cluster("n1", "n2")
    add(at, "a", 8)
    at.settle()
    claimed.add_pod(at, "faster", at.places("a")[0], 0)
    kinds = [type(action).__name__ for action in at.settle()]
    assert kinds == ["DropClaim", "WritePlan", "CreateClaim"]
    at.delete("faster")
    claimed.add_pod(at, "again", at.places("a")[0], 0)
    claimed.add_pod(at, "everywhere", "n1" if at.places("a") == ["n2"] else "n2", 1)
    kinds = [type(action).__name__ for action in at.settle()]
    assert [kind for kind in kinds if kind != "NoteQueue"] == ["DropClaim", "WithdrawPlan"]


def test_a_member_whose_claim_is_allocated_keeps_its_plan_when_another_is_refused() -> None:
    at = cluster("n1", "n2", "n3")
    add_gang(at, "g", 2, 8)
    at.settle()
    first = at.places("g-0", "g-1")
    assert at.allocate("g-0")
    at.refuse_everywhere("g-1")
    at.settle()
    assert at.dropped == ["g-1"]
    assert at.places("g-0", "g-1") == [first[0], "n3"]
    at.bind_allocated("g-0")
    assert at.run_scheduler("g-1")
    assert at.phase("g") == "running"
    assert at.sound()


def test_what_a_gang_lacks_that_keeps_gpus_is_not_reserved_for_others() -> None:
    """Else both would wait for each other, until the gang's timeout."""
    at = cluster("n1")
    add_gang(at, "g", 2, 4)
    at.settle()
    assert at.run_scheduler("g-0")
    claimed.add_pod(at, "faster", "n1", at.indices("g-1")[0])
    at.settle()
    at.add_pod("ahead", gates=[names.GATE], alter=with_claim("ahead", 8, ""), priority=1)
    at.settle()
    at.delete("faster")
    claimed.drop_claim(at, "faster-gpus")
    at.settle()
    assert at.run_scheduler("g-1")
    assert at.phase("g") == "running"


def test_pods_that_wait_are_planned_once_the_driver_is_back() -> None:
    at = cluster("n1")
    (there,) = at.slices.values()
    claimed.withdraw(at, there.metadata.name)
    add(at, "a", 2)
    at.settle()
    assert at.places("a") == [""]
    claimed.publish(at, there)
    at.settle()
    assert at.places("a") == ["n1"]


def half_allocated() -> ClaimCluster:
    """kube-scheduler has allocated the claim of one member, and has not bound it yet, when somebody
    else takes a GPU of the other."""
    at = cluster("n1", "n2")
    add_gang(at, "g", 2, 8)
    at.settle()
    second = at.places("g-1")[0]
    at.allocate("g-0")
    claimed.add_pod(at, "faster", second, 0)
    at.settle()
    return at


def test_a_plan_stays_if_the_extender_does_not_know_yet_that_its_claim_is_allocated() -> None:
    at = cluster("n1")
    add(at, "a", 2)
    at.settle()
    with patch.object(at, "claim_event"):
        at.allocate("a")
    at.cordon("n1")
    at.settle()
    assert at.places("a") == ["n1"]


def test_such_a_plan_stays_while_the_driver_is_away() -> None:
    at = cluster("n1")
    add(at, "a", 2)
    at.settle()
    at.allocate("a")
    claimed.withdraw(at, *at.slices)
    at.settle()
    assert at.places("a") == ["n1"]


def test_half_a_gang_gives_its_gpus_back_after_the_timeout() -> None:
    at = half_allocated()
    bound = at.pod("g-0")
    at.put_bound(change(bound, spec=change(bound.spec, node_name="n1")))
    at.settle()
    at.pass_time(601)
    assert at.evicted == ["g-0"]


def test_a_plan_is_withdrawn_if_kube_scheduler_takes_the_allocation_back() -> None:
    at = half_allocated()
    at.cordon("n1")
    at.settle()
    assert at.places("g-0") == ["n1"]
    at.deallocate(at.pod("g-0"))
    at.settle()
    assert at.places("g-0") == [""]


def test_a_single_pod_whose_claim_is_allocated_takes_nothing_elsewhere() -> None:
    at = cluster("n1", "n2")
    add(at, "a", 8)
    at.settle()
    (node,) = at.places("a")
    at.allocate("a")
    at.cordon(node)
    at.settle()
    assert at.places("a") == [node]
    assert sorted((at.free("n1"), at.free("n2"))) == [0, 8]


def test_of_too_many_members_those_stay_whose_claims_are_allocated() -> None:
    at = cluster("n1", "n2", "n3")
    add_gang(at, "g", 3, 8)
    at.settle()
    at.allocate("g-2")
    at.settle()
    for name in ("g-0", "g-1", "g-2"):
        pod = at.pod(name)
        said = {**pod.metadata.annotations, names.GANG_SIZE: "2"}
        at.put_pod(change(pod, metadata=change(pod.metadata, annotations=said)))
    at.settle()
    assert at.dropped == ["g-1"]
    assert [bool(node) for node in at.places("g-0", "g-1", "g-2")] == [True, False, True]


def hold_back(at: ClaimCluster, unheard: list[ResourceClaim]) -> AbstractContextManager[object]:
    """The watch shows no claim that the extender creates."""
    show = at.core.claim_event

    def tell(kind: str, claim: ResourceClaim, now: float) -> None:
        if claim.metadata.name.startswith("linkwise-"):
            unheard.append(claim)
        else:
            show(kind, claim, now)

    return patch.object(at.core, "claim_event", tell)


def test_a_plan_stays_while_the_watch_does_not_show_the_claim_that_was_created_for_it() -> None:
    """kube-scheduler may have allocated it, and the pod may be bound: without its plan, nothing
    would say which GPUs are whose."""
    at = cluster("n1", "n2")
    add(at, "a", 8)
    unheard: list[ResourceClaim] = []
    with hold_back(at, unheard):
        at.settle()
        claimed.add_pod(at, "faster", at.places("a")[0], 0)
        kinds = [type(action).__name__ for action in at.settle()]
        assert "a" in at.created
        assert "WritePlan" not in kinds
    at.put_claim(unheard[0])
    kinds = [type(action).__name__ for action in at.settle()]
    assert kinds == ["DropClaim", "WritePlan", "CreateClaim", "LiftGate"]


def test_a_claim_that_no_watch_ever_shows_keeps_no_plan() -> None:
    at = cluster("n1", "n2")
    add(at, "a", 8)
    with hold_back(at, []):
        at.settle()
        first = at.places("a")
        claimed.add_pod(at, "faster", first[0], 0)
        at.settle()
        at.now += 2 * SETTLE_SECONDS
        kinds = [type(action).__name__ for action in at.settle()]
    assert kinds[0] == "WritePlan"
    assert at.places("a") != first


def test_a_claim_of_which_the_creation_got_no_answer_may_be_there() -> None:
    at = cluster("n1", "n2")
    add(at, "a", 8)
    at.unanswered.add("a")
    with hold_back(at, []):
        at.settle()
        first = at.places("a")
        claimed.add_pod(at, "faster", first[0], 0)
        at.settle()
        assert at.places("a") == first
        ends = at.now + 2 * SETTLE_SECONDS
        while (due := at.core.next_due()) is not None and due <= ends:
            at.now = max(due, at.now)
            at.settle()
    assert at.places("a") != first


def test_a_container_that_has_the_gpus_of_its_claims_request_has_what_was_planned() -> None:
    """The plan is by request, and the kubelet lists containers."""
    at = cluster("n1")
    add(at, "a", 2)
    at.settle()
    assert at.run_scheduler("a")
    planned = at.gpus("a")
    at.start("a", {"trainer": planned["main"]})
    at.settle()
    assert at.gpus("a") == planned
    assert at.sound()


def test_what_the_kubelet_lists_beyond_the_plan_is_what_the_pod_has() -> None:
    at = cluster("n1")
    add(at, "a", 2)
    at.settle()
    assert at.run_scheduler("a")
    uuids = claimed.uuids(at, "n1")
    other = next(uuid for uuid in uuids if uuid not in at.gpus("a")["main"])
    at.start("a", {"trainer": (other,)})
    at.settle()
    found = at.core.explain("ml", "a", at.now)
    assert found is not None
    assert found.gpus == {"trainer": (other,)}
