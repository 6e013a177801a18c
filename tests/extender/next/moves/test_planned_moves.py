"""Pods that consent move, so that a gang or pod that waits fits: planned, whole, and worth it."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves, Preempt
from linkwise.extender.next.moves.planned_moves import TRY_SECONDS
from linkwise.extender.next.moves.targets import COME_SECONDS
from linkwise.extender.next.preemption.gang_preemption import PLANNED_SECONDS
from linkwise.extender.state.actions import Evict, NoteQueue
from linkwise.extender.state.extender_calls import Outcome
from linkwise.extender.state.records import read_queue_note
from linkwise.kube.labels import LWS
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.meanwhile import Meanwhile
from tests.extender.next.moves.movers import (
    COUNTS,
    HOUR,
    IGNORES,
    MOVABLE,
    NEVER_TRUE,
    bury,
    cluster,
    fails_on,
    owned_by,
    recreated,
    run,
    scattered,
    until_it_evicts,
    waits,
)
from tests.extender.next.preemption.victims import budget


def test_a_pod_moves_and_the_one_that_waits_gets_its_node() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    assert at.evicted == ["web"]
    recreated(at, "web", "web-2")
    assert (at.schedule("web-2"), at.schedule("big")) == ("n2", "n1")
    assert at.sound()


def test_nothing_moves_before_the_operator_says_so() -> None:
    at = cluster(Moves.NEVER)
    scattered(at)
    waits(at)
    assert at.evicted == []


@pytest.mark.parametrize("said", [{"movable": "false"}, {"move_cost": "10h"}])
def test_nothing_moves_without_consent_or_at_too_high_a_cost(said: dict[str, str]) -> None:
    at = cluster()
    scattered(at, **said)
    waits(at)
    assert at.evicted == []


def test_a_namespace_may_consent_for_its_pods() -> None:
    at = Cluster(settings=CoreSettings(moves=MovePolicy(Moves.CONSENT, namespaces=(("ml", 0.0),))))
    at.add_node("n1")
    at.add_node("n2")
    run(at, "web", 4, "n1")
    run(at, "stays", 4, "n2", said={"movable": "false"})
    at.pass_time(5 * HOUR)
    waits(at)
    assert at.evicted == ["web"]


@pytest.mark.parametrize(
    ("kind", "rules", "moves"),
    [
        ("ReplicaSet", [], True),
        ("StatefulSet", [], True),
        ("DaemonSet", [], False),
        ("Unknown", [], False),
        ("Job", [IGNORES], True),
        ("Job", [COUNTS, IGNORES], True),
        ("Job", [{**IGNORES, "action": "Count"}, IGNORES], False),
        ("Job", [{"action": "FailJob", "onPodConditions": [NEVER_TRUE]}, IGNORES], True),
        ("Job", [{"action": "Ignore", "onPodConditions": [NEVER_TRUE]}], False),
        ("Job", [fails_on("NotIn", 42), IGNORES], False),
        ("Job", [fails_on("In", 42, 143), IGNORES], False),
        ("Job", [fails_on("NotIn", 137, 143), IGNORES], True),
        ("Job", [], False),
    ],
)
def test_only_what_is_made_anew_moves(kind: str, rules: list[object], moves: bool) -> None:
    at = cluster()
    assert at.owners is not None
    at.owners[ObjectRef("batch", "Job", "ml", "owner-of-web")] = {
        "metadata": {"uid": "uid-of-owner-of-web"},
        "spec": {"podFailurePolicy": {"rules": rules}},
    }
    scattered(at, kind=kind)
    waits(at)
    assert at.evicted == (["web"] if moves else [])


@pytest.mark.parametrize(("index", "moves"), [("0", True), ("1", False)])
@pytest.mark.parametrize("said", [MOVABLE, {}])
def test_workers_stay_whose_stateful_set_goes_with_their_leader(
    index: str, moves: bool, said: dict[str, str]
) -> None:
    at = Cluster(settings=CoreSettings(moves=MovePolicy(Moves.CONSENT, namespaces=(("ml", 0.0),))))
    at.add_node("n1")
    at.add_node("n2")
    labels = {f"{LWS}worker-index": index}
    run(at, "web", 4, "n1", kind="StatefulSet", said=said, labels=labels)
    run(at, "stays", 4, "n2", said={"movable": "false"})
    at.pass_time(5 * HOUR)
    waits(at)
    assert at.evicted == (["web"] if moves else [])


def test_a_pod_that_waits_for_less_than_a_move_costs_moves_nobody() -> None:
    at = cluster()
    scattered(at)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.pass_time(590)
    assert at.evicted == []
    at.pass_time(20)
    assert at.evicted == ["web"]


def test_moves_are_sought_soon_if_one_that_was_to_end_does_not() -> None:
    """Though nothing else has changed. It is expected to run as long as those before it."""
    at = cluster()
    for minutes, pods in ((5, ("a", "b", "c", "d")), (15, ("e", "f", "g"))):
        for number, name in enumerate(pods):
            run(at, name, 4, f"n{number % 2 + 1}")
        at.pass_time(5 * HOUR + minutes * 60)
        for name in pods:
            bury(at, name)
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "stays", 4, "n2")
    at.pass_time(5 * HOUR)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.pass_time(14 * 60)
    assert at.evicted == []
    at.pass_time(2 * TRY_SECONDS)
    assert at.evicted == ["web"]


def only_on(pod: Pod, node: str) -> Pod:
    return change(pod, spec=change(pod.spec, node_selector={"kubernetes.io/hostname": node}))


def test_moves_are_sought_at_once_for_one_that_has_got_its_reservation() -> None:
    """Until then it was not among the first."""
    at = Cluster(CoreSettings(moves=MovePolicy(Moves.CONSENT), reserve_share=0.34))
    for node in ("n1", "n2", "n3"):
        at.add_node(node)
    scattered(at)
    run(at, "holds", 8, "n3")
    at.add_pod("first", 8, gates=[names.GATE], alter=lambda pod: only_on(pod, "n3"))
    at.pass_time(1)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.pass_time(2 * HOUR)
    assert not at.core.snapshot(at.now).moves_under_way
    at.delete("first")
    at.settle()
    assert at.core.snapshot(at.now).moves_under_way


def test_nothing_moves_for_less_important_work() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE, priority=10)
    run(at, "stays", 4, "n2")
    at.pass_time(5 * HOUR)
    waits(at, priority=9)
    assert at.evicted == []


def test_a_budget_protects_a_pod() -> None:
    at = cluster()
    at.budgets = [budget(0, app="owner-of-web")]
    at.restart()
    scattered(at)
    waits(at)
    at.pass_time(TRY_SECONDS)
    assert at.evicted == []
    at.core.replace_budgets([budget(1, app="owner-of-web")], at.now)
    at.pass_time(2 * TRY_SECONDS)
    assert at.evicted == ["web"]


def test_nobody_is_evicted_who_has_no_other_place() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "stays", 5, "n2")
    at.pass_time(5 * HOUR)
    waits(at, gpus=7)
    assert at.evicted == []


def test_the_target_is_kept_from_the_eviction_on() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    at.add_pod("greedy", 4)
    at.settle()
    assert at.schedule("greedy") == ""
    recreated(at, "web", "web-2")
    assert (at.schedule("web-2"), at.schedule("big"), at.schedule("greedy")) == ("n2", "n1", "")


def test_a_target_that_nobody_comes_for_is_given_back() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    bury(at, "web")
    assert at.schedule("big") == "n1"
    at.add_pod("other", 4)
    at.settle()
    assert at.schedule("other") == ""
    assert at.now + COME_SECONDS in [*at.core._agenda.times()]
    at.pass_time(COME_SECONDS)
    assert at.schedule("other") == "n2"


def test_one_that_asks_for_something_else_is_not_taken_for_the_new_pod() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    recreated(at, "web", "web-2", gpus=2)
    assert at.schedule("web-2") == ""
    at.pass_time(COME_SECONDS)
    assert at.schedule("web-2") == "n2"


def test_if_the_eviction_is_refused_and_nobody_waits_any_more_the_target_is_free() -> None:
    at = cluster()
    at.spared.add("web")
    scattered(at)
    waits(at)
    at.add_pod("other", 4)
    at.settle()
    assert at.schedule("other") == ""
    at.delete("big")
    at.settle()
    assert at.evicted == []
    assert at.schedule("other") in ("n1", "n2")


def test_a_pod_moves_once_a_day_at_most() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    recreated(at, "web", "web-2")
    assert (at.schedule("web-2"), at.schedule("big")) == ("n2", "n1")
    at.start("web-2")
    at.set_phase("web-2", "Running")
    at.set_phase("big", "Succeeded")
    bury(at, "big")
    bury(at, "stays")
    run(at, "stays-too", 4, "n1")
    at.pass_time(12 * HOUR)
    waits(at, "next")
    assert at.evicted == ["web"]
    at.pass_time(13 * HOUR)
    assert at.evicted == ["web", "web-2"]


def test_the_events_say_for_whom_and_where_to() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    bury(at, "web")
    said = [(each.reason, each.pod.name, each.message) for each in at.events]
    why = "to make room for pod ml/big: this pod's next place is reserved on n2"
    assert ("Moved", "web", f"evicted {why}") in said
    assert ("OthersEvicted", "big", f"pod ml/web was evicted {why}") in said


def test_an_eviction_without_an_answer_is_tried_again() -> None:
    at = cluster()
    scattered(at)
    at.core.done(until_it_evicts(at), Outcome.UNKNOWN, at.now)
    at.pass_time(30)
    assert at.evicted == ["web"]


def test_the_target_stays_with_the_new_pod_if_that_changes_before_its_plan_is_shown() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    at.add_pod("web-2", 4, alter=owned_by("ReplicaSet", "owner-of-web"), said=MOVABLE)
    pod = at.pod("web-2")
    labels = {**pod.metadata.labels, "another": "label"}
    at.put_pod(change(pod, metadata=change(pod.metadata, labels=labels)))
    bury(at, "web")
    assert at.places("web-2") == ["n2"]
    at.schedule("web-2")
    at.pass_time(60)  # the note is written again
    assert not at.core._awaited


def test_a_new_pod_behind_another_gate_gets_the_target_only_once_that_is_gone() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    alter = owned_by("ReplicaSet", "owner-of-web")
    at.add_pod("web-2", 4, alter=alter, said=MOVABLE, gates=["example.com/wait"])
    bury(at, "web")
    assert at.places("web-2") == [""]
    at.lift("web-2", "example.com/wait")
    at.settle()
    assert at.places("web-2") == ["n2"]


def test_a_new_pod_that_stays_behind_another_gate_holds_no_gpus() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    alter = owned_by("ReplicaSet", "owner-of-web")
    at.add_pod("web-2", 4, alter=alter, said=MOVABLE, gates=["example.com/wait"])
    bury(at, "web")
    at.pass_time(COME_SECONDS)
    at.add_pod("other", 4)
    assert at.schedule("other") == "n2"


def waits_beside_another_node(at: Cluster) -> None:
    """Without moves, `big` is the next on n3; with them, it gets n1."""
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "stays", 4, "n2")
    run(at, "ends-1", 4, "n3", said={"expected_duration": "12h"})
    run(at, "ends-2", 4, "n3", said={"expected_duration": "12h"})
    at.pass_time(5 * HOUR)
    waits(at)


def is_reserved(at: Cluster, node: str) -> bool:
    """Whether no other pod gets GPUs that come free there."""
    bury(at, "ends-1")
    at.add_pod("other", 4)
    at.settle()
    return not at.filter("other", [node]).node_names


def test_if_the_eviction_is_refused_for_long_the_one_that_waits_has_its_old_turn_again() -> None:
    at = cluster(nodes=3)
    at.spared.add("web")
    waits_beside_another_node(at)
    at.pass_time(COME_SECONDS)
    at.pass_time(60)
    assert is_reserved(at, "n3")
    at.spared.clear()
    at.pass_time(HOUR)
    assert at.evicted == []


def test_if_the_pod_that_moves_does_not_end_the_one_that_waits_has_its_old_turn_again() -> None:
    at = cluster(nodes=3)
    waits_beside_another_node(at)
    assert at.evicted == ["web"]
    for _ in range(8):
        at.pass_time(HOUR / 2)
    assert is_reserved(at, "n3")


def test_nobody_is_evicted_once_the_room_is_lost_to_a_more_important_pod() -> None:
    at = cluster()
    at.spared.add("web")
    scattered(at)
    waits(at)
    at.add_pod("urgent", 4, priority=100)
    at.settle()
    assert at.schedule("urgent") == "n1"
    at.spared.clear()
    at.pass_time(60)
    assert at.evicted == []
    at.pass_time(HOUR)
    assert at.evicted == []


def test_while_a_pod_moves_nobody_is_preempted_as_well() -> None:
    at = Cluster(
        settings=CoreSettings(moves=MovePolicy(Moves.CONSENT), preempt=Preempt.LOWER_PRIORITY)
    )
    for node in ("n1", "n2", "n3"):
        at.add_node(node)
    for name, gpus, node, priority in [
        ("web", 4, "n1", 5),
        ("stays", 4, "n2", 5),
        ("less", 8, "n3", 0),
    ]:
        run(
            at,
            name,
            gpus,
            node,
            priority=priority,
            said=MOVABLE if name == "web" else {},
            server=True,
        )
    at.pass_time(5 * HOUR)
    at.add_pod("big", 8, gates=[names.GATE], priority=5)
    at.settle()
    assert at.evicted == ["web"]


def test_gpus_that_the_kubelet_still_lists_are_waited_for() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    at.delete("web")
    at.pass_time(30)
    at.stop("web", "n1")
    at.settle()
    assert at.places("big") == ["n1"]


def test_nothing_stays_reserved_or_awaited() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    recreated(at, "web", "web-2")
    at.delete("web-2")
    at.delete("big")
    at.settle()
    assert not at.core._cache._reserved
    assert not at.core._awaited


def test_the_plan_and_its_targets_stay_while_the_evictions_of_servers_are_on_their_way() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE, server=True)
    run(at, "stays", 4, "n2", server=True)
    at.pass_time(5 * HOUR)
    at.add_pod("big", 8, gates=[names.GATE])
    evicts = []
    for _ in range(5):
        actions = at.core.decide(at.now)
        evicts += [each for each in actions if isinstance(each, Evict)]
        for action in actions:
            if not isinstance(action, Evict):
                at.core.done(action, at.carry_out(action), at.now)
        at.now += 1
    [evict] = evicts
    at.core.done(evict, at.carry_out(evict), at.now)
    at.add_pod("other", 4)
    assert at.schedule("other") == ""
    recreated(at, "web", "web-2")
    assert at.places("web-2", "big") == ["n2", "n1"]


@pytest.mark.parametrize("server", [True, False])
def test_no_job_gets_the_room_because_it_would_end_before_the_pods_that_move(server: bool) -> None:
    at = cluster()
    at.spared.add("web")
    ends = {} if server else {"expected_duration": "30h"}
    run(at, "web", 4, "n1", said={**MOVABLE, **ends}, server=server)
    run(at, "stays", 4, "n2", server=True)
    at.pass_time(5 * HOUR)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.add_pod("short", 4, said={"expected_duration": "20h"})
    at.settle()
    assert at.schedule("short") == ""


def test_a_pod_that_was_evicted_keeps_its_target_before_the_watch_shows_that_it_leaves() -> None:
    at = cluster()
    scattered(at)
    at.core.done(until_it_evicts(at), Outcome.DONE, at.now)
    at.delete("big")
    at.settle()
    at.terminate("web")
    at.add_pod("other", 8)
    recreated(at, "web", "web-2")
    at.schedule("other")
    assert at.places("web-2") == ["n2"]


def test_one_that_a_budget_protects_does_not_keep_others_from_moving() -> None:
    at = cluster(nodes=3)
    at.budgets = [budget(0, app="owner-of-cheap")]
    at.restart()
    run(at, "cheap", 4, "n3", said={**MOVABLE, "move_cost": "1s"})
    scattered(at)
    waits(at)
    assert at.evicted == ["web"]


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.REFUSED])
def test_an_eviction_that_has_begun_keeps_its_target_if_nobody_waits_any_more(
    outcome: Outcome,
) -> None:
    at = cluster()
    scattered(at)
    evict = until_it_evicts(at)
    at.delete("big")
    at.settle()
    at.add_pod("other", 4)
    assert at.filter("other", ["n2"]).node_names == ()
    at.core.done(evict, outcome, at.now)
    at.settle()
    is_kept = at.filter("other", ["n2"]).node_names == ()
    assert is_kept == (outcome is Outcome.DONE)


def test_two_that_a_budget_protects_from_going_together_do_not_keep_others_from_moving() -> None:
    at = cluster(nodes=3)
    at.budgets = [budget(1, app="cheap")]
    at.restart()
    for name in ("cheap-1", "cheap-2"):
        at.add_pod(name, 2, alter=owned_by("ReplicaSet", "cheap"), said=MOVABLE, move_cost="1s")
        at.settle()
        at.filter(name, ["n3"])
        at.bind(name, "n3")
        at.start(name)
    scattered(at)
    waits(at)
    assert at.evicted == ["web"]


def test_pods_that_fit_nowhere_else_do_not_keep_others_from_moving() -> None:
    """Found: ten cheap ones took all searches of each try."""
    at = cluster(nodes=14)
    cheap = {**MOVABLE, "move_cost": "1s"}
    for number in range(3, 15):
        run(at, f"stuck-{number}", 1, f"n{number}", said=cheap, only_there=True)
    scattered(at)
    waits(at)
    at.pass_time(TRY_SECONDS)
    assert at.evicted == ["web"]


def test_the_target_is_kept_for_as_long_as_the_pod_takes_to_end() -> None:
    """A StatefulSet makes its new pod once the old one is gone."""
    at = cluster()
    scattered(at, kind="StatefulSet")
    waits(at)
    pod = at.pod("web")
    ends = datetime.fromtimestamp(at.now + 2 * COME_SECONDS, UTC)
    at.put_pod(change(pod, metadata=change(pod.metadata, deletion_timestamp=ends)))
    at.pass_time(1.5 * COME_SECONDS)
    at.add_pod("other", 4)
    at.settle()
    assert at.schedule("other") == ""
    bury(at, "web")
    at.add_pod("web", 4, alter=owned_by("StatefulSet", "owner-of-web"), said=MOVABLE)
    at.settle()
    assert at.schedule("web") == "n2"


def takes_an_hour(at: Cluster, name: str) -> None:
    pod = at.pod(name)
    ends = datetime.fromtimestamp(at.now + HOUR, UTC)
    at.put_pod(change(pod, metadata=change(pod.metadata, deletion_timestamp=ends)))


def test_a_pod_that_takes_its_time_keeps_both_places_only_while_one_waits_for_it() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    takes_an_hour(at, "web")
    at.delete("big")
    at.settle()
    at.add_pod("other", 4)
    assert at.filter("other", ["n2"]).node_names == ()
    at.pass_time(COME_SECONDS)
    assert at.filter("other", ["n2"]).node_names == ("n2",)


@pytest.mark.parametrize(("share", "moves"), [(0.25, True), (0.2, False)])
def test_a_namespace_keeps_no_more_places_for_its_pods_than_it_may_reserve(
    share: float, moves: bool
) -> None:
    at = Cluster(CoreSettings(moves=MovePolicy(Moves.CONSENT), reserve_share=share))
    at.add_node("n1")
    at.add_node("n2")
    scattered(at)
    waits(at)
    assert at.evicted == (["web"] if moves else [])


def test_each_pod_of_a_stateful_set_gets_its_own_target() -> None:
    """The volume of one may be where the other's is not."""
    at = cluster(nodes=3)
    alter = owned_by("StatefulSet", "db")
    for name in ("db-0", "db-1"):
        at.add_pod(name, 4, alter=alter, said=MOVABLE)
        at.settle()
        at.filter(name, ["n1"])
        at.bind(name, "n1")
        at.start(name)
    run(at, "stays", 4, "n2")
    run(at, "also-stays", 4, "n3")
    at.pass_time(5 * HOUR)
    waits(at)
    note = read_queue_note(at.pod("big").metadata.annotations[names.QUEUE])
    targets = {move.pod.removeprefix("ml/"): move.node for move in note.moves}
    assert sorted(targets.values()) == ["n2", "n3"]
    for name in ("db-0", "db-1"):
        bury(at, name)
    for name in ("db-1", "db-0"):
        at.add_pod(name, 4, alter=alter, said=MOVABLE)
        at.settle()
    assert dict(zip(targets, at.places(*targets), strict=True)) == targets


