"""The schedulers for a trace of jobs, by the names that users give."""

from collections.abc import Callable, Mapping

from linkwise.extender.core import CoreSettings
from linkwise.extender.queue.queue_order import QueueOrder
from linkwise.replay.baselines import placements
from linkwise.replay.baselines.queues import Easy, Fifo, Greedy
from linkwise.replay.core import objects
from linkwise.replay.core.cluster import CoreCluster
from linkwise.replay.driver import Contestant
from linkwise.replay.jobs import Fleet

LINKWISE, MULTIFACTOR = "linkwise", "linkwise-multifactor"

Make = Callable[[Fleet, str], Contestant]
"""(fleet, recorded machine of its nodes) -> a scheduler."""

SCHEDULERS: Mapping[str, Make] = {
    LINKWISE: lambda fleet, machine: CoreCluster(objects.nodes(machine, fleet.nodes)),
    MULTIFACTOR: lambda fleet, machine: CoreCluster(
        objects.nodes(machine, fleet.nodes), CoreSettings(queue_order=QueueOrder.MULTIFACTOR)
    ),
    "fifo": lambda fleet, _: Fifo(fleet, placements.consolidated),
    "greedy": lambda fleet, _: Greedy(fleet, placements.consolidated),
    "easy": lambda fleet, _: Easy(fleet, placements.consolidated),
    "buddy": lambda fleet, _: Greedy(fleet, placements.buddy),
    "spread": lambda fleet, _: Greedy(fleet, placements.spread),
    "packed": lambda fleet, _: Greedy(fleet, placements.packed),
}
DEFAULT = (LINKWISE, "fifo", "greedy", "easy")
