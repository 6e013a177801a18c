"""The cache of this node's GPUs, from which the plugin answers every kubelet call.

The cache is one value, replaced whole; a change wakes those that wait for one (the kubelet's
ListAndWatch). A GPU that was once listed stays listed. If it is gone from the driver, it becomes
unhealthy, because the kubelet forgets the devices of running pods that a plugin no longer names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition

from linkwise.plugin.gpus.inventory import Finding, Probe, Stock, Xid
from linkwise.plugin.health.conditions import Treatment
from linkwise.plugin.health.faults import (
    WELL,
    Change,
    Health,
    Policy,
    after_probe,
    after_xids,
    changes,
    new_notes,
)
from linkwise.topology.machine.model import Machine

NOT_OFFERED = "{} is new and others are gone: not offered until the plugin is restarted"
GONE = Finding("gone", "gone from the driver's list; expected until the plugin restarts")


@dataclass(frozen=True, slots=True)
class Devices:
    """`machine` carries the health; `healths` has the reasons. `version` rises with every change
    that the kubelet or the Node must see. `minors` is as in Stock, and so is `left_out`, but
    without GPUs that were listed once: they are unhealthy."""

    machine: Machine
    minors: Mapping[str, int] | None
    healths: Mapping[str, Health] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)
    version: int = 1

    @property
    def known(self) -> frozenset[str]:
        return frozenset(gpu.uuid for gpu in self.machine.gpus)


@dataclass(frozen=True, slots=True)
class News:
    """What to report to people: GPUs that went out or came back; notes, as uuid and text; XIDs that
    changed nothing."""

    changes: tuple[Change, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    ignored: tuple[Xid, ...] = ()


class DeviceBook:
    """Times (`now`) are in seconds, from any clock that does not go back."""

    def __init__(self, snapshot: Stock, policy: Policy | None = None, *, now: float = 0.0) -> None:
        self._changed = Condition()
        self._policy = policy or Policy()
        self._gone: frozenset[str] = frozenset()  # from the last reading, until the next one
        healths = after_probe({}, snapshot.probe, self._policy, now=now)
        self._now = Devices(
            with_health(snapshot.machine, healths), snapshot.minors, healths, snapshot.left_out
        )

    @property
    def now(self) -> Devices:
        return self._now

    @property
    def incomplete(self) -> bool:
        """Whether the driver counts GPUs, or counted them, that the last reading lacks."""
        return bool(self._gone or self._now.left_out)

    def wait_newer(self, version: int, *, given_up: Callable[[], bool]) -> Devices:
        """Wait until the devices are newer than *version* or *given_up* returns True; return them.

        Each `wake` calls *given_up* again.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._now.version > version or given_up())
            return self._now

    def wake(self) -> None:
        """Let every waiter check whether it has given up."""
        with self._changed:
            self._changed.notify_all()

    def probed(self, probe: Probe, *, now: float) -> News:
        """Apply one probe's findings; returns what changed."""
        with self._changed:
            return self._take(self._now, probe, now)

    def struck(self, xids: Sequence[Xid], *, now: float) -> News:
        """Apply errors that the driver has reported; those of no known GPU change nothing."""
        with self._changed:
            known = self._now.known
            ours = [xid for xid in xids if xid.uuid in known]
            healths = after_xids(self._now.healths, ours, self._policy, now=now)
            news = self._put(self._now, healths)
        ignored = Treatment.IGNORE
        return replace(
            news,
            ignored=tuple(
                xid
                for xid in xids
                if xid.uuid not in known or self._policy.treatments.of_xid(xid.number) is ignored
            ),
        )

    def discovered(self, snapshot: Stock, *, now: float) -> News:
        """Apply a new reading. If it lacks a GPU, it changes only that GPU's health, and the device
        files of the others: a driver that lost a GPU may renumber them."""
        with self._changed:
            there = {gpu.uuid for gpu in snapshot.machine.gpus}
            self._gone = self._now.known - there
            places = {gpu.index for gpu in self._now.machine.gpus if gpu.uuid in self._gone}
            machine = self._now.machine if self._gone else snapshot.machine
            known = {gpu.uuid for gpu in machine.gpus}
            new = (gpu for gpu in snapshot.machine.gpus if gpu.uuid not in known)
            devices = replace(
                self._now,
                machine=with_health(machine, self._now.healths),
                minors=snapshot.minors,
                left_out={
                    **{i: why for i, why in snapshot.left_out.items() if i not in places},
                    **{gpu.index: NOT_OFFERED.format(gpu.uuid) for gpu in new},
                },
            )
            return self._take(devices, snapshot.probe, now)

    def _take(self, devices: Devices, probe: Probe, now: float) -> News:
        # A GPU that is gone stays so until a reading has it again, whatever probes say: else it
        # would come and go with them. An earlier reason says more than "gone".
        silent = self._gone - probe.findings.keys()
        told = {u for u in silent if GONE.condition in devices.healths.get(u, WELL).causes}
        new = {u for u in silent if not devices.healths.get(u, WELL).reason}
        findings = {**dict.fromkeys(told | new, (GONE,)), **probe.findings}
        known = {uuid: each for uuid, each in findings.items() if uuid in devices.known}
        probe = replace(probe, findings=known, unanswered=probe.unanswered | (silent - told - new))
        healths = after_probe(devices.healths, probe, self._policy, now=now)
        return self._put(devices, healths)

    def _put(self, devices: Devices, healths: Mapping[str, Health]) -> News:
        before = self._now
        after = replace(
            devices, machine=with_health(devices.machine, healths), healths=dict(healths)
        )
        if after.machine != before.machine or after.minors != before.minors:
            after = replace(after, version=before.version + 1)
        self._now = after
        if after.version != before.version:
            self._changed.notify_all()
        return News(changes(before.healths, healths), new_notes(before.healths, healths))


def with_health(machine: Machine, healths: Mapping[str, Health]) -> Machine:
    gpus = tuple(
        replace(gpu, healthy=not healths.get(gpu.uuid, WELL).reason) for gpu in machine.gpus
    )
    return machine if gpus == machine.gpus else replace(machine, gpus=gpus)