def test_a_pod_whose_target_could_not_be_noted_may_be_moved_once_it_can() -> None:
    at = cluster()
    scattered(at)
    carry_out = at.carry_out
    at.carry_out = lambda action: (  # type: ignore[method-assign]
        Outcome.REFUSED if isinstance(action, NoteQueue) else carry_out(action)
    )
    waits(at)
    assert at.evicted == []
    at.pass_time(COME_SECONDS)
    at.carry_out = carry_out  # type: ignore[method-assign]
    for _ in range(60):
        at.pass_time(60)
    assert at.evicted == ["web"]


@pytest.mark.parametrize("later", [0, 60])
def test_the_note_goes_once_each_replacement_has_its_target(later: int) -> None:
    at = cluster()
    scattered(at)
    waits(at)
    bury(at, "web")
    assert at.schedule("big") == "n1"
    assert "moves" in at.pod("big").metadata.annotations[names.QUEUE]
    at.pass_time(later)
    at.add_pod("web-2", 4, alter=owned_by("ReplicaSet", "owner-of-web"), said=MOVABLE)
    at.settle()
    at.pass_time(60)
    assert names.QUEUE not in at.pod("big").metadata.annotations
    assert at.schedule("web-2") == "n2"
    assert not at.core._awaited


def test_the_replacement_gets_its_target_before_its_job_is_read() -> None:
    at = cluster()
    assert at.owners is not None
    at.owners[ObjectRef("batch", "Job", "ml", "owner-of-web")] = {
        "metadata": {"uid": "uid-of-owner-of-web"},
        "spec": {"podFailurePolicy": {"rules": [IGNORES]}},
    }
    scattered(at, kind="Job")
    waits(at)
    assert at.evicted == ["web"]
    bury(at, "web")
    at.owners = None  # the API server does not respond
    at.add_pod("web-2", 4, alter=owned_by("Job", "owner-of-web"), said=MOVABLE)
    at.settle()
    assert at.places("web-2") == ["n2"]


