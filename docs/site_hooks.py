"""What the site (mkdocs.yml) does with pages that are written for GitHub.

- A link to a file outside of docs/ leads to that file in the repository.
- Headings have GitHub's anchors.
- Content of a list item is indented by four spaces, as Python-Markdown demands, a list needs no
  empty line before it, and an escaped pipe in code in a table is a pipe.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

DOCS = Path(__file__).parent
_LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")
_ITEM = re.compile(r"(?:[-*]|\d+\.) +")
_FENCE = re.compile(r"```|~~~")
_CODE = re.compile(r"`[^`]*`")


class _File(Protocol):
    src_uri: str


class _Page(Protocol):
    file: _File


def slug(title: str, separator: str = "-") -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", separator)


def links_out(markdown: str, page: str, repository: str) -> str:
    """Return *markdown* with links that leave docs/ written as addresses in *repository*.

    *page* is the page's path in docs/. A link to a file that does not exist stays, so that the
    strict build refuses it.
    """

    def out(link: re.Match[str]) -> str:
        opening, target, anchor, closing = link.groups(default="")
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        there = DOCS.parent / path
        inside = path == "docs" or path.startswith("docs/")
        if path.startswith("..") or (inside and not there.is_dir()) or not there.exists():
            return link[0]
        kind = "tree" if there.is_dir() else "blob"
        return f"{opening}{repository}/{kind}/main/{path}{anchor}{closing}"

    return _LINK.sub(out, markdown)


def for_python_markdown(markdown: str) -> str:
    """Return *markdown*, as GitHub reads it, in the form that Python-Markdown reads alike."""
    return "\n".join(_lines(markdown.split("\n")))


def _lines(lines: list[str]) -> Iterator[str]:
    offsets: list[int] = []  # where the content of each open list item begins
    fenced = after_text = False
    for line in lines:
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        if not bare:
            after_text = False
            yield line
            continue
        if fenced:
            content = line[min(indent, offsets[-1] if offsets else 0) :]
            fenced = not _FENCE.match(bare)
            yield " " * 4 * len(offsets) + content
            continue
        while offsets and indent < offsets[-1]:
            offsets.pop()
        fenced = bool(_FENCE.match(bare))
        prefix = " " * 4 * len(offsets)
        if item := _ITEM.match(bare):
            if after_text and not offsets:
                yield ""
            offsets.append(indent + len(item[0]))
            content = bare
        else:
            content = line[offsets[-1] :] if offsets else line
            if bare.startswith("|"):
                content = _CODE.sub(lambda code: code[0].replace(r"\|", "|"), content)
        after_text = not offsets
        yield prefix + content


def on_config(config: Any) -> Any:
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    return config


def on_page_markdown(markdown: str, page: _Page, config: Any, **_: object) -> str:
    repository = str(config["repo_url"]).rstrip("/")
    return for_python_markdown(links_out(markdown, page.file.src_uri, repository))
