"""What the doctor finds, and how it is printed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from linkwise.drawing.words import some

_MOST_PLACES = 3
_PAGES = "docs/operating"


class Level(StrEnum):
    PROBLEM = "problem"  # something is wrong: exit status 1
    NOTE = "note"  # as configured, and worth knowing
    UNKNOWN = "unknown"  # it could not be checked


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    where: tuple[str, ...]
    what: str
    todo: str
    page: str  # below docs/operating/, with an anchor
    passing: bool = False  # it may be over in seconds


def problem(what: str, todo: str, page: str, *, passing: bool = False) -> Finding:
    """On one node, which the caller names."""
    return Finding(Level.PROBLEM, (), what, todo, page, passing)


def note(what: str, todo: str, page: str) -> Finding:
    """On one node, which the caller names."""
    return Finding(Level.NOTE, (), what, todo, page)


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings with equal ones made one, problems first."""
    places: dict[Finding, list[str]] = {}
    for each in findings:
        places.setdefault(replace(each, where=()), []).extend(each.where)
    joined = (replace(each, where=tuple(dict.fromkeys(at))) for each, at in places.items())
    return tuple(sorted(joined, key=lambda each: list(Level).index(each.level)))


def still_there(first: Sequence[Finding], second: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings of the second look; those that may pass only where the first had them too."""
    before: dict[Finding, set[str]] = {
        replace(each, where=()): set(each.where) for each in first if each.passing
    }
    kept = []
    for each in second:
        seen = before.get(replace(each, where=()), set())
        where = tuple(place for place in each.where if place in seen or not each.passing)
        if where:
            kept.append(replace(each, where=where))
    return tuple(kept)


def in_words(findings: Iterable[Finding]) -> str:
    lines = []
    for each in findings:
        places = some(each.where, _MOST_PLACES)
        lines.append(f"{each.level.value:<9}{places}: {each.what}")
        lines.append(f"{'':<9}{each.todo} ({page_of(each)})")
    return "".join(f"{line}\n" for line in lines)


def page_of(finding: Finding) -> str:
    return finding.page if finding.page.startswith("docs/") else f"{_PAGES}/{finding.page}"
