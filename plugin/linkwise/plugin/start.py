"""`linkwise-plugin` from its first moment: catches signals, then loads the program.

If process 1 of a container has no handler for a signal, the kernel drops the signal. Loading takes
half a second, and a SIGTERM of that time would be lost. Only the start of the interpreter, some
10 ms, remains unprotected.
"""

import os
import signal


class Signals:
    """Signals in the order in which they come, whichever thread the kernel gives them to. A plain
    handler would not do: a main thread that waits for a lock does not always run it."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def next(self) -> int:
        return os.read(self._read, 1)[0]

    def put(self, number: int) -> None:
        """Add a signal as if it had come."""
        os.write(self._write, bytes([number]))


def main() -> None:
    signals = Signals()
    from linkwise.plugin.__main__ import main as load_and_run

    load_and_run(obj=signals)
