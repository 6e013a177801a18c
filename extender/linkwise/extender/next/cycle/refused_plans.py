"""Learns which plans cannot be carried out, from where that is said.

1. *A filter call that omits the planned node*: kube-scheduler's own filters refused that node. Of
   a PodGroup with a topology constraint, only a call about the node's own domain says that.
2. *The pod's condition PodScheduled*: if these filters leave no node at all, kube-scheduler makes
   no call. It writes why into the condition, and clears the nomination. About a pod whose GPUs come
   from a claim it never calls, and the claim names GPUs of one node: so that node refused the pod.
3. *The answer of the API server to a Binding*: an admission plugin or a validation that refuses it
   would refuse it again.

The plan is withdrawn at once, for all members that do not run yet. Nodes are blamed on evidence
alone: that members did not come to `bind` in time is none, because kube-scheduler's back-off keeps
a pod away for up to 10 s.

A node may take some members and refuse the next one: by anti-affinity, or for a device that they
share. If others of the gang were let through to the node before, or are planned there, it counts as
one that takes no more than these.
"""

from collections import Counter

from linkwise.extender.next.cycle.changes import Changes
from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.place.nodes.scheduler_feedback import Takes
from linkwise.extender.state.actions import Action, CreateClaim
from linkwise.extender.state.extender_calls import BindOrder
from linkwise.extender.state.records import GangKey, PodRecord


