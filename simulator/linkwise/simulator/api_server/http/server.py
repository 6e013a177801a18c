"""Runs the stand-in in a thread of its own, and takes orders from any other."""

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
    """`with ApiServer() as server:` serves at `server.url` until the block ends.

    Port 0 takes a free one, and keeps it over `pause` and `resume`.
    """

    def __init__(
        self, port: int = 0, *, bookmark_seconds: float = 60.0, history_limit: int = 20_000
    ) -> None:
        self._port = port
        store = Store(
            now=lambda: datetime.now(UTC),
            new_uid=lambda: str(uuid.uuid4()),
            history_limit=history_limit,
            # Who has seen a server at this port before finds that all it knows is too old.
            first_version=time.time_ns() // 1_000_000,
        )
        self._api = ApiApplication(store, Watches(store, bookmark_seconds=bookmark_seconds))
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="api-server", daemon=True)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._port}"

    def start(self) -> None:
        """Returns once it answers. Raises OSError where the port is taken."""
        self._thread.start()
        try:
            self._order(self._listen())
        except OSError:
            self._end_loop()
            raise

    def stop(self) -> None:
        """For good; what it held is lost."""
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

    # Faults

    def pause(self) -> None:
        """Break all connections and refuse new ones; what it holds stays."""
        self._order(self._close())

    def resume(self) -> None:
        """Answer again, at the same URL."""
        self._order(self._listen())

    def cut_watches(self) -> int:
        """Break the connection of every watch; how many there were."""
        return self._ask(self._api.watches.cut)

    def compact(self) -> None:
        """Forget the history: who watches from an older version is told 410."""
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
        """The next *times* requests of this method whose path holds *path_part* fail with
        *status*; 0 breaks the connection. With *carry_out* they are done and only the answer is
        lost."""
        fault = ApiFault(method, path_part, status, times, carry_out)
        self._ask(lambda: self._api.faults.order(fault))

    def clear_faults(self) -> None:
        self._ask(self._api.faults.clear)

    # Looking in from outside

    def requests(self) -> dict[str, int]:
        """How many of each have come so far, such as {"PATCH pods/status": 12}."""
        return self._ask(lambda: dict(self._api.requests))

    def watch_count(self) -> int:
        return self._ask(lambda: len(self._api.watches))

    # The loop

    async def _listen(self) -> None:
        # No grace for open answers: they are watches, and end when they are cut.
        self._runner = web.AppRunner(
            self._api.create_app(),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=0.1,  # not 0: to aiohttp that means for ever
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
            # What is accepted and not yet served when a server closes, asyncio drops half made
            # (`Server._attach` asserts that it is open); so it is served first.
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
