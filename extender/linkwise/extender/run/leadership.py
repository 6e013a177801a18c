"""Whether this process may act, and for how long. The loop and the writer ask before they act.

With `--leader-elect` the answer comes from `linkwise.kube.lease.Elector`. A process that runs alone
(the simulator's, a test's) uses `ALONE`. docs/decisions/kubernetes.md#11-leader-and-fencing
says what a term guarantees, and what happens between two terms.
"""

import math
from collections.abc import Callable
from typing import Protocol


class Lead(Protocol):
    @property
    def term(self) -> int:
        """The term in which this process leads or led; 0: it never led. Everything that it writes
        carries the term, and no later leader has a lower one."""

    @property
    def handed_over(self) -> bool:
        """Whether the previous leader released the Lease with no write in flight."""

    @property
    def switches(self) -> int:
        """Changes of the leader that this process has seen."""

    def act_seconds(self) -> float:
        """For how long this process may still start to act; 0 or less: it may not."""

    def write_seconds(self) -> float:
        """How long a write that starts now may take; 0: none may start."""

    def refusal(self) -> str:
        """Why this process may not act; empty if it may."""

    def on_lead(self, on_change: Callable[[], object]) -> None:
        """Call *on_change* when this process becomes the leader."""

    def outbid(self, term: int) -> None:
        """Continue to lead in a term above *term*. Raises ApiError."""


class _Alone:
    """The Lead of the only process: it always leads."""

    term, handed_over, switches = 0, True, 0

    def act_seconds(self) -> float:
        return math.inf

    def write_seconds(self) -> float:
        return math.inf

    def refusal(self) -> str:
        return ""

    def on_lead(self, on_change: Callable[[], object]) -> None:
        """It leads from the start, so *on_change* is never called."""

    def outbid(self, term: int) -> None:
        """Terms of others are over, because no other process runs."""


ALONE: Lead = _Alone()
