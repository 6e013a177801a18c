"""The table of `kubectl linkwise history`."""

from collections.abc import Sequence

from linkwise.cli.kubectl_tables import shown
from linkwise.drawing.tables import Column, figure
from linkwise.drawing.words import moment, some
from linkwise.extender.state.decisions import Decision
from linkwise.extender.state.views import HistoryView

# The same decision about so many pods of a gang, each within so many seconds, is one row.
_MANY, _TOGETHER_SECONDS = 5, 5.0
_MOST_NODES = 3
_EARLIER = "made by an earlier leader, as the pod's annotation says"


def history(it: HistoryView, *, within: str) -> str:
    """*within*: the namespace that was asked about; empty: all."""
    parts = [_since(it)]
    if it.decisions:
        namespaces = {each.namespace for each in it.decisions} != {within}
        parts.append(shown(_columns(namespaces=namespaces), _together(it.decisions)))
    return "\n".join(parts)


def _since(it: HistoryView) -> str:
    none = "" if it.decisions else "No decisions. "
    dropped = f"Older ones of this term are no longer kept: {it.dropped}.\n" if it.dropped else ""
    began = f"This extender has led since {moment(it.began)} UTC; what was before is in the log."
    return f"{none}{began}\n{dropped}"


def _together(decisions: Sequence[Decision]) -> list[list[Decision]]:
    """Those that are alike, of many pods of one gang, as one row."""
    rows: list[list[Decision]] = []
    last: dict[object, list[Decision]] = {}
    for each in decisions:
        key = each.what, each.gang, each.reason, each.for_whom, each.from_annotation
        row = last.get(key) if each.pod and each.gang else None
        if row is not None and each.at - row[-1].at <= _TOGETHER_SECONDS:
            row.append(each)
        else:
            rows.append([each])
            last[key] = rows[-1]
    apart = [[row] if len(row) >= _MANY else [[each] for each in row] for row in rows]
    return sorted((row for some in apart for row in some), key=lambda row: row[0].at)


def _columns(*, namespaces: bool) -> Sequence[Column[Sequence[Decision]]]:
    """Of rows of decisions that are alike."""
    columns: list[Column[Sequence[Decision]]] = [
        Column("time (UTC)", lambda row: moment(row[0].at)),
        Column("what", lambda row: row[0].what.value),
        Column("who", _who),
        figure("GPUs", lambda row: sum(each.count for each in row) or None),
        Column("where", _where),
        Column("why", lambda row: _EARLIER if row[0].from_annotation else row[0].reason),
    ]
    if namespaces:
        columns.insert(1, Column("namespace", lambda row: row[0].namespace))
    return columns


def _who(decisions: Sequence[Decision]) -> str:
    first, count = decisions[0], len(decisions)
    if count == 1 and first.pod:
        return _name(first.pod)
    gang = f"gang/{_name(first.gang)}"
    if count == 1:
        return gang
    pods = len({each.pod for each in decisions})
    return f"{gang}: {count} {'pods' if pods == count else 'times'}"


def _name(key: str) -> str:
    return key.partition("/")[2]


def _where(decisions: Sequence[Decision]) -> str:
    nodes = list(dict.fromkeys(node for each in decisions for node in each.nodes))
    # One more is as short as saying that there is one more.
    most = _MOST_NODES + (len(nodes) == _MOST_NODES + 1)
    return some(nodes, most, left_out=sum(each.more_nodes for each in decisions))
