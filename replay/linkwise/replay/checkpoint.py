"""Results that are kept in a file, so that a run that was ended goes on where it was.

A result counts for equal questions alone: the same trace, options and program. Its key is a hash of
these three.
"""

import hashlib
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Generic, TypeVar

import msgspec

from linkwise.replay.errors import TraceError

T = TypeVar("T")
_DECIDING = ("linkwise.extender", "linkwise.kube", "linkwise.replay", "linkwise.topology")


def key_of(*question: object) -> str:
    """Of values whose `repr` says all about them, and of the files that decide the answer."""
    digest = hashlib.sha256(repr(question).encode())
    for package in _DECIDING:
        root = Path(str(files(package)))
        for source in sorted([*root.rglob("*.py"), *root.rglob("*.json")]):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def digest_of(*inputs: Path) -> str:
    """Raises TraceError where one of the *inputs* cannot be read."""
    digest = hashlib.sha256()
    for file in inputs:
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            raise TraceError(file, None, error.strerror or str(error), "a readable file") from error
    return digest.hexdigest()


class Checkpoint(Generic[T]):
    """Results of *kind* by their keys; without a file they are kept for this run alone."""

    def __init__(self, file: Path | None, kind: type[T]) -> None:
        """Raises TraceError where the file is there and is none of ours."""
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
        """The file is there whole or not at all, whenever the program is ended."""
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
