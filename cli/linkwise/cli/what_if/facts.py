"""One fact per line, with its name in front: the form of all what-if texts."""

from collections.abc import Sequence

_WIDTH = 10  # of the names in front
_MOST = 8


def fact(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}}{text}".rstrip()


def some(words: Sequence[str]) -> str:
    """Return the first few words, and how many more there are."""
    more = len(words) - _MOST
    return ", ".join(words[:_MOST]) + (f" and {more} more" if more > 0 else "")
