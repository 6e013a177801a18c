"""Why a trace cannot be read."""

from pathlib import Path

from linkwise.replay.errors import ReplayError


class TraceError(ReplayError):
    """A file that is no readable trace: names the file, the line, what was expected."""

    def __init__(self, file: Path, line: int | None, problem: str, expected: str) -> None:
        where = str(file) if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {problem}: expected {expected}")
        self.file, self.line = file, line
