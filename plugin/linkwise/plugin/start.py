"""`linkwise-plugin` from its first moment: catches signals, then loads the program.

The kernel gives process 1 of a container no signal for which it has no handler, and loading takes
half a second: a SIGTERM of that time would be lost. The start of the interpreter, some 10 ms,
remains.
"""

import os
import signal


class Signals:
    """Signals in the order in which they come, whichever thread the kernel gives them to: a main
    thread that waits for a lock does not always hear of them."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def next(self) -> int:
        return os.read(self._read, 1)[0]

    def put(self, number: int) -> None:
        """As if it had come."""
        os.write(self._write, bytes([number]))


def main() -> None:
    signals = Signals()
    from linkwise.plugin.__main__ import main as load_and_run

    load_and_run(obj=signals)