def test_pods_move_as_soon_as_the_wait_is_longer_than_a_short_move() -> None:
    at = Cluster(settings=CoreSettings(moves=MovePolicy(Moves.CONSENT, cost_seconds=5)))
    at.add_node("n1")
    at.add_node("n2")
    scattered(at)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.pass_time(4)
    assert not at.core.snapshot(at.now).moves_under_way
    at.pass_time(3)
    assert at.core.snapshot(at.now).moves_under_way
    at.pass_time(10)  # until the note may be written again
    assert at.evicted == ["web"]


def refused_again_and_again(*, kubelet_is_done: bool) -> list[int]:
    """The pauses between moves for one gang, as shares of the first rest."""
    at = Cluster(CoreSettings(moves=MovePolicy(Moves.CONSENT), max_refusals=100))
    for number in range(1, 13):
        at.add_node(f"n{number}")
    for number in range(1, 7):
        run(at, f"web-{number}", 4, f"n{number}", said=MOVABLE, server=True)
        run(at, f"stays-{number}", 4, f"n{number + 6}", server=True)
    at.pass_time(5 * HOUR)
    at.add_gang("big", 1, gates=[names.GATE])
    at.settle()
    evictions: list[float] = []
    for tick in range(400):
        at.pass_time(10)
        at.add_pod(f"short-{tick}", 1)  # so that there is always something new
        assert at.schedule(f"short-{tick}")
        at.delete(f"short-{tick}")
        at.settle()
        if len(at.evicted) > len(evictions):
            evictions.append(at.now)
            turn, gone = len(evictions), at.evicted[-1]
            alter = owned_by("ReplicaSet", f"owner-of-{gone}")
            at.add_pod(f"new-{turn}", 4, alter=alter, said=MOVABLE)
            node = at.pod(gone).spec.node_name
            at.delete(gone)
            at.settle()
            if kubelet_is_done:
                at.stop(gone, node)
                at.settle()
                assert at.places("big-0") == [node]
                at.filter("big-0", sorted(at.nodes.keys() - {node}))  # it is refused there
                at.settle()
                at.add_pod(f"other-{turn}", 8)
                assert at.schedule(f"other-{turn}") == node
            assert at.schedule(f"new-{turn}")
    pauses = [after - before for before, after in pairwise(evictions)]
    return [int(pause // PLANNED_SECONDS) for pause in pauses]


def test_others_move_less_and_less_often_for_one_that_kube_scheduler_refuses() -> None:
    """Else one gang could have all that consent moved in an hour."""
    first, second, *_ = refused_again_and_again(kubelet_is_done=True)
    assert (first >= 1, second >= 2) == (True, True)


def test_others_move_less_and_less_often_if_the_room_does_not_come_free() -> None:
    pauses = refused_again_and_again(kubelet_is_done=False)
    assert pauses[1:] == sorted({*pauses[1:]})


@pytest.mark.parametrize("step", range(10))
def test_a_node_whose_topology_goes_while_moves_are_sought_is_no_defect(step: int) -> None:
    at = cluster(nodes=3)
    for name, gpus, node in (("web", 3, "n1"), ("api", 2, "n2"), ("db", 2, "n3")):
        run(at, name, gpus, node, said=MOVABLE)
    for member in at.add_gang("gang", 2, 2, movable="true"):
        at.settle()
        assert at.schedule(member) or member == "gang-0"
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    Meanwhile(at, *[None] * step, lambda: at.annotate_node("n2", names.TOPOLOGY, "{}"))
    at.pass_time(5 * HOUR)
    assert at.core.take_defects() == []
    assert at.sound()


def test_after_a_change_during_the_search_moves_are_sought_again_at_once() -> None:
    at = cluster()
    scattered(at)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.now += HOUR
    meanwhile = Meanwhile(at, *[None] * 3, lambda: at.annotate("web", move_cost="1m"))
    at.settle()
    assert (at.evicted, meanwhile.times > 4) == (["web"], True)
