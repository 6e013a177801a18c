"""Runs all tests that need a cluster in several sandboxes at once, as each mostly waits.

The tests on a deployed Linkwise share a sandbox, and so do the contract's, because starting theirs
is slow. Every other module has its own, so that no two share a port or an address.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import pytest

from linkwise.simulator.processes import exec_with_parent

# One more than the processors of a small machine, because one of them is always waiting.
AT_ONCE = 3
_NONE_SELECTED = pytest.ExitCode.NO_TESTS_COLLECTED


@dataclass(frozen=True)
class Ended:
    tests: str
    status: int
    said: str

    @property
    def line(self) -> str:
        last = self.said.strip().splitlines()[-1:]
        return f"{self.tests}: {' '.join(last).strip('= ')}"


def run(flags: Sequence[str] = ()) -> int:
    """Run all tests of tests/cluster, or those of them that pytest's *flags* select, and show each
    sandbox's output. Return 0 if all passed, and there were some. Call it in the checkout."""
    return status(run_each(flags, _sandboxes()), flags)


def run_each(flags: Sequence[str], sandboxes: Sequence[str]) -> list[Ended]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(partial(_run_shown, flags), sandboxes))
    click.echo("\n" + "\n".join(one.line for one in ended))
    return ended


def status(ended: Sequence[Ended], flags: Sequence[str]) -> int:
    """Return 0 if all passed. With *flags*, sandboxes may have none of the tests."""
    statuses = {one.status for one in ended} - ({_NONE_SELECTED} if flags else set())
    return 0 if statuses == {0} else 1


def _sandboxes() -> list[str]:
    """Return the tests of each sandbox, the longest first."""
    long = ["tests/cluster/deployed", "tests/contract", "tests/cluster/test_workloads.py"]
    others = {*map(str, Path("tests/cluster").glob("test_*.py"))} - {*long}
    return [*long, *sorted(others)]


def _run_shown(flags: Sequence[str], tests: str) -> Ended:
    ends_with_us = [sys.executable, "-I", "-S", exec_with_parent.__file__, str(os.getpid())]
    ran = subprocess.run(
        [*ends_with_us, sys.executable, "-m", "tests.cluster", "test", tests, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    click.echo(f"\n{ran.stdout}")
    return Ended(tests, ran.returncode, ran.stdout)
