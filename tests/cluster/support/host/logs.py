"""The logs of all programs of a failed test: copied to a folder, their ends in the report."""

import re
import shutil
from pathlib import Path

KEPT = Path(__file__).parents[4] / "cluster-logs"
_TAIL_LINES = 15


def keep(run_directory: Path, test: str) -> Path:
    """Copy every log below *run_directory*. Return the copies' folder."""
    target = KEPT / re.sub(r"[^\w.-]+", "-", test)
    shutil.rmtree(target, ignore_errors=True)
    for log in run_directory.glob("*/logs/**/*"):
        if log.is_file():
            copy = target / log.relative_to(run_directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, copy)
    return target


def tails(directory: Path) -> str:
    parts = []
    for log in sorted(directory.rglob("*")):
        if log.is_file() and log.stat().st_size:
            lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
            parts.append(f"--- {log.relative_to(directory)}\n" + "\n".join(lines))
    return "\n".join(parts)
