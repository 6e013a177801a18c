"""The lives of workloads that stay as they are, the same for each kind.

At the end of each test no GPU is taken, planned or reserved (`clean`).
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from linkwise.kube.client import MERGE_PATCH, KubeClient
from linkwise.kube.objects import Pod
from tests.beside.kinds import Kind
from tests.beside.lives import ELSEWHERE, each, world_of_lives
from tests.beside.workloads import create_job, delete
from tests.beside.world import (
    Played,
    bound,
    empty,
    leave_room,
    none_bound,
    of,
    of_two_one_runs_whole,
    one_that_goes_gets_its_place_back,
    remove,
    running,
)
from tests.cluster.support.programs.operators import selected
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld

T = TypeVar("T")


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_of_lives(run_directory / "lives", *selected()) as world:
        yield world


@each()
def test_of_two_one_runs_whole_and_the_other_waits_whole(
    world: SchedulingWorld, kind: Kind
) -> None:
    of_two_one_runs_whole(world, lambda name: kind.create(world, name, 2))


@each(lambda kind: kind.recreates)
@pytest.mark.parametrize("failing", [0, 1])
def test_a_pod_that_failed_gets_its_place_back_before_one_that_waits(
    world: SchedulingWorld, kind: Kind, failing: int
) -> None:
    """The Job controller waits for 10 s before it replaces a pod."""
    leave_room(world, "n1", "n2")
    kind.create(world, "one", 2)
    one_that_goes_gets_its_place_back(world, failing)


@each()
def test_what_is_too_large_waits_whole_until_room_comes(world: SchedulingWorld, kind: Kind) -> None:
    leave_room(world, "n1", "n2")
    played = Played(world, none_bound("one"))
    kind.create(world, "one", 3)
    played.until(lambda: of(world.pods(), "one"), "it has pods")
    played.at_rest()

    empty(world, "n3")

    played = Played(world)
    played.until_running("one", 3)
    played.at_rest()


@each()
def test_what_is_deleted_while_it_waits_leaves_nothing(world: SchedulingWorld, kind: Kind) -> None:
    leave_room(world, "n1")
    kind.create(world, "one", 3)
    played = Played(world, none_bound("one"))
    played.until(lambda: of(world.pods(), "one"), "it has pods")
    empty(world, "n2")
    played.at_rest()

    delete(world, kind.path, "one")

    played.until(lambda: not of(world.pods(), "one"), "its pods are gone")
    create_job(world, "other")
    played.until_running("other", 2)
    played.at_rest()


class InNamespace(KubeClient):
    """All calls about `NAMESPACE` go to another namespace."""

    namespace = ELSEWHERE

    def _there(self, path: str) -> str:
        return path.replace(f"/namespaces/{NAMESPACE}/", f"/namespaces/{self.namespace}/")

    def get(self, path: str, kind: type[T], **more: Any) -> T:
        return super().get(self._there(path), kind, **more)

    def post(self, path: str, body: object) -> None:
        super().post(self._there(path), body)

    def patch(self, path: str, body: object, *, content_type: str = MERGE_PATCH) -> None:
        super().patch(self._there(path), body, content_type=content_type)

    def delete(self, path: str, **more: Any) -> None:
        super().delete(self._there(path), **more)


@pytest.fixture
def elsewhere(world: SchedulingWorld) -> Iterator[SchedulingWorld]:
    """The same cluster, seen from another namespace."""
    there = copy.copy(world)
    there.client = InNamespace.load(kubeconfig=str(world.control.kubeconfig()))
    yield there
    remove(there, ELSEWHERE)


@each()
def test_of_two_of_one_name_in_two_namespaces_one_runs_whole(
    world: SchedulingWorld, elsewhere: SchedulingWorld, kind: Kind
) -> None:
    leave_room(world, "n1", "n2")

    def one_started(here: Sequence[Pod]) -> str:
        both = bound(here, "one") and bound(elsewhere.pods(), "one")
        return "there is room for one, and both have started" if both else ""

    played = Played(world, one_started)
    kind.create(world, "one", 2)
    kind.create(elsewhere, "one", 2)
    there = Played(elsewhere)

    def one_runs() -> bool:
        there.settle(0.1)
        return 2 in (running(world, "one"), running(elsewhere, "one"))

    played.until(one_runs, "one of the two runs whole")
    played.settle()
    first, second = (world, elsewhere) if running(world, "one") else (elsewhere, world)
    delete(first, kind.path, "one")
    Played(first).until(lambda: not of_any(first), "its pods have ended and are gone")

    Played(second).until_running("one", 2)


def of_any(world: SchedulingWorld) -> bool:
    return any(pod.metadata.labels.get("app") == "one" for pod in world.pods())
