"""The site of the documentation: every page is in it, and GitHub's Markdown reads alike there."""

import re

import yaml

from docs.site_hooks import DOCS, for_python_markdown, links_out, slug

REPOSITORY = "https://git.example/linkwise"
SITE = (DOCS.parent / "mkdocs.yml").read_text()


def test_every_page_is_in_the_navigation_once() -> None:
    named = sorted(re.findall(r": ([\w/-]+\.md)$", SITE, re.MULTILINE))
    assert named == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_what_is_wrong_ends_the_build() -> None:
    rules = yaml.safe_load(SITE.replace("!ENV ", ""))["validation"]
    assert {level for part in rules.values() for level in part.values()} == {"warn"}


def test_a_link_that_leaves_the_docs_leads_to_the_repository() -> None:
    page = "operating/security.md"
    for link, address in [
        ("../../SECURITY.md", "blob/main/SECURITY.md"),
        ("../../CONTRIBUTING.md#releasing", "blob/main/CONTRIBUTING.md#releasing"),
        ("../../daemonset/chart", "tree/main/daemonset/chart"),
        ("../plots", "tree/main/docs/plots"),
    ]:
        assert links_out(f"[a]({link})", page, REPOSITORY) == f"[a]({REPOSITORY}/{address})"


def test_other_links_stay() -> None:
    for link in [
        "../testing.md#a-real-gpu",
        "#here",
        "https://kubernetes.io/docs",
        "../../no-such-file.md",
        "../../../outside.md",
    ]:
        assert links_out(f"[a]({link})", "operating/security.md", REPOSITORY) == f"[a]({link})"


def test_headings_have_the_anchors_of_github() -> None:
    assert slug("18. HTTP/2 and dead machines") == "18-http2-and-dead-machines"
    assert slug("`filter` - what it answers") == "filter---what-it-answers"


def test_lists_are_indented_by_four_spaces() -> None:
    assert for_python_markdown(
        "Steps:\n1. One\n\n   ```\n   a:\n     b\n   ```\n\n   | x |\n   - nested\n2. Two\n\nEnd"
    ) == (
        "Steps:\n\n1. One\n\n    ```\n    a:\n      b\n    ```\n\n    | x |\n    - nested\n"
        "2. Two\n\nEnd"
    )


def test_code_outside_of_lists_stays_as_it_is() -> None:
    code = "```\n- a\n   - b\n\n  c\n```\nText\n"
    assert for_python_markdown(code) == code


def test_a_pipe_in_code_in_a_table_is_no_escape() -> None:
    assert for_python_markdown(r"| `a \| b` | c \| d |") == r"| `a | b` | c \| d |"
