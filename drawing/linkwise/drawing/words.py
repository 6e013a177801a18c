"""Amounts, moments and lists as text: one form of each, wherever Linkwise shows them. Pure."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

T = TypeVar("T")
_FACT_WIDTH = 10  # characters of the column with the names of facts


def printable(text: str, kept: str = "") -> str:
    """Return *text* with each character that cannot be seen as an escape of JSON; those in *kept*
    stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else json.dumps(c)[1:-1] for c in text)


def fact(name: str, text: str) -> str:
    """Return a line with one fact and its name in front, so that `grep` finds it."""
    return f"  {name:<{_FACT_WIDTH}}{text}".rstrip()


def facts(name: str, texts: Sequence[str], most: int = 8) -> Iterator[str]:
    """Yield a line for each of the first *texts*, the *name* in front of the first, and how many
    more there are."""
    for number, text in enumerate(texts[:most]):
        yield fact("" if number else name, text)
    if len(texts) > most:
        yield fact("", f"and {len(texts) - most} more")


def alike(items: Iterable[T], key: Callable[[T], object]) -> list[tuple[T, int]]:
    """Return the first item of each *key*, and how many others have the same."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [(group[0], len(group) - 1) for group in groups.values()]


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def gpus_in_words(count: int) -> str:
    return counted(count, "GPU")


def pods_in_words(count: int) -> str:
    return counted(count, "pod")


def some(names: Sequence[str], most: int = 8, *, left_out: int = 0) -> str:
    """Return the first of *names*, and how many more there are, with those *left_out* before."""
    more = max(len(names) - most, 0) + left_out
    return ", ".join(names[:most]) + (f" and {more} more" if more else "")


def indices(gpus: Iterable[int], *, shortest: int = 2) -> str:
    """Return GPU indices as an operator writes them: `0-2,5`. *shortest*: the length from which on
    neighbours become a range."""
    runs: list[list[int]] = []
    for index in sorted(gpus):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) >= shortest else ",".join(map(str, run)) for run in runs
    )


def named_gpus(gpus: Sequence[int], *, shortest: int = 2) -> str:
    """Return `GPU 3`, `GPUs 0-2,5`."""
    return f"GPU{'s' if len(gpus) > 1 else ''} {indices(gpus, shortest=shortest)}"


def moment(seconds: float) -> str:
    """Return seconds since 1970 as `2026-01-02 03:04:05`, in UTC. Raises ValueError and
    OverflowError."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def minute(seconds: float) -> str:
    """Return seconds since 1970 as `2026-01-02 03:04 UTC`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def duration(seconds: float) -> str:
    """Return it as kubectl shows ages: 45s, 4m58s, 12m, 3h10m, 5d4h."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 10 and whole % 60:
        return f"{minutes}m{whole % 60}s"
    if minutes < 60:
        return f"{minutes}m"
    if hours < 24:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
