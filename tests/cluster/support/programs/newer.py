"""Which pinned Go modules have newer releases on the module proxy."""

from collections.abc import Callable, Iterable, Mapping

from tests.cluster.support.programs import binaries
from tests.cluster.support.programs.operators import OPERATORS


def pinned() -> dict[str, str]:
    """Return the versions of all modules that are built here."""
    return {**binaries.PINNED, **{each.module: each.version for each in OPERATORS}}


def newer(
    pins: Mapping[str, str], latest: Callable[[str], str] = binaries.latest
) -> Iterable[tuple[str, str, str]]:
    """Yield module, pinned version and newest release, where these differ. A new major version is
    another module."""
    for module, version in sorted(pins.items()):
        newest = latest(module)
        if newest != version:
            yield module, version, newest
