"""A more important gang evicts less important ones: whole, the fewest, and only if it then fits."""

from datetime import UTC, datetime

import pytest

from linkwise.extender.next.core_settings import Preempt
from linkwise.extender.next.gangs.members import LONGEST_SECONDS
from linkwise.extender.next.preemption.disruption_budgets import _Budget
from linkwise.extender.next.preemption.gang_preemption import (
    PLANNED_SECONDS,
    ROBBED_SECONDS,
    SPARED_SECONDS,
)
from linkwise.extender.next.queue.run_times import STUCK_SECONDS
from linkwise.extender.state.actions import Emit, EventType, Evict
from linkwise.extender.state.cache.pending_writes import LOST_SECONDS
from linkwise.extender.state.extender_calls import Outcome
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.kube.objects import Condition, LabelSelector, Pod, Requirement
from tests.extender.cluster import Cluster, change
from tests.extender.next.preemption.victims import RACK, add_gang, budget, cluster, label, run


def run_gang(
    at: Cluster, name: str, size: int, gpus: int = 8, *, priority: int = 0, **words: str
) -> list[str]:
    members = add_gang(at, name, size, gpus, priority=priority, preemptible="true", **words)
    for member in members:
        assert at.schedule(member), member
    at.settle()
    assert at.phase(name) == "running"
    return members


def bury(at: Cluster) -> None:
    """The kubelets have ended all that is terminating."""
    for pod in list(at.pods.values()):
        if pod.is_leaving:
            at.delete(pod.metadata.name)
    at.settle()


def never_ends(pod: Pod) -> Pod:
    return change(pod, spec=change(pod.spec, restart_policy="Always"))


def test_a_more_important_gang_gets_the_place_of_a_less_important_one() -> None:
    at = cluster()
    run_gang(at, "humble", 2)
    add_gang(at, "urgent", 2, priority=1)
    assert sorted(at.evicted) == ["humble-0", "humble-1"]
    assert at.phase("urgent") == "forming"  # their GPUs are theirs until they are gone
    bury(at)
    assert at.phase("urgent") == "planned"
    assert at.sound()


def test_each_victim_is_told_for_whom_once() -> None:
    at = cluster()
    run_gang(at, "humble", 2)
    add_gang(at, "urgent", 2, priority=1)
    at.pass_time(20)
    said = [(event.pod.name, event.message) for event in at.events if event.reason == "Preempted"]
    assert said == [
        ("humble-0", "evicted to make room for gang ml/urgent, which is more important")
    ]


@pytest.mark.parametrize(("priority", "consents"), [(0, "true"), (-1, "true"), (1, "false")])
def test_nobody_is_evicted_who_is_not_less_important_or_does_not_consent(
    priority: int, consents: str
) -> None:
    at = cluster(nodes=1)
    run(at, "humble", 8, "n1", preemptible=consents)
    add_gang(at, "urgent", 1, priority=priority)
    at.pass_time(60)
    assert at.evicted == []


def test_whoever_is_less_important_is_evicted_where_that_is_set() -> None:
    at = cluster(nodes=1, who=Preempt.LOWER_PRIORITY)
    run(at, "humble", 8, "n1", preemptible="false")
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == ["humble"]


def test_nobody_is_evicted_where_that_is_set() -> None:
    at = cluster(nodes=1, who=Preempt.NEVER)
    run(at, "humble", 8, "n1")
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == []


def test_nobody_is_evicted_for_a_gang_that_preempts_never() -> None:
    at = cluster(nodes=1)
    run(at, "humble", 8, "n1")
    at.add_pod(
        "urgent",
        8,
        priority=1,
        alter=lambda pod: change(pod, spec=change(pod.spec, preemption_policy="Never")),
        gang="urgent",
        gang_size="1",
    )
    at.settle()
    assert at.evicted == []


def test_nobody_is_evicted_in_vain() -> None:
    at = cluster()
    run(at, "humble", 8, "n1")
    run(at, "equal", 8, "n2", priority=1)
    add_gang(at, "urgent", 2, priority=1)
    assert at.evicted == []


