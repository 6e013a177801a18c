"""Opens the extender's two ports: the call port with its certificates, and the status port."""

import logging
import time
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import TypeVar

from linkwise.extender.run.loop import Loop
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.page.live_page import LivePage
from linkwise.extender.run.page.pod_times import PodTimesReader
from linkwise.extender.run.ports.dispatch import Verbs
from linkwise.extender.run.ports.routes import create_app
from linkwise.extender.run.ports.scheduler_port import VerbServer
from linkwise.extender.run.settings import Settings
from linkwise.kube.client import KubeClient
from linkwise.serving.certificates.callers import CallersKeeper, Trust
from linkwise.serving.greeting import Caller, Greeting, Welcome, greet_known
from linkwise.serving.wsgi import WsgiServer
from linkwise.topology.errors import LinkwiseError

log = logging.getLogger(__name__)
S = TypeVar("S")
# kube-schedulers of several machines share a name, and each has a certificate of its own.
_REMEMBERED_SECONDS = 86400.0


class ListenError(LinkwiseError):
    """A port that cannot be opened; names the flags, the address and why."""


class Ports:
    """`run()` serves until an exception; `close()` lets calls in flight finish."""

    def __init__(
        self,
        calls: VerbServer,
        status: WsgiServer,
        keeper: CallersKeeper | None,
        live: LivePage,
    ) -> None:
        self._calls, self._status, self._keeper, self._live = calls, status, keeper, live
        self._thread = Thread(target=status.run, name="status", daemon=True)

    def run(self) -> None:
        if self._keeper is not None:
            self._keeper.start()
        self._thread.start()
        self._live.start()
        self._calls.run()

    def close(self) -> None:
        self._calls.close()
        self._status.close()
        self._live.stop()
        if self._keeper is not None:
            self._keeper.stop()


class CallerCertificates:
    """When the certificates end that known callers presented in the last day."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, float], float] = {}  # name and end -> when it was seen last

    def note(self, caller: Caller) -> None:
        if caller.welcome is Welcome.KNOWN:
            self._seen = {
                **{key: at for key, at in self._seen.items() if self._is_recent(at)},
                (caller.name, caller.certificate_ends): self._clock(),
            }

    def soonest(self) -> dict[str, float]:
        """Caller -> when the first of its certificates ends, in seconds since 1970."""
        seen = [key for key, at in self._seen.items() if self._is_recent(at)]
        return {name: min(end for each, end in seen if each == name) for name, _ in seen}

    def _is_recent(self, at: float) -> bool:
        return self._clock() - at < _REMEMBERED_SECONDS


# For calls that are no binds: kube-scheduler sends one filter call at a time. Binds wait for the
# API server and for each other, so any number may wait.
_CALL_THREADS = 24


def open_ports(
    settings: Settings, loop: Loop, metrics: ExtenderMetrics, client: KubeClient
) -> Ports:
    """Listen; `Ports.run` starts to serve. Raises ListenError."""
    verbs = Verbs(loop, metrics, resources=settings.resource_names)
    seen = CallerCertificates()

    def use(trust: Trust) -> None:
        calls.use(greeting_of(trust, settings))

    keeper = None if settings.plain_http else keeper_of(settings, client, use)
    address = settings.listen_address
    calls = _listening(
        "listen-port",
        settings,
        settings.listen_port,
        lambda: VerbServer(
            address,
            settings.listen_port,
            verbs,
            threads=_CALL_THREADS,
            call_seconds=settings.call_timeout_seconds,
            secure=keeper is not None,
            count=partial(metrics.connection, "calls"),
            met=seen.note,
        ),
    )
    live = LivePage(loop.snapshot, read_times=PodTimesReader(client))
    app = create_app(
        loop,
        metrics,
        live=live,
        waits_for=keeper.waits_for if keeper else str,
        trouble=lambda: "the certificate keeper has ended" if keeper and not keeper.alive else "",
    )
    status = _listening(
        "status-port",
        settings,
        settings.status_port,
        lambda: WsgiServer(
            address, settings.status_port, app, count=partial(metrics.connection, "status")
        ),
    )
    if keeper is not None:
        metrics.watch_certificates(lambda: {"server": keeper.ends, **seen.soonest()})
    scheme = "http" if keeper is None else "https"
    log.info("serving kube-scheduler on %s://%s:%s", scheme, address, calls.port)
    log.info("serving probes, metrics and views on http://%s:%s", address, status.port)
    return Ports(calls, status, keeper, live)


def keeper_of(
    settings: Settings, client: KubeClient, use: Callable[[Trust], object]
) -> CallersKeeper:
    caller = (settings.caller_secret, settings.callers[0]) if settings.caller_secret else None
    return CallersKeeper(
        client,
        place=settings.certificates,
        hosts=settings.hosts,
        lifetime=settings.certificate_lifetime,
        client=caller,
        use=use,
    )


def greeting_of(trust: Trust, settings: Settings) -> Greeting:
    return greet_known(trust.shown, trust.authorities, settings.callers)


def _listening(flag: str, settings: Settings, port: int, listen: Callable[[], S]) -> S:
    try:
        return listen()
    except OSError as error:
        where = f"{settings.listen_address}:{port}"
        raise ListenError(f"--listen-address, --{flag}: {where}: {error}") from error
