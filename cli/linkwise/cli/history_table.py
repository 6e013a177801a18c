"""The table of `kubectl linkwise history`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from linkwise.cli.kubectl_tables import fitted
from linkwise.cli.table import aligned
from linkwise.extender.api.decisions import Decision
from linkwise.extender.api.views import HistoryView

_COLUMNS = ("TIME (UTC)", "WHAT", "WHO", "GPUS", "WHERE", "WHY")
# The same decision about so many pods of a gang, each within so many seconds, is one row.
_MANY, _TOGETHER_SECONDS = 5, 5.0
_MOST_NODES = 3
_EARLIER = "made by an earlier leader, as the pod's annotation says"


def history(it: HistoryView, *, within: str) -> str:
    """*within*: the namespace that was asked about; empty: all."""
    parts = [_since(it)]
    if it.decisions:
        namespaces = {each.namespace for each in it.decisions} != {within}
        rows: list[tuple[str, ...]] = [_COLUMNS]
        spaces = ["NAMESPACE"]
        for together in _together(it.decisions):
            rows.append(_row(together))
            spaces.append(together[0].namespace)
        if namespaces:
            rows = [(row[0], space, *row[1:]) for space, row in zip(spaces, rows, strict=True)]
        parts.append(fitted(aligned(rows, figures=(4 if namespaces else 3,))))
    return "\n".join(parts)


def _since(it: HistoryView) -> str:
    none = "" if it.decisions else "No decisions. "
    dropped = f"Older ones of this term are no longer kept: {it.dropped}.\n" if it.dropped else ""
    began = f"This extender has led since {_time(it.began)} UTC; what was before is in the log."
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


def _row(decisions: Sequence[Decision]) -> tuple[str, ...]:
    first = decisions[0]
    many = len(decisions) > 1
    who = _who(first)
    if many:
        who = f"gang/{_name(first.gang)}: {len(decisions)} times"
        if len({each.pod for each in decisions}) == len(decisions):
            who = f"gang/{_name(first.gang)}: {len(decisions)} pods"
    gpus = sum(each.count for each in decisions)
    return (
        _time(first.at),
        first.what.value,
        who,
        str(gpus) if gpus else "-",
        _where(decisions),
        _EARLIER if first.from_annotation else first.reason or "-",
    )


def _who(decision: Decision) -> str:
    return _name(decision.pod) if decision.pod else f"gang/{_name(decision.gang)}"


def _name(key: str) -> str:
    return key.partition("/")[2]


def _where(decisions: Sequence[Decision]) -> str:
    nodes = list(dict.fromkeys(node for each in decisions for node in each.nodes))
    shown = nodes if len(nodes) == _MOST_NODES + 1 else nodes[:_MOST_NODES]
    more = len(nodes) - len(shown) + sum(each.more_nodes for each in decisions)
    return f"{', '.join(shown)} and {more} more" if more else ", ".join(shown) or "-"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
