"""Idle pods that consent make room for those that wait: announced, whole, and only if it helps."""

from collections.abc import Iterable

import pytest

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.extender.next.preemption.gang_preemption import PLANNED_SECONDS, SPARED_SECONDS
from linkwise.extender.state.actions import Evict
from linkwise.extender.state.extender_calls import Outcome
from linkwise.kube.objects import (
    Condition,
    Pod,
)
from linkwise.topology import names
from linkwise.topology.annotations.activity import Activity, PodActivity, write_activity
from tests.extender.cluster import START, Cluster, change
from tests.extender.next.preemption.idle_for import (
    FOUR_HOURS,
    HOUR,
    LONG_AGO,
    NOTICE,
    cluster,
    idle_for,
    run,
    run_gang,
    say,
    wait,
)
from tests.extender.next.preemption.victims import budget


def ripen(at: Cluster, *pods: str, works: Iterable[str] = ()) -> None:
    """They are idle for five hours, and the notice of an hour at most is over."""
    idle_for(at, 5 * HOUR, *pods, works=works)
    idle_for(at, HOUR, *pods, works=works)


def bury(at: Cluster) -> None:
    for pod in list(at.pods.values()):
        if pod.is_leaving:
            at.delete(pod.metadata.name)
            at.stop(pod.metadata.name, pod.spec.node_name)
    at.settle()


def events(at: Cluster, reason: str) -> list[tuple[str, str]]:
    return [(each.pod.name, each.message) for each in at.events if each.reason == reason]


def announced(at: Cluster) -> list[str]:
    return [name for name, _ in events(at, "WillBeReclaimed")]


def test_an_idle_pod_is_announced_then_evicted_for_a_gang_that_waits() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    members = wait(at, "train", 2, 4)
    idle_for(at, 4 * HOUR - 20, "nb")
    assert (announced(at), at.evicted) == ([], [])
    idle_for(at, 20, "nb")
    assert (announced(at), at.evicted) == (["nb"], [])
    idle_for(at, NOTICE - 11, "nb")
    assert at.evicted == []
    at.pass_time(20)
    assert at.evicted == ["nb"]
    bury(at)
    assert [at.schedule(member) for member in members] == ["n1", "n1"]
    assert at.sound()


def test_the_event_says_since_when_from_when_on_and_what_prevents_it() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    idle_for(at, 4 * HOUR, "nb")
    ((_, text),) = events(at, "WillBeReclaimed")
    assert text == (
        "no GPU of this pod has worked since 1970-01-12 13:46 UTC: from 1970-01-12 17:56 UTC on, "
        "it is evicted if a waiting gang or pod of the same or a higher priority can start in its "
        "place. Work on a GPU prevents that, and so does the annotation "
        'linkwise.dev/reclaim-when-idle: "never"'
    )


def test_the_eviction_has_an_event_that_names_for_whom() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train")
    ripen(at, "nb")
    assert at.evicted == ["nb"]
    assert events(at, "Reclaimed") == [
        (
            "nb",
            "evicted to make room for gang ml/train: no GPU has worked since 1970-01-12 13:46 UTC",
        )
    ]
    assert events(at, "Preempted") == []


def test_it_is_announced_once_for_as_long_as_it_is_idle() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    for _ in range(30):
        idle_for(at, HOUR, "nb")
    assert announced(at) == ["nb"]


def test_nobody_is_evicted_while_nobody_waits_for_it() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    ripen(at, "nb")
    wait(at, "too-large", 2)
    at.pass_time(60)
    assert at.evicted == []


@pytest.mark.parametrize("said", [{}, {"reclaim-when-idle": "never"}, {"preemptible": "true"}])
def test_a_pod_that_does_not_consent_stays(said: dict[str, str]) -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=said)
    wait(at, "train")
    ripen(at, "nb")
    assert (announced(at), at.evicted) == ([], [])


def test_a_pod_may_consent_and_withdraw_while_it_runs() -> None:
    at = cluster()
    run(at, "nb", 8, "n1")
    ripen(at, "nb")
    at.annotate("nb", reclaim_when_idle="4h")
    at.pass_time(10)
    assert announced(at) == ["nb"]
    at.annotate("nb", reclaim_when_idle="never")
    wait(at, "train")
    idle_for(at, HOUR, "nb")
    assert at.evicted == []


def test_a_wrong_value_on_a_running_pod_is_no_consent() -> None:
    settings = CoreSettings(reclaim_idle=(("ml", 4 * HOUR),))
    at = cluster(settings=settings)
    run(at, "nb", 8, "n1")
    at.annotate("nb", reclaim_when_idle="nevr")
    wait(at, "train")
    ripen(at, "nb")
    assert at.evicted == []


