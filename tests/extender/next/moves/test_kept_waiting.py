"""Who kept large jobs waiting: pods that do not consent to moves that would have made room."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.next.moves.kept_waiting import MOST, WaitAccount, Workload, workload_of
from linkwise.extender.next.moves.planned_moves import TRY_SECONDS, PlannedMoves
from linkwise.extender.show.explain.moves import view_moves
from linkwise.extender.show.explain.state import view_state
from linkwise.extender.state.actions import PodRef
from linkwise.extender.state.records import GangKey, PodRecord, ResourceList
from linkwise.extender.state.views import KeptWaitingView
from linkwise.topology import names
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from tests.extender.cluster import Cluster, change
from tests.extender.next.moves.movers import HOUR, MOVABLE, bury, cluster, run, waits

COST = 600.0  # a wait counts from then on: moves are not worth a shorter one


def kept(at: Cluster) -> tuple[KeptWaitingView, ...]:
    return view_moves(at.core.snapshot(at.now)).kept_waiting


def says(at: Cluster, pod: str, **said: str) -> None:
    meta = at.pod(pod).metadata
    texts = {**meta.annotations, **{f"linkwise.dev/{key}": text for key, text in said.items()}}
    at.put_pod(change(at.pod(pod), metadata=change(meta, annotations=texts)))
    at.settle()


def blocked(moves: Moves = Moves.CONSENT, *, kind: str = "ReplicaSet", nodes: int = 2) -> Cluster:
    """Eight GPUs are free on two nodes, and neither of the servers there consents."""
    at = cluster(moves, nodes=nodes)
    for number in range(1, nodes + 1):
        run(at, f"web-{number}", 4, f"n{number}", kind=kind, server=True)
    at.pass_time(5 * HOUR)
    return at


@pytest.mark.parametrize("moves", [Moves.ADVISE, Moves.CONSENT])
def test_a_pod_that_does_not_consent_kept_a_large_job_waiting(moves: Moves) -> None:
    at = blocked(moves)
    waits(at)
    begun = kept(at)
    at.pass_time(2 * HOUR)
    [row] = kept(at)
    assert row.gpu_seconds - begun[0].gpu_seconds == pytest.approx(2 * HOUR * 8)
    assert row == KeptWaitingView(
        "ml", "ReplicaSet", f"owner-of-web-{row.nodes[0][1:]}", 4, row.nodes, "pod ml/big", 8,
        row.gpu_seconds, now=True,
    )  # fmt: skip
    assert view_state(at.core.snapshot(at.now)).kept_waiting == (row,)
    assert at.evicted == []


def test_a_gang_waits_for_the_gpus_of_all_its_members() -> None:
    at = blocked(nodes=4)
    for name in ("g-0", "g-1"):
        at.add_pod(name, 8, said={"gang": "g", "gang_size": "2"})
    at.settle()
    at.pass_time(HOUR)
    before = kept(at)
    at.pass_time(HOUR)
    rows = kept(at)
    assert [(row.waits, row.waits_gpus, row.gpus) for row in rows] == [("gang ml/g", 16, 4)] * 2
    for row, then in zip(rows, before, strict=True):  # they share the wait by their GPUs
        assert row.gpu_seconds - then.gpu_seconds == pytest.approx(HOUR * 16 / 2)


def test_nothing_is_counted_before_moves_would_have_been_worth_it() -> None:
    at = blocked()
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.pass_time(COST / 2)
    assert kept(at) == () or kept(at)[0].gpu_seconds <= 8 * COST / 2
    at.pass_time(HOUR)
    assert 0 < kept(at)[0].gpu_seconds <= 8 * (HOUR + COST / 2)


def test_nothing_is_counted_for_a_job_that_wants_no_whole_node() -> None:
    at = blocked()
    waits(at, gpus=6)
    at.pass_time(HOUR)
    assert kept(at) == ()


def test_who_keeps_one_job_waiting_is_sought_every_ten_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sought: list[bool] = []
    find = PlannedMoves._find

    def noted(moves: PlannedMoves, *given: Any, supposing_consent: bool = False) -> Any:
        sought.append(supposing_consent)
        return find(moves, *given, supposing_consent=supposing_consent)

    monkeypatch.setattr(PlannedMoves, "_find", noted)
    at = blocked()
    waits(at)
    sought.clear()
    for minute in range(30):  # each change lets moves be sought again
        run(at, f"short-{minute}", 1, "n2")
        at.pass_time(61)
        bury(at, f"short-{minute}")
        at.pass_time(1)
    assert sought.count(False) > 20
    assert 2 <= sought.count(True) <= 4


def test_the_count_stands_still_once_it_has_started() -> None:
    at = blocked()
    waits(at)
    bury(at, "web-1")
    at.settle()
    assert at.schedule("big") == "n1"
    [row] = kept(at)
    assert not row.now
    at.pass_time(HOUR)
    assert kept(at) == (row,)


def test_a_pod_that_consents_from_now_on_keeps_nobody_waiting() -> None:
    at = blocked(Moves.ADVISE)
    waits(at)
    blocker = f"web-{kept(at)[0].nodes[0][1:]}"
    says(at, blocker, movable="true")
    [row] = kept(at)
    assert not row.now
    at.pass_time(TRY_SECONDS + 1)
    assert view_moves(at.core.snapshot(at.now)).plans
    at.pass_time(HOUR)
    assert kept(at) == (row,)


def test_pods_that_consent_suffice_so_nobody_is_named() -> None:
    at = cluster(Moves.ADVISE)
    run(at, "web", 4, "n1", said=MOVABLE, server=True)
    run(at, "stays", 4, "n2", server=True)
    at.pass_time(5 * HOUR)
    waits(at)
    assert view_moves(at.core.snapshot(at.now)).plans
    assert kept(at) == ()


def test_a_pod_that_consents_is_not_named_beside_one_that_does_not() -> None:
    """Both would have to leave the node."""
    at = cluster(Moves.ADVISE, nodes=3)
    run(at, "web", 2, "n1", said=MOVABLE, server=True)
    run(at, "stays", 2, "n1", server=True)
    for node in ("n2", "n3"):
        run(at, f"large-{node}", 6, node, server=True)
    at.pass_time(5 * HOUR)
    waits(at)
    [row] = kept(at)
    assert (row.name, row.gpus, row.nodes) == ("owner-of-stays", 2, ("n1",))


@pytest.mark.parametrize(
    ("kind", "named"),
    [("ReplicaSet", True), ("StatefulSet", True), ("Job", True), ("PyTorchJob", False)],
)
def test_only_pods_that_could_consent_are_named(kind: str, named: bool) -> None:
    at = blocked(kind=kind)
    waits(at)
    assert bool(kept(at)) is named


def test_a_small_pod_is_no_large_job() -> None:
    at = cluster()
    for node in ("n1", "n2"):
        run(at, f"web-{node}", 6, node, server=True)
    at.pass_time(5 * HOUR)
    waits(at, gpus=4)
    assert kept(at) == ()


def test_without_moves_nobody_is_asked_to_consent() -> None:
    at = blocked(Moves.NEVER)
    waits(at)
    assert kept(at) == ()


def test_a_consent_that_begins_later_is_one() -> None:
    at = Cluster(settings=CoreSettings(moves=MovePolicy(Moves.ADVISE, after_seconds=48 * HOUR)))
    for node in ("n1", "n2"):
        at.add_node(node)
        run(at, f"web-{node}", 4, node, server=True)
    at.pass_time(5 * HOUR)
    waits(at)
    assert kept(at) == ()


def test_a_deployment_is_named_and_not_its_replica_set() -> None:
    labels = {"pod-template-hash": "7d9f8c"}
    pod = replace(_pod("x"), owner_kind="ReplicaSet", owner_name="web-7d9f8c", labels=labels)
    assert workload_of(pod) == Workload("ml", "Deployment", "web")
    assert workload_of(replace(pod, labels={})) == Workload("ml", "ReplicaSet", "web-7d9f8c")
    own = replace(pod, owner_kind="StatefulSet")
    assert workload_of(own) == Workload("ml", "StatefulSet", "web-7d9f8c")


def _pod(name: str, gpus: int = 2) -> PodRecord:
    return PodRecord(
        ref=PodRef("ml", name, f"uid-of-{name}"),
        node="n1",
        ended=False,
        failed=False,
        leaving=False,
        priority=0,
        created=datetime(2026, 1, 1, tzinfo=UTC).timestamp(),
        needs=ResourceList(gpus=gpus),
        demand=PodDemand((ContainerDemand("main", Role.MAIN, gpus),)),
        owner_kind="Job",
        owner_name=name,
    )


def test_the_account_is_bounded_and_the_rows_that_cost_least_go_first() -> None:
    account = WaitAccount()
    for number in range(2 * MOST):
        key = GangKey("ml", f"train-{number}")
        account.begin(key, 8, [_pod(f"p{number}")], now=0.0)
        account.end(key, now=float(number))
    rows = account.rows(now=1e6)
    assert len(rows) == MOST
    assert [row.gpu_seconds for row in rows] == [8.0 * n for n in range(2 * MOST - 1, MOST - 1, -1)]


def test_no_more_than_so_many_waits_are_watched_at_once() -> None:
    account = WaitAccount()
    for number in range(2 * MOST):
        account.begin(GangKey("ml", f"train-{number}"), 8, [_pod("p")], now=0.0)
    assert len(account.waits) == MOST


def test_waits_of_one_name_add_up() -> None:
    account, key = WaitAccount(), GangKey("ml", "train")
    for begun in (0.0, 100.0):
        account.begin(key, 8, [_pod("a", 1), _pod("b", 3)], now=begun)
        account.begin(key, 8, [_pod("a", 1), _pod("b", 3)], now=begun + 5.0)  # the same: goes on
        account.end(key, now=begun + 10.0)
    assert {row.by.name: row.gpu_seconds for row in account.rows(200.0)} == {"a": 40.0, "b": 120.0}
