"""The cgroups of a run's nodes: one tree per run, in every hierarchy of the machine.

All processes of a node, kubelet and containers alike, are in the node's cgroup. A power cut freezes
the cgroup and kills everything in it, so no program sees another one end first.
"""

import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

HIERARCHIES = Path("/sys/fs/cgroup")
_PATIENCE_SECONDS = 20.0
# A cgroup gets the share of one process by default; a whole node needs more.
_SHARES = {"cpu.shares": "8192", "cpu.weight": "800"}


class CgroupError(Exception):
    """Processes of a cgroup did not end: names the cgroup and the processes."""


def create(path: str) -> None:
    """Create the cgroup *path* and its parents, each with all processors and memory nodes."""
    for hierarchy in _hierarchies():
        above = hierarchy
        for step in Path(path).parts:
            cgroup = above / step
            cgroup.mkdir(exist_ok=True)
            # In version 2 a cgroup has the controllers that its parent hands down.
            if (above / "cgroup.controllers").exists():
                handed = (f"+{name}" for name in (above / "cgroup.controllers").read_text().split())
                (above / "cgroup.subtree_control").write_text(" ".join(handed))
            # In version 1 a cgroup starts with no processors, and cannot take a process before it
            # has some.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (cgroup / name).exists() and not (cgroup / name).read_text().strip():
                    (cgroup / name).write_text((above / name).read_text())
            for name, share in _SHARES.items():
                if (cgroup / name).exists():
                    (cgroup / name).write_text(share)
            above = cgroup


def joined(path: str, command: Sequence[str]) -> list[str]:
    """Return a command that runs *command* in the cgroup *path* from its first instruction on."""
    files = [shlex.quote(str(root / path / "cgroup.procs")) for root in _hierarchies()]
    joining = " && ".join(f"echo $$ > {file}" for file in files)
    return ["/bin/sh", "-c", f'{joining} && exec "$@"', "join", *command]


def processes(path: str) -> set[int]:
    """Return the live processes in the cgroup *path* and below."""
    found: set[int] = set()
    for root in _hierarchies():
        for file in (root / path).rglob("cgroup.procs"):
            with suppress(OSError):  # removed since the listing
                found.update(map(int, file.read_text().split()))
    return found


def kill(path: str) -> None:
    """Kill everything in the cgroup *path* at one moment. Return when it is gone.

    Raises CgroupError if a process does not end.
    """
    at_once = HIERARCHIES / path / "cgroup.kill"
    if at_once.exists():
        at_once.write_text("1")
    else:
        _kill_frozen(path)
    if not _within_patience(lambda: not processes(path)):
        raise CgroupError(f"cgroup {path}: killed, and still there: {sorted(processes(path))}")


def remove_cgroups(path: str) -> None:
    """Remove the cgroup *path* and all below it. Killed processes may still be ending."""
    roots = [*HIERARCHIES.glob(f"*/{path}"), HIERARCHIES / path]
    _within_patience(lambda: not [root for root in roots if not _removed(root)])


def _kill_frozen(path: str) -> None:
    state = HIERARCHIES / "freezer" / path / "freezer.state"
    if not state.exists():
        return  # nothing was started here
    state.write_text("FROZEN")
    # A process that waits for a disk cannot be frozen now, but the kill still ends it.
    _within_patience(lambda: state.read_text().strip() == "FROZEN", seconds=2.0)
    for pid in processes(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    state.write_text("THAWED")


def _hierarchies() -> list[Path]:
    """Return the root of each hierarchy: one in version 2; in version 1 those with a controller or
    a name."""
    if (HIERARCHIES / "cgroup.controllers").exists():
        return [HIERARCHIES]
    return [
        root
        for root in sorted(HIERARCHIES.iterdir())
        # `cpu` may be a link to `cpu,cpuacct`, and `unified` is a version 2 without controllers.
        if (root / "cgroup.procs").exists()
        and not root.is_symlink()
        and not (root / "cgroup.controllers").exists()
    ]


def _removed(root: Path) -> bool:
    for path, _, _ in os.walk(root, topdown=False):
        try:
            Path(path).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _within_patience(done: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
