"""Pods as the mix counts them."""

from collections.abc import Mapping

from linkwise.extender.state.actions import PodRef
from linkwise.extender.state.records import PodRecord, ResourceList
from linkwise.pods.annotations import ask_of
from linkwise.topology.demand import ContainerDemand, PodDemand, Role


def demand(count: int) -> PodDemand:
    return PodDemand((ContainerDemand("main", Role.MAIN, count),) if count else ())


def pod(
    gpus: int = 0,
    *,
    cpu: int = 1000,
    shares: Mapping[str, int] | None = None,
    said: Mapping[str, str] | None = None,
    left_alone: bool = False,
    invalid: str = "",
) -> PodRecord:
    return PodRecord(
        ref=PodRef("ml", "p", "p"),
        node="",
        ended=False,
        failed=False,
        leaving=False,
        priority=0,
        created=0.0,
        needs=ResourceList(cpu, 2**30, gpus),
        demand=demand(gpus),
        shares=tuple((resource, demand(count)) for resource, count in (shares or {}).items()),
        ask=ask_of(said or {}, {}),
        left_alone=left_alone,
        invalid=invalid,
    )
