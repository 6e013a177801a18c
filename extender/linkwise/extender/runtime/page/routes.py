"""The routes of the live page: each reads the request, asks, and writes HTML."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from flask import Blueprint, Response, request

from linkwise.extender.explain.explainer import Explainer
from linkwise.extender.explain.texts import explanation_text
from linkwise.extender.page import links
from linkwise.extender.page.search import Hit, nodes_named, search
from linkwise.extender.page.timeline import timeline_of
from linkwise.extender.runtime.page.live_page import HELLO, OVERVIEW, LivePage
from linkwise.extender.runtime.page.render import HEADERS, Explained
from linkwise.extender.runtime.ports.status_port import KEEP_OPEN

Share = Callable[[], AbstractContextManager[None]]
ROOT = "/ui"
_NO_GROUP = "-"  # no group's key: each ends with a number
_LONGEST_NAME = 253


def page_routes(live: LivePage, share: Share) -> Blueprint:
    """*share* is entered for all that costs time."""
    routes = Blueprint("ui", __name__, url_prefix=ROOT)
    pages: Mapping[str, Callable[[LivePage], bytes | None]] = {
        "/": lambda live: live.html(OVERVIEW),
        "/group": lambda live: live.html(request.args.get("key", "") or _NO_GROUP),
        "/pod": _pod,
        "/gang": _gang,
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
    if html is None:
        return _text("linkwise: there is no such group, gang or pod now", 404)
    return Response(html, content_type="text/html; charset=utf-8")


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


def _pod(live: LivePage) -> bytes | None:
    namespace, name = _asked()
    snapshot, groups = live.latest()
    found = Explainer(snapshot).pod(namespace, name, runner_up=True)
    if found is None:
        return None
    also = nodes_named(groups, {found.node} - {""})
    if found.gang is not None:
        gang = f"{found.gang.gang.namespace}/{found.gang.gang.name}"
        also = (*also, Hit("gang", gang, links.to_gang(gang), found.gang.gang.phase))
    text = explanation_text.pod(found, snapshot.at)
    it = Explained(f"pod {namespace}/{name}", text, also)
    return live.renderer.explained(it, at=snapshot.at)


def _gang(live: LivePage) -> bytes | None:
    namespace, name = _asked()
    snapshot, groups = live.latest()
    explainer = Explainer(snapshot)
    found, gang = explainer.gang(namespace, name, runner_up=True), explainer.find(namespace, name)
    if found is None or gang is None:
        return None
    text = explanation_text.gang(found, snapshot.at)
    also = nodes_named(groups, {member.node for member in found.gang.members} - {""})
    it = Explained(f"gang {namespace}/{name}", text, also, timeline_of(snapshot, gang))
    return live.renderer.explained(it, at=snapshot.at)


def _asked() -> tuple[str, str]:
    return request.args.get("namespace", ""), request.args.get("name", "")


def _text(text: str, status: int) -> Response:
    return Response(f"{text}\n", status, content_type="text/plain; charset=utf-8")
