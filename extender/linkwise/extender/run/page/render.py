"""Writes the page's values as HTML. Names of pods, nodes and namespaces are anybody's: the
templates escape all of them, and `HEADERS` forbid the browser to run or load anything else."""

from collections.abc import Mapping

from linkwise.drawing.html import environment
from linkwise.drawing.times import WIDTH
from linkwise.extender.show.page import elements
from linkwise.extender.show.page.elements import clock
from linkwise.extender.show.page.explained import ExplainedPage, SearchedPage
from linkwise.extender.show.page.gpu_states import STATES
from linkwise.extender.show.page.group_page import GroupPage
from linkwise.extender.show.page.idle_rows import MOST_FIRST, IdlePage
from linkwise.extender.show.page.moves_rows import MovesPage
from linkwise.extender.show.page.overview import Overview
from linkwise.extender.show.page.queue_rows import MOST_ROWS
from linkwise.extender.show.page.search import Found
from linkwise.extender.show.page.timeline import HEIGHT

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


_TEMPLATES: Mapping[type, str] = {
    Overview: "overview.html",
    GroupPage: "group.html",
    ExplainedPage: "explained.html",
    IdlePage: "idle.html",
    MovesPage: "moves.html",
}


class Renderer:
    """Thread-safe."""

    def __init__(self) -> None:
        self._environment = environment("linkwise.extender.run.page")
        self._environment.globals.update(
            states=STATES,
            queue_rows=MOST_ROWS,
            idle_rows=MOST_FIRST,
            bar=(WIDTH, HEIGHT),
            clock=clock,
            link_to_pod=elements.to_pod,
        )
        self.files = {name: self._render(name) for name in ("page.css", "page.js")}

    def page(
        self,
        page: Overview | GroupPage | SearchedPage,
        *,
        at: float,
        stream: str,
    ) -> bytes:
        """*stream*: the address of its changes."""
        name = _TEMPLATES[type(page)]
        return self._render(name, page=page, s=page.slots, at=at, stream=stream)

    def found(self, found: Found, words: str, *, at: float) -> bytes:
        return self._render("search.html", found=found, words=words, at=at)

    def gone(self, words: str, *, at: float) -> bytes:
        """*words*: what the reader may want to search for."""
        return self._render("gone.html", words=words, at=at)

    def _render(self, name: str, **values: object) -> bytes:
        return self._environment.get_template(name).render(**values).encode()
