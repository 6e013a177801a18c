"""When a gang whose plans were refused is tried again, given what has happened since."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.gangs.gang import Gang, News
from linkwise.extender.state.records import GangKey
from linkwise.kube.objects import Container
from tests.extender.cluster import Cluster

REFUSED_AT = News(changes=5, ends=7)
SINCE, UNTIL = 1000.0, 1480.0


def refused(times: int, changes: int = 0, *, is_denied: bool = False) -> Gang:
    return Gang(
        GangKey("ml", "g"),
        refused=True,
        refused_since=SINCE,
        refused_until=UNTIL,
        refused_at=REFUSED_AT,
        times_refused=times,
        changes_in_vain=changes,
        is_denied=is_denied,
    )


def test_without_news_it_is_tried_when_its_pause_ends() -> None:
    assert refused(1).tried_at(REFUSED_AT) == UNTIL


def test_what_it_has_learnt_is_used_as_if_a_refusal_had_ended() -> None:
    gang = refused(3)
    gang.has_learnt = True
    assert gang.tried_at(REFUSED_AT) == gang.tried_at(News(5, 8)) == SINCE + 4


def test_the_end_of_a_refusal_shortens_the_pause_and_less_so_the_more_often_it_did_not_help() -> (
    None
):
    rests = {1: 1, 2: 2, 4: 8, 5: 16, 6: 32, 7: 60, 8: 60, 10**6: 60}
    assert {n: refused(n).tried_at(News(5, 8)) - SINCE for n in rests} == rests


@pytest.mark.parametrize("ends", [7, 8])
def test_so_does_a_change_of_a_node_and_only_such_changes_count(ends: int) -> None:
    rests = {0: 1, 1: 2, 3: 8, 4: 10, 8: 10, 9: 60, 10**6: 60}
    found = {n: refused(10**6, n).tried_at(News(6, ends)) - SINCE for n in rests}
    assert found == rests


def test_no_news_of_nodes_help_where_the_api_server_refuses() -> None:
    assert refused(1, is_denied=True).tried_at(News(6, 8)) == UNTIL


def change_a_node(at: Cluster) -> None:
    at.add_pod(f"other-{at.now}", 0, containers=[Container(name="x")], node="n1")


def plans_until_it_pauses(at: Cluster) -> int:
    """The pods on a node change; then kube-scheduler refuses every plan that is made."""
    change_a_node(at)
    at.pass_time(61.0)
    plans = 0
    while at.phase("g") == "planned":
        (node, _) = at.places("g-0", "g-1")
        at.filter("g-0", {*at.nodes} - {node})
        at.settle()
        plans += 1
    assert at.phase("g") == "refused"
    return plans


def test_after_many_pauses_in_vain_it_gets_one_plan_each_time() -> None:
    at = Cluster(CoreSettings(max_refusals=3))
    for number in range(1, 6):
        at.add_node(f"n{number}")
    at.add_gang("g", 2)
    counted = [plans_until_it_pauses(at) for _ in range(12)]
    assert counted == [3] * 10 + [1] * 2


def test_a_change_is_tried_at_once_however_often_others_were_in_vain() -> None:
    at = Cluster(CoreSettings(max_refusals=3))
    for number in range(1, 6):
        at.add_node(f"n{number}")
    at.add_gang("g", 2)
    at.settle()
    plans = 0
    while plans < 40:
        if at.phase("g") == "planned":
            (node, _) = at.places("g-0", "g-1")
            at.filter("g-0", {*at.nodes} - {node})
            at.settle()
            plans += 1
        at.pass_time(10.0)
    assert at.phase("g") == "refused"
    change_a_node(at)
    at.pass_time(1.0)
    assert at.phase("g") == "planned"
