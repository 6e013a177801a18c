"""What limits where the open members of a gang may be, apart from links and what nodes have left.

Each of kube-scheduler's filters that looks at other pods, ports or volumes becomes one of these:

- a mask of nodes, by the pods that are there already (`NodeFilters.beside`)
- for what members demand of each other, a resource that each of them needs and nodes have little
  of: at most one on a node, or so many in a zone (`NodeFilters.between`)
- a label whose value all nodes of the gang must share

So both searches respect them without knowing them. What kube-scheduler was seen to refuse beside
other members counts likewise (`GangRefusals`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from linkwise.extender.place.nodes.gang_refusals import GangRefusals, Guess
from linkwise.extender.place.nodes.node_filters import NodeFilters
from linkwise.extender.place.request import Spot
from linkwise.extender.state.cache.node_table import Bools, Ints, NodeTable, popcount
from linkwise.extender.state.records import PodRecord, ResourceList, Template
from linkwise.kube.filters.gang import trimmed
from linkwise.kube.filters.pod_facts import rules_of
from linkwise.kube.objects import LARGEST

# What a node has of it, so many more members of the gang it takes. No resource has such a name.
_TAKES = "members that kube-scheduler lets through"
_NOTHING = ResourceList()
# More, and the search would hold up others: kube-scheduler and the barrier decide.
_MOST_ROLES, _MOST_RULES = 16, 64  # of one gang: members with different rules, and these rules
_MOST_LOOKS = 100_000  # at a node for members with equal rules, labels and claims


@dataclass(frozen=True, slots=True)
class GangLimits:
    """The sequences are those of the members; a mask that is None allows every node."""

    masks: Sequence[Bools | None]
    needs: Sequence[ResourceList]
    columns: Mapping[str, Ints] = field(default_factory=dict)  # name -> [rows] how much is left
    shared: tuple[str, ...] = ()  # labels of which all nodes must have one value

    def __bool__(self) -> bool:
        return bool(self.columns or self.shared) or any(mask is not None for mask in self.masks)


def gang_limits(
    filters: NodeFilters,
    refusals: GangRefusals,
    members: Sequence[PodRecord],
    beside: Sequence[Spot],
    table: NodeTable,
    nodes: Callable[[Template], Bools],
    guess: Guess | None,
) -> GangLimits:
    """The limits of these open members, which may run on *nodes*. The gang's others are *beside*
    them. Without a *guess* of how many members nodes take, only what is known counts."""
    key, rules = members[0].gang, rules_of(m.facts for m in members if m.facts)
    are_few = len(rules) <= _MOST_ROLES and sum(each.count for each in rules) <= _MOST_RULES
    are_few = are_few and filters.count_kinds(members) * len(table) <= _MOST_LOOKS
    none: list[Bools | None] = [None] * len(members)
    masks = filters.beside_each(members) if are_few else none
    if (known := refusals.rows(key)) is not None:
        masks = [_both(known, mask) for mask in masks]
    needs, columns = [_NOTHING] * len(members), dict[str, Ints]()
    takes = refusals.takes(key) if guess is None else guess.of_nodes
    if takes:
        others = None if guess is None else guess.of_others
        left = np.full(len(table), LARGEST if others is None else others)
        for node, most in takes.items():
            left[table.row_of[node]] = most
        for spot in beside:
            if spot.node in table.row_of:
                left[table.row_of[spot.node]] -= 1
        columns[_TAKES] = left
        needs = [ResourceList(others=((_TAKES, 1),))] * len(members)
    shared: tuple[str, ...] = ()
    if are_few and any(m.facts is not None and m.facts.demands for m in members):
        rooms_of = _rooms(members, masks, table, nodes)
        rooms = np.maximum.reduce(rooms_of)
        demands, kinds = filters.between(members, rooms_of)
        shared = demands.together
        if demands.homes:
            homes = [demands.homes[kind] for kind in kinds]
            masks = [_both(*pair) for pair in zip(masks, homes, strict=True)]
        used = np.zeros(len(table), dtype=np.int64)
        for limit in demands.limits:
            left = trimmed(limit, rooms, used)
            columns[limit.name] = np.minimum(left, LARGEST)
            if not all(limit.needs):  # members of other kinds should find room elsewhere
                used += np.minimum(left, rooms)
            of_kind = [
                ResourceList(others=((limit.name, n),)) if n else _NOTHING for n in limit.needs
            ]
            needs = [have + of_kind[kind] for have, kind in zip(needs, kinds, strict=True)]
    return GangLimits(masks, needs, columns, shared)


def _both(first: Bools | None, second: Bools | None) -> Bools | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _rooms(
    members: Sequence[PodRecord],
    masks: Sequence[Bools | None],
    table: NodeTable,
    nodes: Callable[[Template], Bools],
) -> list[Ints]:
    """For each member, [rows] how many of its like fit on each node."""
    count, rooms = len(table), dict[object, Ints]()
    keys = [
        (m.demand.gpus, m.needs, m.template, id(mask))
        for m, mask in zip(members, masks, strict=True)
    ]
    for key, mask in zip(keys, masks, strict=True):
        if key in rooms:
            continue
        gpus, needs, template, _ = key
        room = np.minimum(popcount(table.free[:count]) // max(gpus, 1), table.pods_that_fit(needs))
        room = np.where(nodes(template), room, 0) if template is not None else room
        room = room if mask is None else np.where(mask, room, 0)
        rooms[key] = np.minimum(room, len(members))
    return [rooms[key] for key in keys]
