"""Worlds that a seed makes: whatever happens to the programs, they keep their promises.

A few seeds here; docs/testing.md has the command for more, and for a failing one alone.
"""

import pytest

from linkwise.extender.state.noted_places import NotedPlace, NotedPlaces, write_places
from linkwise.kube.client import KubeClient
from linkwise.kube.objects import ObjectMeta, Pod, PodSpec
from tests.end_to_end.hostile import Hostile, evictions_of_others
from tests.end_to_end.random_workload import run, seeds_of, told
from tests.end_to_end.waves import WaveLaw
from tests.end_to_end.workload import workload


@pytest.mark.parametrize("seed", range(6))
def test_every_promise_holds_at_rest_and_nothing_is_left_after_the_last_pod(seed: int) -> None:
    result = run(seed)
    assert not result.broken, told(result)


@pytest.mark.parametrize("seed", range(3))
def test_every_promise_holds_beside_filters_that_linkwise_does_not_know(seed: int) -> None:
    result = run(seed, other_filters=True)
    assert not result.broken, told(result)


def test_a_seed_always_tells_the_same_story() -> None:
    first, again = workload(17), workload(17)
    assert first.machines == again.machines
    assert [(step.what, step.pause_seconds) for step in first.steps] == [
        (step.what, step.pause_seconds) for step in again.steps
    ]
    assert [step.what for step in workload(18).steps] != [step.what for step in first.steps]


def test_a_hostile_tenant_of_a_seed_always_does_the_same() -> None:
    first, again, other = (Hostile(seed).acts() for seed in (17, 17, 18))
    assert [act.what for act in first] == [act.what for act in again]
    assert [act.what for act in first] != [act.what for act in other]


def test_the_law_of_waves_sees_members_without_a_place() -> None:
    law = WaveLaw(KubeClient.load(kubeconfig=None, server="http://127.0.0.1:1"))
    law.submitted("run", 3)
    first, second, third = (
        Pod(ObjectMeta(name=name, uid=name, labels={"app": "run"}), PodSpec(node_name="n1"))
        for name in "abc"
    )
    place = NotedPlace(1, "worker", "n1", "f")
    noted = NotedPlaces(
        namespace="ml",
        name="JobSet.jobset.x-k8s.io/run",
        source="",
        plan="p",
        made=0.0,
        places=(place,),
    )
    notes = {"key": write_places(noted)}
    assert law.at_rest({}, []) == []
    assert law.at_first_binding(first, notes, [first]) == ["run: 1 members and 1 places, of 3"]
    assert law.at_first_binding(first, notes, [first, second]) == []
    assert law.at_rest({}, [first, second]) == ["run: 2 members and 0 places, of 3"]
    law.look([first, second, third])
    assert law.at_rest({}, [first]) == []


@pytest.mark.parametrize(
    ("namespace", "victim", "reason", "is_seen"),
    [
        ("hostile", "ml/single1", "OthersEvicted", True),
        ("hostile", "hostile/h0-1", "OthersEvicted", False),
        ("hostile", "ml/single1", "FailedScheduling", False),
        ("ml", "hostile/h0-1", "OthersEvicted", False),
    ],
)
def test_an_eviction_for_a_pod_of_the_hostile_tenant_is_seen(
    namespace: str, victim: str, reason: str, is_seen: bool
) -> None:
    event = {
        "reason": reason,
        "involvedObject": {"namespace": namespace, "name": "h0-0"},
        "message": f"pod {victim} was evicted to make room",
    }
    assert bool(evictions_of_others([event])) is is_seen


def test_seeds_are_named_alone_or_from_to() -> None:
    assert seeds_of("7") == [7]
    assert seeds_of("0-3,9") == [0, 1, 2, 3, 9]
    with pytest.raises(ValueError, match="invalid literal"):
        seeds_of("all")
