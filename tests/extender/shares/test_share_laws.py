"""Pods of all kinds on nodes with whole GPUs, replicas and MIG devices, in any order: nothing is
given twice, and a pod is refused only if a search that tries every way refuses it too."""

import random

import pytest

from tests.divided import GPU, MIG_1G, MIG_3G, SHARED, all_three
from tests.extender.shares.brute_force import parts_of
from tests.extender.shares.life import Life
from tests.machines import DGX_1V


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_given_twice_and_no_pod_waits_without_need(seed: int) -> None:
    life = Life(random.Random(seed))
    happenings = (
        *(life.add, life.add, life.try_all, life.try_all, life.start_all, life.delete, life.end),
        *(life.clean_up, life.land, life.divide_otherwise, life.fall_ill, life.restart),
    )
    for _ in range(200):
        life.chance.choice(happenings)()
        life.sound()
    assert life.placed > 30


def test_the_nodes_of_this_test_have_all_three() -> None:
    resources = {part.resource for part in parts_of(all_three(DGX_1V))}
    assert resources == {GPU, SHARED, MIG_1G, MIG_3G}
    assert all_three(DGX_1V).healthy_gpus == 0b111
