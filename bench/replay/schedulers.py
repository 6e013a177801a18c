"""The schedulers for a trace of jobs, by the names that users give."""

from collections.abc import Callable, Mapping

from bench.replay.baselines import placements
from bench.replay.baselines.queues import Easy, Fifo, Greedy
from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.replay.core import objects
from linkwise.replay.core.contestant import LinkwiseContestant
from linkwise.replay.driver import Contestant
from linkwise.replay.jobs import Fleet

LINKWISE, MULTIFACTOR = "linkwise", "linkwise-multifactor"

Make = Callable[[Fleet], Contestant]


def _linkwise(fleet: Fleet, order: QueueOrder) -> Contestant:
    """It moves the jobs that consent."""
    settings = CoreSettings(queue_order=order, moves=MovePolicy(Moves.CONSENT))
    return LinkwiseContestant(objects.nodes(fleet.machines, fleet.nodes_per_leaf), settings)


SCHEDULERS: Mapping[str, Make] = {
    LINKWISE: lambda fleet: _linkwise(fleet, QueueOrder.AGE),
    MULTIFACTOR: lambda fleet: _linkwise(fleet, QueueOrder.MULTIFACTOR),
    "fifo": lambda fleet: Fifo(fleet, placements.consolidated),
    "greedy": lambda fleet: Greedy(fleet, placements.consolidated),
    "easy": lambda fleet: Easy(fleet, placements.consolidated),
    "buddy": lambda fleet: Greedy(fleet, placements.buddy),
    "spread": lambda fleet: Greedy(fleet, placements.spread),
    "packed": lambda fleet: Greedy(fleet, placements.packed),
    "dra": lambda fleet: Greedy(fleet, placements.first_fit),
}
DEFAULT = (LINKWISE, "fifo", "greedy", "easy")
