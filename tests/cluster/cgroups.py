"""The cgroups of a sandbox's nodes: one tree per run, in every hierarchy the machine has."""

import os
import time
from pathlib import Path

HIERARCHIES = Path("/sys/fs/cgroup")
_PATIENCE_SECONDS = 20.0


def remove_cgroups(run_id: str) -> None:
    """Remove every cgroup below */run_id*; those that are killed may still be ending meanwhile."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    roots = [*HIERARCHIES.glob(f"*/{run_id}"), HIERARCHIES / run_id]
    while roots and time.monotonic() < deadline:
        roots = [root for root in roots if not _removed(root)]
        time.sleep(0.1)


def _removed(root: Path) -> bool:
    if not root.is_dir():
        return True
    for path, _, _ in os.walk(root, topdown=False):
        try:
            Path(path).rmdir()
        except OSError:
            return False
    return True
