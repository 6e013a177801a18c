"""What all pages are made of: addresses, elements that change, and moments.

Addresses are relative to each other: a proxy may put any path before them. Elements that change
are known by their ids, each with the attributes that do: the template writes the values down, and
`changes` finds what an open page has to set. The name `text` stands for an element's text;
`hidden` is empty for an element that is shown.
"""

from collections.abc import Mapping
from urllib.parse import urlencode

from linkwise.drawing.tables import Link, Table
from linkwise.drawing.words import moment

Slots = Mapping[str, Mapping[str, str]]
HIDDEN, SHOWN = "hidden", ""


def changes(before: Slots, after: Slots) -> dict[str, dict[str, str]]:
    """What to set in a page that shows *before*, so that it shows *after*. Both have the same ids
    and attributes."""
    found = {}
    for name, values in after.items():
        old = before[name]
        if old is not values:
            different = {key: value for key, value in values.items() if old[key] != value}
            if different:
                found[name] = different
    return found


def shown_if(shown: bool) -> Mapping[str, str]:
    return {"hidden": SHOWN if shown else HIDDEN}


def shown(text: str) -> Mapping[str, str]:
    """A text whose element is hidden while there is none."""
    return {"text": text, **shown_if(bool(text))}


def live(name: str, table: Table, most: int) -> Slots:
    """The first *most* rows of a table, which are called *name* and their number; the first cell
    of each is a link. Rows beyond the last one are hidden."""
    slots: dict[str, Mapping[str, str]] = {}
    none = (Link("", OVERVIEW), *("" for _ in table.headings[1:]))
    for number in range(most):
        there = number < len(table.rows)
        slots[f"{name}{number}"] = shown_if(there)
        for heading, cell in zip(
            table.headings, table.rows[number] if there else none, strict=True
        ):
            href = {"href": cell.href} if isinstance(cell, Link) else {}
            slots[f"{name}{number}-{heading.name}"] = {"text": str(cell), **href}
    return slots


def clock(seconds: float | None) -> str:
    """Seconds since 1970 as `2026-01-02 03:04:05` in UTC; empty if unknown."""
    if not seconds:
        return ""
    try:
        return moment(seconds)
    except (ValueError, OverflowError):
        return ""


OVERVIEW = "."
IDLE, MOVES = "idle", "moves"


def to_group(key: str) -> str:
    return f"group?{urlencode({'key': key})}"


def to_pod(key: str) -> str:
    """*key*: `namespace/name`."""
    return _of_namespace("pod", key)


def to_gang(key: str) -> str:
    return _of_namespace("gang", key)


def to_titled(title: str) -> str:
    """*title*: `gang namespace/name` or `pod namespace/name`; else there is none."""
    kind, _, key = title.partition(" ")
    to = {"gang": to_gang, "pod": to_pod}.get(kind)
    return to(key) if to is not None else ""


def _of_namespace(page: str, key: str) -> str:
    namespace, _, name = key.partition("/")
    return f"{page}?{urlencode({'namespace': namespace, 'name': name})}"


def to_search(words: str) -> str:
    return f"search?{urlencode({'q': words})}"
