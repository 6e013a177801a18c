"""The policy `partition` gives go-gpuallocator's answers, and survives inputs that crash it.

The cases are facts from upstream's own tests (source and commit in gpuallocator_cases.json).
"""

import json
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from linkwise.topology.machine.model import Machine
from linkwise.topology.sets.partition import (
    PairScores,
    best_of_partition,
    choose_partition,
    lowest_indices,
    pair_scores,
)
from tests.machines import BRIDGED_8, DGX_1V, DGX_2, DGX_A100, machine

FACTS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "gpuallocator_cases.json").read_text(encoding="utf-8")
)


def mask(indices: Iterable[int]) -> int:
    return sum(1 << index for index in set(indices))


def indices(gpus: int | None) -> list[int]:
    return [index for index in range(16) if (gpus or 0) >> index & 1]


def fixture_scores(name: str) -> PairScores:
    return tuple(map(tuple, FACTS["fixtures"][name]["pair_score"]))


def scores_of(count: int, usual: int, better: dict[tuple[int, int], int]) -> PairScores:
    return tuple(
        tuple(0 if a == b else better.get((min(a, b), max(a, b)), usual) for b in range(count))
        for a in range(count)
    )


def cases(policy: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{case['id']}")
        for case in FACTS["cases"]
        if case["policy"] == policy
    ]


@pytest.mark.parametrize("case", cases("best-effort"))
def test_best_effort_gives_upstreams_answer(case: dict[str, Any]) -> None:
    found = indices(
        best_of_partition(
            fixture_scores(case["fixture"]),
            mask(case["available"]),
            case["size"],
            mask(case["required"]),
        )
    )
    assert found == sorted(case["expected"])
    assert found in case.get("equally_good_sets", [[]])


@pytest.mark.parametrize("case", cases("simple"))
def test_simple_gives_upstreams_answer(case: dict[str, Any]) -> None:
    found = lowest_indices(mask(case["available"]), case["size"], mask(case["required"]))
    assert indices(found) == sorted(case["expected"])


def test_a_machine_scores_as_upstreams_fixture_of_it() -> None:
    assert pair_scores(DGX_1V) == fixture_scores("dgx1-v100")


def test_a_pair_scores_by_its_pcie_class_and_its_nvlinks() -> None:
    pairs = machine("""
        GPU0 GPU1 GPU2 GPU3
    GPU0 X   SYS  NODE PHB
    GPU1 SYS  X   PXB  PIX
    GPU2 NODE PXB  X   NV4
    GPU3 PHB  PIX NV4   X
    """)
    assert pair_scores(pairs) == (
        (0, 10, 20, 30),
        (10, 0, 40, 50),
        (20, 40, 0, 410),  # four NVLinks, and SYS for want of a better word
        (30, 50, 410, 0),
    )


def test_nvswitch_counts_for_nothing_as_upstream_does_not_see_it() -> None:
    assert max(map(max, pair_scores(DGX_A100))) == 40  # PXB: as if there were no NVLink


# --- the judge: every cut written out -------------------------------------------------------


def cuts(free: tuple[int, ...], size: int) -> Iterator[list[tuple[int, ...]]]:
    """Return all ways to cut *free* into sets of *size*, one of which may be short."""
    short = len(free) % size
    if not free:
        yield []
        return
    for part_size in {min(size, len(free)), short} - {0}:
        for others in combinations(free[1:], part_size - 1):
            part = (free[0], *others)
            rest = tuple(gpu for gpu in free if gpu not in part)
            for cut in cuts(rest, size):
                yield [part, *cut]


@pytest.mark.parametrize("case", FACTS["enumeration_cases"]["gpu_partitions"])
def test_the_judge_enumerates_as_upstream(case: dict[str, Any]) -> None:
    free, size = tuple(case["input"]), case["size"]
    ours = cuts(free, size) if 1 <= size <= len(free) else iter(())
    expected = {
        frozenset(tuple(gpu for gpu in part if gpu is not None) for part in cut)
        for cut in case["expected"]
    }
    if size == 1:  # upstream lists single GPUs one by one, not as one cut
        assert expected == {frozenset({(gpu,)}) for gpu in free}
    else:
        assert {frozenset(cut) for cut in ours} == expected


