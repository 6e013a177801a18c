"""Writes the page's values as HTML. Names of pods, nodes and namespaces are anybody's: the
templates escape all of them, and `HEADERS` forbid the browser to run or load anything else."""

from collections.abc import Mapping
from dataclasses import dataclass

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from linkwise.extender.page.gpu_states import STATES
from linkwise.extender.page.group_page import GroupPage
from linkwise.extender.page.overview import Overview
from linkwise.extender.page.queue_rows import MOST_ROWS
from linkwise.extender.page.search import Found, Hit
from linkwise.extender.page.timeline import Step
from linkwise.extender.page.times import clock

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """A pod or a gang on a page of its own."""

    title: str
    text: str  # as `kubectl linkwise explain` prints it
    seen_also: tuple[Hit, ...]  # its nodes and its gang
    steps: tuple[Step, ...] = ()  # of a gang


class Renderer:
    """Thread-safe."""

    def __init__(self) -> None:
        loader = ChoiceLoader(
            [PackageLoader("linkwise.extender.runtime.page"), PackageLoader("linkwise.drawing")]
        )
        self._environment = Environment(
            loader=loader,
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(states=STATES, queue_rows=range(MOST_ROWS), clock=clock)
        self.files = {name: self._render(name) for name in ("page.css", "page.js")}

    def overview(self, page: Overview, *, at: float, version: str) -> bytes:
        return self._render("overview.html", page=page, s=page.slots, at=at, version=version)

    def group(self, page: GroupPage, *, at: float, version: str) -> bytes:
        return self._render("group.html", page=page, s=page.slots, at=at, version=version)

    def explained(self, it: Explained, *, at: float) -> bytes:
        return self._render("explained.html", it=it, at=at)

    def found(self, found: Found, words: str, *, at: float) -> bytes:
        return self._render("search.html", found=found, words=words, at=at)

    def _render(self, name: str, **values: object) -> bytes:
        return self._environment.get_template(name).render(**values).encode()
