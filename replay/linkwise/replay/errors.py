"""Why a trace cannot be replayed.

ReplayError      the base: the command prints its text and ends with status 2
└── TraceError   a file that is not a readable trace; names the file, the line, what was expected
"""

from pathlib import Path


class ReplayError(Exception):
    """The request is impossible; the text says what to change."""


class TraceError(ReplayError):
    def __init__(self, file: Path, line: int | None, problem: str, expected: str) -> None:
        where = str(file) if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {problem}: expected {expected}")
        self.file, self.line = file, line
