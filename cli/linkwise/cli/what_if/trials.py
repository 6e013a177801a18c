"""Asks the core, in a live listing of its own, whether the job starts once some pods are gone."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

import msgspec

from linkwise.cli.what_if.in_shares import nodes_with_shares
from linkwise.cli.what_if.live_listing import LiveListing
from linkwise.cli.what_if.other_pods import NodesForOthers, alike
from linkwise.cli.what_if.parts import Explanations, Group, all_start, groups_of
from linkwise.extender.show.explain.funnel import alike as alike_records
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.views import Explanation, GangExplanation
from linkwise.kube.controllers.order import After, Reached
from linkwise.kube.objects import Pod

T = TypeVar("T")
change = msgspec.structs.replace
_MOMENT_SECONDS = 6.0  # after that, the core no longer waits for a gang that may grow
_STAYS = frozenset({"DaemonSet", "Node"})  # their pods come back at once
_MOST = 150
_MOST_WAVES = 8
_MOST_PODS = 6000  # of the job, in all trials together: each takes milliseconds


class OutOfTrialsError(Exception):
    """The limit of trials is reached."""


class Trials:
    """In *live* no other pod waits, ends, or is evicted."""

    def __init__(
        self, live: LiveListing, job: Sequence[Pod], order: Mapping[str, tuple[After, ...]]
    ) -> None:
        self._live, self._job = live, job
        self._order = order
        if len(set(order.values())) > _MOST_WAVES:
            # Each takes a while. All come at once, except those that may get the GPUs of others.
            self._order = {
                uid: tuple(each for each in after if each.state is Reached.COMPLETE)
                for uid, after in order.items()
            }
        self._numbers = count()
        self._left = min(_MOST, max(_MOST_PODS // len(job), 8))
        # Here all of its pods come at once: those that no order lets come count too.
        self.groups, self.snapshot, self.pool, self.hopeless = self._with_job(
            (),
            lambda groups, snapshot: (
                groups,
                snapshot,
                self._pool(groups, snapshot),
                self._hopeless(groups, snapshot),
            ),
            {},
        )

    def starts_without(self, uids: Collection[str]) -> bool:
        """True if the job starts without these pods. Raises OutOfTrialsError."""
        if not self._left:
            raise OutOfTrialsError
        self._left -= 1
        return self._with_job(
            uids, lambda groups, _: self._live.is_all_there and all_start(self._live, groups)
        )

    def why_not_without(self, uids: Collection[str]) -> tuple[GangExplanation | Explanation, ...]:
        """Say why each group that does not start then waits."""

        def explain(
            groups: tuple[Group, ...], snapshot: Snapshot
        ) -> tuple[GangExplanation | Explanation, ...]:
            waiting = [group for group in groups if not all_start(self._live, [group])]
            explanations = Explanations(snapshot)
            found = (explanations.of(group) for group in waiting)
            return tuple(each for each in found if each is not None)

        return self._with_job(uids, explain)

    def may_go(self) -> list[PodRecord]:
        """Return all pods that could end, on nodes that could ever take a pod of the job."""
        return [
            record
            for record in self.snapshot.pods
            if record.node in self.pool
            and record.uid in self._live.pods
            and record.owner_kind not in _STAYS
        ]

    def _with_job(
        self,
        uids: Collection[str],
        then: Callable[[tuple[Group, ...], Snapshot], T],
        in_order: Mapping[str, tuple[After, ...]] | None = None,
    ) -> T:
        live, number = self._live, next(self._numbers)
        job = [_copy(pod, number) for pod in self._job]
        mine = [pod.metadata.uid for pod in job]
        nodes = dict(live.nodes)
        gone = live.remove(uids)
        after = self._order if in_order is None else in_order
        order = {f"{uid}/{number}": each for uid, each in after.items()}
        live.submit(job, order)
        live.play(_MOMENT_SECONDS)
        groups = groups_of(live.core.snapshot(live.now), mine)
        try:
            return then(groups, live.core.snapshot(live.now))
        finally:
            live.withdraw()
            for name, node in nodes.items():
                if live.nodes[name] is not node:
                    live.put_node(node)
            live.add(gone)
            live.settle()

    def _pool(self, groups: Sequence[Group], snapshot: Snapshot) -> frozenset[str]:
        """Return the nodes that could take one of the job's pods if they were empty."""
        found: set[str] = set()
        for group in groups:
            known = snapshot.gang_by_key.get(group.key)
            if known is None:
                continue
            members = tuple(snapshot.by_uid[uid] for uid in group.uids)
            pool = self._live.core.reservations.pool_of(replace(known.found, open=members))
            found |= {
                node.name for node in snapshot.nodes if node.row < len(pool) and pool[node.row]
            }
        nodes = NodesForOthers(snapshot)
        for pod in {alike(pod): pod for pod in self._live.others.values()}.values():
            found |= nodes.could_take(pod, snapshot.by_uid[pod.metadata.uid])
        for records in _kinds(snapshot, (uid for group in groups for uid in group.uids)):
            found |= self._with_shares(snapshot, nodes, records[0])
        return frozenset(found)

    def _with_shares(
        self, snapshot: Snapshot, nodes: NodesForOthers, record: PodRecord
    ) -> frozenset[str]:
        """Return the nodes that could give the pod shares instead of GPUs if they were empty."""
        pod = self._live.pods.get(record.uid)
        if not self._live.offers_shares or pod is None:
            return frozenset()
        with_shares = nodes_with_shares(snapshot, record, empty=True)
        return with_shares & nodes.could_take(pod, record) if with_shares else with_shares

    @property
    def offers_shares(self) -> bool:
        """Whether shares may stand in for GPUs."""
        return self._live.offers_shares

    def _hopeless(
        self, groups: Sequence[Group], snapshot: Snapshot
    ) -> Mapping[GangKey, tuple[str, ...]]:
        """Return the pods of each group that no node could take if it was empty."""
        found: dict[GangKey, tuple[str, ...]] = {}
        nodes = NodesForOthers(snapshot)
        for group in groups:
            known = snapshot.gang_by_key.get(group.key)
            if known is None:
                continue
            pool_of = self._live.core.reservations.pool_of
            found[group.key] = tuple(
                record.key
                for first, *rest in _kinds(snapshot, group.uids)
                if not pool_of(replace(known.found, open=(first,))).any()
                and not self._with_shares(snapshot, nodes, first)
                for record in (first, *rest)
            )
        return found


def _kinds(snapshot: Snapshot, uids: Iterable[str]) -> list[list[PodRecord]]:
    """Return these pods, each list of those that may go to the same nodes."""
    kinds: dict[object, list[PodRecord]] = {}
    for uid in uids:
        record = snapshot.by_uid[uid]
        kinds.setdefault(alike_records(record), []).append(record)
    return [*kinds.values()]


def _copy(pod: Pod, number: int) -> Pod:
    return change(pod, metadata=change(pod.metadata, uid=f"{pod.metadata.uid}/{number}"))