@pytest.mark.parametrize(("size", "number"), FACTS["partitions_enumerated"]["n=8"].items())
def test_the_judge_sees_as_many_cuts_as_upstream_counts(size: str, number: int) -> None:
    assert sum(1 for _ in cuts(tuple(range(8)), int(size))) == number


def score(scores: PairScores, part: Iterable[int]) -> int:
    return sum(scores[a][b] for a, b in combinations(part, 2))


@pytest.mark.parametrize("server", [DGX_1V, BRIDGED_8, DGX_A100], ids=["1v", "bridged", "switch"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7])
def test_the_answer_is_the_best_whole_set_of_some_best_cut(server: Machine, size: int) -> None:
    scores = pair_scores(server)
    for free in range(256):
        found = choose_partition(server, free, size)
        if free.bit_count() < size:
            assert found is None
            continue
        totals = [
            (sum(score(scores, part) for part in cut), cut)
            for cut in cuts(tuple(indices(free)), size)
        ]
        best = max(total for total, _ in totals)
        good = []
        for total, cut in totals:
            whole = [part for part in cut if len(part) == size]
            top = max(score(scores, part) for part in whole)
            good += [part for part in whole if total == best and score(scores, part) == top]
        assert tuple(indices(found)) in good


@pytest.mark.parametrize("size", [2, 3, 4])
def test_what_must_be_in_is_in_and_the_rest_is_cut_best(size: int) -> None:
    scores = pair_scores(DGX_1V)
    for free in range(256):
        for must in [1 << gpu for gpu in indices(free)]:
            found = choose_partition(DGX_1V, free, size, must=must)
            if free.bit_count() < size:
                assert found is None
                continue
            good: dict[tuple[int, ...], int] = {}
            for cut in cuts(tuple(indices(free)), size):
                total = sum(score(scores, part) for part in cut)
                for part in cut:
                    if len(part) == size and not must & ~mask(part):
                        good[part] = max(total, good.get(part, 0))
            assert good[tuple(indices(found))] == max(good.values())


# --- upstream's defects ---------------------------------------------------------------------


def test_padding_is_never_the_answer() -> None:
    """Upstream returns {0, 1, nil}, and the plugin dereferences it."""
    bridge = {(0, 1): 10 + 400, (2, 3): 50, (2, 4): 50, (3, 4): 50}
    assert indices(best_of_partition(scores_of(5, 10, bridge), 0b11111, 3)) == [2, 3, 4]


@pytest.mark.parametrize("case", FACTS["defect_cases"][0]["real_machine"]["cases"])
def test_padding_on_a_real_machine(case: dict[str, Any]) -> None:
    found = choose_partition(BRIDGED_8, mask(case["available"]), case["size"])
    assert indices(found) == case["score_without_padded_sets"]


def test_many_sets_do_not_overwrite_each_other() -> None:
    """Upstream answers {0, 1}: its best cut shares memory with later ones."""
    one_pair = scores_of(14, 20, {(12, 13): 50})
    assert indices(best_of_partition(one_pair, (1 << 14) - 1, 2)) == [12, 13]


@pytest.mark.parametrize("must", [[10], [10, 11]])
def test_many_sets_with_one_that_must_be(must: list[int]) -> None:
    pairs = scores_of(14, 20, {(gpu, gpu + 1): 50 for gpu in range(0, 14, 2)})
    assert indices(best_of_partition(pairs, (1 << 14) - 1, 2, mask(must))) == [10, 11]


@pytest.mark.parametrize(
    ("free", "size", "must"),
    [(0b1111, 0, 0), (0b1111, -1, 0), (0b1, 2, 0), (0b111, 2, 0b111), (0b11, 2, 0b100)],
)
def test_nonsense_has_no_answer(free: int, size: int, must: int) -> None:
    assert choose_partition(DGX_1V, free, size, must=must) is None
    assert lowest_indices(free, size, must) is None


def test_gpus_that_the_machine_does_not_have_are_not_free() -> None:
    assert choose_partition(DGX_1V, 0b1_0000_0001, 2) is None
    assert choose_partition(DGX_1V, 0b1_0000_0011, 2) == 0b11


@pytest.mark.parametrize("size", range(1, 17))
def test_sixteen_gpus_are_answered_whatever_the_size(size: int) -> None:
    found = choose_partition(DGX_2, DGX_2.all_gpus, size)
    assert found is not None
    assert found.bit_count() == size
