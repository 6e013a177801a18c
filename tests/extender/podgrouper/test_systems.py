"""Each entry of the table, on a pod as that system makes it; and the table beside its page."""

import re
from pathlib import Path

import pytest

from linkwise.extender.podgrouper.workloads.answer import NoGang, Recognised
from linkwise.extender.podgrouper.workloads.kinds import READ
from linkwise.extender.podgrouper.workloads.systems import SYSTEMS, System
from tests.extender.podgrouper.examples import EXAMPLES
from tests.extender.podgrouper.pods import told

PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.rule)
def test_a_pod_of_it_is_understood(system: System) -> None:
    rule = system.rule
    example = EXAMPLES[rule]
    answer = told(example.pod, example.objects).answer
    assert isinstance(answer, Recognised | NoGang), answer
    assert answer.rule == rule
    assert answer.because
    assert (answer.member.role, answer.member.rank) == (example.role, example.rank)
    if isinstance(answer, NoGang):
        assert not example.gang
    else:
        said = (str(answer.gang), answer.size, answer.minimum)
        assert said == (example.gang, example.size, example.minimum)


def test_every_example_is_of_an_entry_and_no_two_entries_share_a_name() -> None:
    rules = [system.rule for system in SYSTEMS]
    assert len(set(rules)) == len(rules)
    assert set(EXAMPLES) == set(rules)


def test_what_an_entry_reads_may_be_read() -> None:
    may = {f"{kind.kind}.{kind.group}" for kind in READ}
    assert {system.reads for system in SYSTEMS} - {""} <= may
    of_explicit = {"StatefulSet.apps", "PodGroup.scheduling.sigs.k8s.io"}  # beside another kind
    assert may - {system.reads for system in SYSTEMS} == of_explicit


def rows_of_page() -> list[tuple[str, ...]]:
    """Rule, title, gang and object read, as the page's tables have them."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if re.match(r"\| `[a-z0-9-]+` \|", line)
    ]
    return [(row[0].strip("`"), row[1], row[2], row[3].strip("`–")) for row in rows]


def test_the_page_has_a_row_for_each_entry_in_the_order_of_the_table() -> None:
    table = [(system.rule, system.title, system.gang, system.reads) for system in SYSTEMS]
    assert rows_of_page() == table
