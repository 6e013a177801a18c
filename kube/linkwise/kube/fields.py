"""Readers for objects of a known kind with untrusted content.

An absent field counts as its default, as the API server would fill it in. An invalid count raises
UnreadableError: these readers never guess a size.
"""

from collections.abc import Mapping

MOST = 1_000_000
"""Pods of one owner; a larger number is an error."""

Fields = Mapping[str, object]


class UnreadableError(Exception):
    """The text names the field or the key, its value, and what was expected."""


def at(fields: Fields, path: str) -> object:
    """The value at a dotted *path*; None if there is none."""
    found: object = fields
    for step in path.split("."):
        # `dict` first: JSON is parsed into it, and the check of the ABC takes ten times as long.
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
    """The objects in the list at *path*; other elements are left out."""
    found = at(fields, path)
    if not isinstance(found, list | tuple):
        return ()
    return tuple(item for item in found if isinstance(item, Mapping))


def listed(fields: Fields, path: str, *, needed: bool = True) -> tuple[Fields, ...]:
    """The objects in the list at *path*. Raises UnreadableError if it is none, has anything else,
    or is missing although it is *needed*."""
    found = at(fields, path)
    if found is None and not needed:
        return ()
    if not isinstance(found, list | tuple) or (needed and not found):
        raise UnreadableError(f"{path}: {_type(found)}: expected a list with one item or more")
    for place, item in enumerate(found):
        if not isinstance(item, Mapping):
            raise UnreadableError(f"{path}[{place}]: {_type(item)}: expected a mapping")
    return tuple(found)


def _type(found: object) -> str:
    names = {dict: "a mapping", list: "a list", type(None): "missing"}
    return "empty" if found == [] else names.get(type(found), repr(found))


def number(fields: Fields, path: str, default: int, *, within: str = "") -> int:
    """A count of pods. Raises UnreadableError, whose text names the field as `within.path`."""
    found = at(fields, path)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MOST:
        field = f"{within}.{path}" if within else path
        raise UnreadableError(f"{field}: {found!r}: expected a whole number from 0 to {MOST}")
    return found


def count(written: str, key: str, least: int = 1) -> int:
    """A count of pods from the text of a label or an annotation. Raises UnreadableError."""
    found = ordinal(written)
    if found is None or not least <= found <= MOST:
        shown = written if len(written) <= 60 else f"{written[:57]}..."
        raise UnreadableError(f"{key}: {shown!r}: expected a whole number from {least} to {MOST}")
    return found


def ordinal(written: str) -> int | None:
    """The text as an index from 0; None if it is anything else."""
    fits = written.isascii() and written.isdigit() and len(written) <= 9
    return int(written) if fits else None


def group_of(api_version: str) -> str:
    """`kubeflow.org/v1` -> `kubeflow.org`; `v1` -> the empty name of the core group."""
    return api_version.rpartition("/")[0]


def controller_of(fields: Fields) -> Fields:
    """The reference to the controller of an object that was read; empty if it has none."""
    owners = at(fields, "metadata.ownerReferences")
    for owner in owners if isinstance(owners, list | tuple) else ():
        if isinstance(owner, Mapping) and owner.get("controller") is True:
            return owner
    return {}