def test_the_operator_says_it_for_a_namespace_and_a_pod_says_it_better() -> None:
    at = cluster(
        3,
        CoreSettings(
            reclaim_idle=(
                ("ml", 4 * HOUR),
                ("other", 1.0),
            )
        ),
    )
    run(at, "by-namespace", 8, "n1")
    run(at, "longer", 8, "n2", said={"reclaim-when-idle": "48h"})
    run(at, "never", 8, "n3", said={"reclaim-when-idle": "never"})
    for name in ("first", "second", "third"):
        wait(at, name)
    ripen(at, "by-namespace", "longer", "never")
    assert (announced(at), at.evicted) == (["by-namespace"], ["by-namespace"])


def test_the_notice_is_the_operators() -> None:
    at = cluster(settings=CoreSettings(reclaim_notice_seconds=60.0))
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train")
    idle_for(at, 4 * HOUR, "nb")
    idle_for(at, 60, "nb")
    assert at.evicted == ["nb"]


def test_a_pod_whose_plugin_fell_silent_stays() -> None:
    """Found: a pod that had worked for an hour was evicted for what its plugin said before."""
    at = cluster()
    run(at, "nb", 8, "n1", said={"reclaim-when-idle": "10m"})
    wait(at, "train")
    at.pass_time(600)
    say(at, ["nb"], age=0.0)
    for _ in range(6 * 60):
        at.pass_time(10)
    assert at.evicted == []


def test_a_pod_that_wakes_up_after_the_event_stays_and_is_announced_again() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train")
    idle_for(at, 4 * HOUR, "nb")
    at.now += NOTICE - 20
    say(at, [], ["nb"])
    at.settle()
    at.pass_time(60)
    assert at.evicted == []
    woke = int(at.now)
    text = PodActivity(since=int(START), whole=True, idle=woke)
    at.now += 5 * HOUR
    said = Activity(at=int(at.now - LONG_AGO), pods={"ml/nb": text})
    at.annotate_node("n1", names.ACTIVITY, write_activity(said))
    at.settle()
    assert (announced(at), at.evicted) == (["nb", "nb"], [])


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.UNKNOWN])
def test_a_pod_that_woke_up_while_its_eviction_failed_stays(outcome: Outcome) -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train")
    idle_for(at, 5 * HOUR, "nb")
    at.now += NOTICE
    say(at, ["nb"])
    (eviction,) = (action for action in at.core.decide(at.now) if isinstance(action, Evict))
    at.core.done(eviction, outcome, at.now)
    say(at, [], ["nb"])
    at.pass_time(2 * SPARED_SECONDS)
    assert at.evicted == []
    assert not any(each.by_preemption for each in at.core.reservations.all())


def test_what_the_plugin_may_keep_back_counts_as_work() -> None:
    """A minute after a node wrote, a pod may work there without a word: it writes seldom."""
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train")
    ripen_without = 5 * HOUR
    idle_for(at, ripen_without, "nb")
    at.now += NOTICE
    say(at, ["nb"], age=60)
    at.settle()
    at.pass_time(20)
    assert at.evicted == []
    at.pass_time(240)
    assert at.evicted == []
    at.pass_time(20)
    assert at.evicted == ["nb"]


def test_what_was_written_just_now_is_known() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train")
    idle_for(at, 5 * HOUR, "nb")
    at.now += NOTICE
    say(at, ["nb"], age=5)
    at.settle()
    assert at.evicted == ["nb"]


@pytest.mark.parametrize("text", [None, "{}", '{"v":2}'])
def test_what_is_unknown_counts_as_work(text: str | None) -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train")
    idle_for(at, 5 * HOUR, "nb")
    at.annotate_node("n1", names.ACTIVITY, text)
    at.pass_time(HOUR)
    assert at.evicted == []


def test_a_plugin_that_is_silent_for_too_long_is_not_believed() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    idle_for(at, 5 * HOUR, "nb")
    at.pass_time(2 * HOUR)
    wait(at, "train")
    at.pass_time(60)
    assert at.evicted == []


@pytest.mark.parametrize(("priority", "evicted"), [(0, ["nb"]), (1, ["nb"]), (-1, [])])
def test_nobody_goes_for_a_less_important_one(priority: int, evicted: list[str]) -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train", priority=priority)
    ripen(at, "nb")
    assert at.evicted == evicted


def never_preempts(pod: Pod) -> Pod:
    return change(pod, spec=change(pod.spec, preemption_policy="Never"))


def test_nobody_goes_for_a_gang_that_preempts_never() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    at.add_pod("train", 8, alter=never_preempts, gang="train", gang_size="1")
    ripen(at, "nb")
    assert at.evicted == []


