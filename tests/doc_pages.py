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


def headings(page: Path) -> set[str]:
    """The names by which links call the page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain}
