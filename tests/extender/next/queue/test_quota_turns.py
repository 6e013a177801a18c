"""Gangs of which a quota lets none have all its pods: one after the other becomes whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import TypeVar

import pytest

from linkwise.extender.next.gangs.uncreated import AGAIN_SECONDS, FIRST_SECONDS, RefusedPod
from linkwise.extender.next.queue.quota_turns import EVENT, PAUSE_SECONDS
from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.owned import create, job, job_set, member, of_set, there_is
from tests.pods.podgrouper.pods import Object

T = TypeVar("T")
SOON = FIRST_SECONDS + AGAIN_SECONDS


@dataclass
class Quotas(Cluster):
    """A cluster whose controllers could not create pods of these owners."""

    refused: dict[str, str] = field(default_factory=dict)  # by the owner's name
    ago: float = 0.0  # seconds

    def refusals(self, namespace: str) -> Sequence[RefusedPod]:
        assert namespace == "ml"
        owners = [o for o in (self.owners or {}).values() if isinstance(o, dict)]
        named = {owner["metadata"]["name"]: owner for owner in owners}
        return [
            RefusedPod("Job", name, named[name]["metadata"]["uid"], self.now - self.ago, why)
            for name, why in self.refused.items()
        ]

    def quota(self, *jobs: str, limit: int | str = 16, quota: str = "gpus", asked: int = 8) -> None:
        gpus = f"requests.{names.DEFAULT_RESOURCE}"
        for each in jobs:
            self.refused[each] = (
                f"exceeded quota: {quota}, requested: requests.cpu=1,{gpus}={asked}, "
                f"used: requests.cpu=2,{gpus}=16, limited: requests.cpu=2,{gpus}={limit}"
            )


def world(*jobs: Object) -> Quotas:
    at = Quotas()
    for number in range(4):
        at.add_node(f"n{number}", "dgx-a100")
    there_is(at, *jobs)
    return at


def limited(name: str, size: int, backoff_limit: int, failed: int = 0) -> Object:
    made = job(name, size)
    made["spec"]["backoffLimit"] = backoff_limit
    return {**made, "status": {"failed": failed}}


def per_index(name: str, backoff_limit: int) -> Object:
    made = job(name, 2)
    made["spec"]["backoffLimitPerIndex"] = backoff_limit
    return made


def halves(*jobs: Object) -> Quotas:
    """A world in which the first pod of each exists, and a quota refused the second."""
    at = world(*jobs)
    for number, made in enumerate(jobs):
        at.now += number
        create(at, member(made, 0))
    at.quota(*(made["metadata"]["name"] for made in jobs))
    return at


def test_who_refuses_pods_is_said_by_the_gang_until_they_exist() -> None:
    a = job("a", 2)
    at = halves(a)
    assert at.filter("a-0-0").failed
    at.pass_time(SOON)
    (why,) = {*at.filter("a-0-0").failed.values()}
    assert "waits for its members: Job a cannot create its pods: exceeded quota: gpus" in why
    explained = at.core.explain("ml", "a-0-0", at.now)
    assert explained is not None
    assert "exceeded quota: gpus" in explained.summary
    (view,) = at.core.gangs(at.now)
    assert view.reason.startswith("1 of 2 members exist: Job a cannot create its pods")
    at.pass_time(2)
    assert [e.message for e in at.events if "exceeded quota" in e.message]
    assert at.evicted == []

    create(at, member(a, 1))
    at.pass_time(SOON)
    assert at.schedule("a-0-0")


def test_what_others_wrote_is_one_line_of_bounded_length() -> None:
    a = job("a", 2)
    at = halves(a)
    at.refused = {"a": "no\x1b[31m\n" * 100_000}
    at.pass_time(SOON)
    (gang,) = at.core.gangs(at.now)
    assert gang.reason.isprintable()
    assert len(gang.reason) < 1200


def test_events_are_read_only_while_a_gang_lacks_members() -> None:
    a = job("a", 2)
    at = world(a)
    create(at, member(a, 0))
    at.now += SOON
    assert at.core.refusals_to_read(at.now)
    create(at, member(a, 1))
    at.pass_time(1)
    at.now += 10 * SOON
    assert not at.core.refusals_to_read(at.now)


def test_who_refuses_the_pods_of_a_later_wave_is_said_too() -> None:
    at = world(job_set("run"))
    create(at, of_set("control"))
    at.pass_time(1)
    assert at.schedule("run-control")
    worker = job("run-worker-0", 1)
    there_is(at, worker)
    at.quota("run-worker-0")
    at.pass_time(SOON)
    (gang,) = at.core.gangs(at.now)
    said = (
        "keeps the place of a member that its owner creates later: Job run-worker-0 cannot create"
    )
    assert gang.reason.startswith(said)
    assert at.evicted == []


def test_an_answer_may_come_while_a_round_looks_for_room_and_its_gang_is_gone() -> None:
    a = job("a", 2)
    at = world(a)
    create(at, member(a, 0))
    at.now += SOON
    (asked,) = at.core.refusals_to_read(at.now)
    answers = []

    def let_in(search: Callable[[], T]) -> T:
        answers.append(asked)
        at.core.refusals_read(asked, (), at.now)
        return search()

    at.core.set_unlocker(let_in)
    at.delete("a-0-0")
    at.add_gang("other", 2, gpus=8)
    at.settle()
    assert answers
    assert not at.core.take_defects()


def test_the_last_gives_way_to_the_first_whose_pod_is_written_then() -> None:
    a, b = job("a", 2), job("b", 2)
    at = halves(a, b)
    at.pass_time(SOON)
    assert at.evicted == ["b-0-0"]
    assert names.QUEUE not in at.pod("a-0-0").metadata.annotations
    at.delete("b-0-0")
    at.settle()
    assert names.QUEUE in at.pod("a-0-0").metadata.annotations  # its Job's controller sees it
    create(at, member(a, 1))
    at.pass_time(10 * PAUSE_SECONDS)
    assert at.schedule("a-0-0")
    assert at.evicted == ["b-0-0"]


def test_each_turn_is_written_and_pauses_grow_while_giving_way_does_not_help() -> None:
    a, b = job("a", 2), job("b", 2)
    at = halves(a, b)
    when, notes = [], set[str]()
    for attempt in range(1, 4):
        for _ in range(200):
            at.pass_time(1)
            if at.evicted:
                break
        when.append(at.now)
        at.evicted.clear()
        at.delete(f"b-0-{attempt - 1}")
        at.settle()
        notes.add(at.pod("a-0-0").metadata.annotations[names.QUEUE])
        create(at, member(b, 0, attempt=attempt))
    gaps = [later - earlier for earlier, later in pairwise(when)]
    assert [round(gap / PAUSE_SECONDS) for gap in gaps] == [1, 2]
    assert len(notes) == 3


def test_an_eviction_that_is_refused_ends_its_turn_and_is_tried_again() -> None:
    a, b = job("a", 2), job("b", 2)
    at = halves(a, b)
    at.spared = {"b-0-0"}
    at.pass_time(SOON)
    at.spared = set()
    for _ in range(60):
        at.pass_time(5)
    assert at.evicted


def test_if_nobody_can_give_way_to_the_first_it_gives_way_itself() -> None:
    a, b = job("a", 2), limited("b", 2, 0)
    at = halves(a, b)
    at.pass_time(SOON)
    assert at.evicted == ["a-0-0"]


def test_gangs_of_two_quotas_do_not_give_way_to_each_other() -> None:
    a, b = job("a", 2), job("b", 2)
    at = halves(a, b)
    at.quota("a", quota="high")
    at.pass_time(SOON)
    assert at.evicted == []


@pytest.mark.parametrize(("limit", "asked"), [("1k", 8), (10, 1)])
def test_the_amounts_of_the_quota_are_read(limit: int | str, asked: int) -> None:
    """A member that is missing may be smaller than those that exist."""
    a, b = job("a", 3), job("b", 3)
    at = halves(a, b)
    create(at, member(b, 1))
    at.quota("a", "b", limit=limit, asked=asked)
    at.pass_time(SOON)
    assert at.evicted == ["b-0-0", "b-1-0"]


def test_events_of_a_job_with_a_longer_name_or_of_an_earlier_one_are_not_its_own() -> None:
    a, ab = job("a", 2), job("a-b", 2)
    at = halves(a, ab)
    at.refused = {}
    at.quota("a-b")
    at.pass_time(SOON)
    assert at.evicted == []
    assert at.core.gangs(at.now)[0].reason == "1 of 2 members exist"


@pytest.mark.parametrize(
    ("last", "gives"),
    [
        (limited("b", 2, 1), True),
        (limited("b", 2, 0), False),  # it would have failed
        (limited("b", 2, 3, failed=3), False),
        (per_index("b", 1), True),
        (per_index("b", 0), False),
    ],
)
def test_no_job_gives_way_that_would_have_failed(last: Object, *, gives: bool) -> None:
    a = limited("a", 2, 0)
    at = halves(a, last)
    at.pass_time(SOON)
    assert at.evicted == (["b-0-0"] if gives else [])


def test_no_job_of_a_set_gives_way_as_nobody_knows_how_many_of_its_pods_failed() -> None:
    sets = [job_set(name, ("worker", 2)) for name in "ab"]
    at = world(*sets)
    for name in "ab":
        at.now += 1
        create(at, of_set("worker", of=name))
    at.quota("a", "b")
    at.pass_time(SOON)
    assert ["cannot create" in gang.reason for gang in at.core.gangs(at.now)] == [True, True]
    assert at.evicted == []


def test_no_more_give_way_than_need_to_and_the_last_first() -> None:
    at = halves(*(job(name, 2) for name in "abc"))
    at.pass_time(SOON)
    assert at.evicted == ["c-0-0"]


def test_a_gang_that_is_larger_than_the_quota_does_not_come_first() -> None:
    a, b = job("a", 3), job("b", 2)
    at = halves(a, b)
    create(at, member(a, 1))
    at.quota("a", "b")
    at.pass_time(SOON)
    assert at.evicted == ["a-0-0", "a-1-0"]


@pytest.mark.parametrize(
    ("owner", "pod"),
    [
        (job("a", 2), member(job("a", 2), 0)),
        (job_set("a", ("worker", 2)), of_set("worker", of="a")),
    ],
    ids=["job", "set"],
)
def test_events_from_before_the_pods_that_exist_say_nothing(owner: Object, pod: Pod) -> None:
    """A workload of the same name was there before, or the controller has succeeded since."""
    at = world(owner)
    created = datetime.fromtimestamp(at.now, UTC)
    create(at, change(pod, metadata=change(pod.metadata, creation_timestamp=created)))
    at.quota("a")
    at.ago = 100
    at.pass_time(SOON)
    assert [gang.reason for gang in at.core.gangs(at.now)] == ["1 of 2 members exist"]


def test_nobody_gives_way_if_that_is_not_enough_or_the_first_is_too_large() -> None:
    a, b = job("a", 4), limited("b", 4, 0)
    at = halves(a, b)
    at.quota("a", "b", limit=32)
    at.pass_time(SOON)
    assert at.evicted == []  # each lacks three, and only one would go


def test_a_gang_that_the_quota_never_lets_be_whole_gives_way_to_one_behind_it() -> None:
    a, b = job("a", 3), job("b", 2)
    at = halves(a, b)
    at.pass_time(SOON)
    assert at.evicted == ["a-0-0"]


def test_a_refusal_that_is_no_quota_evicts_nobody() -> None:
    a, b = job("a", 2), job("b", 2)
    at = halves(a, b)
    at.refused = dict.fromkeys(at.refused, 'violates PodSecurity "restricted:latest"')
    at.pass_time(SOON)
    assert at.evicted == []
    (why,) = {*at.filter("b-0-0").failed.values()}
    assert "PodSecurity" in why


def test_the_event_of_an_eviction_names_for_whom() -> None:
    a, b = job("a", 2), job("b", 2)
    at = halves(a, b)
    at.pass_time(SOON)
    (told,) = [event for event in at.events if event.reason == EVENT]
    assert "so that gang ml/Job.batch/a has all its pods" in told.message
