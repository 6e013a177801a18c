"""Which pinned Go modules have newer releases on the module proxy."""

import re
from collections.abc import Callable, Iterator, Mapping

from tests.cluster.support.programs import binaries
from tests.cluster.support.programs.operators import OPERATORS


def pinned() -> dict[str, str]:
    """Return the versions of all modules that are built here."""
    return {**binaries.PINNED, **{each.module: each.version for each in OPERATORS}}


def newer(
    pins: Mapping[str, str], latest: Callable[[str], str] = binaries.latest
) -> Iterator[tuple[str, str, str]]:
    """Yield module, pinned version, and the newest release if it is newer, or else why the proxy
    does not name it. A new major version is another module."""
    for module, version in sorted(pins.items()):
        try:
            newest = latest(module)
        except binaries.BuildError as error:
            yield module, version, f"unknown: {str(error).splitlines()[-1].strip()}"
            continue
        # A proxy need not list all versions that it has.
        if _release(newest) > _release(version):
            yield module, version, newest


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release; of anything else, what is less than each release."""
    found = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()
