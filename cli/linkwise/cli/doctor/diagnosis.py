"""From facts to findings."""

from collections import Counter

from linkwise.cli.doctor.facts import ALONE, IN_FRONT, OBSERVES, Facts
from linkwise.cli.doctor.finding import Finding, merged
from linkwise.cli.doctor.nodes import of_nodes
from linkwise.cli.doctor.programs import of_programs
from linkwise.cli.doctor.scheduling import of_scheduling
from linkwise.drawing.words import counted

# A second look comes so much later, if a finding may pass by itself.
PASSING_SECONDS = 3.0
_WAYS = {
    ALONE: "without a vendor's plugin",
    IN_FRONT: "in front of a vendor's plugin",
    OBSERVES: "observing a vendor's plugin",
}


def findings(facts: Facts) -> tuple[Finding, ...]:
    return merged((*of_programs(facts), *of_scheduling(facts), *of_nodes(facts)))


def all_is_well(facts: Facts) -> str:
    modes = Counter(pod.mode for pod in facts.plugins)
    ways = ", ".join(f"{count} {_WAYS[mode]}" for mode, count in sorted(modes.items()))
    nodes = counted(len(facts.plugins), "node")
    return f"Nothing is missing. Linkwise's plugin runs on {nodes}: {ways}."
