"""What the scheduling queue knows about a gang that waits, as kube-scheduler's QueuedPodInfo."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from linkwise.extender.placement.result import NoRoom


@dataclass(slots=True)
class QueuedGang:
    """The last search that found no room for the gang, and the state of the cache then."""

    no_room: NoRoom | None = None
    tried_room: int = -1  # `Cache.room` when it last found no room
    lacking: Mapping[int, int] = field(default_factory=dict)  # then: GPUs of a pod -> how many pods
    sought_at: float = 0.0  # when `no_room` was found out
    sought_in: object = None  # the state of the cache then

    def try_again(self) -> None:
        """Allow another search: there may be room now."""
        self.tried_room, self.lacking = -1, {}
