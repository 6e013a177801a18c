"""What if some pods were gone: the GPUs that a claimant could then use on a node."""

from collections.abc import Iterable, Sequence

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_info import NodeInfo
from linkwise.extender.placement.result import Spot
from linkwise.extender.placement.shares.choice import Effort
from linkwise.extender.preemption.victim_selection import Unit, pods_of
from linkwise.extender.queue.reservations import Reservation, Reservations, ReservedGpus


class WhatIf:
    """*visible*: the reserved GPUs that the claimant may use. It never uses other reserved GPUs,
    whichever pods are gone."""

    def __init__(
        self, cache: Cache, reservations: Reservations, visible: Sequence[ReservedGpus]
    ) -> None:
        self._cache, self._reservations, self._visible = cache, reservations, visible
        self._keys = {each.key for each in visible if isinstance(each, Reservation)}
        self._may_have: dict[str, int] = {}  # node -> bitmask of the GPUs that it may ever use
        self.effort = Effort()  # of all searches for shares

    def usable(self, info: NodeInfo, gpus: int) -> int:
        """Those of *gpus* that the claimant may use once no pod has them."""
        may_have = self._may_have.get(info.name)
        if may_have is None:
            may_have = 0
            if info.machine is not None and not info.closed:
                may_have = info.machine.healthy_gpus
            for key, reserved in info.reserved.items():
                if key not in self._keys:
                    may_have &= ~reserved
            self._may_have[info.name] = may_have
        return gpus & may_have

    def free(self, info: NodeInfo, gone: Iterable[str]) -> int:
        """The bitmask of the GPUs that are free for the claimant without the pods *gone* (uids)."""
        owned = 0
        for uid in gone:
            owned |= info.owned.get(uid, 0)
        reserved = self._reservations.kept_on(info.name, self._visible)
        return info.free | reserved | self.usable(info, owned)


class NodeRoom:
    """Room for a single pod on one node, where the pods *gone* (uids) make room already."""

    def __init__(
        self, what_if: WhatIf, info: NodeInfo, request: GpuRequest, gone: Sequence[str]
    ) -> None:
        self._what_if, self._info, self._request, self._gone = what_if, info, request, gone

    def seek(self, units: Sequence[Unit]) -> list[Spot] | None:
        if self._info.kind is None:
            return None
        gone = (*self._gone, *(pod.uid for pod in pods_of(units)))
        gpus = self._info.kind.take(self._request, self._what_if.free(self._info, gone))
        return None if gpus is None else [Spot(self._info.name, gpus)]

    def may_suffice(self, units: Sequence[Unit]) -> bool:
        return self.seek(units) is not None

    def gain(self, gone: Sequence[Unit], more: Sequence[Unit]) -> int:
        before = {pod.uid for pod in pods_of(gone)}
        new: list[PodRecord] = [pod for pod in pods_of(more) if pod.uid not in before]
        return sum(self._info.owned.get(pod.uid, 0).bit_count() for pod in new)
