"""Whether this process may act, and for how long: what shell and writes ask before everything.

With `--leader-elect` it is a `linkwise.kube.lease.Elector` who answers; a process that is the only
one (the simulator's, a test's) is `ALONE`. What a term is worth, and what happens between two of
them, is in docs/decisions/0011-leader-and-fencing.md.
"""

import math
from collections.abc import Callable
from typing import Protocol


class Lead(Protocol):
    @property
    def term(self) -> int:
        """Of this process, in all that it writes; no later one has a lower. 0: never led."""

    @property
    def handed_over(self) -> bool:
        """Whether the leader before ended in order, with no write under way."""

    @property
    def switches(self) -> int:
        """How often another came to lead, as far as seen."""

    def act_seconds(self) -> float:
        """For how long it may still begin to act; 0 or less: not at all."""

    def write_seconds(self) -> float:
        """For how long a write that begins now may take; 0: none may begin."""

    def refusal(self) -> str:
        """Why it may not act; empty while it may."""

    def tell(self, on_change: Callable[[], object]) -> None:
        """Call *on_change* when this process comes to lead."""

    def outbid(self, term: int) -> None:
        """Go on in a term above *term*. Raises ApiError."""


class _Alone:
    """There is nobody else."""

    term, handed_over, switches = 0, True, 0

    def act_seconds(self) -> float:
        return math.inf

    def write_seconds(self) -> float:
        return math.inf

    def refusal(self) -> str:
        return ""

    def tell(self, on_change: Callable[[], object]) -> None:
        """It leads from the beginning."""

    def outbid(self, term: int) -> None:
        """Terms that others wrote are over, as there is nobody else."""


ALONE: Lead = _Alone()
