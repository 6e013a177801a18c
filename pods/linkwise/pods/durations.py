"""Durations as Go writes them: `10m`, `1h30m`, `90s`."""

import re

DURATION = re.compile(
    r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m(?!s))?(?:([0-9]{1,9})s)?(?:([0-9]{1,9})ms)?"
)
_LONGEST_HOURS = 8760  # a year; a longer one is a mistake


def seconds_of(text: str) -> float:
    """Parse a duration such as `10m`, `1h30m` or `90s`, up to a year. Raises ValueError."""
    found = DURATION.fullmatch(text)
    if not text or found is None:
        raise ValueError(f"{text!r}: expected a duration like 10m, 1h30m or 90s")
    hours, minutes, seconds, milliseconds = (int(part or 0) for part in found.groups())
    total = hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    if total > _LONGEST_HOURS * 3600:
        raise ValueError(f"{text!r}: expected at most {_LONGEST_HOURS}h")
    return float(total)