def test_nobody_is_evicted_for_what_is_about_to_be_free_anyhow() -> None:
    at = cluster()
    run(at, "humble", 8, "n1")
    run(at, "leaving", 8, "n2", priority=5)
    at.terminate("leaving")
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == []
    bury(at)
    assert at.phase("urgent") == "planned"


def test_the_fewest_gangs_are_evicted_then_the_least_important_then_the_youngest() -> None:
    at = cluster(nodes=4)
    run(at, "half-a", 4, "n1")
    run(at, "half-b", 4, "n1")
    run(at, "whole-important", 8, "n2", priority=1)
    run(at, "whole-old", 8, "n3")
    run(at, "whole-young", 8, "n4")
    add_gang(at, "first", 1, priority=2)
    assert at.evicted == ["whole-young"]
    bury(at)
    at.schedule("first-0")
    at.settle()
    add_gang(at, "second", 1, priority=2)
    assert at.evicted == ["whole-young", "whole-old"]


def test_free_nodes_are_taken_before_anybody_is_evicted() -> None:
    """HiveD's g1/case8: locality is no reason to evict."""
    at = cluster(nodes=4, racks=2)
    for name, node in (("a", "n1"), ("b", "n2"), ("c", "n3")):
        at.add_pod(name, 5, priority=1, preemptible="true")
        at.bind(name, node)
    at.settle()
    at.delete("b")
    add_gang(at, "d", 2, priority=2, prefer_span=RACK)
    assert at.evicted == []
    assert [plan.node for plan in map(at.plan, ("d-0", "d-1")) if plan] == ["n2", "n4"]


def test_where_a_span_is_required_the_cheapest_domain_is_emptied() -> None:
    """HiveD's g1/case7."""
    at = cluster(nodes=4, racks=2)
    for name, node in (("a", "n1"), ("b", "n2"), ("c", "n3")):
        at.add_pod(name, 5, priority=1, preemptible="true")
        at.bind(name, node)
    at.settle()
    at.delete("b")
    add_gang(at, "d", 2, priority=2, require_span=RACK)
    bury(at)
    assert len(at.evicted) == 1
    places = sorted(plan.node for plan in map(at.plan, ("d-0", "d-1")) if plan)
    assert (at.evicted[0], places) in [("a", ["n1", "n2"]), ("c", ["n3", "n4"])]


def test_if_one_member_is_a_victim_its_whole_gang_is() -> None:
    at = cluster(nodes=3)
    run_gang(at, "humble", 3)
    add_gang(at, "urgent", 1, priority=1)
    assert sorted(at.evicted) == ["humble-0", "humble-1", "humble-2"]


def test_a_gang_gives_up_members_that_it_can_spare_and_runs_on() -> None:
    at = cluster(nodes=3)
    run_gang(at, "humble", 3, gang_min="1")
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == ["humble-2"]
    bury(at)
    assert at.phase("urgent") == "planned"


def test_a_member_that_has_succeeded_counts_for_the_minimum() -> None:
    at = cluster(nodes=3)
    run_gang(at, "humble", 3, gang_min="2")
    at.set_phase("humble-0", "Succeeded")
    at.add_pod("other", 8)
    assert at.schedule("other") == "n1"
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == ["humble-2"]


def test_the_member_that_needs_most_others_says_how_many_there_are_to_spare() -> None:
    at = cluster(nodes=3)
    run_gang(at, "humble", 3, gang_min="1")
    at.annotate("humble-2", gang_min="3")  # as a worker says that starts after its leader
    add_gang(at, "urgent", 1, priority=1)
    assert sorted(at.evicted) == ["humble-0", "humble-1", "humble-2"]


def test_a_gang_with_one_member_that_does_not_consent_is_spared() -> None:
    at = cluster(nodes=2)
    run_gang(at, "humble", 2)
    at.annotate("humble-1", preemptible="false")
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == []


def test_what_comes_free_is_held_and_nobody_else_gets_it() -> None:
    at = cluster()
    run_gang(at, "humble", 2)
    add_gang(at, "urgent", 2, priority=1)
    at.delete("humble-0")
    at.settle()
    at.add_pod("other", 1, priority=0)
    held = {"linkwise: reserved for gang ml/urgent", "linkwise: fewer free GPUs than wanted"}
    assert set(at.filter("other").failed.values()) == held
    at.delete("humble-1")
    at.settle()
    assert at.phase("urgent") == "planned"


