"""Programs as child processes: their end is noticed and reported, and none outlives its starter."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linkwise.simulator.processes import exec_with_parent
from linkwise.simulator.processes.child_process import Child, ChildError
from tests.waiting import wait_for

Start = Callable[[str], Child]
ON = "print('on', flush=True); import time; time.sleep(60)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a module with this source."""
    children: list[Child] = []

    def started(source: str) -> Child:
        name = f"program{len(children)}"
        (tmp_path / f"{name}.py").write_text(source)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        children.append(Child(name, name, (), tmp_path / f"{name}.log", environment))
        return children[-1]

    yield started
    for child in children:
        child.end(0.0)


def test_a_program_that_runs_is_no_error_and_ends_when_asked(start: Start) -> None:
    child = start(ON)
    wait_for(lambda: "on" in child.log(), "it runs")
    child.check()

    child.ask_to_end()
    child.end(10.0)

    assert not child.runs


def test_a_program_that_does_not_listen_is_ended_all_the_same(start: Start) -> None:
    child = start(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {ON}")
    wait_for(lambda: "on" in child.log(), "it runs")

    child.ask_to_end()
    child.end(0.1)

    assert not child.runs
    assert "by signal SIGKILL" in child.obituary()


def test_the_end_of_a_program_is_told_with_the_end_of_its_log(start: Start) -> None:
    child = start("for n in range(40): print('line', n)\nraise SystemExit(3)")
    wait_for(lambda: not child.runs, "it ends")

    with pytest.raises(ChildError) as caught:
        child.check()

    told = str(caught.value)
    assert told.startswith(f"program0 (pid {child.pid}) ended with status 3; the end of its log:")
    assert told.endswith("line 38\n    line 39")
    assert "line 27\n" not in told


def test_a_program_that_said_nothing_is_told_so(start: Start) -> None:
    child = start("raise SystemExit(0)")
    wait_for(lambda: not child.runs, "it ends")

    assert child.obituary().endswith("ended with status 0; its log is empty")


def test_lines_of_the_log_are_handed_out_once_and_whole(start: Start) -> None:
    child = start("import sys; sys.stdout.write('one\\ntwo\\nthr'); sys.stdout.flush()")
    wait_for(lambda: not child.runs, "it ends")

    assert child.new_lines() == ["one", "two"]
    assert child.new_lines() == []
    with child.log_file.open("a") as log:
        log.write("ee\n")
    assert child.new_lines() == ["three"]


def test_a_tied_program_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    """The starter prints the program's pid, and gets `kill -9`."""
    starter = (
        "import os, subprocess, sys\n"
        f"tied = [sys.executable, {exec_with_parent.__file__!r}, str(os.getpid())]\n"
        "child = subprocess.Popen([*tied, sys.executable, '-c', sys.argv[1]])\n"
        "print(child.pid, flush=True); child.wait()\n"
    )
    log = tmp_path / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen([sys.executable, "-c", starter, ON], stdout=out) as process,
    ):
        wait_for(lambda: "on" in log.read_text(), "the program runs")
        program = Path("/proc") / log.read_text().split()[0]
        process.kill()

    wait_for(lambda: _has_ended(program), "the program has ended")


def test_a_program_whose_starter_has_ended_already_does_not_begin() -> None:
    program = [sys.executable, "-c", "print('began')"]
    run = subprocess.run(
        [sys.executable, exec_with_parent.__file__, str(2**22 + 1), *program],
        capture_output=True,
        check=False,
        text=True,
    )

    assert (run.returncode, run.stdout) == (1, "")


def _has_ended(process: Path) -> bool:
    try:  # without a parent that waits, it stays as a zombie
        return (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
