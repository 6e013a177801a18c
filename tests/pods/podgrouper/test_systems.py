"""Each entry of the table, on a pod as that system makes it; and the table beside its page."""

import re
from pathlib import Path

import msgspec
import pytest

from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import NoGang, Recognised, Refused
from linkwise.pods.podgrouper.workloads.declared import group_named
from linkwise.pods.podgrouper.workloads.systems import DECLARED, SYSTEMS, System
from tests.pods.podgrouper.examples import EXAMPLES
from tests.pods.podgrouper.pods import gang, like, owner, pod, told

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


@pytest.mark.parametrize("system", DECLARED, ids=lambda system: system.rule)
def test_all_members_count_of_a_group_that_does_not_say_which_take_gpus(system: System) -> None:
    """A rule that leaves that open must have the places of the group's name in `MARKS`."""
    example = EXAMPLES[system.rule]
    members = example.pod, like(example.pod, "driver", gpus=0)
    found, of_driver = (gang(made, *example.objects) for made in members)
    assert of_driver.gang == found.gang
    (named,) = {group_named(msgspec.convert(made, Pod)) for made in members}
    assert (named is not None) == found.counts_all, f"see MARKS[{system.rule!r}].group"


def kai_minimum(**spec: object) -> int:
    pod_ = pod("w", annotations={"pod-group-name": "group"})
    answer = told(pod_, (owner("scheduling.run.ai/v2alpha2 PodGroup", "group", spec),)).answer
    return answer.minimum if isinstance(answer, Recognised) else 1


def groups(**minimum: int) -> list[dict[str, object]]:
    return [{"name": name, "minMember": least} for name, least in minimum.items()]


INNER = [{**group, "parent": "work"} for group in groups(w2=2, w3=3, w4=4)]
CHAIN = [{"name": f"{n}", "parent": f"{n - 1}" if n else "", "minSubGroup": 1} for n in range(5000)]


@pytest.mark.parametrize(
    ("spec", "minimum"),
    [
        ({"minMember": 3, "subGroups": groups(a=2)}, 3),
        ({"minSubGroup": 2, "subGroups": groups(a=1, b=4)}, 5),
        ({"minSubGroup": 1, "subGroups": groups(a=6, b=4)}, 4),
        (
            {
                "minSubGroup": 2,
                "subGroups": [*groups(lead=1), {"name": "work", "minSubGroup": 2}, *INNER],
            },
            6,
        ),
        ({"minSubGroup": 1}, 1),
        ({"subGroups": groups(a=4)}, 1),
    ],
)
def test_a_kai_group_of_subgroups_needs_the_smallest_of_them(
    spec: dict[str, object], minimum: int
) -> None:
    assert kai_minimum(**spec) == minimum


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ([*groups(a=1), {"name": "a", "parent": "a"}], "subGroups: expected each name once"),
        (CHAIN, "spec.subGroups: expected at most 8 levels"),
        (groups(a=-1), "spec.subGroups.minMember: -1: expected a whole number"),
    ],
    ids=["twice", "deep", "negative"],
)
def test_subgroups_that_cannot_be_read_are_named(of: list[object], said: str) -> None:
    pod_ = pod("w", annotations={"pod-group-name": "group"})
    spec = {"minSubGroup": 1, "subGroups": of}
    answer = told(pod_, (owner("scheduling.run.ai/v2alpha2 PodGroup", "group", spec),)).answer
    assert isinstance(answer, Refused)
    assert said in answer.because


def test_every_example_is_of_an_entry_and_no_two_entries_share_a_name() -> None:
    rules = [system.rule for system in SYSTEMS]
    assert len(set(rules)) == len(rules)
    assert set(EXAMPLES) == set(rules)


def rows_of_page() -> list[tuple[str, ...]]:
    """Rule, title, gang and objects read, as the page's tables have them."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if re.match(r"\| `[a-z0-9-]+` \|", line)
    ]
    return [(row[0].strip("`"), row[1], row[2], row[3].strip("`–")) for row in rows]


def test_the_page_has_a_row_for_each_entry_in_the_order_of_the_table() -> None:
    table = [
        (
            system.rule,
            system.title,
            system.gang,
            "`, `".join(kind.qualified for kind in system.reads),
        )
        for system in SYSTEMS
    ]
    assert rows_of_page() == table
