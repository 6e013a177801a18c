"""Moments as people read them."""

from datetime import UTC, datetime


def clock(seconds: float | None) -> str:
    """Seconds since 1970 as `2026-01-02 03:04:05` in UTC; empty if unknown."""
    if not seconds:
        return ""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return ""
