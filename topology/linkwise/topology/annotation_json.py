"""JSON in annotations: anybody may have written it, so every way it can be wrong is one error."""

from typing import TypeVar

import msgspec

from linkwise.topology.errors import AnnotationError, VersionError


class _Versioned(msgspec.Struct):
    v: int = 1  # what the first version wrote, should somebody leave it out


_Decoded = TypeVar("_Decoded")


def decode(key: str, text: str, kind: type[_Decoded], like: str) -> _Decoded:
    """Raises AnnotationError where *text*, the value of *key*, is not a *kind*; *like* shows what
    is, as "JSON like {…}"."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise AnnotationError(key, text, f"{like} ({error})") from None


def check_version(key: str, text: str, newest: int, like: str) -> None:
    """Raises VersionError for a newer version; asked first, as that may have any shape."""
    found = decode(key, text, _Versioned, like).v
    if found > newest:
        raise VersionError(key, found, newest)
