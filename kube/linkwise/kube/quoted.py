"""What others wrote, where logs, Events, histories and answers repeat it.

Tenants choose names and texts, and how many faults an object has. So whatever repeats them is one
line of bounded length: an object of 1.5 MB is refused in a kilobyte.
"""

from collections.abc import Sequence

LONGEST = 1024  # characters; those of an Event's message, by the API server's validation
_MOST = 10


def one_line(text: str, longest: int = LONGEST) -> str:
    text = "".join(c if c.isprintable() else " " for c in text[: longest + 1])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def few_lines(texts: Sequence[str]) -> tuple[str, ...]:
    """The first of *texts*, each one line, and how many others there are."""
    more = len(texts) - _MOST
    first = tuple(map(one_line, texts[:_MOST]))
    return (*first, f"and {more} more") if more > 0 else first
