"""The page of what was run beside which operators, and the list of newer releases."""

from pathlib import Path

import pytest

from tests.cluster.support.programs import beside
from tests.cluster.support.programs.binaries import BuildError
from tests.cluster.support.programs.newer import newer, pinned
from tests.cluster.support.programs.operators import (
    JOB_SET,
    KUEUE,
    LEADER_WORKER_SET,
    OPERATORS,
    SELECTED,
    TRAINER,
    selected,
)


def test_the_page_has_the_versions_and_the_tests_of_this_checkout() -> None:
    """`make beside` writes the table."""
    assert beside.shown() == beside.table(beside.modules())


def test_every_operator_has_a_test_beside_it() -> None:
    rows = beside.table(beside.modules()).splitlines()[2:]
    assert len(rows) == 1 + len(OPERATORS)
    assert not [row for row in rows if "–" in row]


def test_a_module_that_failed_is_not_on_the_page() -> None:
    failed = "tests/beside/test_job_sets.py"
    assert "test_job_sets.py" in beside.table(beside.modules())
    passed = [module for module in beside.modules() if module != failed]
    assert "test_job_sets.py" not in beside.table(passed)


def test_a_run_with_some_operators_has_the_modules_that_need_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SELECTED, "jobset,lws,kueue,trainer")
    assert selected() == (JOB_SET, LEADER_WORKER_SET, TRAINER, KUEUE)
    monkeypatch.setenv(SELECTED, "lws")
    names = {Path(module).name for module in beside.modules(selected())}
    assert {"test_leader_worker_sets.py", "test_controllers.py", "test_lives.py"} <= names
    assert not names & {"test_job_sets.py", "test_kueue.py", "test_train_jobs.py"}


def test_an_operator_that_does_not_exist_is_no_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SELECTED, "jobsett")
    with pytest.raises(ValueError, match="jobsett"):
        selected()


def test_releases_that_are_newer_are_listed() -> None:
    versions = {"a": ("v1.9.0", "v1.10.0"), "b": ("v2.0.0", "v2.0.0"), "c": ("v2.3.0", "v2.0.0")}
    versions |= {"d": ("v1.0.0", "v1.1.0-rc.1")}
    pins = {module: now for module, (now, _) in versions.items()}
    assert [*newer(pins, lambda module: versions[module][1])] == [("a", "v1.9.0", "v1.10.0")]
    assert {each.module for each in OPERATORS} < pinned().keys()


def test_a_module_that_the_proxy_does_not_list_is_named() -> None:
    def refused(module: str) -> str:
        raise BuildError(f"go list: exit 1:\n{module}: 403 Forbidden")

    assert [*newer({"a": "v1.0.0"}, refused)] == [("a", "v1.0.0", "unknown: a: 403 Forbidden")]
