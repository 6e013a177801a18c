"""Runs the stand-in in its own thread; any other thread may control it."""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from aiohttp import web

from linkwise.simulator.api_server.http.app import ApiApplication
from linkwise.simulator.api_server.http.faults import ApiFault
from linkwise.simulator.api_server.http.watch import Watches
from linkwise.simulator.api_server.store import Store

_HOST = "127.0.0.1"
_ORDER_SECONDS = 10.0

T = TypeVar("T")


class ApiServer:
    """Inside `with ApiServer() as server:` the stand-in serves at `server.url`.

    Port 0 takes a free port and keeps it over `pause` and `resume`. *clock* gives seconds since
    1970.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        bookmark_seconds: float = 60.0,
        history_limit: int = 20_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._port = port
        store = Store(
            now=lambda: datetime.fromtimestamp(clock(), UTC),
            new_uid=lambda: str(uuid.uuid4()),
            history_limit=history_limit,
            # Versions beyond those of any earlier server at this port: its clients' versions are
            # too old.
            first_version=time.time_ns() // 1_000_000,
        )
        self._api = ApiApplication(store, Watches(store, bookmark_seconds=bookmark_seconds), clock)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="api-server", daemon=True)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._port}"

    def start(self) -> None:
        """Start, and return when it answers. Raises OSError if the port is taken."""
        self._thread.start()
        try:
            self._order(self._listen())
        except OSError:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Stop for good. The objects are lost."""
        if self._thread.is_alive():
            self._order(self._close())
            self._end_loop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def forward(self, namespace: str, port: str, url: str) -> str:
        """Forward requests for a Service's *port*, like `linkwise-extender:http`, to *url*. Return
        where this server has it."""
        self._ask(lambda: self._api.services.forward(namespace, port, url))
        return f"{self.url}/api/v1/namespaces/{namespace}/services/{port}/proxy"

    # Faults

    def pause(self) -> None:
        """Break all connections and refuse new ones. The objects stay."""
        self._order(self._close())

    def resume(self) -> None:
        """Answer again, at the same URL."""
        self._order(self._listen())

    def cut_watches(self) -> int:
        """Break the connection of every watch; return how many there were."""
        return self._ask(self._api.watches.cut)

    def compact(self) -> None:
        """Forget the history: a watch from an older version gets 410."""
        self._ask(self._api.store.compact)

    def send_bookmarks(self) -> None:
        self._ask(self._api.watches.send_bookmarks)

    def fail_next(
        self,
        method: str,
        path_part: str,
        status: int,
        *,
        times: int = 1,
        carry_out: bool = False,
    ) -> None:
        """Make the next *times* requests of this method fail whose path contains *path_part*.

        They fail with *status*; 0 breaks the connection. With *carry_out* they take effect and only
        the answer is lost.
        """
        fault = ApiFault(method, path_part, status, times, carry_out)
        self._ask(lambda: self._api.faults.order(fault))

    def clear_faults(self) -> None:
        self._ask(self._api.faults.clear)

    # What tests ask

    def requests(self) -> dict[str, int]:
        """Return how many requests of each kind came, such as {"PATCH pods/status": 12}."""
        return self._ask(lambda: dict(self._api.requests))

    def watch_count(self) -> int:
        return self._ask(lambda: len(self._api.watches))

    # The loop

    async def _listen(self) -> None:
        # Open answers need no grace: they are watches, and end when the server cuts them.
        self._runner = web.AppRunner(
            self._api.create_app(),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=0.1,  # not 0, which aiohttp takes for "wait forever"
        )
        await self._runner.setup()
        answers = self._runner.server
        assert answers is not None, "it is set up"
        try:
            self._listener = await self._loop.create_server(
                answers, _HOST, self._port, reuse_address=True
            )
        except OSError:
            await self._runner.cleanup()
            raise
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._runner is not None:
            # asyncio drops a connection half made that was accepted but not served when a server
            # closes (`Server._attach` asserts that the server is open). So serve it first.
            for listening in self._listener.sockets:
                self._loop.remove_reader(listening.fileno())
            await asyncio.sleep(0)
            self._listener.close()
            self._api.watches.cut()
            await self._runner.cleanup()
            self._runner = None

    def _ask(self, question: Callable[[], T]) -> T:
        async def asked() -> T:
            return question()

        return self._order(asked())

    def _order(self, order: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(order, self._loop).result(_ORDER_SECONDS)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
