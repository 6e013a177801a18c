"""Watches: one open answer per watcher, fed from the history of its kind.

A watcher is only a version. It reads the history from there whenever it is woken, so a slow watcher
needs no queue. One that fell behind the history gets 410, as from the real API server.
"""

import asyncio
import math
from dataclasses import dataclass

import msgspec
from aiohttp import web

from linkwise.simulator.api_server.kinds import ResourceKind
from linkwise.simulator.api_server.refusals import RequestRefusedError
from linkwise.simulator.api_server.selectors import Selector
from linkwise.simulator.api_server.store import Store

_LAST_BOOKMARK_SECONDS = 2.0  # before the end, as in the real API server


@dataclass(frozen=True, slots=True)
class WatchCall:
    kind: ResourceKind
    namespace: str
    selector: Selector
    version: int | None  # None: all existing objects first, as ADDED
    bookmarks: bool
    timeout_seconds: float


class Watches:
    def __init__(self, store: Store, *, bookmark_seconds: float) -> None:
        self._store = store
        self._bookmark_seconds = bookmark_seconds
        self._open: set[_Watch] = set()

    def wake(self, kind: ResourceKind) -> None:
        """Wake every watcher of this kind after a change."""
        for watch in self._open:
            if watch.call.kind is kind:
                watch.woken.set()

    def send_bookmarks(self) -> None:
        """Send a bookmark to every watcher that wants them."""
        for watch in self._open:
            watch.bookmark_due = True
            watch.woken.set()

    def cut(self) -> int:
        """Break every connection in the middle, as a network fault does; return how many there
        were."""
        for watch in self._open:
            if watch.request.transport is not None:
                watch.request.transport.abort()
            watch.ended = True
            watch.woken.set()
        return len(self._open)

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, request: web.Request, call: WatchCall) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        watch = _Watch(request, response, call, self._store, self._bookmark_seconds)
        self._open.add(watch)
        try:
            await watch.run()
            await response.write_eof()
        except ConnectionError:
            pass  # the client has gone
        finally:
            self._open.discard(watch)
        return response


class _Watch:
    def __init__(
        self,
        request: web.Request,
        response: web.StreamResponse,
        call: WatchCall,
        store: Store,
        bookmark_seconds: float,
    ) -> None:
        self.request, self.call = request, call
        self.woken = asyncio.Event()
        self.bookmark_due = False
        self.ended = False
        self._response, self._store = response, store
        self._bookmark_seconds = bookmark_seconds

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + self.call.timeout_seconds
        # Send one shortly before the end, so that the client loses little when it watches on.
        last_bookmark = end - _LAST_BOOKMARK_SECONDS
        next_bookmark = min(clock() + self._bookmark_seconds, last_bookmark)
        version = shown = await self._begin()
        while not self.ended:
            self.woken.clear()
            try:
                version = await self._send_changes(version)
            except RequestRefusedError as error:
                await self._response.write(_event("ERROR", msgspec.json.encode(error.as_status())))
                return
            if self.bookmark_due or clock() >= next_bookmark:
                if version > shown:
                    await self._send_bookmark(version)
                    shown = version
                self.bookmark_due = False
                next_bookmark = self._next_bookmark(clock(), last_bookmark)
            if clock() >= end:
                return
            await self._sleep(min(next_bookmark, end) - clock())

    def _next_bookmark(self, now: float, last: float) -> float:
        regular = now + self._bookmark_seconds
        return min(regular, last) if now < last else math.inf

    async def _begin(self) -> int:
        """Return the version to go on from; first send what exists, if the client asked for
        that."""
        if self.call.version is not None:
            return self.call.version
        page = self._store.list(self.call.kind, self.call.namespace, self.call.selector)
        await self._write([_event("ADDED", stored.json) for stored in page.items])
        return page.version

    async def _send_changes(self, version: int) -> int:
        changes = self._store.since(self.call.kind, version)
        reached = max(version, self._store.version)
        seen = (change.seen_through(self.call.namespace, self.call.selector) for change in changes)
        await self._write([_event(*event) for event in seen if event is not None])
        return reached

    async def _send_bookmark(self, version: int) -> None:
        if not self.call.bookmarks:
            return
        kind = self.call.kind
        bookmark = {
            "kind": kind.name,
            "apiVersion": kind.api_version,
            "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
        }
        await self._response.write(_event("BOOKMARK", msgspec.json.encode(bookmark)))

    async def _write(self, events: list[bytes]) -> None:
        if events:
            await self._response.write(b"".join(events))

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self.woken.wait()
        except TimeoutError:
            pass


def _event(type_: str, object_json: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), object_json)
