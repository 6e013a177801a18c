"""docs/health.md says what the tables of the program say."""

from pathlib import Path

from linkwise.plugin.health.conditions import DEFAULTS, Treatment
from linkwise.plugin.health.faults import RESET_TIMES, Policy
from linkwise.plugin.health.xids import XIDS
from linkwise.plugin.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "health.md").read_text()


def table(title: str) -> list[list[str]]:
    """The first table behind this headline, without its head: the cells of each row."""
    rows = PAGE.split(f"## {title}\n", 1)[1].split("|---", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows.splitlines()[1:]]


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def test_every_condition_is_there_with_its_default() -> None:
    told = {name.strip("`"): default for name, default, *_ in table("What probes find")}
    assert told == {name: treatment.value for name, treatment in DEFAULTS.items()}


def test_every_xid_is_there_with_its_treatment_and_nvidias_action() -> None:
    told = {
        number: (treatment.strip("`"), "" if action == "none" else action)
        for treatment, action, listed in table("XIDs")
        for number in numbers(listed)
    }
    assert told == {number: (row.treatment, row.action) for number, row in XIDS.items()}


def test_every_treatment_is_explained() -> None:
    told = [treatment.strip("`") for treatment, *_ in table("How the plugin treats a condition")]
    assert told == [treatment.value for treatment in Treatment]


def test_the_times_are_those_of_the_settings() -> None:
    defaults = Settings(node_name="n1")
    assert f"{RESET_TIMES} times as long, 1 hour" in PAGE
    assert defaults.probation_seconds * RESET_TIMES == 3600
    assert defaults.probation_seconds == 300
    assert "(`--probation-seconds`)" in PAGE or "`--probation-seconds`, 5 minutes" in PAGE
    assert f"`--driver-seconds` ({defaults.driver_seconds:g} s)" in PAGE
    assert f"({defaults.silent_seconds:g} s)" in PAGE
    assert f"Every {defaults.health_seconds:g} s (`--health-seconds`)" in PAGE
    assert Policy().clean_probes == 3
    assert "three probes in a row were clean" in PAGE
