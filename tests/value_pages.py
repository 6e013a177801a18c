"""The values of Helm that pages of docs/operating/ tell people to set."""

import re
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import yaml

from tests.doc_pages import OPERATING

_BLOCK = re.compile(r"^ *```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# (\S+\.yaml)\n")


@dataclass(frozen=True, slots=True)
class Example:
    page: str
    section: str  # the heading of its level-two section
    file: str  # as the first line of the block names it
    text: str

    @property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = yaml.safe_load(self.text)
        return values

    def __str__(self) -> str:
        return f"{self.page}-{self.section}-{self.file}"


def sections(page: str) -> dict[str, str]:
    """The texts of the page's level-two sections, by heading."""
    _, *parts = (OPERATING / page).read_text().split("\n## ")
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts)}


def blocks(prefix: str) -> tuple[Example, ...]:
    """The YAML blocks whose first line names a file that begins with *prefix*, page by page."""
    return tuple(
        Example(page.name, heading, named[1], text)
        for page in sorted(OPERATING.glob("*.md"))
        for heading, section in sections(page.name).items()
        for text in map(dedent, _BLOCK.findall(section))
        if (named := _NAMED.match(text)) and named[1].startswith(prefix)
    )


def examples() -> tuple[Example, ...]:
    return blocks("my-values")
