"""All tests that need a cluster, in several sandboxes at once, as much of each is waiting.

What is costly to start is started once: the tests on a deployed Linkwise share a sandbox, and so do
the contract's. Of the rest each module has its own, so that no two meet on a port or an address.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from linkwise.simulator import tied

TESTS = ("tests/cluster", "tests/contract")
# One more than the processors of a small machine: at each moment one of them is waiting.
AT_ONCE = 3


@dataclass(frozen=True)
class Ended:
    arguments: Sequence[str]
    seconds: float
    status: int
    said: str

    @property
    def line(self) -> str:
        last = self.said.strip().splitlines()[-1:]
        return f"{' '.join(self.arguments)}: {' '.join(last).strip('= ')}"


def run() -> int:
    """Run them all, show what each sandbox's tests said, and return 0 where all passed."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(_run_shown, _sandboxes()))
    click.echo("\n" + "\n".join(one.line for one in ended))
    return max(one.status for one in ended)


def _sandboxes() -> list[Sequence[str]]:
    """What pytest takes in each; the longest first."""
    modules = _modules("--deployed=never")
    alone = [name for name in modules if Path(name).parent != Path(TESTS[1])]
    return [
        ("--deployed=only", *_modules("--deployed=only")),
        (TESTS[1],),
        *(("--deployed=never", name) for name in alone),
    ]


def _modules(chosen: str) -> list[str]:
    """The modules with tests that *chosen* leaves, so that no sandbox is made for none."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "--real", chosen, *TESTS]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise click.ClickException(f"the tests cannot be collected:\n{said.stdout}{said.stderr}")
    return [line.rpartition(": ")[0] for line in said.stdout.splitlines() if ".py: " in line]


def _run_shown(arguments: Sequence[str]) -> Ended:
    started = time.monotonic()
    ends_with_us = [sys.executable, "-I", "-S", tied.__file__, str(os.getpid())]
    said = subprocess.run(
        [*ends_with_us, sys.executable, "-m", "tests.cluster", "test", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    ended = Ended(arguments, time.monotonic() - started, said.returncode, said.stdout)
    click.echo(f"\n{ended.said}")
    return ended
