"""Which pods may be moved, and what that costs, as the operator configures it."""

from dataclasses import dataclass
from enum import StrEnum

from linkwise.extender.api.records import PodRecord
from linkwise.pods.podgrouper.recreated import ALWAYS


class Moves(StrEnum):
    NEVER = "never"  # none
    ADVISE = "advise"  # none; which ones would be moved with `consent` is shown
    CONSENT = "consent"  # pods with `linkwise.dev/movable: "true"`, or of a namespace that consents


@dataclass(frozen=True, slots=True)
class MovePolicy:
    moves: Moves = Moves.NEVER
    # Pods there may be moved unless they say no, but for those of Jobs, which have to say yes.
    namespaces: frozenset[str] = frozenset()
    cost_seconds: float = 600.0  # of its run that a restart loses, if the pod does not say
    again_seconds: float = 86_400.0  # a pod that was moved stays where it is for so long
    whole_nodes: int = 0  # so many are kept whole by moves
    whole_nodes_cost_seconds: float = 14_400.0  # of GPUs, that all moves of a day may lose for it

    def cost_of(self, pod: PodRecord) -> float:
        """How many seconds of its run the pod loses by a move."""
        said = pod.ask.move_cost_seconds
        return self.cost_seconds if said is None else said

    def consents(self, pod: PodRecord) -> bool:
        """Whether the pod may be evicted for others, and is then recreated."""
        if pod.ask.movable is None:
            # Of a Job, what it counts as a failure is read only for pods that consent themselves.
            return pod.ref.namespace in self.namespaces and pod.owner_kind in ALWAYS
        return pod.ask.movable and bool(pod.owner_uid)


NO_MOVES = MovePolicy()
