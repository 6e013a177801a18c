"""Replace this process by a program that the kernel ends together with its starter.

A file to run, not to import: `python exec_with_parent.py PARENT_PID PROGRAM ARGUMENT…`. The
parent-death signal survives the exec, so PROGRAM runs unchanged. On systems other than Linux
PROGRAM runs without that signal.
"""

import os
import signal
import sys

# prctl(2); applies to the thread that forked, so that must be the main thread
_PR_SET_PDEATHSIG = 1


def main(parent: int, program: list[str]) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the signal was set
            sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
