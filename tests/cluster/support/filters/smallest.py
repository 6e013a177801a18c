"""Takes away whatever of a case a difference does not need."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

from tests.cluster.support.filters.kube_scheduler import Answer, Case, Plugins

_AT_ONCE = 64  # as many as the program asks about at once

_Path = tuple[str | int, ...]


def smallest(case: Case, plugins: Plugins, stays: Callable[[Answer], bool]) -> Case:
    """Remove lists' items and objects' fields for as long as *stays* holds of the answer."""
    position = 0
    removed = False
    while True:
        paths = list(islice(_paths(case), position, position + _AT_ONCE))
        if not paths:
            if not removed:
                return case
            position, removed = 0, False
            continue
        kept = [
            path
            for path, answer in zip(
                paths, list(plugins.ask(_without(case, path) for path in paths)), strict=True
            )
            if not answer.error and stays(answer)
        ]
        if not kept:
            position += len(paths)
            continue
        # The first is known to be not needed. The rest may need each other.
        position += paths.index(kept[0])
        case = _without(case, kept[0])
        removed = True


def _paths(part: Any, path: _Path = ()) -> Iterator[_Path]:
    """Yield what can be removed, the largest parts first."""
    parts: list[tuple[_Path, Any]] = [((), part)]
    while parts:
        path, part = parts.pop(0)
        keys: list[str] | range = []
        if isinstance(part, dict):
            keys = list(part)
        elif isinstance(part, list):
            keys = range(len(part))
        for key in keys:
            yield (*path, key)
            parts.append(((*path, key), part[key]))


def _without(case: Case, path: _Path) -> Case:
    smaller = deepcopy(case)
    part: Any = smaller
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    return smaller
