"""What the tests of the lives of workloads share: with all operators of the run at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beside.kinds import Kind, add_runtimes, kinds
from tests.beside.world import world_beside
from tests.cluster.support.programs.operators import Operator
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

HIGH = "high"  # a PriorityClass
ELSEWHERE = "nlp"  # another namespace


@contextmanager
def world_of_lives(directory: Path, *operators: Operator) -> Iterator[SchedulingWorld]:
    flags = ("--preempt=lower-priority",)
    together = (each for each in operators if not each.alone)
    with world_beside(directory, *together, extender_flags=flags) as world:
        add_runtimes(world)
        world.control.kubectl("create", "namespace", ELSEWHERE)
        world.control.kubectl("create", "priorityclass", HIGH, "--value=1000")
        yield world


def each(can: Callable[[Kind], object] = lambda _: True) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds(can), ids=lambda kind: kind.name)
