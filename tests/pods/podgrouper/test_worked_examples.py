"""Pods of 30 workloads, as their controllers make them, come to the gang that was worked out."""

from collections import defaultdict
from typing import Any

import pytest

from linkwise.pods.podgrouper.workloads.answer import NoGang, Recognised
from tests.pods.podgrouper.pods import Object, told
from tests.pods.podgrouper.workload_cases import CASES

ROWS = [
    pytest.param(row["pod"], row["expected"], case["objects"], id=f"{case['id']}-{number}")
    for case in CASES
    for number, row in enumerate(case["pods"])
]
# A worker of a LeaderWorkerSet says its size itself. Only the set says that a re-created set is
# another gang, and whether its leader comes first.
GETS = {"serve/LeaderWorkerSet.leaderworkerset.x-k8s.io": 1}
# Only a StatefulSet's template says whether its pods are the nodes of one server.
BY_RULE = {"statefulset": 1}


@pytest.mark.parametrize(("pod", "expected", "objects"), ROWS)
def test_the_gang_is_found(pod: Object, expected: dict[str, Any], objects: list[Object]) -> None:
    result = told(pod, objects)
    answer = result.answer
    assert isinstance(answer, Recognised | NoGang)
    assert isinstance(answer, Recognised) is expected["is_gang"]
    if isinstance(answer, Recognised):
        for count in ("size", "minimum", "gpu_size", "gpu_minimum"):
            assert getattr(answer, count) == expected[count], count
        assert str(answer.gang) == expected["gang"]
        assert answer.basis.value == expected["basis"]
    set_name = (expected["gang"] or "").rpartition("/")[0]
    assert len(result.gets) <= max(
        expected["gets"], GETS.get(set_name, BY_RULE.get(answer.rule, 0))
    )


@pytest.mark.parametrize(("pod", "expected", "objects"), ROWS)
def test_the_place_in_it_is_found(
    pod: Object, expected: dict[str, Any], objects: list[Object]
) -> None:
    answer = told(pod, objects).answer
    assert isinstance(answer, Recognised | NoGang)
    member = answer.member
    assert member.role == expected["role"]
    if expected["rank_scope"] == "gang":
        assert member.rank == expected["rank"]
    else:
        assert member.index == expected["rank"]
    assert member.queue == expected.get("queue", "")
    assert member.priority_class == expected.get("priority", "")
    assert member.subgroup == expected.get("subgroup", "")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_members_of_one_gang_agree_on_its_name_and_their_ranks_differ(case: dict[str, Any]) -> None:
    partition: dict[str, set[object]] = defaultdict(set)
    ranks: dict[object, list[int]] = defaultdict(list)
    for row in case["pods"]:
        answer = told(row["pod"], case["objects"]).answer
        if isinstance(answer, Recognised):
            partition[row["expected"]["gang"]].add(answer.gang)
            if answer.member.rank is not None:
                ranks[answer.gang].append(answer.member.rank)
    assert all(len(names) == 1 for names in partition.values())
    assert all(len(set(taken)) == len(taken) for taken in ranks.values())
