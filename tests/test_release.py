"""The workflows: what makes something that is published comes from locks alone."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.manifests import DAEMONSET

ROOT = DAEMONSET.parent
WORKFLOWS = ROOT / ".github" / "workflows"
JOBS = yaml.safe_load((WORKFLOWS / "release.yaml").read_text())["jobs"]
# It has no rights, and hands nothing to other jobs.
TEST = "test"
LOCKED = ("--require-hashes", "--no-index")


def commands(job: str) -> Iterator[str]:
    for step in JOBS[job]["steps"]:
        yield from step.get("run", "").replace("\\\n", "").splitlines()


def test_the_job_that_installs_what_it_likes_has_no_rights_and_hands_nothing_on() -> None:
    assert JOBS[TEST]["permissions"] == {"contents": "read"}
    assert not [step for step in JOBS[TEST]["steps"] if "upload-artifact" in step.get("uses", "")]


@pytest.mark.parametrize("job", sorted(JOBS.keys() - {TEST}))
def test_every_other_job_installs_by_the_hashes_of_a_lock(job: str) -> None:
    installing = [line for line in commands(job) if re.search(r"\bpip\b|\bmake\b|-m build", line)]
    assert not [line for line in installing if not any(flag in line for flag in LOCKED)]


@pytest.mark.parametrize("job", sorted(JOBS))
def test_every_lock_that_is_named_exists(job: str) -> None:
    named = [lock for line in commands(job) for lock in re.findall(r"-r (\S+)", line)]
    assert not [lock for lock in named if not (ROOT / lock).is_file()]


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_action_is_named_by_commit(workflow: Path) -> None:
    used = re.findall(r"uses: (\S+)", workflow.read_text())
    assert used
    assert not [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)]


def test_a_change_is_tested_on_the_oldest_python_that_is_promised() -> None:
    on_pr = yaml.safe_load((WORKFLOWS / "on-pr.yaml").read_text())["jobs"]
    pythons = on_pr["test"]["strategy"]["matrix"]["python"]
    promised = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert promised == f">={pythons[0]}"