class RefusedPlans(Part):
    def __init__(self, books: Books, changes: Changes) -> None:
        super().__init__(books)
        self._changes = changes

    def let_through(self, record: PodRecord, node: str) -> None:
        """kube-scheduler's filters and the extender let a member through to its planned node."""
        gang = self._registry.of(record)
        if gang is not None:
            gang.passed[record.uid] = node

    def omitted(self, record: PodRecord, node: str, names: tuple[str, ...], now: float) -> None:
        """A filter call omits the node that *record* is nominated for: kube-scheduler refused the
        node, or its call about that node was lost."""
        if self._is_tried_elsewhere(record, node, names):
            return
        if not self._feedback.lacks(record.uid, node, names, now):
            return
        gang = self._registry.of(record)
        self._refuse(gang, record, node, now)
        self._withdraw(gang, f"kube-scheduler refused node {node} for pod {record.ref.name}")

    def _refuse(self, gang: Gang | None, record: PodRecord, node: str, now: float) -> None:
        takes = None if gang is None else self._takes(gang, record.uid).get(node)
        if gang is not None and takes is not None:
            self._gang_refusals.takes_no_more(gang.key, node, takes, now)
        else:
            assert record.template is not None, "every pod that takes GPUs has one"
            self._feedback.refuse(record.template, node, now)

    def _is_tried_elsewhere(self, record: PodRecord, node: str, names: tuple[str, ...]) -> bool:
        """Whether kube-scheduler tries a group with a topology constraint in another domain than
        that of *node*: it makes a call for each domain, until one takes the group."""
        keys = () if record.ask.gang is None else record.ask.gang.native.topology
        for key in keys:
            own = self._domain(node, key)
            if own and all(self._domain(name, key) != own for name in names):
                return True
        return False

    def _domain(self, node: str, key: str) -> str:
        info = self._cache.nodes.get(node)
        return "" if info is None else info.labels.get(key, "")

    def by_claims(self, key: GangKey, now: float) -> bool:
        """Look at the conditions of members whose GPUs come from claims; return whether any ends
        the plan. The write of a plan removes the condition, so this one is about the plan."""
        gang = self._registry.gangs.get(key)
        planned = () if gang is None else self._registry.members_of(gang).planned
        refused = {
            plan.plan.node: member
            for member in planned
            if member.claim is not None
            and member.fits_nowhere
            and (plan := self._cache.plans[member.uid]) == member.written
        }
        for node, member in refused.items():
            self._refuse(gang, member, node, now)
            why = f"kube-scheduler refused node {node} for pod {member.ref.name}"
            self._withdraw(gang, f"{why}: {member.fits_nowhere}")
        return bool(refused)

    def condition(self, before: PodRecord | None, record: PodRecord, now: float) -> None:
        """A waiting pod changed; the cache already has *record*."""
        uid = record.uid
        written = self._cache.plans.get(uid)
        if written is None or record.written != written or not record.fits_nowhere:
            return
        if record.claim is not None:
            return  # the next round looks at it: `by_claims`
        if before is None or before.nominated != written.plan.node:
            return
        is_cleared = record.nominated != written.plan.node
        if before.fits_nowhere == record.fits_nowhere and (
            not is_cleared or self._makes_room_there(record, written.plan.node)
        ):
            return
        # kube-scheduler may have begun this try before it knew the plan. No second try would follow
        # soon: a nomination does not wake a pod that its own filters refused. So it counts, and the
        # first pause is short.
        gang = self._registry.of(record)
        if gang is not None:
            self._gang_refusals.takes_nowhere(gang.key, self._takes(gang, uid), now)
            gang.is_hopeless = gang.asked = True  # its own filters left no node to ask about
        self._withdraw(
            gang, f"kube-scheduler takes pod {record.ref.name} nowhere: {record.fits_nowhere}"
        )

    def _makes_room_there(self, record: PodRecord, node: str) -> bool:
        """Whether kube-scheduler evicts pods on *node* for a more important one: then it clears the
        nominations of others."""
        return any(
            other.nominated == node and not other.node and other.priority > record.priority
            for other in self._cache.pods.values()
        )

    def binding(self, order: BindOrder, why: str) -> None:
        """The API server refused this Binding for good. If it took those of other members, half of
        the gang runs; so the next time this one goes first."""
        record = self._cache.pods.get(order.uid)
        gang = None if record is None else self._registry.of(record)
        if record is not None and gang is not None:
            gang.pilots.add(record.seat)
        self._denied(order.uid, why.removeprefix("linkwise: "))

    def plan(self, action: Action) -> None:
        """The API server refused for good to write the plan on this pod, or to create its claim."""
        pod, what = action.pod, "the plan be written on"
        if isinstance(action, CreateClaim):
            what = f"ResourceClaim {action.name} be created for"
        self._denied(pod.uid, f"the API server does not let {what} pod {pod.name}")

    def _denied(self, uid: str, why: str) -> None:
        record = self._cache.pods.get(uid)
        gang = None if record is None else self._registry.of(record)
        if gang is not None:
            gang.is_hopeless = gang.is_denied = True
        self._withdraw(gang, why)

    def given_back(self, record: PodRecord, node: str) -> None:
        """A bind of this pod was refused, so kube-scheduler counts it on *node* no longer. That may
        help others there, and shows nothing new about its own gang."""
        if record.gang is None:
            self._cache.given_back(node)
            return
        with self._gang_refusals.unmoved(record.gang, node):
            self._cache.given_back(node)

    def _withdraw(self, gang: Gang | None, reason: str) -> None:
        if gang is not None:
            gang.was_refused = True
            gang.reason = reason
            self._changes.due.add(gang.key)

    def _takes(self, gang: Gang, uid: str) -> dict[str, Takes]:
        """What the nodes take that have other members, or for which such are planned, if they
        refuse this one. *There* are those that run or were let through by the present plan. Beside
        planned ones, the guess is half of all: so the limit is found in few tries."""
        there, planned = Counter[str](), Counter[str]()
        for other in self._cache.gangs.get(gang.key, ()):
            member = self._cache.pods[other]
            if other == uid or not (member.live and member.demand.gpus):
                continue
            plan = self._cache.plans.get(other)
            node = member.node or next(iter(self._cache.assumed.get(other, ())), "")
            node = node or (gang.passed.get(other, "") if plan is not None else "")
            if node:
                there[node] += 1
            elif plan is not None:
                planned[plan.plan.node] += 1
        return {
            node: Takes(most, max(there[node], (most + 1) // 2 if planned[node] else most))
            for node, most in (there + planned).items()
        }
