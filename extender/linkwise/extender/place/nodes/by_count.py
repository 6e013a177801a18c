"""Nodes where pods are placed by count: they offer GPUs, and no plugin publishes their topology.

A vendor's device plugin runs there alone. kube-scheduler counts the GPUs, the vendor's plugin
chooses them. The extender lets pods through that require nothing of which only a topology tells,
and writes no plan for them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from linkwise.extender.place.nodes.node_filters import may_run, why_not
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.extender_calls import FilterAnswer
from linkwise.extender.state.records import NodeRecord, PodRecord
from linkwise.kube.filters.taints import lasting


def takes_by_count(record: PodRecord) -> bool:
    """Whether any GPUs are good enough for the pod: it requires no link, model or memory, and is in
    no gang that is planned. (A member that takes shares alone is planned by itself.)"""
    in_gang = record.ask.gang is not None and record.demand.gpus
    return not in_gang and record.claim is None and requires_nothing(record)


def belongs_to_by_count(cache: Cache, record: PodRecord) -> bool:
    """Whether a gang's member may only run where pods are placed by count, so that no plan would
    ever come. Its own selectors, or taints, keep it on nodes that a vendor's plugin has alone.

    A pod that names its gang in Linkwise's annotations wants a plan, and waits for one."""
    if not (cache.by_count and _may_go_by_count_alone(record)):
        return False

    def judge() -> bool:
        nodes = ((i.record, i.machine is not None, i.by_count) for i in cache.nodes.values())
        return goes_by_count_alone(record, nodes)

    return cache.by_nodes(record.template, judge)


def goes_by_count_alone(
    record: PodRecord, nodes: Iterable[tuple[NodeRecord | None, bool, bool]]
) -> bool:
    """`belongs_to_by_count` for *nodes*: each with whether its machine is known, and whether pods
    are placed there by count."""
    template = record.template
    if template is None or not _may_go_by_count_alone(record):
        return False
    open_ = False
    for node, is_known, by_count in nodes:
        if node is None:
            continue
        if not is_known:
            open_ = open_ or (by_count and not why_not(template, node))
        elif not why_not(template, _without_passing_states(node)):
            return False
    return open_


def _may_go_by_count_alone(record: PodRecord) -> bool:
    gang = record.ask.gang
    return gang is not None and bool(gang.source) and requires_nothing(record)


def _without_passing_states(node: NodeRecord) -> NodeRecord:
    """The node as it is when it is neither cordoned nor ill: a gang can wait for that."""
    return replace(node, unschedulable=False, taints=lasting(node.taints))


def requires_nothing(record: PodRecord) -> bool:
    """Whether the pod requires nothing of which only a topology tells."""
    return not record.ask.requirement.requires and not record.ask.spans.require


def is_by_count(cache: Cache, record: PodRecord, node: str) -> bool:
    """Whether the node takes this pod by count. The extender does not count shares there: only
    kube-scheduler does, which named the node."""
    info = cache.nodes.get(node)
    if info is None:
        return False
    return info.by_count if record.demand.gpus else info.unpublished


def goes_by_count(cache: Cache, record: PodRecord, node: str) -> bool:
    """Whether the pod, single or a gang's member, may be placed on this node by count."""
    may = is_by_count(cache, record, node)
    return may and (takes_by_count(record) or belongs_to_by_count(cache, record))


def with_by_count(
    cache: Cache, record: PodRecord, answer: FilterAnswer, names: Sequence[str]
) -> FilterAnswer:
    """*answer* with those of its refused nodes let through that take the pod by count. The order is
    that of *names*."""
    # Thousands of nodes may have failed, and few of them are of this kind.
    failed = answer.failed.keys() & cache.by_count if record.demand.gpus else answer.failed
    passing = {node for node in failed if is_by_count(cache, record, node)}
    if not passing:
        return answer
    passing.update(answer.node_names)
    return replace(
        answer,
        node_names=tuple(node for node in names if node in passing),
        failed={node: text for node, text in answer.failed.items() if node not in passing},
    )


def nodes_by_count(cache: Cache) -> list[NodeInfo]:
    return [cache.nodes[name] for name in sorted(cache.by_count)]


def fits_by_count(cache: Cache, info: NodeInfo, record: PodRecord) -> bool:
    """Whether kube-scheduler would let the pod go to this node by count, as far as is known."""
    return (
        takes_by_count(record)
        and cache.rows.left.fits_on(info.row, record.needs)
        and record.template is not None
        and may_run(record.template, info.record)
    )
