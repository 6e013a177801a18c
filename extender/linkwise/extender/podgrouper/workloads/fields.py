"""Reading objects whose kind we know and whose content we do not trust.

What is absent counts as its default, as the API server would fill it in. What is there and cannot
be what it should be raises: a size is never guessed.
"""

from collections.abc import Mapping

MOST = 1_000_000
"""No owner runs more pods; a larger number is no size."""

Fields = Mapping[str, object]


class UnreadableError(Exception):
    """Names the object or the key, what stands there, and what was expected."""


def at(fields: Fields, path: str) -> object:
    """What stands at a dotted *path*, None where nothing does."""
    found: object = fields
    for step in path.split("."):
        # `dict` first: it is what JSON is read into, and to ask the ABC takes ten times as long.
        found = found.get(step) if isinstance(found, dict | Mapping) else None
    return found


def has(fields: Fields, path: str) -> bool:
    return at(fields, path) is not None


def text(fields: Fields, path: str) -> str:
    found = at(fields, path)
    return found if isinstance(found, str) else ""


def mapping(fields: Fields, path: str) -> Fields:
    found = at(fields, path)
    return found if isinstance(found, Mapping) else {}


def items(fields: Fields, path: str) -> tuple[Fields, ...]:
    """The objects of a list."""
    found = at(fields, path)
    if not isinstance(found, list | tuple):
        return ()
    return tuple(item for item in found if isinstance(item, Mapping))


def number(fields: Fields, path: str, default: int) -> int:
    """A count of pods. Raises UnreadableError."""
    found = at(fields, path)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MOST:
        raise UnreadableError(f"{path}: {found!r}: expected a whole number from 0 to {MOST}")
    return found


def count(written: str, key: str) -> int:
    """A count of pods as a label or an annotation has it. Raises UnreadableError."""
    found = ordinal(written)
    if found is None or not 1 <= found <= MOST:
        shown = written if len(written) <= 60 else f"{written[:57]}..."
        raise UnreadableError(f"{key}: {shown!r}: expected a whole number from 1 to {MOST}")
    return found


def ordinal(written: str) -> int | None:
    """A place in an order; whatever else was written is none."""
    fits = written.isascii() and written.isdigit() and len(written) <= 9
    return int(written) if fits else None
