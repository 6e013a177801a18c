"""Becomes another program that the kernel ends when the one that started it ends, however that was.

A file to be run, not imported: `python tied.py PARENT_PID PROGRAM ARGUMENT…`. The wish survives
the exec, so the program itself runs unchanged. Elsewhere than on Linux it simply runs.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2); counts for the thread that started us, so for its main thread


def main(parent: int, program: list[str]) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we could ask
            sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
