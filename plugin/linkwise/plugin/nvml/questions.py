"""Questions about one GPU, or about the driver, of which some fail.

"Not supported" is an answer: there is no such fact. After any other error the last answer stays,
because a dying GPU forgets its name before the node should.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pynvml

from linkwise.plugin.nvml.library import not_supported

T = TypeVar("T")


class Questions:
    """*known* are the answers of the last reading, by call. `answers` are those of this reading,
    including those that stay from the last."""

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        self._known = known or {}
        self.answers: dict[str, Any] = {}
        self._failed: dict[str, str] = {}  # call -> error
        self._unknown: list[str] = []

    def ask(self, call: str, ask: Callable[[], T]) -> T | None:
        """The answer, or else the last one; None if the driver has none."""
        try:
            answer = ask()
        except pynvml.NVMLError as error:
            if not_supported(error):
                return None
            self.failed(call, error)
            if call not in self._known:
                self._unknown.append(call)
                return None
            answer = self._known[call]
        self.answers[call] = answer
        return answer

    def ask_aside(self, call: str, ask: Callable[[], T]) -> T | None:
        """As `ask`, for a fact of which nothing else depends: that it fails is no trouble."""
        try:
            answer = ask()
        except pynvml.NVMLError as error:
            if not_supported(error) or call not in self._known:
                return None
            answer = self._known[call]
        self.answers[call] = answer
        return answer

    def known(self, call: str) -> Any:
        """The last answer, without asking; None if there is none."""
        return self._known.get(call)

    def keep(self, call: str, answer: object) -> None:
        self.answers[call] = answer

    def failed(self, call: str, error: pynvml.NVMLError) -> None:
        self._failed.setdefault(call, str(error))

    def unknown(self, *calls: str) -> str:
        """Why one of these facts is unknown, though the card has it; empty if all are known."""
        return next(
            (f"{call}: {self._failed[call]}" for call in self._unknown if call in calls), ""
        )

    @property
    def trouble(self) -> str:
        """What failed, in one line; empty if nothing did."""
        if not self._failed:
            return ""
        (call, error), *others = self._failed.items()
        more = f" (and {len(others)} more calls)" if others else ""
        return f"{call}: {error}{more}"
