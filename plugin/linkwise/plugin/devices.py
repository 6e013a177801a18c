"""What is known of this node's GPUs now: the cache from which every kubelet call is answered.

One value, replaced whole; whoever waits (the kubelet's ListAndWatch, the publisher) is woken when
it changes. A GPU that was once listed stays listed: one that is gone from the driver is unhealthy,
because the kubelet forgets the devices of running pods that a plugin no longer names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Condition

from linkwise.plugin.health import Change, Fault, changes, next_faults
from linkwise.plugin.inventory import Snapshot
from linkwise.topology.model import Machine

GONE = "gone from the driver's list; expected until the plugin restarts"


@dataclass(frozen=True, slots=True)
class Devices:
    """`machine` carries the health; `version` rises with every change."""

    machine: Machine
    minors: Mapping[str, int]
    faults: Mapping[str, Fault] = field(default_factory=dict)
    version: int = 1

    @property
    def known(self) -> frozenset[str]:
        return frozenset(gpu.uuid for gpu in self.machine.gpus)


class DeviceBook:
    def __init__(self, snapshot: Snapshot, *, clean_probes_needed: int = 3) -> None:
        self._changed = Condition()
        self._clean_probes_needed = clean_probes_needed
        faults = {uuid: Fault(reason) for uuid, reason in snapshot.problems.items()}
        machine = with_health(snapshot.machine, faults)
        self._now = Devices(machine, dict(snapshot.minors), faults)

    @property
    def now(self) -> Devices:
        return self._now

    def wait_newer(self, version: int, *, given_up: Callable[[], bool]) -> Devices:
        """The devices, as soon as they are newer than *version*; else as they are when the waiter
        has given up, which it is asked whenever `wake` is called."""
        with self._changed:
            self._changed.wait_for(lambda: self._now.version > version or given_up())
            return self._now

    def wake(self) -> None:
        """Ask all that wait whether they have given up."""
        with self._changed:
            self._changed.notify_all()

    def probed(self, problems: Mapping[str, str]) -> tuple[Change, ...]:
        """Take one probe's findings in; returns what changed."""
        with self._changed:
            return self._take(self._now.machine, self._now.minors, problems)

    def discovered(self, snapshot: Snapshot) -> tuple[Change, ...]:
        """Take a new reading in. One that lacks a GPU changes nothing but that GPU's health."""
        with self._changed:
            missing = self._now.known - {gpu.uuid for gpu in snapshot.machine.gpus}
            if not missing:
                return self._take(snapshot.machine, dict(snapshot.minors), snapshot.problems)
            problems = {u: why for u, why in snapshot.problems.items() if u in self._now.known}
            for uuid in missing:  # what a probe has found of it says more
                fault = self._now.faults.get(uuid)
                problems[uuid] = fault.reason if fault else GONE
            return self._take(self._now.machine, self._now.minors, problems)

    def _take(
        self, machine: Machine, minors: Mapping[str, int], problems: Mapping[str, str]
    ) -> tuple[Change, ...]:
        before = self._now
        faults = next_faults(before.faults, problems, clean_probes_needed=self._clean_probes_needed)
        after = replace(before, machine=with_health(machine, faults), minors=minors, faults=faults)
        if after.machine != before.machine or after.minors != before.minors:
            after = replace(after, version=before.version + 1)
            self._changed.notify_all()
        self._now = after
        return changes(before.faults, faults)


def with_health(machine: Machine, faults: Mapping[str, Fault]) -> Machine:
    gpus = tuple(replace(gpu, healthy=gpu.uuid not in faults) for gpu in machine.gpus)
    return machine if gpus == machine.gpus else replace(machine, gpus=gpus)
