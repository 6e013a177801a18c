"""Decodes JSON in annotations. Anyone may write them, so every mistake is one kind of error."""

from typing import TypeVar

import msgspec

from linkwise.topology.errors import AnnotationError, VersionError


class _Versioned(msgspec.Struct):
    v: int = 1  # also assumed if the field is missing


_Decoded = TypeVar("_Decoded")


def decode(key: str, text: str, kind: type[_Decoded], like: str) -> _Decoded:
    """Decode *text*, the value of annotation *key*. Raises AnnotationError if it is not a *kind*.

    The error shows *like* as what was expected: "JSON like {…}".
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise AnnotationError(key, text, f"{like} ({error})") from None


def check_version(key: str, text: str, newest: int, like: str) -> None:
    """Check the version first, as a newer one may have any shape. Raises VersionError for it."""
    found = decode(key, text, _Versioned, like).v
    if found > newest:
        raise VersionError(key, found, newest)
