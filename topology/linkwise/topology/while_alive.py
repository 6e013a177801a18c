"""Memory of what was computed of an object, for as long as that object lives.

A `functools.lru_cache` keeps its arguments, so a machine that no node has any more would keep its
tables: 5 MiB for 16 GPUs.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import ref

Of = TypeVar("Of")
P = ParamSpec("P")
R = TypeVar("R")


def while_alive(
    maxsize: int,
) -> Callable[[Callable[Concatenate[Of, P], R]], Callable[Concatenate[Of, P], R]]:
    """As `functools.lru_cache`, but the first argument is kept by a weak reference. Other arguments
    and results must not refer to it."""

    def decorate(function: Callable[Concatenate[Of, P], R]) -> Callable[Concatenate[Of, P], R]:
        def by_reference(of: Callable[[], Of], *args: P.args, **kwargs: P.kwargs) -> R:
            return function(of(), *args, **kwargs)

        remembered: Callable[..., R] = lru_cache(maxsize=maxsize)(by_reference)

        @wraps(function)
        def call(of: Of, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return remembered(ref(of), *args, **kwargs)

        return call

    return decorate