def test_a_victim_made_again_queues_by_its_age_and_takes_nothing_from_who_evicted_it() -> None:
    at = cluster()
    run_gang(at, "humble", 2)
    add_gang(at, "later", 2)
    add_gang(at, "urgent", 2, priority=1)
    bury(at)
    add_gang(at, "humble", 2, preemptible="true")
    assert at.phase("urgent") == "planned"
    for member in ("urgent-0", "urgent-1"):
        at.schedule(member)
        at.settle()
    assert at.evicted == ["humble-0", "humble-1"]
    for member in ("urgent-0", "urgent-1"):
        at.delete(member)
    at.settle()
    assert (at.phase("humble"), at.phase("later")) == ("planned", "forming")


def test_a_more_urgent_gang_that_gets_the_victims_gpus_delays_no_other_eviction() -> None:
    """It takes them by a plan that is not on the API server yet."""
    at = cluster()
    run_gang(at, "one", 2, 4)
    run_gang(at, "other", 2, 4)
    add_gang(at, "important", 2, 4, priority=1)
    first = sorted(at.evicted)
    assert len(first) == 2
    add_gang(at, "urgent", 2, 4, priority=2)
    bury(at)
    assert at.phase("urgent") == "planned"
    at.pass_time(60)
    assert sorted(at.evicted) == ["one-0", "one-1", "other-0", "other-1"]


def test_evicting_ends_when_the_gang_goes_away() -> None:
    at = cluster()
    run_gang(at, "humble", 2)
    at.add_pod("urgent-0", 8, priority=1, gang="urgent", gang_size="2")
    at.add_pod("urgent-1", 8, priority=1, gang="urgent", gang_size="2")
    actions = at.core.decide(at.now)
    evictions = [action for action in actions if isinstance(action, Evict)]
    assert len(evictions) == 2
    at.core.done(evictions[0], Outcome.UNKNOWN, at.now)
    at.core.done(evictions[1], Outcome.UNKNOWN, at.now)
    at.delete("urgent-0")
    at.pass_time(120)
    assert at.evicted == []
    assert at.core.reservations.all() == []


def test_a_budget_that_forbids_the_cheapest_leads_to_the_next() -> None:
    at = cluster()
    run(at, "old", 8, "n1")
    run(at, "young", 8, "n2")
    label(at, "young", app="guarded")
    at.budgets = [budget(0, app="guarded")]
    at.core.replace_budgets(at.budgets, at.now)
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == ["old"]


def looks_at_budgets(monkeypatch: pytest.MonkeyPatch) -> list[_Budget]:
    """One entry for each comparison of a pod with a budget from now on."""
    looks: list[_Budget] = []
    covers = _Budget.covers

    def counted(each: _Budget, pod: PodRecord) -> bool:
        looks.append(each)
        return covers(each, pod)

    monkeypatch.setattr(_Budget, "covers", counted)
    return looks


def test_the_budgets_of_other_tenants_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    at = cluster()
    run(at, "humble", 8, "n1")
    run(at, "other", 8, "n2")
    label(at, "other", app="guarded")
    mine = budget(0, app="guarded")
    theirs = [
        change(mine, metadata=change(mine.metadata, name=f"b{number}", namespace="hostile"))
        for number in range(100)
    ]
    at.core.replace_budgets([mine, *theirs[:50]], at.now)
    for each in theirs[50:]:
        at.core.budget_event("ADDED", each, at.now)
    looks = looks_at_budgets(monkeypatch)
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == ["humble"]
    assert 0 < len(looks) < 50
    for each in theirs:
        at.core.budget_event("DELETED", each, at.now)
    assert {namespace for namespace, _ in at.core._budgets._budgets} == {"ml"}


