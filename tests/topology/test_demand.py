"""How many GPUs a pod takes, by the arithmetic of kube-scheduler and kubelet (KEP-753)."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.demand import (
    ContainerDemand,
    Draw,
    PodDemand,
    Role,
    drawn_sizes,
    draws,
    split,
)


def pod(*containers: tuple[Role, int]) -> PodDemand:
    """Containers called a, b, c … in this order."""
    names = "abcdefgh"
    return PodDemand(
        tuple(
            ContainerDemand(names[place], role, gpus)
            for place, (role, gpus) in enumerate(containers)
        )
    )


@pytest.mark.parametrize(
    ("demand", "gpus"),
    [
        (pod(), 0),
        (pod((Role.MAIN, 8)), 8),
        (pod((Role.MAIN, 2), (Role.MAIN, 1)), 3),
        (pod((Role.INIT, 2), (Role.MAIN, 8)), 8),
        (pod((Role.INIT, 4), (Role.MAIN, 1)), 4),
        (pod((Role.INIT, 4), (Role.INIT, 2), (Role.MAIN, 1)), 4),
        (pod((Role.SIDECAR, 1), (Role.MAIN, 2)), 3),
        (pod((Role.SIDECAR, 1), (Role.INIT, 4), (Role.MAIN, 2)), 5),
        (pod((Role.INIT, 4), (Role.SIDECAR, 1), (Role.MAIN, 2)), 4),
    ],
)
def test_a_pod_takes_what_its_largest_moment_needs(demand: PodDemand, gpus: int) -> None:
    assert demand.gpus == gpus


@pytest.mark.parametrize(
    ("demand", "shares"),
    [
        (pod((Role.MAIN, 2), (Role.MAIN, 1)), {"a": "01", "b": "2"}),
        (pod((Role.INIT, 2), (Role.MAIN, 3)), {"a": "01", "b": "012"}),
        (pod((Role.INIT, 2), (Role.INIT, 3), (Role.MAIN, 1)), {"a": "01", "b": "012", "c": "0"}),
        (pod((Role.SIDECAR, 1), (Role.MAIN, 1)), {"a": "0", "b": "1"}),
        (
            pod((Role.SIDECAR, 1), (Role.INIT, 2), (Role.MAIN, 1), (Role.MAIN, 1)),
            {"a": "0", "b": "12", "c": "1", "d": "2"},
        ),
    ],
)
def test_gpus_are_dealt_in_the_kubelets_order(demand: PodDemand, shares: dict[str, str]) -> None:
    dealt = split(demand, [str(n) for n in range(demand.gpus)])
    assert {name: "".join(gpus) for name, gpus in dealt.items()} == shares


def test_too_few_gpus_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="1 GPUs for a pod that takes 2"):
        split(pod((Role.MAIN, 2)), ["GPU-a"])


@given(st.lists(st.tuples(st.sampled_from(Role), st.integers(0, 4)), max_size=8))
def test_a_share_is_whole_and_no_gpu_is_with_two_containers_that_run_together(
    containers: list[tuple[Role, int]],
) -> None:
    initial = [entry for entry in containers if entry[0] is not Role.MAIN]
    demand = pod(*initial, *(entry for entry in containers if entry[0] is Role.MAIN))
    dealt = split(demand, [str(n) for n in range(demand.gpus)])
    for container in demand.containers:
        assert len(dealt[container.name]) == container.gpus
    lasting = [dealt[c.name] for c in demand.containers if c.role is not Role.INIT]
    at_the_end = [gpu for share in lasting for gpu in share]
    assert len(at_the_end) == len(set(at_the_end))
    sidecars: set[str] = set()
    for container in demand.containers:
        if container.role is Role.SIDECAR:
            sidecars |= set(dealt[container.name])
        elif container.role is Role.INIT:
            assert not sidecars & set(dealt[container.name])


@pytest.mark.parametrize(
    ("demand", "found", "sizes"),
    [
        (pod((Role.MAIN, 2), (Role.MAIN, 1)), {"a": ("01", ""), "b": ("2", "")}, ()),
        (pod((Role.INIT, 2), (Role.MAIN, 2)), {"a": ("01", ""), "b": ("01", "")}, ()),
        (pod((Role.INIT, 2), (Role.MAIN, 3)), {"a": ("01", ""), "b": ("012", "")}, ()),
        (pod((Role.INIT, 4), (Role.MAIN, 2)), {"a": ("0123", ""), "b": ("", "0123")}, (2,)),
        (
            pod((Role.INIT, 4), (Role.INIT, 2), (Role.MAIN, 4)),
            {"a": ("0123", ""), "b": ("", "0123"), "c": ("0123", "")},
            (),  # the second init container soon ends
        ),
        (  # of what the sidecar leaves, b gets all, and one more
            pod((Role.INIT, 2), (Role.SIDECAR, 1), (Role.MAIN, 2), (Role.MAIN, 1)),
            {"a": ("01", ""), "b": ("", "01"), "c": ("2", "01"), "d": ("3", "")},
            (2,),  # a lone GPU uses no link
        ),
        (
            pod((Role.SIDECAR, 1), (Role.INIT, 4), (Role.MAIN, 2)),
            {"a": ("0", ""), "b": ("1234", ""), "c": ("", "1234")},
            (2,),
        ),
    ],
)
def test_the_kubelet_chooses_which_gpus_of_a_larger_init_container_it_hands_on(
    demand: PodDemand, found: dict[str, tuple[str, str]], sizes: tuple[int, ...]
) -> None:
    gpus = [str(n) for n in range(demand.gpus)]
    known = draws(demand, split(demand, gpus))
    expected = {name: Draw(tuple(sure), tuple(others)) for name, (sure, others) in found.items()}
    assert known == expected
    assert draws(demand, {name: draw.among for name, draw in known.items()}) == expected
    assert drawn_sizes(demand) == sizes


containers = st.tuples(st.sampled_from(Role), st.integers(1, 4))


@given(st.lists(containers, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_whatever_the_kubelet_hands_on_is_among_the_draws(
    wanted: list[tuple[Role, int]], luck: random.Random
) -> None:
    demand = pod(*sorted(wanted, key=lambda each: each[0] is Role.MAIN))
    fresh = list(range(demand.gpus))
    shares = split(demand, fresh)
    reusable: set[int] = set()
    for container in demand.containers:
        again = luck.sample(sorted(reusable), min(container.gpus, len(reusable)))
        missing = container.gpus - len(again)
        held, fresh = {*again, *fresh[:missing]}, fresh[missing:]
        reusable = reusable | held if container.role is Role.INIT else reusable - held
        draw = draws(demand, shares)[container.name]
        assert set(draw.sure) <= held <= set(draw.among)
        assert bool(draw.others) is (len(draw.among) > container.gpus)
