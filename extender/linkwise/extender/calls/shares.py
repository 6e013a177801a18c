"""Shares of divided GPUs in kube-scheduler's calls: for pods that ask for nothing else, and for
pods that find no whole GPUs."""

from collections.abc import Sequence

from linkwise.extender.place.shares.nodes import (
    choice_on,
    offers_any,
    request_of,
    share_rooms,
)
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.extender_calls import FilterAnswer
from linkwise.extender.state.records import PodRecord
from linkwise.topology.annotations.plan import PlannedShares


def in_place_of_gpus(
    cache: Cache, record: PodRecord, names: Sequence[str], answer: FilterAnswer
) -> FilterAnswer:
    """The answer for a pod that has no whole GPUs on any of these nodes: the nodes that offer
    shares under the name of the pod's resource. *answer* says why the others are refused."""
    request = request_of(record, in_place=True)
    divided = cache.divided.intersection(names)
    shared = [name for name in divided if offers_any(cache.nodes[name], request)]
    if not shared:
        return answer
    rooms = share_rooms(cache, request, shared)
    # Where its shares can never be enough, whole GPUs may come free, and others be evicted for it.
    whole = {
        name: answer.failed[name]
        for name in rooms.unresolvable.keys() & answer.failed.keys()
        if _has_whole_ones(cache.nodes[name], record)
    }
    never = {name: why for name, why in rooms.unresolvable.items() if name not in whole}
    others = {*names} - {*shared}
    return FilterAnswer(
        rooms.node_names,
        {**{n: why for n, why in answer.failed.items() if n in others}, **rooms.failed, **whole},
        {**{n: why for n, why in answer.unresolvable.items() if n in others}, **never},
        is_partial=rooms.is_partial,
    )


def _has_whole_ones(info: NodeInfo, record: PodRecord) -> bool:
    """Whether the GPUs that are not divided would do for the pod if all were free."""
    if info.kind is None:
        return False
    request = GpuRequest(record.demand, record.ask.requirement)
    return info.kind.ever(request, info.kind.all_gpus & ~info.sharing.divided)


def take_shares(
    info: NodeInfo, record: PodRecord, *, in_place: bool = False
) -> tuple[PlannedShares, ...] | None:
    """The shares for the pod on this node, by container; None if there are none that suit. With
    *in_place*, shares stand in for the pod's whole GPUs."""
    choice = choice_on(info, request_of(record, in_place=in_place))
    return None if choice is None else choice.shares
