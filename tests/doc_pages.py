"""The pages of docs/operating/."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
OPERATING = ROOT / "docs" / "operating"


def reference(program: str) -> str:
    """The page of docs/operating/ that lists a program's flags, routes and metrics."""
    return (OPERATING / f"{program}.md").read_text()


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))
