"""Lets msgspec build what it knows of its structs while no other thread needs them.

msgspec 0.22 builds it at the first use of a class, and lets other threads use the unfinished result
meanwhile: the process ends with a segmentation fault. So whatever begins to decode in threads
builds all structs first: the client of the API server, and each server.
"""

import threading
from collections.abc import Iterator

import msgspec

_lock = threading.Lock()
_built: set[type[msgspec.Struct]] = set()


def build_structs() -> None:
    """Build all structs of the modules that are imported by now."""
    with _lock:
        for kind in _below(msgspec.Struct):
            if kind not in _built:
                _built.add(kind)
                msgspec.json.Decoder(kind)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
