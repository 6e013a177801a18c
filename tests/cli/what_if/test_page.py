"""docs/what-if.md shows what the command prints, and all its options. `examples.txt` has more of
what it prints, in the page's form."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkwise.cli.__main__ import main
from linkwise.cli.what_if.answer import (
    HeldPod,
    JobMoves,
    JobPart,
    LaterPod,
    MovedPod,
    OtherPod,
    Place,
    WhatIfAnswer,
    WholeNodes,
    WholeNodesAnswer,
    Without,
)
from linkwise.cli.what_if.command import what_if_command
from linkwise.cli.what_if.past.answer import Ignored, JobThere, Outcome, PastAnswer
from linkwise.cli.what_if.past.history_csv import NEEDED, OPTIONAL
from tests.cli.what_if.asking import NOW, listed, runs
from tests.cli.what_if.past_listing import a_week
from tests.cli.what_if.scattered import of_the_page
from tests.extender.cluster import Cluster

PAGE = (Path(__file__).parents[3] / "docs" / "what-if.md").read_text()
EXAMPLES = PAGE + Path(__file__).with_name("examples.txt").read_text()
COLUMN = re.compile(r"`(\w+)`")
FILES = dict(re.findall(r"<!-- (\S+) -->\n```yaml\n(.*?)```", EXAMPLES, flags=re.DOTALL))
SHOWN = re.findall(
    r"```\n\$ kubectl get (\S+) [^\n]* \| linkwise (what-if [^\n]*)\n(.*?)```",
    EXAMPLES,
    flags=re.DOTALL,
)


def cluster() -> Cluster:
    it = Cluster(now=NOW - 1800)
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        zone = "a" if name == "gpu-1" else "b"
        it.add_node(name, "hgx-h100", labels={"topology.kubernetes.io/zone": zone})
    it.add_node("old-1", "dgx1-v100", labels={"topology.kubernetes.io/zone": "a"})
    runs(it, "notebook", 2, "gpu-1", expected_duration="3h")
    runs(it, "label", 4, "gpu-2", expected_duration="90m")
    runs(it, "embed", 3, "gpu-3")
    runs(it, "eval", 6, "old-1")
    it.now = NOW
    return it


def test_there_is_something_to_compare() -> None:
    assert (len(SHOWN), len(FILES)) == (7, 4)


@pytest.mark.parametrize(("kinds", "command", "shown"), SHOWN, ids=[each[1] for each in SHOWN])
def test_the_page_shows_what_the_command_prints(
    kinds: str, command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    arguments = [*shlex.split(command), "--at", "2026-03-01T08:00:00Z"]
    given = a_week() if "--replay" in arguments else listed(cluster())
    if "poddisruptionbudgets" in kinds:
        given = of_the_page()
    result = CliRunner().invoke(main, arguments, input=json.dumps(given))
    assert result.stdout == shown, result.output


def test_every_option_is_documented() -> None:
    options = {option for each in what_if_command.params for option in each.opts}
    assert not [option for option in options if f"`{option}`" not in PAGE]


def test_every_field_is_documented() -> None:
    said = set(re.findall(r"`(\w+)`", PAGE))
    now = (WhatIfAnswer, JobPart, Place, Without, HeldPod, JobMoves, MovedPod)
    whole = (OtherPod, LaterPod)
    kinds = (*now, *whole, WholeNodesAnswer, WholeNodes, PastAnswer, Outcome, JobThere, Ignored)
    fields = {name for kind in kinds for name in kind.__slots__}
    assert not fields - said


def test_every_column_of_a_history_file_is_documented() -> None:
    table = PAGE.split("| column | needed |", 1)[1].split("\n\n", 1)[0]
    said = {name for line in table.splitlines()[2:] for name in COLUMN.findall(line.split("|")[1])}
    assert said == {*NEEDED, *OPTIONAL}
