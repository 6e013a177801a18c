"""Results kept in a file, so that a stopped run continues where it was.

A result counts only for the same trace, options and program. Its key is a hash of these three.
"""

import hashlib
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Generic, TypeVar

import msgspec

from bench.replay.errors import TraceError

T = TypeVar("T")
_DECIDING = ("linkwise.extender", "linkwise.kube", "linkwise.replay", "linkwise.topology")


def key_of(*question: object) -> str:
    """Hash values whose `repr` is complete, and the files that determine the answer."""
    digest = hashlib.sha256(repr(question).encode())
    for package in _DECIDING:
        root = Path(str(files(package)))
        for source in sorted([*root.rglob("*.py"), *root.rglob("*.json")]):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def digest_of(*inputs: Path) -> str:
    """Hash the *inputs*. Raises TraceError if one cannot be read."""
    digest = hashlib.sha256()
    for file in inputs:
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            raise TraceError(file, None, error.strerror or str(error), "a readable file") from error
    return digest.hexdigest()


class Checkpoint(Generic[T]):
    """Results of *kind* by their keys. Without a file they are kept for this run only."""

    def __init__(self, file: Path | None, kind: type[T]) -> None:
        """Raises TraceError if the file exists but is not a checkpoint."""
        self._file = file
        self._kept: dict[str, T] = {}
        if file is None or not file.exists():
            return
        try:
            self._kept = msgspec.json.decode(file.read_bytes(), type=dict[str, kind])  # type: ignore[valid-type]
        except OSError as error:
            raise TraceError(file, None, error.strerror or str(error), "a readable file") from error
        except msgspec.DecodeError as error:
            raise TraceError(file, None, str(error), "what --resume wrote, or no file") from error

    def get(self, key: str) -> T | None:
        return self._kept.get(key)

    def keep(self, key: str, result: T) -> None:
        """Write the result. The file is complete or absent, whenever the program is stopped."""
        self._kept[key] = result
        if self._file is None:
            return
        try:
            with NamedTemporaryFile(dir=self._file.parent, prefix=".replay-", delete=False) as new:
                new.write(msgspec.json.format(msgspec.json.encode(self._kept)))
            Path(new.name).replace(self._file)
        except OSError as error:
            problem = error.strerror or str(error)
            raise TraceError(self._file, None, problem, "a file that can be written") from error