def test_a_gang_goes_whole_once_all_its_members_are_idle_and_consent() -> None:
    at = cluster(2)
    lazy = run_gang(at, "lazy", 2, reclaim_when_idle="4h")
    wait(at, "train")
    ripen(at, lazy[0], works=[lazy[1]])
    assert (announced(at), at.evicted) == ([], [])
    at.annotate(lazy[1], reclaim_when_idle="never")
    ripen(at, *lazy)
    assert (announced(at), at.evicted) == ([], [])
    at.annotate(lazy[1], reclaim_when_idle="7h")
    ripen(at, *lazy)
    assert (announced(at), sorted(at.evicted)) == ([lazy[0]], lazy)
    (text,) = {text for _, text in events(at, "WillBeReclaimed")}
    assert text.startswith("no GPU of gang ml/lazy has worked since ")


def test_no_member_of_an_elastic_gang_goes_alone() -> None:
    at = cluster(2)
    lazy = run_gang(at, "lazy", 2, gang_min="1", reclaim_when_idle="4h")
    wait(at, "train")
    ripen(at, lazy[1], works=[lazy[0]])
    assert at.evicted == []
    ripen(at, *lazy)
    assert sorted(at.evicted) == lazy


def test_the_fewest_go_then_the_least_important_then_those_that_are_idle_for_longest() -> None:
    at = cluster(5)
    run(at, "half-a", 4, "n1", said=FOUR_HOURS)
    run(at, "half-b", 4, "n1", said=FOUR_HOURS)
    run(at, "important", 8, "n2", priority=1, said=FOUR_HOURS)
    at.now += 60
    run(at, "long", 8, "n3", said=FOUR_HOURS)
    at.now += 60
    run(at, "short", 8, "n4", said=FOUR_HOURS)
    run(at, "works", 8, "n5", said=FOUR_HOURS)
    idle = ("half-a", "half-b", "important", "long", "short")
    ripen(at, *idle, works=["works"])
    for name in ("first", "second", "third", "fourth", "fifth"):
        wait(at, name, priority=1)
        at.pass_time(11)
    assert at.evicted == ["long", "short", "important", "half-a", "half-b"]


def test_idle_pods_go_alone_if_they_are_enough_and_else_before_pods_that_work() -> None:
    at = cluster(3)
    run(at, "half-a", 4, "n1", priority=1, said=FOUR_HOURS)
    run(at, "half-b", 4, "n1", priority=1, said=FOUR_HOURS)
    run(at, "cheap", 8, "n2", said={"preemptible": "true"})
    run(at, "dear", 8, "n3", said={"preemptible": "true"}, priority=1)
    ripen(at, "half-a", "half-b", works=["cheap", "dear"])
    wait(at, "small", priority=2)
    assert sorted(at.evicted) == ["half-a", "half-b"]
    bury(at)
    assert at.schedule("small-0")


def test_idle_pods_and_pods_that_work_go_together_if_neither_are_enough() -> None:
    at = cluster(3)
    run(at, "nb", 8, "n1", priority=2, said=FOUR_HOURS)
    run(at, "cheap", 8, "n2", said={"preemptible": "true"})
    run(at, "dear", 8, "n3", said={"preemptible": "true"}, priority=1)
    ripen(at, "nb", works=["cheap", "dear"])
    wait(at, "large", 2, priority=2)
    assert sorted(at.evicted) == ["cheap", "nb"]
    assert [name for name, _ in events(at, "Preempted")] == ["cheap"]


@pytest.mark.parametrize("preempt", [*Preempt])
def test_it_does_not_depend_on_whom_more_important_gangs_may_evict(preempt: Preempt) -> None:
    at = cluster(2, CoreSettings(preempt=preempt))
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    run(at, "job", 8, "n2", said={"preemptible": "true"})
    wait(at, "train")
    ripen(at, "nb", works=["job"])
    assert at.evicted == ["nb"]
    bury(at)
    assert at.schedule("train-0") == "n1"
    assert at.sound()


def test_where_no_gang_evicts_no_pod_that_works_goes_with_idle_ones() -> None:
    at = cluster(2, CoreSettings(preempt=Preempt.NEVER))
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    run(at, "job", 8, "n2", said={"preemptible": "true"})
    wait(at, "large", 2, priority=1)
    ripen(at, "nb", works=["job"])
    assert at.evicted == []


def test_a_single_pod_without_the_gate_gets_the_place_too() -> None:
    """kube-scheduler evicts for it, but only pods that are less important."""
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    at.add_pod("job", 8)
    assert not at.schedule("job")
    pod = at.pod("job")
    refused = Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    )
    at.put_pod(change(pod, status=change(pod.status, conditions=(refused,))))
    at.settle()
    ripen(at, "nb")
    assert at.evicted == ["nb"]
    bury(at)
    assert at.schedule("job") == "n1"


