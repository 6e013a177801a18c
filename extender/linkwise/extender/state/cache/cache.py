"""Every node, every pod, and which pod has which GPU: always a function of the API server's state.

Pods and nodes arrive as records. Plans and assumed Bindings are decisions that are not in the watch
yet. A change settles only the nodes that it affects, so a filter call reads arrays.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from linkwise.extender.state.cache.claims.book import ClaimBook
from linkwise.extender.state.cache.machine_kind import MachineKind, kind_key
from linkwise.extender.state.cache.node_info import (
    NOT_SEEN,
    Mismatch,
    NodeInfo,
    holder_of,
    note_mismatches,
    place_of,
    sharer_of,
)
from linkwise.extender.state.cache.node_table import NOT_USABLE, Domains, NodeTable, RowLog
from linkwise.extender.state.cache.refusals import TurnedAway
from linkwise.extender.state.cache.resources import CountedResources
from linkwise.extender.state.cache.shares.book import NodeShares
from linkwise.extender.state.records import (
    GangKey,
    NodeRecord,
    PodMemory,
    PodRecord,
    ResourceList,
    Template,
    WrittenPlan,
)
from linkwise.kube.filters.placed_pods import PlacedPods
from linkwise.kube.filters.volumes.storage import Storage, StorageObject
from linkwise.kube.objects import (
    CSINode,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from linkwise.topology.machine.model import Machine
from linkwise.topology.names import DEFAULT_RESOURCES

Surrounding = Namespace | StorageObject
_OF_STORAGE = frozenset({CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass})


class Surroundings:
    """Volumes and namespaces: what kube-scheduler's filters read beside nodes and pods.

    The extender works without them, while they are not listed or may not be read. Then the filters
    that need them are left to kube-scheduler.
    """

    def __init__(self) -> None:
        self._storage = Storage()
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._listed: set[type[Surrounding]] = set()
        self.changes = 0

    @property
    def storage(self) -> Storage | None:
        """None while any of its kinds is not known."""
        return self._storage if self._listed >= _OF_STORAGE else None

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]] | None:
        """The labels of each namespace; None while they are not known."""
        return self._namespaces if Namespace in self._listed else None

    def replace(self, kind: type[Surrounding], objects: Iterable[Surrounding]) -> None:
        """Take *objects* for all there are of their *kind*."""
        if kind is Namespace:
            self._namespaces.clear()
        else:
            self._storage.forget(kind)
        for one in objects:
            self.put(one)
        self._listed.add(kind)
        self.changes += 1

    def put(self, one: Surrounding) -> None:
        self.changes += 1
        if isinstance(one, Namespace):
            self._namespaces[one.metadata.name] = one.metadata.labels
        else:
            self._storage.put(one)

    def drop(self, one: Surrounding) -> None:
        self.changes += 1
        if isinstance(one, Namespace):
            self._namespaces.pop(one.metadata.name, None)
        else:
            self._storage.drop(one)


_KEPT_FREE = 32  # numbers of kinds that are not used again yet
_MOST_JUDGED = 4096  # remembered by `Cache.by_nodes`


class Cache:
    def __init__(
        self,
        resources: tuple[str, ...] = DEFAULT_RESOURCES,
        surroundings: Surroundings | None = None,
        claims: ClaimBook | None = None,
        memory: PodMemory | None = None,
    ) -> None:
        self.memory = PodMemory() if memory is None else memory
        self.resources = resources  # those that are GPUs
        self.rows = NodeTable()
        self._counted = CountedResources(self.rows.left)
        self.domains = Domains()
        self.nodes: dict[str, NodeInfo] = {}
        self.pods: dict[str, PodRecord] = {}
        self.gangs: dict[GangKey, set[str]] = {}
        # The uids of `gangs` in the order of their ranks, where that has been worked out.
        self._in_order: dict[GangKey, list[str]] = {}
        self.plans: dict[str, WrittenPlan] = {}  # of pods not yet bound, by uid
        self.assumed: dict[str, dict[str, WrittenPlan]] = {}  # uid -> node -> Binding in flight
        self.kinds: list[MachineKind] = []  # by number
        self.mismatches: dict[str, Mismatch] = {}
        self.schedulers: dict[str, float] = {}  # that call the extender -> last call; 0: unknown
        self.turned_away = TurnedAway(self._pods_of)
        self.room = 0  # rises whenever something may fit that did not fit before
        self.gang_changes: dict[GangKey, int] = {}  # differs after each change of its pods
        self.divided: set[str] = set()  # nodes of which some GPUs have parts
        self.by_count: set[str] = set()  # nodes where pods are placed by count
        self.emptied: set[str] = set()  # nodes whose GPUs are to be free
        self._by_count_changes = 0
        self._by_nodes_at: object = None  # the state of the nodes that `by_nodes` is about
        self._by_nodes: dict[Hashable, bool] = {}
        self.changed_rows = RowLog()  # every row whose node changed, in order
        # Every row whose node changed, or the pods on it: what may change kube-scheduler's mind.
        self.versions = RowLog()
        # How often a pod with GPUs came to its node, or its `departure` changed.
        self.comings_and_goings = 0
        self.touched: set[str] = set()  # nodes settled since `take_touched`
        self.settled_rows = RowLog()  # every row whose GPUs changed, in order
        # Whether GPUs that come free are for those that wait for longest, until their turn is over.
        self.queue_first = False
        self.fresh: dict[str, int] = {}  # node -> GPUs that came free since
        self._reserved: dict[GangKey, Mapping[str, int]] = {}  # waiting gang -> node -> GPUs
        self._kept: dict[str, tuple[object, bool]] = {}  # uid -> `keeps_plan`'s input and result
        self._changes = 0
        self._kind_of: dict[object, MachineKind] = {}
        self._nodes_of: Counter[int] = Counter()  # number of a kind -> nodes
        self._free_numbers: deque[int] = deque()  # the place in `kinds` of those that were dropped
        self._uid_of: dict[str, str] = {}  # namespace/name -> uid
        self._nominated: dict[str, None] = {}  # uids of pods without a node
        self._charges: dict[str, tuple[str, ResourceList]] = {}  # uid -> node, needs
        self._followers: dict[str, str] = {}  # uid -> which follows it
        self.around = PlacedPods()  # the same pods, as kube-scheduler's filters see them
        self.surroundings = Surroundings() if surroundings is None else surroundings
        self._claims = ClaimBook() if claims is None else claims

    # Facts from the API server.

    def put_node(self, record: NodeRecord) -> None:
        info = self._info(record.name)
        before = info.record
        if before == record:
            return
        info.record, info.sharing.managed = record, record.resource
        if before is None or not before.same_but_in_use(record):
            if before is None or before.topology != record.topology:
                self._put_topology(info, record.topology)
            self.domains.put(info.row, info.labels)
            if self._counted.node_changed(before, record):
                self._show_room_everywhere()
            self._changed(info)
            self.room += 1
        if before is None or before.in_use != record.in_use:
            info.put_in_use(record.in_use)
            self._new_version(info)
        self._settle(info)

    def drop_node(self, name: str) -> None:
        info = self.nodes.get(name)
        if info is None or info.record is None:
            return
        self._counted.node_changed(info.record, None)
        info.record = None
        self._put_topology(info, None)
        info.in_use, info.listed_as = {}, {}
        info.sharing.forget()
        info.no_topology, info.no_truth = NOT_SEEN, None
        self.domains.put(info.row)
        self._changed(info)
        self._settle(info)

    def show_claims(self, name: str) -> None:
        """What the book of claims says of this node has changed."""
        info = self.nodes.get(name)
        if info is None:
            return
        before, info.claimed = info.claimed, self._claims.of_node(name)
        if info.claimed.gpus != before.gpus:
            self._changed(info)
            self.room += 1  # also if no GPU came: other pods may have those that were there
        if info.claimed.partitions != before.partitions and info.record is not None:
            self._put_topology(info, info.record.topology)
            self._changed(info)
            self.room += 1
        for uid in before.pods ^ info.claimed.pods:  # `is_being_bound` differs
            if (record := self.pods.get(uid)) is not None:
                self._note_change(record.gang)
        self._settle(info)

    def put_pod(self, record: PodRecord) -> None:
        before = self.pods.get(record.uid)
        if before == record:
            return
        if before is not None and before.follows != record.follows:
            self._followers.pop(before.follows, None)
        self.pods[record.uid] = record
        self._uid_of[record.key] = record.uid
        if record.follows:
            self._followers[record.follows] = record.uid
        if record.nominated and not (record.node or record.ended):
            self._nominated[record.uid] = None
        else:
            self._nominated.pop(record.uid, None)
        self._index_gang(before, record)
        if self._counted.pod_changed(before, record):
            self._show_room_everywhere()
        self._move(before, record)

    def drop_pod(self, uid: str) -> None:
        record = self.pods.pop(uid, None)
        if record is None:
            return
        self._uid_of.pop(record.key, None)  # the core drops a pod before it puts its namesake
        self._nominated.pop(uid, None)
        self._followers.pop(record.follows, None)
        self._index_gang(record, None)
        self._counted.pod_changed(record, None)
        self._move(record, None)

    def by_nodes(self, key: Hashable, judge: Callable[[], bool]) -> bool:
        """What *judge* says about *key*, which depends on nodes alone and on no pod: it looks at
        all nodes, so it is asked once for each state of them."""
        state = self.changed_rows.generation, self._by_count_changes
        if state != self._by_nodes_at or len(self._by_nodes) >= _MOST_JUDGED:
            self._by_nodes_at = state
            self._by_nodes.clear()
        if key not in self._by_nodes:
            self._by_nodes[key] = judge()
        return self._by_nodes[key]

    def pod_named(self, namespace: str, name: str) -> PodRecord | None:
        uid = self._uid_of.get(f"{namespace}/{name}")
        return None if uid is None else self.pods[uid]

    def members(self, gang: GangKey) -> list[PodRecord]:
        """The pods of a gang in the order of their ranks."""
        if gang not in self.gangs:
            return []
        if gang not in self._in_order:
            records = (self.pods[uid] for uid in self.gangs[gang])
            ordered = sorted((record.order, record.uid) for record in records)
            self._in_order[gang] = [uid for _, uid in ordered]
        return [self.pods[uid] for uid in self._in_order[gang]]

    # Decisions that the API server does not show yet, or not for certain.

    def plan(self, uid: str, written: WrittenPlan | None) -> None:
        """Reserve the GPUs of *written* for an unbound pod; None releases them."""
        self.plan_all({uid: written})

    def plan_all(self, plans: Mapping[str, WrittenPlan | None]) -> None:
        """`plan` for all pods of a gang: each node is settled once."""
        changed, charged = set[str](), set[str]()
        for uid, written in plans.items():
            before = self.plans.pop(uid, None)
            self._kept.pop(uid, None)
            if before is not None:
                self._without(before, uid, "plans")
                changed.add(before.plan.node)
            if written is not None:
                self.plans[uid] = written
                self._info(written.plan.node).plans[uid] = written
                changed.add(written.plan.node)
            record = self.pods.get(uid)
            self._note_change(record.gang if record is not None else None)
            self._charge_to(uid, charged)
        self._show_all(sorted(charged))
        self._settle_named(sorted(changed))

    def assume(self, uid: str, written: WrittenPlan) -> None:
        """Reserve the GPUs that a Binding in flight names."""
        node = written.plan.node
        self.assumed.setdefault(uid, {})[node] = written
        self._info(node).assumed[uid] = written
        self._claims_changed(uid, {node})

    def forget_assumed(self, uid: str, node: str) -> None:
        assumed = self.assumed.get(uid, {})
        written = assumed.pop(node, None)
        if written is None:
            return
        if not assumed:
            del self.assumed[uid]
        self._without(written, uid, "assumed")
        self._claims_changed(uid, {node})

    def set_refusing(
        self, node: str, said: str, *, tried_beside: frozenset[str] | None = None
    ) -> None:
        """Place no new pod on *node*, as its kubelet *said*; or only one more as a trial, beside
        those that are there. Empty: any again."""
        info = self.nodes.get(node)
        if info is not None:
            info.refuses, info.tried_beside = said, tried_beside
            self._show_room(info)
            self._settle(info)

    def set_lacking(self, node: str, gpus: int) -> None:
        """Leave so many GPUs of *node* free, as its kubelet does not have them."""
        info = self.nodes.get(node)
        if info is not None:
            info.lacks = gpus
            self._settle(info)

    def turn_away(self, template: Template, node: str, said: str, *, trial: bool | None) -> None:
        """Place no other pod of *template* on *node*, as its kubelet *said*; or only one as a
        *trial*; None: any again."""
        if trial is None:
            self.turned_away.drop(template, node)
        else:
            self.turned_away.put(template, node, said, trial=trial)
        if trial is not False:
            self.room += 1
        if node in self.nodes:
            self.touched.add(node)  # plans there may have to be withdrawn

    def _pods_of(self, template: Template, node: str) -> Iterator[str]:
        """The pods of *template* that have GPUs of *node* or will get some."""
        info = self.nodes.get(node)
        there = info.there if info is not None else ()
        return (u for u in there if u in self.pods and self.pods[u].template is template)

    def given_back(self, node: str) -> None:
        """kube-scheduler no longer counts a pod on *node* that it had counted and that was not
        bound: *node* may now suit pods that kube-scheduler refused there meanwhile."""
        if node in self.nodes:
            self.nodes[node].version += 1
            self.touched.add(node)

    def _claims_changed(self, uid: str, nodes: Iterable[str]) -> None:
        record = self.pods.get(uid)
        self._note_change(record.gang if record is not None else None)
        self._charge(uid)
        self._settle_named(nodes)

    def reserve(self, who: GangKey, gpus: Mapping[str, int]) -> None:
        """Reserve *gpus* (by node) for the waiting gang *who*: those that are free, and the others
        once they are. They replace the gang's earlier reservation; empty: end it."""
        before = self._reserved.pop(who, {})
        if gpus:
            self._reserved[who] = gpus
        for name in before.keys() | gpus.keys():
            info = self.nodes.get(name)
            if info is not None:
                info.reserved.pop(who, None)
                if name in gpus:
                    info.reserved[who] = gpus[name]
                info.settle_reserved(queue_first=self.queue_first)
                self._show(info)

    def choose(self, node: str, *, chosen: bool) -> None:
        """Whether the extender wants this node's GPUs free: nothing new is placed there."""
        info = self.nodes.get(node)
        if info is not None:
            info.chosen = chosen
            self._settle(info)
            self._changed(info)

    def reserve_shares(self, who: GangKey, node: str, ids: frozenset[str]) -> None:
        """Reserve these shares of *node*, which are free, for a pod to come; empty: no longer."""
        info = self.nodes.get(node)
        if info is not None:
            info.sharing.reserved.pop(who, None)
            if ids:
                info.sharing.reserved[who] = ids
            self._settle(info)

    def release_fresh(self, names: Iterable[str]) -> None:
        """Make the GPUs that came free on these nodes available to all."""
        names = [name for name in names if name in self.fresh]
        for name in names:
            info = self.nodes[name]
            info.free, info.fresh = info.free | info.fresh, 0
        self._settle_named(names)

    # Queries.

    def is_being_bound(self, uid: str) -> bool:
        """Whether the plan of an unbound pod cannot be taken back: a Binding is in flight, or
        kube-scheduler has allocated GPUs of the planned node to the pod's claim."""
        written = self.plans.get(uid)
        return uid in self.assumed or (
            written is not None and uid in self.nodes[written.plan.node].claimed.pods
        )

    def keeps_plan(self, uid: str) -> bool:
        """Whether an unbound pod's plan can still be carried out, as far as GPUs matter. It cannot
        if its links broke, or if a manifest contained the plan of a pod with another request."""
        written = self.plans.get(uid)
        record = self.pods.get(uid)
        if written is None or record is None:
            return False
        info = self.nodes[written.plan.node]
        # Called several times between two changes.
        state = (info.settled, written, record.demand, record.ask.requirement)
        known = self._kept.get(uid)
        if known is not None and known[0] == state:
            return known[1]
        keeps = info.keeps_for(record)
        self._kept[uid] = (state, keeps)
        return keeps

    def nominated(self) -> Iterator[PodRecord]:
        """Pods for which kube-scheduler keeps room on the node that each is nominated for, and
        whose needs do not count there: they have no plan and no Binding in flight."""
        return (self.pods[uid] for uid in self._nominated if uid not in self._charges)

    def usable(self) -> Iterator[NodeInfo]:
        return (info for info in self.nodes.values() if not info.problem)

    def trim(self) -> None:
        """Let no log grow without end."""
        for log in (self.changed_rows, self.versions, self.settled_rows, self.rows.charged):
            log.trim()

    def take_touched(self) -> set[str]:
        """The nodes settled since the last call."""
        touched, self.touched = self.touched, set()
        return touched

    # How a change spreads.

    def _info(self, name: str) -> NodeInfo:
        info = self.nodes.get(name)
        if info is None:
            sharing = NodeShares(name, self.resources[0])
            info = self.nodes[name] = NodeInfo(
                name, self.rows.add(name), NOT_SEEN, sharing, self._claims.of_node(name)
            )
            self.domains.put(info.row)
            self.changed_rows.append(info.row)
        return info

    def _put_topology(self, info: NodeInfo, text: str | None) -> None:
        before = info.kind
        info.put_topology(text, self._kind)
        if info.kind is not before:
            self._count_kind(info.kind, 1)
            self._count_kind(before, -1)

    def _kind(self, machine: Machine) -> MachineKind:
        key = kind_key(machine)
        found = self._kind_of.get(key)
        if found is None:
            # A number that is free for long: one who looks at an earlier state may still use it.
            is_new = len(self._free_numbers) <= _KEPT_FREE
            number = len(self.kinds) if is_new else self._free_numbers.popleft()
            found = self._kind_of[key] = MachineKind(machine, number)
            if is_new:
                self.kinds.append(found)
            else:
                self.kinds[number] = found
        return found

    def _count_kind(self, kind: MachineKind | None, nodes: int) -> None:
        """So many more *nodes* are of this kind. One that no node has is dropped."""
        if kind is None:
            return
        self._nodes_of[kind.number] += nodes
        if self._nodes_of[kind.number]:
            return
        del self._nodes_of[kind.number], self._kind_of[kind_key(kind.machine)]
        self._free_numbers.append(kind.number)
        if self._kind_of:  # the place of one that is dropped has any other kind
            self.kinds[kind.number] = next(iter(self._kind_of.values()))

    def _index_gang(self, before: PodRecord | None, record: PodRecord | None) -> None:
        old = before.gang if before else None
        new = record.gang if record else None
        if old != new or before is None or record is None or before.ask.rank != record.ask.rank:
            for gang in (old, new):
                if gang is not None:
                    self._in_order.pop(gang, None)
        if before is not None and old is not None and old != new:
            self.gangs[old].discard(before.uid)
            if not self.gangs[old]:
                del self.gangs[old], self.gang_changes[old]
        if record is not None and new is not None:
            self.gangs.setdefault(new, set()).add(record.uid)
        for gang in (old, new):
            self._note_change(gang)

    def _note_change(self, gang: GangKey | None) -> None:
        if gang is not None and gang in self.gangs:
            self._changes += 1
            self.gang_changes[gang] = self._changes

    def _move(self, before: PodRecord | None, record: PodRecord | None) -> None:
        """Move a pod's claims to the nodes where they belong now."""
        either = record or before
        assert either is not None, "a pod comes, changes or goes"
        uid = either.uid
        nodes = self._move_bound(uid, holder_of(before), holder_of(record))
        nodes |= self._move_sharing(uid, sharer_of(before), sharer_of(record))
        if record is None or record.ended or record.node:
            for node, reservation in self.assumed.pop(uid, {}).items():
                self._without(reservation, uid, "assumed")
                nodes.add(node)
        if (record is None or not record.live or record.node) and uid in self.plans:
            plan = self.plans.pop(uid)
            self._kept.pop(uid, None)
            self._without(plan, uid, "plans")
            nodes.add(plan.plan.node)
        self._charge(uid)
        self._settle_named(nodes)
        for node in {place_of(before)} ^ {place_of(record)}:  # the nodes that it left or came to
            if node in self.nodes:
                self._new_version(self.nodes[node])
                self.touched.add(node)

    def _move_bound(self, uid: str, old: PodRecord | None, new: PodRecord | None) -> set[str]:
        """Update `bound` of the nodes; *old* and *new* are None if the pod has no GPUs there."""
        nodes = set()
        if old is not None and (new is None or new.node != old.node):
            info = self._info(old.node)
            del info.bound[uid]
            info.given.discard(uid)
            self.room += 1
            self.mismatches.pop(uid, None)
            nodes.add(old.node)
        if new is not None:
            info = self._info(new.node)
            known = info.bound.get(uid)
            self.comings_and_goings += known is None or known.departure != new.departure
            info.bound[uid] = new
            info.attribute(info.in_use)
            info.sharing.put_pod(new, info.bound)
            nodes.add(new.node)
        return nodes

    def _move_sharing(self, uid: str, old: PodRecord | None, new: PodRecord | None) -> set[str]:
        """`_move_bound` for pods with shares by their own name."""
        if old is not None and (new is None or new.node != old.node):
            del self._info(old.node).sharing.pods[uid]
        if new is not None:
            info = self._info(new.node)
            info.sharing.put_pod(new, info.bound)
        return {record.node for record in (old, new) if record is not None}

    def _charge(self, uid: str) -> None:
        """Count what the pod needs on the node where it is, or will be."""
        changed = set[str]()
        self._charge_to(uid, changed)
        if uid in self._followers:
            self._charge_to(self._followers[uid], changed)
        self._show_all(changed)

    def _charge_to(self, uid: str, changed: set[str]) -> None:
        """Count them, and add the nodes to *changed* whose counts changed, which have to be
        shown."""
        record = self.pods.get(uid)
        wanted: tuple[str, ResourceList] | None = None
        if record is not None and not record.ended:
            node = record.node or next(iter(self.assumed.get(uid, ())), "")
            if not node and uid in self.plans:
                node = self.plans[uid].plan.node
            needs_room = node and self._charges.get(record.follows, ("",))[0] != node
            wanted = (node, record.needs) if needs_room else None
        openings = self.around.openings
        self._recharge(uid, wanted, changed)
        if wanted is None or record is None or record.facts is None:
            self.around.drop(uid)
        else:
            row = self.nodes[wanted[0]].row
            self.around.put(uid, record.facts, row, leaving=record.leaving)
        self.room += self.around.openings != openings

    def _recharge(
        self, uid: str, wanted: tuple[str, ResourceList] | None, changed: set[str]
    ) -> None:
        before = self._charges.get(uid)
        if before == wanted:
            return
        if before is not None:
            del self._charges[uid]
            self._charge_node(before[0], -1, before[1])
            changed.add(before[0])
        if wanted is not None:
            self._charges[uid] = wanted
            self._charge_node(wanted[0], 1, wanted[1])
            changed.add(wanted[0])

    def _charge_node(self, name: str, sign: int, needs: ResourceList) -> None:
        info = self._info(name)
        info.charge(sign, needs)
        if sign < 0 and (info.by_count or not info.problem):
            self.room += 1

    def _show_room_everywhere(self) -> None:
        """Other resources count now: pods may have some already."""
        for info in self.nodes.values():
            self._show_room(info)

    def _show_all(self, names: Iterable[str]) -> None:
        for name in names:
            self._show_room(info := self.nodes[name])
            self._forget_if_empty(info)

    def _show_room(self, info: NodeInfo) -> None:
        self.rows.show(info.row, info.left, info.pods_left, offering=info.offering)

    def _changed(self, info: NodeInfo) -> None:
        self._show_room(info)
        self._new_version(info)
        self.changed_rows.append(info.row)

    def _new_version(self, info: NodeInfo) -> None:
        info.version += 1
        self.versions.append(info.row)

    def _without(self, written: WrittenPlan, uid: str, what: str) -> None:
        info = self._info(written.plan.node)
        (info.plans if what == "plans" else info.assumed).pop(uid, None)

    def _settle_named(self, names: Iterable[str]) -> None:
        for info in filter(None, map(self.nodes.get, names)):
            self._settle(info)

    def _settle(self, info: NodeInfo) -> None:
        shares_before = info.shares
        info.settle(queue_first=self.queue_first)
        self._show(info)
        if info.kind is not None and not info.closed and info.shares.has_more_than(shares_before):
            self.room += 1
        (self.divided.add if info.sharing.places else self.divided.discard)(info.name)
        (self.emptied.add if info.emptied else self.emptied.discard)(info.name)
        if info.by_count is not (info.name in self.by_count):
            self._by_count_changes += 1
        (self.by_count.add if info.by_count else self.by_count.discard)(info.name)
        note_mismatches(self.mismatches, info)
        self._forget_if_empty(info)

    def _show(self, info: NodeInfo) -> None:
        """Show the GPUs of a settled node to searches, and note whether there is more room."""
        self.fresh.pop(info.name, None)
        if info.fresh:
            self.fresh[info.name] = info.fresh
        usable = info.kind is not None and not info.closed
        kind = info.kind.number if info.kind and usable else NOT_USABLE
        free, set_aside = (info.free, info.set_aside) if usable else (0, 0)
        changed, more = self.rows.show_gpus(info.row, kind, free, set_aside)
        if changed:
            self.settled_rows.append(info.row)
        open_before, info.was_open = info.was_open, usable or info.unpublished
        if more or (info.was_open and not open_before):
            self.room += 1
        self.touched.add(info.name)

    def _forget_if_empty(self, info: NodeInfo) -> None:
        if info.empty and self.nodes.get(info.name) is info:
            del self.nodes[info.name]
            self.fresh.pop(info.name, None)
            self.divided.discard(info.name)
            self.by_count.discard(info.name)
            self.emptied.discard(info.name)
            self.rows.remove(info.name)
            self.changed_rows.append(info.row)
            self.settled_rows.append(info.row)
