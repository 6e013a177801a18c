"""Writes the page's values as HTML. Names of pods, nodes and namespaces are anybody's: the
templates escape all of them, and `HEADERS` forbid the browser to run or load anything else."""

from collections.abc import Mapping

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from linkwise.drawing.times import WIDTH
from linkwise.extender.page import links
from linkwise.extender.page.explained import ExplainedPage, IdlePodsPage, MovesPage, SearchedPage
from linkwise.extender.page.gpu_states import STATES
from linkwise.extender.page.group_page import GroupPage
from linkwise.extender.page.idle_rows import MOST_FIRST
from linkwise.extender.page.overview import Overview
from linkwise.extender.page.queue_rows import MOST_ROWS
from linkwise.extender.page.search import Found
from linkwise.extender.page.timeline import HEIGHT
from linkwise.extender.page.times import clock

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
    IdlePodsPage: "idle.html",
    MovesPage: "moves.html",
}


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
        self._environment.globals.update(
            states=STATES,
            queue_rows=range(MOST_ROWS),
            idle_rows=range(MOST_FIRST),
            bar=(WIDTH, HEIGHT),
            clock=clock,
            link_to_pod=links.to_pod,
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
