"""The judge of gangs itself: what it calls partial, and what it excuses."""

import msgspec
import pytest

from linkwise.kube.objects import Condition, ObjectMeta, Pod, PodSpec, PodStatus
from linkwise.topology import names
from tests.all_or_nothing import AllOrNothing

change = msgspec.structs.replace


def member(rank: int, node: str = "", *, phase: str = "Running", least: int = 3) -> Pod:
    said = {names.GANG: "g", names.GANG_SIZE: "4", names.GANG_MIN: str(least)}
    return Pod(
        metadata=ObjectMeta(name=f"g-{rank}", namespace="ml", uid=f"u{rank}", annotations=said),
        spec=PodSpec(node_name=node),
        status=PodStatus(phase=phase),
    )


def deleted(pod: Pod, *, evicted: bool = False) -> Pod:
    why = Condition(type="DisruptionTarget", status="True", reason="EvictionByEvictionAPI")
    return msgspec.convert(
        {
            **msgspec.to_builtins(pod),
            "metadata": {
                **msgspec.to_builtins(pod.metadata),
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "status": {
                **msgspec.to_builtins(pod.status),
                "conditions": [msgspec.to_builtins(why)] * evicted,
            },
        },
        Pod,
    )


WAITING = [member(rank) for rank in range(3)]
PARTIAL = [member(0, "n1"), member(1, "n1"), member(2)]
WHOLE = [member(rank, "n1") for rank in range(3)]


def test_a_gang_with_fewer_than_its_minimum_is_partial_and_named_once() -> None:
    law = AllOrNothing()
    assert law.look(WAITING, 0.0) == []
    assert law.look(PARTIAL, 1.0) == ["gang ml/g: 2 of 3 bound from 1.0 to 1.0"]
    assert law.look(PARTIAL, 2.0) == []
    assert law.partial == 1.0


def test_bindings_that_are_sent_at_once_may_arrive_one_by_one() -> None:
    law = AllOrNothing(grace_seconds=2.0)
    assert law.look(PARTIAL, 0.0) == []
    assert law.look(WHOLE, 1.0) == []
    assert law.look(WAITING, 2.0) == []
    assert law.look(PARTIAL, 3.0) == []
    assert law.look(PARTIAL, 5.0) == ["gang ml/g: 2 of 3 bound from 3.0 to 5.0"]


def test_a_gang_is_partial_without_fault_if_the_extender_cannot_know_that_a_member_is_gone() -> (
    None
):
    law, left = AllOrNothing(), [member(0, "n1"), member(1, "n1")]
    assert law.look(WAITING[:2], 0.0) == []
    assert law.look(left, 1.0, unseen={"ml/g"}) == []
    law = AllOrNothing()
    assert law.look(WAITING[:2], 0.0) == []
    assert law.look(left, 1.0, unseen={"ml/other"}) != []


@pytest.mark.parametrize(
    "after",
    [
        [member(0, "n1"), member(1, "n1"), member(2)],
        [member(0, "n1"), member(1, "n1", phase="Failed"), member(2)],
        [member(0, "n1"), member(1, "n1"), deleted(member(2, "n1"))],
    ],
)
def test_a_gang_that_had_its_minimum_may_lose_members(after: list[Pod]) -> None:
    law = AllOrNothing()
    law.look(WHOLE, 0.0)
    assert law.look(after, 1.0) == []


def test_a_gang_that_lost_all_its_members_starts_whole_again() -> None:
    law = AllOrNothing()
    law.look(WHOLE, 0.0)
    law.look(WAITING, 1.0)
    assert len(law.look(PARTIAL, 2.0)) == 1


def test_members_that_succeeded_count() -> None:
    done = member(0, "n1", phase="Succeeded")
    assert AllOrNothing().look([done, member(1, "n1"), member(2, "n1")], 0.0) == []


def test_a_lost_write_excuses_a_partial_gang_for_a_while() -> None:
    law = AllOrNothing()
    assert law.look(PARTIAL, 10.0, faults_at=10.0) == []
    assert law.look(PARTIAL, 100.0, faults_at=50.0) == []
    assert len(law.look(PARTIAL, 300.0, faults_at=50.0)) == 1


def test_a_fault_may_be_known_before_the_pods_that_it_left_behind_are_seen() -> None:
    law = AllOrNothing(grace_seconds=2.0)
    assert law.look(PARTIAL, 10.0, faults_at=9.0) == []
    assert law.look(PARTIAL, 20.0, faults_at=9.0) == []
    assert len(law.look(PARTIAL, 200.0, faults_at=9.0)) == 1


def marked(pod: Pod) -> Pod:
    said = {**pod.metadata.annotations, names.STARTED: pod.metadata.uid}
    return change(pod, metadata=change(pod.metadata, annotations=said))


def test_the_mark_of_a_start_excuses_nothing_that_was_seen_from_its_beginning() -> None:
    law = AllOrNothing()
    law.look(WAITING, 0.0)
    assert len(law.look([marked(PARTIAL[0]), *PARTIAL[1:]], 1.0)) == 1
    assert AllOrNothing().look([marked(PARTIAL[0]), *PARTIAL[1:]], 1.0) == []


@pytest.mark.parametrize("phase", ["Failed", ""])
def test_a_member_may_have_been_bound_and_lost_between_two_looks(phase: str) -> None:
    law = AllOrNothing()
    law.look(WAITING, 0.0)
    lost = [member(2, "n1", phase=phase)] if phase else []
    assert law.look([*PARTIAL[:2], *lost], 1.0) == []


def test_a_member_that_failed_before_excuses_nothing() -> None:
    failed = member(3, "n1", phase="Failed")
    law = AllOrNothing()
    law.look([*WAITING, failed], 0.0)
    assert len(law.look([*PARTIAL, failed], 1.0)) == 1


def test_no_member_of_a_gang_is_evicted_that_never_had_its_minimum() -> None:
    evicted = [deleted(PARTIAL[0], evicted=True), *PARTIAL[1:]]
    law = AllOrNothing(grace_seconds=100.0)
    law.look(PARTIAL, 0.0)
    assert law.look(evicted, 1.0) == ["g-0 is evicted, and gang ml/g never had its minimum"]
    assert law.look(evicted, 2.0) == []


def test_a_gang_that_started_may_be_evicted() -> None:
    law = AllOrNothing()
    law.look(WHOLE, 0.0)
    assert law.look([deleted(pod, evicted=True) for pod in WHOLE], 1.0) == []
