"""Serves the store over HTTP: reads a request, calls the store, writes the answer."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import msgspec
from aiohttp import web

from linkwise.simulator.api_server.history import Stored
from linkwise.simulator.api_server.http.faults import Faults
from linkwise.simulator.api_server.http.routes import Target, read_path
from linkwise.simulator.api_server.http.service_proxy import ServiceProxy
from linkwise.simulator.api_server.http.watch import WatchCall, Watches
from linkwise.simulator.api_server.refusals import (
    Object,
    RequestRefusedError,
    bad_request,
    method_not_allowed,
    success,
)
from linkwise.simulator.api_server.selectors import read_selector
from linkwise.simulator.api_server.store import ListPage, Store

_MAX_BODY_BYTES = 3 << 20  # as in the real API server
_DEFAULT_WATCH_SECONDS = 1800
_VERSION = {"major": "1", "minor": "35", "gitVersion": "v1.35.0-linkwise"}


@dataclass(slots=True)
class ApiApplication:
    store: Store
    watches: Watches
    clock: Callable[[], float]
    faults: Faults = field(default_factory=Faults)
    services: ServiceProxy = field(default_factory=ServiceProxy)
    requests: Counter[str] = field(default_factory=Counter)  # "PATCH pods/status" -> how many

    def create_app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_response_prepare.append(self._date)
        return app

    async def _date(self, _request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Date"] = formatdate(self.clock(), usegmt=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        if request.path == "/version":
            return _json(_VERSION)
        fault = self.faults.take(request.method, request.path)
        if fault is not None and not fault.carry_out:
            return _fail(request, fault.status, fault.reason)
        answer = await self._answer(request)
        if fault is not None:
            return _fail(request, fault.status, fault.reason)
        return answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            if (proxied := await self.services.serve(request)) is not None:
                return proxied
            target = read_path(request.path)
            self.requests[_name_of(request, target)] += 1
            if request.query.get("dryRun"):
                raise bad_request("dryRun: the stand-in carries out what it is asked")
            if request.method == "GET":
                return await self._read(request, target)
            answer = self._write(request, target, await _read_body(request))
        except RequestRefusedError as error:
            return _json(error.as_status(), error.code)
        self.watches.wake(target.kind)
        return answer

    # Reading

    async def _read(self, request: web.Request, target: Target) -> web.StreamResponse:
        if target.name:
            if target.subresource not in ("", "status"):
                raise method_not_allowed()
            return _object(self.store.get(target.kind, target.namespace, target.name))
        if request.query.get("watch") in ("true", "1"):
            return await self.watches.serve(request, _watch_call(request, target))
        return self._list(request, target)

    def _list(self, request: web.Request, target: Target) -> web.Response:
        query = request.query
        limit = _whole_number(query, "limit", 0)
        selector = _selector(query, target)
        if token := query.get("continue"):
            full = self.store.rest_of_list(token)
        else:
            full = self.store.list(target.kind, target.namespace, selector)
        return _list_answer(target, self.store.page(full, limit), counted=not selector)

    # Writing

    def _write(self, request: web.Request, target: Target, body: bytes) -> web.Response:
        match request.method, bool(target.name), target.subresource:
            case "POST", False, "" if target.namespace or not target.kind.namespaced:
                created = self.store.create(target.kind, target.namespace, _decode(body))
                return _object(created, 201)
            case "POST", True, "binding":
                self.store.bind(target.namespace, target.name, _decode(body))
                return _json(success(code=201), 201)
            case "POST", True, "eviction":
                self.store.evict(target.namespace, target.name, _decode(body))
                return _json(success(code=201), 201)
            case "PUT", True, "" | "status" as part:
                new, status = _decode(body), part == "status"
                return _object(self.store.replace(*_key(target), new, status=status))
            case "PATCH", True, "" | "status" as part:
                patch, status = _decode(body), part == "status"
                changed = self.store.patch(
                    *_key(target), patch, request.content_type, status=status
                )
                return _object(changed)
            case "DELETE", True, "":
                return self._delete(request, target, body)
        raise method_not_allowed()

    def _delete(self, request: web.Request, target: Target, body: bytes) -> web.Response:
        options = _decode(body) if body else {}
        if not isinstance(options, dict):
            raise bad_request("DeleteOptions: expected an object")
        asked = options.get("gracePeriodSeconds")
        if asked is None and "gracePeriodSeconds" in request.query:
            asked = _whole_number(request.query, "gracePeriodSeconds", 0)
        last, gone = self.store.delete(
            *_key(target), grace_seconds=asked, preconditions=options.get("preconditions")
        )
        if gone and target.kind.name != "Pod":  # for other kinds the last state is not shown
            uid = last.obj["metadata"]["uid"]
            return _json(success(target.name, target.kind.plural, uid))
        return _object(last)


def _name_of(request: web.Request, target: Target) -> str:
    verb = "WATCH" if request.query.get("watch") in ("true", "1") else request.method
    sub = f"/{target.subresource}" if target.subresource else ""
    return f"{verb} {target.kind.plural}{sub}"


def _key(target: Target) -> tuple[Any, str, str]:
    return target.kind, target.namespace, target.name


def _selector(query: Mapping[str, str], target: Target) -> Any:
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    return read_selector(target.kind, labels, fields)


def _watch_call(request: web.Request, target: Target) -> WatchCall:
    query = request.query
    version = _whole_number(query, "resourceVersion", 0)
    return WatchCall(
        kind=target.kind,
        namespace=target.namespace,
        selector=_selector(query, target),
        version=version or None,
        bookmarks=query.get("allowWatchBookmarks") in ("true", "1"),
        timeout_seconds=_whole_number(query, "timeoutSeconds", 0) or _DEFAULT_WATCH_SECONDS,
    )


def _whole_number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise bad_request(f"{name}: Invalid value: {text!r}: expected a whole number")
    return int(text)


async def _read_body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        message = f"Request entity too large: limit is {_MAX_BODY_BYTES}"
        raise RequestRefusedError(413, "RequestEntityTooLarge", message) from None


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the request body is no JSON: {error}") from None


def _object(stored: Stored, status: int = 200) -> web.Response:
    return web.Response(body=stored.json, status=status, content_type="application/json")


def _json(answer: Object, status: int = 200) -> web.Response:
    body = msgspec.json.encode(answer)
    return web.Response(body=body, status=status, content_type="application/json")


def _list_answer(target: Target, page: ListPage, *, counted: bool) -> web.Response:
    meta: Object = {"resourceVersion": str(page.version)}
    if page.rest:
        meta["continue"] = page.rest
        if counted:
            meta["remainingItemCount"] = page.remaining
    items = [msgspec.Raw(stored.json) for stored in page.items]
    kind = target.kind
    head = {"kind": kind.list_kind, "apiVersion": kind.api_version}
    return _json(head | {"metadata": meta, "items": items})


def _fail(request: web.Request, status: int, reason: str) -> web.Response:
    if status:
        return _json(RequestRefusedError(status, reason, "ordered by a test").as_status(), status)
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
