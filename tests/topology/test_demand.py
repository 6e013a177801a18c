"""How many GPUs a pod takes, by the arithmetic of kube-scheduler and kubelet (KEP-753)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.demand import ContainerDemand, PodDemand, Role, split


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