def test_a_single_pod_behind_the_gate_gets_the_place_too() -> None:
    at = cluster()
    run(at, "nb", 1, "n1", said=FOUR_HOURS)
    run(at, "rest", 7, "n1")
    at.add_pod("job", 1, gates=[names.GATE])
    ripen(at, "nb", works=["rest"])
    assert at.evicted == ["nb"]
    bury(at)
    assert at.schedule("job") == "n1"


def test_the_gpus_are_reserved_for_whom_the_pod_went() -> None:
    """The idle gang is created again, and would be the oldest; another pod comes by."""
    at = cluster(2)
    lazy = run_gang(at, "lazy", 2, reclaim_when_idle="4h")
    at.now += 60
    members = wait(at, "train", 2)
    ripen(at, *lazy)
    assert sorted(at.evicted) == lazy
    at.add_pod("passer-by", 8)
    assert not at.schedule("passer-by")
    for name in lazy:
        at.delete(name)
    at.add_gang("lazy", 2, 8, reclaim_when_idle="4h")
    for node in ("n1", "n2"):
        at.set_in_use(node, {})
    at.settle()
    assert not at.schedule("passer-by")
    assert [at.schedule(member) for member in members] == ["n1", "n2"]


def test_a_budget_keeps_an_idle_pod_and_another_one_goes() -> None:
    at = cluster(2)
    at.budgets = [budget(0, app="nb")]
    at.core.replace_budgets(at.budgets, at.now)
    run(at, "kept", 8, "n1", said=FOUR_HOURS)
    pod = at.pod("kept")
    at.put_pod(change(pod, metadata=change(pod.metadata, labels={"app": "nb"})))
    at.now += 60
    run(at, "other", 8, "n2", said=FOUR_HOURS)
    wait(at, "train")
    ripen(at, "kept", "other")
    assert at.evicted == ["other"]


def test_a_refused_eviction_leaves_that_pod_alone_and_another_one_goes() -> None:
    at = cluster(2)
    run(at, "refused", 8, "n1", said=FOUR_HOURS)
    at.now += 60
    run(at, "other", 8, "n2", said=FOUR_HOURS)
    at.spared = {"refused"}
    wait(at, "train")
    ripen(at, "refused", "other")
    at.pass_time(11)
    assert at.evicted == ["other"]


def test_what_has_room_needs_no_eviction() -> None:
    at = cluster(2)
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    ripen(at, "nb")
    wait(at, "train")
    assert at.evicted == []
    assert at.schedule("train-0") == "n2"


def test_an_extender_that_takes_over_announces_again_and_waits_again() -> None:
    at = cluster()
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train")
    idle_for(at, 5 * HOUR, "nb")
    at.now += NOTICE - 10
    at.restart()
    at.settle()
    say(at, ["nb"])
    at.pass_time(20)
    assert (announced(at), at.evicted) == (["nb", "nb"], [])
    idle_for(at, NOTICE, "nb")
    assert at.evicted == ["nb"]


def test_a_pod_outside_the_canary_stays() -> None:
    at = cluster(settings=CoreSettings(namespaces=("canary",), reclaim_idle=(("ml", HOUR),)))
    at.add_pod("nb", 8, node="n1", said=FOUR_HOURS)
    ripen(at, "nb")
    assert announced(at) == []


def test_without_consent_there_is_nothing_to_do_and_nothing_due() -> None:
    at = cluster()
    run(at, "nb", 8, "n1")
    ripen(at, "nb")
    due = at.core.next_due()
    assert due is None or due >= at.now + HOUR


def test_with_consent_the_core_comes_to_rest_between_two_looks() -> None:
    at = cluster(settings=CoreSettings(preempt=Preempt.NEVER))
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "too-large", 2)
    ripen(at, "nb")
    assert at.is_at_rest()
    say(at, [], ["nb"])
    at.annotate("nb", reclaim_when_idle="never")
    at.pass_time(30)
    assert at.is_at_rest()


def test_a_gang_that_rests_while_nothing_may_be_evicted_any_more_is_no_work() -> None:
    at = cluster(settings=CoreSettings(preempt=Preempt.NEVER))
    run(at, "nb", 8, "n1", said=FOUR_HOURS)
    wait(at, "train")
    ripen(at, "nb")
    bury(at)
    assert at.places("train-0") == ["n1"]
    at.filter("train-0", [])  # kube-scheduler's own filters refuse the node
    at.cordon("n1")
    at.settle()
    at.pass_time(2 * PLANNED_SECONDS)
    assert at.is_at_rest()
