"""Shares for a single pod on one node if some pods were evicted."""

from collections.abc import Collection, Sequence

from linkwise.extender.cache.node_info import NodeInfo
from linkwise.extender.placement.result import Spot
from linkwise.extender.placement.shares.choice import (
    Effort,
    ShareRequest,
    UnsoughtError,
    choose_shares,
)
from linkwise.extender.preemption.victim_selection import FreedRoom, Unit, pods_of


class FreedShares:
    """The pods *gone* make room already: by uid, or by `namespace/name` if the API server no longer
    knows the pod. Once the *effort* is spent there is no room."""

    def __init__(
        self, info: NodeInfo, request: ShareRequest, gone: Collection[str], effort: Effort
    ) -> None:
        self._info, self._request, self._gone, self._effort = info, request, gone, effort
        self._sought: dict[frozenset[str], list[Spot] | None] = {}  # without which pods
        self._wanted = {
            each
            for name, _ in request.wants
            for place in info.shares.places
            if place.part.resource == name
            for each in place.part.ids
        }

    def seek(self, units: Sequence[Unit]) -> list[Spot] | None:
        info = self._info
        if info.kind is None or info.closed:
            return None
        gone = frozenset({*self._gone, *(pod.uid for pod in pods_of(units))})
        if gone not in self._sought:
            without = info.shares.without(gone, sum(info.owned.get(uid, 0) for uid in gone))
            try:
                found = choose_shares(info.kind, without, self._request, self._effort)
            except UnsoughtError:
                return None
            self._sought[gone] = None if found is None else [Spot(info.name, gpus=0)]
        return self._sought[gone]

    def may_suffice(self, units: Sequence[Unit]) -> bool:
        """Whether there are enough shares, wherever they are."""
        info = self._info
        gone = {*self._gone, *(pod.uid for pod in pods_of(units))}
        without = info.shares.without(gone, sum(info.owned.get(uid, 0) for uid in gone))
        return all(without.free.get(name, 0) >= demand.gpus for name, demand in self._request.wants)

    def gain(self, gone: Sequence[Unit], more: Sequence[Unit]) -> int:
        before = {pod.uid for pod in pods_of(gone)}
        new = {pod.uid for pod in pods_of(more)} - before
        holders = self._info.shares.holders
        return sum(holders.get(each) in new for each in self._wanted)


class BothRooms:
    """Room in both, for a pod with whole GPUs and shares."""

    def __init__(self, first: FreedRoom, second: FreedRoom) -> None:
        self._first, self._second = first, second

    def seek(self, units: Sequence[Unit]) -> list[Spot] | None:
        return None if self._second.seek(units) is None else self._first.seek(units)

    def may_suffice(self, units: Sequence[Unit]) -> bool:
        return self._first.may_suffice(units) and self._second.may_suffice(units)

    def gain(self, gone: Sequence[Unit], more: Sequence[Unit]) -> int:
        return self._first.gain(gone, more) + self._second.gain(gone, more)
