"""The routes of the live page: each reads the request, asks, and writes HTML."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from flask import Blueprint, Response, request

from linkwise.extender.run.page.live_page import (
    HELLO,
    IDLE,
    MOVES,
    OVERVIEW,
    LivePage,
    gang_key,
    pod_key,
    takes_searches,
)
from linkwise.extender.run.page.render import HEADERS
from linkwise.extender.show.page.search import search
from linkwise.serving.wsgi import KEEP_OPEN

Share = Callable[[], AbstractContextManager[None]]
ROOT = "/ui"
_NO_GROUP = "-"  # no group's key: each ends with a number
_LONGEST_NAME = 253


def page_routes(live: LivePage, share: Share) -> Blueprint:
    """*share* is entered for all that costs time."""
    routes = Blueprint("ui", __name__, url_prefix=ROOT)
    pages: Mapping[str, Callable[[LivePage], bytes | None]] = {
        "/": lambda live: live.html(OVERVIEW),
        "/group": lambda live: live.html(_group_asked()),
        "/pod": lambda live: live.html(pod_key(*_asked())),
        "/gang": lambda live: live.html(gang_key(*_asked())),
        "/idle": lambda live: live.html(IDLE),
        "/moves": lambda live: live.html(MOVES),
        "/search": _search,
    }
    for path, make in pages.items():
        routes.add_url_rule(path, path.strip("/") or "overview", partial(_page, live, share, make))
    for name, kind in (("page.css", "text/css"), ("page.js", "text/javascript")):
        content = live.renderer.files[name]
        routes.add_url_rule(f"/{name}", name.replace(".", "_"), partial(_file, content, kind))

    @routes.get("/events")
    def events() -> Response:
        return _events(live)

    @routes.after_request
    def guard(answer: Response) -> Response:
        answer.headers.update(HEADERS)
        return answer

    return routes


def _page(live: LivePage, share: Share, make: Callable[[LivePage], bytes | None]) -> Response:
    with share():
        html = make(live)
        status = 200 if html is not None else 404
        if html is None:
            snapshot, _ = live.latest()
            words = request.args.get("name", "")[:_LONGEST_NAME]
            html = live.renderer.gone(words, at=snapshot.at)
    return Response(html, status, content_type="text/html; charset=utf-8")


def _file(content: bytes, kind: str) -> Response:
    return Response(content, content_type=f"{kind}; charset=utf-8")


def _events(live: LivePage) -> Response:
    if live.viewers.full:
        return _text("linkwise: too many viewers: reload the page to see what changed", 503)
    key = request.args.get("key", OVERVIEW)
    version = request.headers.get("Last-Event-ID", "") or request.args.get("since", "")
    if request.method == "GET":
        request.environ[KEEP_OPEN](partial(live.join, key, version))
    return Response(iter([HELLO]), content_type="text/event-stream")


def _search(live: LivePage) -> bytes:
    words = request.args.get("q", "")[:_LONGEST_NAME]
    snapshot, groups = live.latest()
    found = search(snapshot, groups, words)
    return live.renderer.found(found, words, at=snapshot.at)


def _group_asked() -> str:
    key = request.args.get("key", "")
    return _NO_GROUP if not key or takes_searches(key) else key


def _asked() -> tuple[str, str]:
    return request.args.get("namespace", ""), request.args.get("name", "")


def _text(text: str, status: int) -> Response:
    return Response(f"{text}\n", status, content_type="text/plain; charset=utf-8")
