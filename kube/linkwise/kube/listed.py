"""All objects of a list, in little memory: docs/decisions/kubernetes.md#23-client-and-reflector.

Decoded, the 20,000 pods of a large cluster take 50 MiB, and an owner that keeps parts of them keeps
most of the memory blocks.
"""

import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")
_AT_ONCE = 50  # objects: unpacked and decoded in one to two milliseconds


class Listed(Collection[T]):
    """Every iteration decodes the objects again, some at a time."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder: msgspec.json.Decoder[list[T]] = msgspec.json.Decoder(
            list[kind]  # type: ignore[valid-type]
        )
        self._packed: list[bytes] = []
        self._length = 0

    def add(self, objects: Sequence[msgspec.Raw]) -> None:
        """Add JSON objects that decode as *kind*."""
        for first in range(0, len(objects), _AT_ONCE):
            some = msgspec.json.encode(objects[first : first + _AT_ONCE])
            self._packed.append(zlib.compress(some, level=1))
        self._length += len(objects)

    def __iter__(self) -> Iterator[T]:
        for packed in self._packed:
            yield from self._decoder.decode(zlib.decompress(packed))

    def __len__(self) -> int:
        return self._length

    def __contains__(self, one: object) -> bool:
        return any(one == each for each in self)
