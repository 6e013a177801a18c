"""PURE. What can be wrong with a GPU, and how the plugin treats it.

The defaults follow NVIDIA's own judgement. If NVIDIA's health checks call a GPU failed, it is out;
if they say that new work may start on it, it stays. docs/health.md has the table with the sources;
a test compares the two. An operator may choose another treatment for each condition.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from linkwise.plugin.errors import SettingError
from linkwise.plugin.health.xids import UNKNOWN, XIDS


class Treatment(Enum):
    """What the plugin does about a condition."""

    IGNORE = "ignore"  # nothing; the metrics still count XIDs
    NOTE = "note"  # reported, in the metrics and once in the log; the GPU is given out
    UNHEALTHY = "unhealthy"  # out, and back by itself after the probation
    RESET = "reset"  # the same, if only a reset helps: the probation is longer


UNKNOWN_XID = "xid-unknown"

DEFAULTS: Mapping[str, Treatment] = {
    "lost": Treatment.UNHEALTHY,
    "no-answer": Treatment.UNHEALTHY,
    "gone": Treatment.UNHEALTHY,
    "no-device-file": Treatment.UNHEALTHY,
    "mig": Treatment.UNHEALTHY,
    "recovery-action": Treatment.UNHEALTHY,
    "ecc": Treatment.UNHEALTHY,
    "sram-threshold": Treatment.UNHEALTHY,
    "row-remap-failure": Treatment.UNHEALTHY,
    "memory-repair-pending": Treatment.NOTE,
    "nvlink-down": Treatment.UNHEALTHY,
    "nvlink-errors": Treatment.NOTE,
    "pcie-width": Treatment.NOTE,
    "fabric-down": Treatment.UNHEALTHY,
    "fabric-route": Treatment.UNHEALTHY,
    "fabric-configuration": Treatment.UNHEALTHY,
    "fabric-bandwidth": Treatment.UNHEALTHY,
    "played": Treatment.UNHEALTHY,
    UNKNOWN_XID: Treatment.UNHEALTHY,
}

_XID = re.compile(r"xid-[1-9][0-9]{0,5}")


@dataclass(frozen=True, slots=True)
class Treatments:
    """The tables, with an operator's choices instead of their rows."""

    chosen: Mapping[str, Treatment] = field(default_factory=dict)

    def of(self, condition: str) -> Treatment:
        return self.chosen.get(condition) or DEFAULTS[condition]

    def of_xid(self, number: int) -> Treatment:
        chosen = self.chosen.get(f"xid-{number}")
        if chosen is not None:
            return chosen
        known = XIDS.get(number)
        return Treatment(known.treatment) if known else self.of(UNKNOWN_XID)


def xid_text(number: int) -> str:
    known = XIDS.get(number)
    return f"XID {number}: {known.meaning if known else UNKNOWN}"


def read_treatments(words: Sequence[str]) -> Treatments:
    """Each word is "NAME=TREATMENT"; the last one for a name counts. Raises SettingError."""
    chosen: dict[str, Treatment] = {}
    for word in words:
        name, _, treatment = word.partition("=")
        if name not in DEFAULTS and not _XID.fullmatch(name):
            raise SettingError(
                f"{word!r}: expected NAME=TREATMENT with xid-NUMBER or one of "
                f"{', '.join(sorted(DEFAULTS))} for NAME"
            )
        try:
            chosen[name] = Treatment(treatment)
        except ValueError:
            allowed = ", ".join(each.value for each in Treatment)
            raise SettingError(f"{word!r}: expected one of {allowed} after the =") from None
    return Treatments(chosen)