@pytest.mark.parametrize("operator", ["In", "Exists"])
def test_a_pod_beside_thousands_of_its_tenants_budgets_is_not_compared_with_them(
    monkeypatch: pytest.MonkeyPatch, operator: str
) -> None:
    """Nor evicted: two budgets would be enough for that."""
    at = cluster()
    run(at, "humble", 8, "n1")
    run(at, "guarded", 8, "n2")
    label(at, "guarded", app="guarded")
    values = ("guarded",) if operator == "In" else ()
    several = LabelSelector(
        match_expressions=(
            Requirement("app", operator, values),
            Requirement("none", "In", ("there", "is")),
        )
    )
    for number in range(1000):
        one = budget(0)
        spec = change(one.spec, selector=several)
        meta = change(one.metadata, name=f"b{number}")
        at.core.budget_event("ADDED", change(one, metadata=meta, spec=spec), at.now)
    label(at, "humble", app="other")
    looks = looks_at_budgets(monkeypatch)
    add_gang(at, "urgent", 1, priority=1)
    assert looks == []
    assert at.evicted == (["humble"] if operator == "In" else [])


def test_of_a_gang_no_member_is_evicted_where_a_budget_allows_only_some() -> None:
    at = cluster()
    for member in run_gang(at, "humble", 2):
        label(at, member, app="guarded")
    at.core.replace_budgets([budget(1, app="guarded")], at.now)
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == []
    at.core.budget_event("MODIFIED", budget(2, app="guarded"), at.now)
    at.pass_time(30)
    assert sorted(at.evicted) == ["humble-0", "humble-1"]


def test_nobody_is_evicted_before_the_budgets_are_known() -> None:
    at = cluster(nodes=1)
    run(at, "humble", 8, "n1")
    at.core = type(at.core)(at.settings)
    at.core.replace_nodes(at.nodes.values(), at.now)
    at.core.replace_pods(at.pods.values(), at.now)
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == []
    at.core.replace_budgets([], at.now)
    at.pass_time(30)
    assert at.evicted == ["humble"]


def test_who_may_not_be_evicted_after_all_is_left_alone_and_others_are() -> None:
    at = cluster()
    run(at, "old", 8, "n1")
    run(at, "young", 8, "n2")
    at.add_pod("urgent-0", 8, priority=1, gang="urgent", gang_size="1")
    (eviction,) = [each for each in at.core.decide(at.now) if isinstance(each, Evict)]
    assert eviction.pod.name == "young"
    at.core.done(eviction, Outcome.REFUSED, at.now)
    at.settle()
    assert at.evicted == ["old"]
    bury(at)
    assert at.phase("urgent") == "planned"


def test_a_pod_behind_the_gate_preempts_whole_gangs_too() -> None:
    at = cluster(nodes=2)
    run_gang(at, "humble", 2)
    at.add_pod("urgent", 8, priority=1, gates=["linkwise.dev/plan"])
    at.settle()
    assert sorted(at.evicted) == ["humble-0", "humble-1"]
    bury(at)
    assert at.gates("urgent") == []


def test_for_a_single_pod_that_kube_scheduler_has_it_evicts_itself() -> None:
    at = cluster(nodes=2)
    run_gang(at, "humble", 2)
    told = Condition(
        "PodScheduled",
        "False",
        "Unschedulable",
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
    )
    pod = at.add_pod("urgent", 8, priority=1)
    at.put_pod(change(pod, status=change(pod.status, conditions=(told,))))
    at.settle()
    at.pass_time(60)
    assert at.evicted == []


@pytest.mark.parametrize("is_new", [False, True])
def test_nobody_is_evicted_beside_a_pod_that_says_it_has_a_claim(is_new: bool) -> None:
    """Found: its GPUs counted as those of a pod that has ended, so they were to come free."""
    at = cluster(nodes=1)
    run(at, "liar", 4, "n1", priority=2)
    run(at, "humble", 4, "n1")
    at.start("liar")
    at.annotate("liar", claims="{")
    if is_new:
        at.restart()
    add_gang(at, "urgent", 1, priority=1)
    at.pass_time(600)
    assert at.evicted == []
    assert at.sound()


def test_victims_are_sought_again_once_the_gang_needs_less() -> None:
    """Though no other pod has come or gone."""
    at = cluster(nodes=2)
    run(at, "humble", 8, "n1")
    run(at, "stays", 8, "n2", preemptible="false")
    members = add_gang(at, "urgent", 2, priority=1)
    at.pass_time(600)
    assert at.evicted == []
    for member in members:
        at.annotate(member, gang_min="1")
    at.pass_time(600)
    assert at.evicted == ["humble"]


