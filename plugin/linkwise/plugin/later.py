"""Does work that can wait in a thread of its own, so that the kubelet does not wait for it.

Python runs one thread at a time. A thread that works keeps its turn for 5 ms
(`sys.getswitchinterval`) if another thread wants it. If the thread that receives a vendor's list
also worked out what it means for the cluster, the list for the kubelet would wait for that.
"""

import logging
from collections.abc import Callable
from threading import Event, Thread

log = logging.getLogger(__name__)

_STOP_SECONDS = 6.0


class Later:
    """Calls *act*, *seconds* after `ask`. All that is asked for meanwhile is one call.

    With *every_seconds*, it also calls at the start, and again whenever so much time has passed.
    """

    def __init__(
        self,
        what: str,
        act: Callable[[], object],
        *,
        seconds: float,
        every_seconds: float | None = None,
    ) -> None:
        self._what, self._act = what, act
        self._seconds, self._every_seconds = seconds, every_seconds
        self._asked, self._stopping = Event(), Event()
        self._thread = Thread(target=self._run, name=what, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._asked.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def ask(self) -> None:
        self._asked.set()

    def _run(self) -> None:
        if self._every_seconds is not None:
            self._call()
        while not self._stopping.is_set():
            if self._asked.wait(self._every_seconds) and self._stopping.wait(self._seconds):
                return
            self._asked.clear()  # before the call: what is asked for during the call needs another
            self._call()

    def _call(self) -> None:
        try:
            self._act()
        except Exception:
            # This thread must live for what is asked next.
            log.exception("%s failed; trying again", self._what)
