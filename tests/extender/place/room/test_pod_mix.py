"""Which pods count for the mix, for how long, and when the mix is learnt again."""

from itertools import pairwise

from linkwise.extender.place import room
from linkwise.extender.place.room import Ask, PodKind, PodMix
from linkwise.extender.state.records import PodRecord
from linkwise.pods.requirement import TopologyRequirement
from tests.extender.cluster import Cluster
from tests.extender.place.room.pods import pod

MIG = "nvidia.com/mig-1g.10gb"


def kind(size: int, cpu: int = 1000, resource: str = "") -> PodKind:
    return PodKind(Ask(size, TopologyRequirement(), resource), cpu, 2**30)


def learnt(*pods: PodRecord) -> dict[PodKind, float]:
    mix = PodMix()
    for each in pods:
        mix.came(each)
    return mix.shares()


def test_pods_count_by_what_they_take_of_a_node() -> None:
    found = learnt(pod(1), pod(1), pod(1, cpu=2000), pod(2, shares={MIG: 3}))
    assert found == {
        kind(1): 2 / 5,
        kind(1, 2000): 1 / 5,
        kind(2): 1 / 5,
        kind(3, resource=MIG): 1 / 5,
    }


def test_what_a_pod_requires_of_gpus_makes_another_kind_and_what_it_wishes_of_links_does_not() -> (
    None
):
    picky = learnt(pod(1, said={"linkwise.dev/gpu-model": "H100"}), pod(1))
    assert len(picky) == 2
    wishes = learnt(pod(2, said={"linkwise.dev/prefer-link": "switch"}), pod(2))
    assert wishes == {kind(2): 1.0}


def test_pods_that_the_extender_does_not_place_do_not_count() -> None:
    assert learnt(pod(0), pod(1, left_alone=True), pod(1, invalid="no")) == {}


def test_only_the_most_frequent_kinds_are_known() -> None:
    often = [pod(1, cpu=cpu) for cpu in range(1, room.MOST_KINDS + 1)] * 2
    found = learnt(*often, pod(1, cpu=9999))
    assert kind(1, 9999) not in found
    assert len(found) == room.MOST_KINDS


def test_a_kind_that_stopped_coming_is_forgotten() -> None:
    mix = PodMix()
    mix.came(pod(8))
    assert kind(8) in mix.shares()
    for _ in range(room.MOST_PODS):
        mix.came(pod(1))
    assert kind(8) not in mix.shares()
    for _ in range(20 * room.MOST_PODS):
        mix.came(pod(2))
    assert mix.shares()[kind(2)] > 0.99


def test_it_is_learnt_again_more_and_more_seldom_and_never_stops_to_be() -> None:
    mix, learnt_at = PodMix(), []
    for number in range(5 * room.MOST_PODS):
        before = mix.version
        mix.came(pod(1))
        if mix.version != before:
            learnt_at.append(number + 1)
    assert learnt_at[:8] == [1, 2, 3, 5, 8, 12, 18, 27]
    late = [each for each in learnt_at if each > room.MOST_PODS]
    pauses = [after - before for before, after in pairwise(late)]
    assert room.MOST_PODS / 8 < min(pauses) <= max(pauses) < room.MOST_PODS


def test_each_pod_counts_once_and_stays_counted_when_it_is_gone() -> None:
    at = Cluster()
    at.add_node("n0", "dgx1-v100")
    for number in range(3):
        at.add_pod(f"p{number}", 2)
        assert at.schedule(f"p{number}")
    at.restart()  # lists all pods
    at.delete("p0")
    counted = at.core._planner.mix.shares()
    assert counted == {kind(2): 1.0}
    at.add_pod("one", 1)
    assert at.core._planner.mix.shares()[kind(1)] == 1 / 4