def test_a_restart_amid_preemption_evicts_nobody_twice_and_nobody_else() -> None:
    at = cluster(nodes=3)
    run_gang(at, "humble", 2)
    run(at, "other", 8, "n3")
    add_gang(at, "urgent", 2, priority=1)
    evicted = list(at.evicted)
    at.restart()
    at.settle()
    at.pass_time(30)
    assert at.evicted == evicted
    bury(at)
    assert at.phase("urgent") == "planned"


def test_the_query_names_the_victims() -> None:
    at = cluster()
    run_gang(at, "humble", 2)
    add_gang(at, "urgent", 2, priority=1)
    reservation = at.core.reservations.of(GangKey("ml", "urgent"))
    assert reservation is not None
    assert reservation.by_preemption


# What goes wrong.


def quiet(at: Cluster, seconds: float) -> int:
    """Let time go on as a shell does where nothing happens: how often it had something decided."""
    decided, until = 0, at.now + seconds
    while at.now < until:
        due = at.core.next_due()
        at.now = until if due is None else min(max(due, at.now + 0.05), until)
        at.settle()
        decided += 1
    return decided


def test_one_refused_eviction_does_not_end_preemption() -> None:
    """Found on a quiet cluster: nothing changed, so the extender never chose victims again."""
    at = cluster(nodes=1)
    run(at, "humble", 8, "n1")
    at.spared.add("humble")
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == []
    at.spared.clear()
    quiet(at, SPARED_SECONDS + 15)
    assert at.evicted == ["humble"]


def test_who_is_spared_is_not_said_to_be_evicted() -> None:
    at = cluster(nodes=2)
    run(at, "spared", 8, "n1")
    run(at, "humble", 8, "n2", priority=1)
    at.spared.add("spared")
    add_gang(at, "urgent", 1, priority=2)
    at.pass_time(SPARED_SECONDS)
    assert at.evicted == ["humble"]
    assert [each.pod.name for each in at.events if each.reason == "Preempted"] == ["humble"]


@pytest.mark.parametrize("is_gone_before", [False, True])
def test_of_an_eviction_whose_answer_was_lost_the_event_tells_too(is_gone_before: bool) -> None:
    at = cluster(nodes=1)
    run(at, "humble", 8, "n1")
    at.add_pod("urgent", 8, priority=1, said={"gang": "urgent", "gang_size": "1", "rank": "0"})
    (eviction,) = (each for each in at.core.decide(at.now) if isinstance(each, Evict))
    if is_gone_before:
        at.delete("humble")
    else:
        at.terminate("humble")
    at.core.done(eviction, Outcome.UNKNOWN, at.now)
    at.settle()
    at.pass_time(1.0)
    if not is_gone_before:
        at.delete("humble")
        at.settle()
    told = [event.message for event in at.events if event.reason == "Preempted"]
    assert told == ["evicted to make room for gang ml/urgent, which is more important"]


def test_an_eviction_without_an_answer_is_not_told_while_the_pod_runs_on() -> None:
    at = cluster(nodes=1)
    run(at, "humble", 8, "n1")
    at.add_pod("urgent", 8, priority=1, said={"gang": "urgent", "gang_size": "1", "rank": "0"})
    (eviction,) = (each for each in at.core.decide(at.now) if isinstance(each, Evict))
    at.core.done(eviction, Outcome.UNKNOWN, at.now)
    other = Emit(eviction.pod, "Other", EventType.WARNING, "about the same pod")
    at.core.done(other, Outcome.DONE, at.now)
    at.delete("urgent")
    at.settle()
    at.pass_time(LOST_SECONDS)
    at.delete("humble")  # by its owner
    at.settle()
    assert [event.reason for event in at.events if event.reason == "Preempted"] == []


def test_who_is_refused_again_and_again_is_asked_about_ever_more_seldom() -> None:
    at = cluster(nodes=1)
    run(at, "humble", 8, "n1")
    at.spared.add("humble")
    add_gang(at, "urgent", 1, priority=1)
    quiet(at, 600)
    at.spared.clear()
    quiet(at, 620)
    assert at.evicted == ["humble"]


