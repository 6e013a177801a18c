"""An HTML page, read for tests."""

from collections.abc import Mapping
from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "link", "input"}


class ParsedPage(HTMLParser):
    """Fails on a tag that is closed out of order, and on an id that two elements have.

    `elements` are those with an id: their attributes, and as `text` what they contain.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.elements: dict[str, dict[str, str | None]] = {}
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self._open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag}: an attribute twice"
        self.tags.append((tag, dict(attrs)))
        name = dict(attrs).get("id")
        if name is not None:
            assert name not in self.elements, f"{name}: an id twice"
            self.elements[name] = {**dict(attrs), "text": ""}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        opened = [tag for tag, _ in self._open]
        if opened[-1:] == ["style"]:
            return
        self.words.append(data)
        for _, attributes in self._open:
            name = attributes.get("id")
            if name is not None:
                before = self.elements[name]["text"]
                self.elements[name]["text"] = f"{before}{data}"

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def slots(self, asked: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str | None]]:
        """What the page has where *asked* has something: id -> attribute or `text` -> value."""
        return {
            name: {
                key: ("hidden" if "hidden" in self.elements[name] else "")
                if key == "hidden"
                else self.elements[name].get(key)
                for key in values
            }
            for name, values in asked.items()
        }
