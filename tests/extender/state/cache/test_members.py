"""The members of a gang are in the order of their ranks, whatever happens to them."""

from dataclasses import replace
from random import Random

from linkwise.extender.state.actions import PodRef
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.records import GangKey, PodRecord, ResourceList
from linkwise.pods.annotations import NOTHING_SAID

GANGS = (GangKey("ml", "a"), GangKey("ml", "b"), None)


def record(name: str, rank: int | None, gang: GangKey | None, *, ended: bool = False) -> PodRecord:
    return PodRecord(
        ref=PodRef("ml", name, f"uid-{name}"),
        node="",
        ended=ended,
        failed=False,
        leaving=False,
        priority=0,
        created=0.0,
        needs=ResourceList(gpus=1),
        ask=replace(NOTHING_SAID, rank=rank),
        gang=gang,
    )


def test_members_stay_in_order_while_pods_come_change_and_go() -> None:
    draw, cache = Random(1), Cache()
    pods: dict[str, PodRecord] = {}
    for _ in range(3000):
        name = f"w-{draw.randrange(12)}"
        if draw.random() < 0.2:
            pods.pop(name, None)
            cache.drop_pod(f"uid-{name}")
        else:
            rank = draw.choice((None, *range(4)))
            made = record(name, rank, draw.choice(GANGS), ended=draw.random() < 0.5)
            pods[name] = made
            cache.put_pod(made)
        for gang in filter(None, GANGS):
            mine = [pod for pod in pods.values() if pod.gang == gang]
            assert cache.members(gang) == sorted(mine, key=lambda pod: (pod.order, pod.uid))


def test_without_ranks_names_are_in_the_order_of_their_numbers() -> None:
    cache = Cache()
    for number in (10, 2, 1):
        cache.put_pod(record(f"w-{number}", None, GANGS[0]))
    assert [pod.ref.name for pod in cache.members(GangKey("ml", "a"))] == ["w-1", "w-2", "w-10"]
    assert cache.members(GangKey("ml", "none")) == []