def test_a_pod_that_is_stuck_in_terminating_blocks_no_preemption() -> None:
    """Its GPUs would do, so no other pod was ever evicted."""
    at = cluster(nodes=2)
    run(at, "stuck", 8, "n1")
    run(at, "humble", 8, "n2")
    at.terminate("stuck")
    add_gang(at, "urgent", 1, priority=1)
    quiet(at, STUCK_SECONDS / 2)
    assert at.evicted == [], "it may be about to go"
    quiet(at, STUCK_SECONDS)
    assert at.evicted == ["humble"]
    at.delete("humble")
    at.settle()
    assert at.plan("urgent-0") is not None


def test_where_a_victim_gets_stuck_others_are_evicted() -> None:
    at = cluster(nodes=2)
    run(at, "young", 8, "n1")
    run(at, "younger", 8, "n2")
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == ["younger"]
    quiet(at, STUCK_SECONDS + 30)
    assert at.evicted == ["younger", "young"]


@pytest.mark.parametrize("graces", [(4.0, 9.0), (9.0, 4.0)])
def test_others_are_evicted_as_soon_as_the_first_of_several_victims_is_stuck(
    graces: tuple[float, float],
) -> None:
    at = cluster(nodes=3)
    for name, node in (("old", "n1"), ("young", "n2"), ("younger", "n3")):
        run(at, name, 8, node)
    add_gang(at, "urgent", 2, priority=1)
    assert sorted(at.evicted) == ["young", "younger"]
    for name, grace in zip(("young", "younger"), graces, strict=True):
        pod, ends = at.pod(name), datetime.fromtimestamp(at.now + grace, UTC)
        at.put_pod(change(pod, metadata=change(pod.metadata, deletion_timestamp=ends)))
    began = at.now
    while "old" not in at.evicted:
        due = at.core.next_due()
        assert due is not None
        at.now = max(due, at.now + 0.05)
        assert at.now <= began + min(graces) + STUCK_SECONDS
        at.settle()


def run_by_others(at: Cluster, name: str, node: str) -> None:
    """A pod that another scheduler has bound."""
    at.add_pod(name, 8, node=node, preemptible="true")
    at.settle()
    at.now += 1


def test_others_are_evicted_at_once_where_the_stuck_victim_is_another_schedulers() -> None:
    """It has not taken the GPUs of a victim: it is one."""
    at = cluster(nodes=2)
    run(at, "young", 8, "n1")
    run_by_others(at, "younger", "n2")
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == ["younger"]
    quiet(at, STUCK_SECONDS + 30)
    assert at.evicted == ["younger", "young"]


def test_others_are_evicted_at_once_where_another_schedulers_pod_gets_stuck_as_it_leaves() -> None:
    at = cluster(nodes=3)
    run_by_others(at, "leaving", "n1")
    at.terminate("leaving")
    for name, node in (("young", "n2"), ("younger", "n3")):
        run(at, name, 8, node)
    add_gang(at, "urgent", 2, priority=1)
    assert at.evicted == ["younger"]
    at.delete("younger")
    at.settle()
    quiet(at, STUCK_SECONDS + 30)
    assert at.evicted == ["younger", "young"]


def test_a_gang_does_not_rest_for_a_victim_of_another_scheduler_that_has_yet_to_go() -> None:
    at = cluster(nodes=3)
    run(at, "other", 8, "n3")
    run_by_others(at, "humble", "n2")
    for rank in range(2):
        words = {"gang": "urgent", "gang_size": "2", "rank": str(rank)}
        at.add_pod(f"urgent-{rank}", 8, priority=1, said=words)
    evictions = [each for each in at.core.decide(at.now) if isinstance(each, Evict)]
    assert [each.pod.name for each in evictions] == ["humble"]  # beside n1, which is free
    at.add_pod("more-urgent", 8, priority=2)
    at.bind("more-urgent", "n1")
    at.settle()
    assert at.evicted == ["other"]


