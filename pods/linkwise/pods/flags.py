"""Types of flag values, for the command lines of the extender and the webhook."""

from collections.abc import Callable

import click

from linkwise.pods.durations import seconds_of
from linkwise.pods.spans import levels_of
from linkwise.serving.certificates.callers import Place


def _idle_limit_of(text: str) -> tuple[str, float]:
    """Parse `NAMESPACE=DURATION`: the namespace, and seconds. Raises ValueError."""
    namespace, _, duration = text.partition("=")
    try:
        return namespace, seconds_of(duration)
    except ValueError:
        raise ValueError(f"{text!r}: expected NAMESPACE=DURATION, like ml=4h") from None


def movable_of(text: str) -> tuple[str, float]:
    """Parse `NAMESPACE`, or `NAMESPACE=DURATION`: the namespace, and seconds. Raises ValueError."""
    namespace, given, duration = text.partition("=")
    try:
        return namespace, seconds_of(duration) if given else 0.0
    except ValueError:
        raise ValueError(f"{text!r}: expected NAMESPACE or NAMESPACE=DURATION") from None


def _place_of(text: str) -> Place:
    """Parse `NAMESPACE/NAME`. Raises ValueError."""
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise ValueError(f"{text!r}: expected NAMESPACE/NAME")
    return namespace, name


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return seconds_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Place(click.ParamType[Place]):
    name = "namespace/name"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        try:
            return value if isinstance(value, tuple) else _place_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _OfNamespace(click.ParamType[tuple[str, float]]):
    def __init__(self, name: str, read: Callable[[str], tuple[str, float]]) -> None:
        self.name, self._read = name, read

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        try:
            return value if isinstance(value, tuple) else self._read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Levels(click.ParamType[tuple[str, ...]]):
    name = "labels"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return levels_of(part.strip() for part in str(value).split(",") if part.strip())


DURATION, PLACE, LEVELS = _Duration(), _Place(), _Levels()
IDLE_LIMIT = _OfNamespace("namespace=duration", _idle_limit_of)
MOVABLE_NAMESPACE = _OfNamespace("namespace[=duration]", movable_of)
