"""A page of docs/ that code, manifests or messages name exists, with the heading that they name."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.doc_pages import ROOT, headings

MADE = {"build", "cluster-logs", "demo-report", "dist", "site"}
KINDS = {".html", ".py", ".sh", ".toml", ".tpl", ".txt", ".yaml", ".yml"}
NAME = re.compile(r"(?<![\w/])((?:docs/[\w/-]+|CONTRIBUTING|SECURITY)\.md)(?:#([\w-]+))?")


def sources() -> Iterator[Path]:
    for top in ROOT.iterdir():
        if top.name == ".github" or not (top.name.startswith(".") or top.name in MADE):
            yield from (path for path in [top, *top.rglob("*")] if path.suffix in KINDS)
    yield from (ROOT / name for name in ("Containerfile", "Makefile", ".ci/run"))


def named() -> Iterator[tuple[str, str, str]]:
    for source in sources():
        text = source.read_text()
        if ".md" in text:
            for page, heading in NAME.findall(text):
                yield str(source.relative_to(ROOT)), page, heading


def test_every_page_and_heading_that_is_named_exists() -> None:
    found = [*named()]
    assert len(found) > 100
    assert not [
        (source, page, heading)
        for source, page, heading in found
        if not (ROOT / page).is_file() or (heading and heading not in headings(ROOT / page))
    ]
