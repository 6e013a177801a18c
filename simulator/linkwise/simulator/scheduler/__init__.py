"""A stand-in for kube-scheduler: its queue, its filters, and its calls to an extender.

What differs from a real one:

- Of about 15 filter plugins it has those of docs/workloads.md ("kube-scheduler's filters"), and
  those that a test adds (`other_filters`). The latter wake a pod by kind of event only.
- A node that is NotReady counts as tainted: there is no controller that taints it.
- Scores are LeastAllocated and Balanced (CPU, memory) plus extender × weight × 10. There are none
  for spread.
- The pod sent to the extender has the fields of `kube.objects`, not the whole object.
- Preemption knows no PodDisruptionBudgets and no `preemptionPolicy`. Victims, their order, the
  preempt verb, DisruptionTarget and nomination are there.
- The pods that wait when it starts are tried by priority, then age. With a real one that is the
  order of a hash table, by priority.
- No Permit, no PreBind (so no volume is bound), no PodGroups, no second profile.
- Nodes are tried in the order of first sight, not round-robin over the zones.
- At most 1,024 binds run at the same time.
"""

from linkwise.simulator.scheduler.loop import SchedulerLoop
from linkwise.simulator.scheduler.queue import QueueCounts
from linkwise.simulator.scheduler.settings import OtherFilter, SchedulerSettings

__all__ = ["OtherFilter", "QueueCounts", "SchedulerLoop", "SchedulerSettings"]
