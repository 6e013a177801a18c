"""Lets time pass from one end of a pod to the next that may matter to the job."""

from collections.abc import Iterator, Sequence

from linkwise.cli.what_if.live_listing import LiveListing
from linkwise.cli.what_if.parts import Group
from linkwise.extender.show.explain.snapshot import Snapshot

_MOST_STEPS = 150  # after each, the core searches for room


class Ends:
    """The known ends, in order.

    If no other pod waits, ends are skipped while there are too few GPUs however they are joined;
    that changes nothing. If others wait, all of them have their turns, and if there are very many
    ends, several form one step. So it is where shares may stand in for GPUs.
    """

    def __init__(self, live: LiveListing, groups: Sequence[Group]) -> None:
        self._live = live
        snapshot = live.core.snapshot(live.now)
        mine = {uid for group in groups for uid in group.uids}
        self._skips = not (
            any(
                record.demand.gpus and not record.node and record.live and record.uid not in mine
                for record in snapshot.pods
            )
            or live.without_node
            or live.offers_shares
        )
        known = len(live.ends)
        self.step = 1 if self._skips else max(1, known // _MOST_STEPS)
        self._steps = 0
        self._gpus: dict[str, tuple[str, int]] = {}  # uid -> node, GPUs
        self._free: dict[str, int] = {}
        for node in snapshot.nodes:
            if node.machine is None:
                continue
            taken = 0
            for uid, mask in node.owned.items():
                self._gpus[uid] = (node.name, mask.bit_count())
                taken |= mask
            self._free[node.name] = (node.machine.healthy_gpus & ~taken).bit_count()
        self._needs = [_needs(snapshot, group) for group in groups]
        self._slots = {
            size: sum(free // size for free in self._free.values())
            for needs in self._needs
            for size in needs
        }
        self._next = self._skipping() if self._skips else iter(())

    def go_on(self) -> bool:
        """Advance to a time at which the job may start. Return False if no further end is known."""
        if self._steps == _MOST_STEPS * 2:
            return False
        self._steps += 1
        if not self._skips:
            ends = self._live.ends
            if not ends:
                return False
            self._live.pass_to(ends[min(self.step, len(ends)) - 1][0])
            return True
        then = next(self._next, None)
        if then is not None:
            self._live.pass_to(then)
        return then is not None

    def _skipping(self) -> Iterator[float]:
        for end, uid in self._live.ends:
            node, gpus = self._gpus.get(uid, ("", 0))
            if node:
                before = self._free[node]
                self._free[node] += gpus
                for size in self._slots:
                    self._slots[size] += (before + gpus) // size - before // size
            if any(
                all(self._slots[size] >= count for size, count in needs.items())
                for needs in self._needs
            ):
                yield end


def _needs(snapshot: Snapshot, group: Group) -> dict[int, int]:
    """Return size -> how many pods with so many GPUs need room; the smallest pods are enough."""
    sizes = sorted(snapshot.by_uid[uid].demand.gpus for uid in group.uids)[: group.enough]
    return {size: sizes.count(size) for size in set(sizes)}
