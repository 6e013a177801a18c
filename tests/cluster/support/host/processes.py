"""A program of the cluster as a process, with its log in a file. Tests restart and kill it.

Any thread may start it, and the program need not be ended: the sandbox's pid namespace ends with
its first process, and with it everything inside.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_TAIL_LINES = 20
_PATIENCE_SECONDS = 15.0


class ProcessError(Exception):
    """A program ended early: names it, and shows how it ended and the end of its log."""


class LoggedProcess:
    """Starts with `start`. A restart repeats the same command and appends to the log."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.argv, self.log = name, tuple(argv), log
        self._env = dict(env) if env is not None else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Raises ProcessError if it does not run."""
        self.check()
        assert self._process is not None
        return self._process.pid

    def check(self) -> None:
        """Raises ProcessError if it does not run."""
        if not self.alive:
            code = None if self._process is None else self._process.returncode
            state = "was not started" if self._process is None else f"ended with status {code}"
            raise ProcessError(f"{self.name} {state}; {self.log} ends:\n{self.log_tail()}")

    def start(self) -> None:
        if self.alive:
            raise ProcessError(f"{self.name} runs already, as {self.pid}")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._env} if self._env is not None else None,
                process_group=0,  # Ctrl-C in the terminal must reach only the tests
            )

    def stop(self) -> None:
        """Ask it to end, and kill it after 15 seconds."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it; its clients wait."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        if not self.log.exists():
            return "    (no log)"
        text = self.log.read_text(errors="replace")
        return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])

    def _end(self, how: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
