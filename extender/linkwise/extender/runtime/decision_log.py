"""One line of the log for each decision that was carried out, with the same facts as fields."""

import logging
from collections.abc import Iterable

from linkwise.extender.api.decisions import Decision
from linkwise.topology.annotations.plan import write_gpus

log = logging.getLogger(__name__)


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
