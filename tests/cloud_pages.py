"""The values of Helm that the pages of docs/operating/clouds/ tell people to set."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CLOUDS = Path(__file__).parents[1] / "docs" / "operating" / "clouds"
PAGES = tuple(sorted(CLOUDS.glob("*.md")))
_BLOCK = re.compile(r"^```yaml\n# (my-values[\w-]*\.yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    page: str
    file: str  # as the first line of the block names it
    values: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.page}-{self.file}"


def examples() -> tuple[Example, ...]:
    """All of them, in the order of the pages."""
    return tuple(
        Example(page.stem, file, yaml.safe_load(text))
        for page in PAGES
        for file, text in _BLOCK.findall(page.read_text())
    )
