"""A real program as a child process, with its log in a file.

The program ends when this process ends. If it ends earlier, the caller can see that.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_EXEC_WITH_PARENT = Path(__file__).with_name("exec_with_parent.py")
_TAIL_LINES = 12


class ChildError(Exception):
    """A program ended early. The text says which one, how, and its last log lines."""


class Child:
    """Runs `python -m MODULE ARGUMENTS`.

    Start it from the main thread: the program ends with the thread that started it
    (exec_with_parent.py).
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        log_file: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name, self.log_file = name, log_file
        self._read = 0  # bytes of the log that `new_lines` has returned
        # `-I -S`: the first interpreter needs no packages, it only sets the signal and execs.
        with_parent = [sys.executable, "-I", "-S", str(_EXEC_WITH_PARENT), str(os.getpid())]
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*with_parent, sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                # Ctrl-C in a terminal signals the whole group; only this process should get it.
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raises ChildError if the program has ended."""
        if not self.runs:
            raise ChildError(self.obituary())

    def obituary(self) -> str:
        """Say how it ended, with the last lines of its log."""
        tail = "\n".join(f"    {line}" for line in self.log().splitlines()[-_TAIL_LINES:])
        return f"{self.name} (pid {self.pid}) ended {_how(self._process.poll())}" + (
            f"; the end of its log:\n{tail}" if tail else "; its log is empty"
        )

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def new_lines(self) -> list[str]:
        """Return the whole lines that it has logged since the last call."""
        with self.log_file.open("rb") as log:
            log.seek(self._read)
            fresh = log.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()

    def ask_to_end(self) -> None:
        if self.runs:
            self._process.terminate()

    def end(self, timeout_seconds: float) -> None:
        """Wait up to *timeout_seconds* for the program to end, then kill it."""
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with status {code}"
