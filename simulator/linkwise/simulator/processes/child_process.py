"""A real program as a process of ours: its log in a file, its end noticed, and never an orphan."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_EXEC_WITH_PARENT = Path(__file__).with_name("exec_with_parent.py")
_TAIL_LINES = 12


class ChildError(Exception):
    """A program ended that should run; its text says which, how, and what it said last."""


class Child:
    """`python -m MODULE ARGUMENTS`. Start it from the main thread: it ends with the thread that
    started it (exec_with_parent.py)."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        log_file: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name, self.log_file = name, log_file
        self._read = 0  # bytes of the log that `new_lines` has handed out
        # Isolated and without site: the first interpreter only asks the kernel for one thing.
        with_parent = [sys.executable, "-I", "-S", str(_EXEC_WITH_PARENT), str(os.getpid())]
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*with_parent, sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                # A Ctrl-C in the terminal is for us alone: we end them in order.
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raises ChildError where it has ended."""
        if not self.runs:
            raise ChildError(self.obituary())

    def obituary(self) -> str:
        """How it ended, and the last lines of its log."""
        tail = "\n".join(f"    {line}" for line in self.log().splitlines()[-_TAIL_LINES:])
        return f"{self.name} (pid {self.pid}) ended {_how(self._process.poll())}" + (
            f"; the end of its log:\n{tail}" if tail else "; its log is empty"
        )

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def new_lines(self) -> list[str]:
        """What it has logged since the last call, whole lines only."""
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
        """Wait for its end so long, then make it so."""
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with status {code}"
