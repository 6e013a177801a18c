"""What the log says of decisions, and with `--log-level=debug` of each round."""

import logging
import time
from collections.abc import Callable, Iterable

from linkwise.extender.state.decisions import Decision
from linkwise.topology.annotations.plan import write_gpus

log = logging.getLogger(__name__)


class RoundLog:
    """With `--log-level=debug`, the log has a line for each scheduling round: how long each step
    took.

    A step that has its turn several times in a round, as each gang is allocated and reserved for,
    is the sum. Time without the lock counts too.

    Of one thread; it costs nothing at another log level.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began: float | None = None
        self._last = 0.0
        self._seconds: dict[str, float] = {}

    def begin(self) -> None:
        self._seconds = {}
        self._began = None
        if log.isEnabledFor(logging.DEBUG):
            self._began = self._last = self._clock()

    def step(self, name: str) -> None:
        """The step *name* ends now."""
        if self._began is None:
            return
        last, self._last = self._last, self._clock()
        self._seconds[name] = self._seconds.get(name, 0.0) + self._last - last

    def end(self) -> None:
        if self._began is None or not self._seconds:
            return
        steps = {name: round(1000 * seconds, 3) for name, seconds in self._seconds.items()}
        whole = 1000 * (self._clock() - self._began)
        told = ", ".join(f"{name} {spent:.3f}" for name, spent in steps.items())
        log.debug("a round took %.3f ms: %s", whole, told, extra={"steps": steps})


def log_decisions(decisions: Iterable[Decision]) -> None:
    for decision in decisions:
        log.info("%s", decision.sentence, extra=_fields(decision))


def _fields(decision: Decision) -> dict[str, object]:
    """Those that are known."""
    known = {
        "pod": decision.pod,
        "gang": decision.gang,
        "node": decision.where,
        "gpus": write_gpus(decision.gpus) if decision.gpus else "",
        "reason": decision.why,
        "for": decision.for_whom,
        "priority": decision.priority,
        "for_priority": decision.for_priority,
    }
    return {name: value for name, value in known.items() if value not in ("", None)}
