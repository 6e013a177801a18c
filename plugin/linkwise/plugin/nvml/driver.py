"""Opens, closes and calls the driver's library, and never waits for it too long."""

import logging
from collections.abc import Callable
from typing import TypeVar

import pynvml

from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.calls import Calls, NoAnswerError
from linkwise.plugin.nvml.library import Nvml

log = logging.getLogger(__name__)
T = TypeVar("T")

_CLOSE_SECONDS = 1.0


class HangsError(InventoryError):
    """The driver has not answered in time."""


class Driver:
    """A call that takes longer than `seconds` is a hang. `calls` leaves it behind, and does not
    make it again until it has returned."""

    def __init__(self, nvml: Nvml, *, seconds: float) -> None:
        self.nvml, self.seconds = nvml, seconds
        self._calls = Calls()
        self._open = False
        self._initialised = False  # set as calls return, even late; the library counts them

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def hangs(self) -> str:
        """The text has no number that grows: the same trouble gives the same text."""
        return f"the driver does not answer within {self.seconds:g} s"

    def open(self) -> None:
        """Raises InventoryError if the driver is missing or in trouble; it may come later."""
        if not self._initialised:
            self.required("nvmlInit", self._initialise)
        self._open = True

    def _initialise(self) -> None:
        self.nvml.nvmlInit()
        self._initialised = True

    def _shut_down(self) -> None:
        self._initialised = False
        self.nvml.nvmlShutdown()

    def close(self) -> None:
        """Close the library: a reloaded driver answers only after a fresh start of its library."""
        if not self._open:
            return
        self._open = False
        if self._calls.stuck:
            return  # the library stays initialised under a running call; a later close ends it
        try:
            self._calls.run("nvmlShutdown", self._shut_down, seconds=_CLOSE_SECONDS)
        except (NoAnswerError, pynvml.NVMLError) as error:
            log.warning("nvmlShutdown: %s", error)

    def end(self) -> None:
        self.close()
        self._calls.close()

    def run(self, what: str, ask: Callable[[], T], *, seconds: float | None = None) -> T:
        """What *ask* returns or raises; raises NoAnswerError if it takes longer than *seconds*."""
        return self._calls.run(what, ask, seconds=self.seconds if seconds is None else seconds)

    def required(self, call: str, ask: Callable[[], T]) -> T:
        """Raises InventoryError, which names *call*, if the call fails; HangsError if the driver
        hangs."""
        try:
            return self.run(call, ask)
        except pynvml.NVMLError as error:
            raise InventoryError(f"{call}: {error}") from error
        except NoAnswerError as error:
            advice = "see dmesg on the node; mostly only a reboot helps"
            raise HangsError(f"{call}: {self.hangs}; {advice}") from error