def test_others_are_evicted_beside_one_that_leaves_by_itself() -> None:
    """Found: each alone was not enough; that one began to leave did not change the search."""
    at = cluster(nodes=2)
    run(at, "young", 8, "n1")
    run(at, "steady", 8, "n2", preemptible="false")
    add_gang(at, "urgent", 2, priority=1)
    quiet(at, 60)
    assert at.evicted == []
    at.terminate("steady")
    quiet(at, 30)
    assert at.evicted == ["young"]


def test_of_many_gangs_with_members_to_spare_as_many_go_as_it_takes() -> None:
    """Found: too many to try all sets of them, node by node, it tripped over those to spare."""
    at = cluster(nodes=14)
    for number in range(14):
        run_gang(at, f"g{number}", 2, gpus=4, gang_min="1")
    add_gang(at, "urgent", 13, priority=1)
    assert at.core.take_defects() == []
    assert {name.split("-")[1] for name in at.evicted} == {"0", "1"}
    bury(at)
    assert at.phase("urgent") == "planned"


def test_what_was_kept_beside_a_victim_that_gets_stuck_is_still_its_gangs() -> None:
    """Found: for a minute no other pod was evicted, as the node that was free looked taken."""
    at = cluster(nodes=3)
    for name, node in (("young", "n1"), ("younger", "n2")):
        run(at, name, 8, node)
    add_gang(at, "urgent", 2, priority=1)
    assert at.evicted == ["younger"]
    quiet(at, STUCK_SECONDS + 30)
    assert at.evicted == ["younger", "young"]


def test_gpus_that_the_node_of_a_victim_does_not_give_back_are_not_waited_for_for_ever() -> None:
    at = cluster(nodes=2)
    for name, node in (("young", "n1"), ("younger", "n2")):
        run(at, name, 8, node)
        at.start(name)
    add_gang(at, "urgent", 1, priority=1)
    at.delete("younger")  # and its node's plugin is away
    quiet(at, STUCK_SECONDS + 30)
    assert at.evicted == ["younger", "young"]


def test_nobody_else_is_chosen_while_victims_give_their_gpus_back_in_time() -> None:
    at = cluster(nodes=2)
    for name, node in (("young", "n1"), ("younger", "n2")):
        run(at, name, 8, node)
        at.start(name)
    add_gang(at, "urgent", 1, priority=1)
    quiet(at, 30)
    at.delete("younger")
    quiet(at, 20)
    at.stop("younger", "n2")
    at.settle()
    assert at.evicted == ["younger"]
    assert at.phase("urgent") == "planned"


def test_while_victims_terminate_next_to_nothing_is_decided() -> None:
    """Found: 20 times a second for the whole grace period."""
    at = cluster(nodes=1)
    run(at, "humble", 8, "n1")
    add_gang(at, "urgent", 1, priority=1)
    pod = at.pod("humble")
    ends = datetime.fromtimestamp(at.now + 600, UTC)
    at.put_pod(change(pod, metadata=change(pod.metadata, deletion_timestamp=ends)))
    assert quiet(at, 300) <= 60
    assert at.core.reservations.of(GangKey("ml", "urgent")) is not None


def test_a_member_that_came_late_is_planned_once_its_gang_is_not_evicted_after_all() -> None:
    """Found waiting beside free GPUs."""
    at = cluster(nodes=2)
    said = {"gang": "humble", "gang_size": "2", "gang_min": "1", "preemptible": "true"}
    at.add_pod("server", 4, alter=never_ends)
    at.bind("server", "n2")
    at.add_pod("humble-0", 8, said=said)
    at.settle()
    at.pass_time(LONGEST_SECONDS)
    assert at.schedule("humble-0") == "n1"
    at.settle()
    at.add_pod("urgent-0", 8, priority=1, gang="urgent", gang_size="1")
    (eviction,) = [each for each in at.core.decide(at.now) if isinstance(each, Evict)]
    at.add_pod("humble-1", 4, said=said)
    at.core.decide(at.now)  # its gang is about to be evicted: it gets nothing new
    assert at.core.audit() == []
    at.core.done(eviction, Outcome.REFUSED, at.now)
    at.settle()
    assert at.schedule("humble-1") == "n2"


