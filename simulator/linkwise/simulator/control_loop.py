"""A thread that acts on what watches report, as kube-scheduler and the controllers do."""

from collections.abc import Sequence
from threading import Condition, Thread
from typing import Any

from linkwise.kube.reflector import Reflector

_LIST_SECONDS = 30.0


class ControlLoop:
    """Owns the watches and the thread. A subclass sets `_reflectors` and `_thread`; its thread ends
    once `_stopping` is set, of which `_changed` is notified."""

    _reflectors: Sequence[Reflector[Any]]  # each is listed before the next one starts
    _thread: Thread

    def __init__(self) -> None:
        self._changed = Condition()  # its lock guards the state of the subclass
        self._stopping = False

    def start(self) -> None:
        """Start, and return when everything is listed. Raises TimeoutError after 30 s."""
        for reflector in self._reflectors:
            reflector.start()
            if not reflector.synced.wait(_LIST_SECONDS):
                raise TimeoutError(f"no answer from the API server for {_LIST_SECONDS:.0f} s")
        self._thread.start()

    def stop(self) -> None:
        """End the watches, and the thread after what it is doing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for reflector in self._reflectors:
            reflector.stop()
        if self._thread.is_alive():
            self._thread.join()
