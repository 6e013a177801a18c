"""A stand-in for kube-scheduler: its queue, its filters, and its calls to an extender."""

from linkwise.simulator.scheduler.loop import SchedulerLoop, SchedulerSettings
from linkwise.simulator.scheduler.queue import QueueCounts

__all__ = ["QueueCounts", "SchedulerLoop", "SchedulerSettings"]
