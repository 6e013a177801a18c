"""Does work that can wait in a thread of its own, so that the kubelet does not wait for it.

Python runs one thread at a time. A thread that works keeps its turn for 5 ms
(`sys.getswitchinterval`) if another thread wants it. If the thread that receives a vendor's list
also worked out what it means for the cluster, the list for the kubelet would wait for that.
"""

import logging
from collections.abc import Callable
from threading import Event, Thread

log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0


class Later:
    """Calls *act*, *seconds* after `ask`. All that is asked for meanwhile is one call."""

    def __init__(self, act: Callable[[], None], *, seconds: float) -> None:
        self._act, self._seconds = act, seconds
        self._asked, self._stopping = Event(), Event()
        self._thread = Thread(target=self._run, name="front-later", daemon=True)

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
        while self._asked.wait() and not self._stopping.wait(self._seconds):
            self._asked.clear()  # before the call: what is asked for during the call needs another
            try:
                self._act()
            except Exception:  # this thread must live for what is asked next
                log.exception("telling the cluster what vendors' plugins offer failed")
