"""Where the frozen program starts."""

import os

from linkwise.cli.kubectl import main

# PyInstaller's loader points to the archive's libraries. Programs that this one starts, such as a
# kubeconfig's credential plugin or a browser, need the system's
# (https://pyinstaller.org/en/stable/common-issues-and-pitfalls.html#launching-external-programs-from-the-frozen-application).
_OURS, _BEFORE = "LD_LIBRARY_PATH", "LD_LIBRARY_PATH_ORIG"

if __name__ == "__main__":
    os.environ.pop(_OURS, None)
    if _BEFORE in os.environ:
        os.environ[_OURS] = os.environ.pop(_BEFORE)
    main()
