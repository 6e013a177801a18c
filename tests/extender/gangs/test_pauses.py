"""When a gang whose plans were refused is tried again, given what has happened since."""

import pytest

from linkwise.extender.api.records import GangKey
from linkwise.extender.core import CoreSettings
from linkwise.extender.gangs.gang import Gang, News
from tests.extender.cluster import Cluster

REFUSED_AT = News(changes=5, ends=7)
SINCE, UNTIL = 1000.0, 1480.0


def refused(times: int, *, is_denied: bool = False) -> Gang:
    return Gang(
        GangKey("ml", "g"),
        refused=True,
        refused_since=SINCE,
        refused_until=UNTIL,
        refused_at=REFUSED_AT,
        times_refused=times,
        is_denied=is_denied,
    )


def test_without_news_it_is_tried_when_its_pause_ends() -> None:
    assert refused(1).tried_at(REFUSED_AT) == UNTIL


@pytest.mark.parametrize(
    ("news", "rests"),
    [
        (News(6, 7), {1: 1, 2: 2, 4: 8, 5: 10, 8: 10, 9: 60, 10**6: 60}),
        (News(5, 8), {1: 1, 2: 2, 4: 8, 5: 16, 6: 32, 7: 60, 8: 60, 10**6: 60}),
        (News(6, 8), {5: 10, 9: 60}),
    ],
    ids=["a node changed", "a refusal ended", "both"],
)
def test_news_shorten_the_pause_and_less_so_the_more_often_they_did_not_help(
    news: News, rests: dict[int, float]
) -> None:
    assert {n: refused(n).tried_at(news) - SINCE for n in rests} == rests


def test_no_news_of_nodes_help_where_the_api_server_refuses() -> None:
    assert refused(1, is_denied=True).tried_at(News(6, 8)) == UNTIL


def plans_until_it_pauses(at: Cluster) -> int:
    """A node changes; then kube-scheduler refuses every plan that is made."""
    at.annotate_node("n1", "example.com/note", str(at.now))
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
    assert counted == [3] * 9 + [1] * 3