def test_who_was_only_planned_when_room_was_sought_is_a_victim_once_bound() -> None:
    """Found on a quiet cluster: a Binding changes nothing of what is free."""
    at = cluster(nodes=1)
    at.add_pod("humble", 8, preemptible="true", gates=["linkwise.dev/plan"])
    at.settle()
    add_gang(at, "urgent", 1, priority=1)
    assert at.evicted == []
    at.pass_time(20)  # its plan is not withdrawn yet
    assert at.schedule("humble") == "n1"
    quiet(at, 60)
    assert at.evicted == ["humble"]


def test_a_gang_whose_victims_gpus_others_take_rests_twice_as_long_each_time_up_to_an_hour() -> (
    None
):
    """Nothing keeps another scheduler from it, so each eviction would only cost one more pod."""
    at = cluster(nodes=1)
    run(at, "victim-0", 8, "n1")
    add_gang(at, "urgent", 1, priority=1)
    rests = []
    for turn in range(7):
        assert at.evicted == [f"victim-{number}" for number in range(turn + 1)]
        at.delete(at.evicted[-1])
        thief = at.add_pod(f"victim-{turn + 1}", 8, node="n1", preemptible="true").metadata
        at.set_in_use("n1", {thief.uid: {"main": at.uuids("n1", *range(8))}})
        began = at.now
        at.settle()
        while thief.name not in at.evicted:
            due = at.core.next_due()
            assert due is not None, "the gang would wait without another look"
            assert at.now < began + 4000
            at.now = max(due, at.now + 0.05)
            at.settle()
        rests.append(at.now - began)
    assert rests == [300, 600, 1200, 2400, 3600, 3600, 3600]


def refuse_planned(at: Cluster, name: str, other: str) -> None:
    """kube-scheduler's own filters refuse its node, and let another pod go there."""
    bury(at)
    [node] = at.places(name)
    assert node
    at.filter(name, sorted(at.nodes.keys() - {node}))
    at.settle()
    run(at, other, 8, node)
    at.settle()


def test_a_gang_that_is_refused_where_others_were_evicted_rests_before_more_are() -> None:
    at = cluster(nodes=2)
    for number in range(1, 3):
        run(at, f"humble-{number}", 8, f"n{number}")
    add_gang(at, "urgent", 1, priority=1)
    for turn in range(8):
        assert len(at.evicted) == turn + 1
        refuse_planned(at, "urgent-0", f"again-{turn}")
        rest = min(PLANNED_SECONDS * 2**turn, 3600)
        at.pass_time(rest - 10)
        assert len(at.evicted) == turn + 1
        at.pass_time(15)
    bury(at)
    assert at.schedule("urgent-0")
    at.settle()
    assert at.core._planner.rests.until(GangKey("ml", "urgent")) == 0.0


def test_a_gang_that_lost_a_member_meanwhile_does_not_rest() -> None:
    at = cluster(nodes=2)
    for number in range(1, 3):
        run(at, f"humble-{number}", 8, f"n{number}")
    add_gang(at, "urgent", 2, priority=1)
    assert sorted(at.evicted) == ["humble-1", "humble-2"]
    at.delete("urgent-0")
    bury(at)
    run(at, "again", 8, "n1")
    words = {"gang": "urgent", "gang_size": "2", "rank": "0"}
    at.add_pod("urgent-0", 8, priority=1, said=words)
    at.settle()
    at.pass_time(10)
    assert "again" in at.evicted


def test_a_gang_that_is_robbed_after_a_refusal_rests_as_long_as_any_that_is_robbed() -> None:
    at = cluster(nodes=1)
    run(at, "humble", 8, "n1")
    add_gang(at, "urgent", 1, priority=1)
    refuse_planned(at, "urgent-0", "again")
    at.pass_time(PLANNED_SECONDS + 1)
    assert at.evicted == ["humble", "again"]
    at.delete("again")
    thief = at.add_pod("thief", 8, node="n1", preemptible="true").metadata
    at.set_in_use("n1", {thief.uid: {"main": at.uuids("n1", *range(8))}})
    at.settle()
    at.pass_time(ROBBED_SECONDS - 10)
    assert "thief" not in at.evicted
    at.pass_time(20)
    assert "thief" in at.evicted
