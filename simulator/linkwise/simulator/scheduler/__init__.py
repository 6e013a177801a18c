"""A stand-in for kube-scheduler: its queue, its filters, and its calls to an extender."""

from linkwise.simulator.scheduler.loop import SchedulerLoop
from linkwise.simulator.scheduler.queue import QueueCounts
from linkwise.simulator.scheduler.settings import OtherFilter, SchedulerSettings

__all__ = ["OtherFilter", "QueueCounts", "SchedulerLoop", "SchedulerSettings"]
