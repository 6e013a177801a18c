"""The live page as browsers get it: the status port and its real sockets, around a core whose
cluster is in memory and changes when a test says so."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock, Thread
from typing import cast

from linkwise.drawing.times import PodTimes
from linkwise.extender.run.loop import Loop, NotReadyError
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.page.live_page import LivePage
from linkwise.extender.run.page.viewers import Viewers
from linkwise.extender.run.ports.routes import create_app
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.state.records import PodRecord
from linkwise.serving.wsgi import WsgiServer
from tests.extender.cluster import Cluster

HOST = "127.0.0.1"


class ServedPage:
    """`change` what is in `cluster` while holding `lock`."""

    def __init__(self, cluster: Cluster, *, viewers: Viewers | None = None) -> None:
        self.cluster, self.lock = cluster, Lock()
        self.live = LivePage(self._take, read_times=self._read_times, viewers=viewers)
        self.leads = True
        self.times: dict[str, PodTimes] = {}  # by the pod's name, as the API server would say
        # Only the page's own routes are called, and they do not know the loop.
        app = create_app(cast("Loop", None), ExtenderMetrics(), live=self.live)
        self._server = WsgiServer(HOST, 0, app)
        self.port = self._server.port
        self.url = f"http://{HOST}:{self.port}/ui/"
        self._thread = Thread(target=self._server.run)

    def _take(self) -> Snapshot:
        with self.lock:
            if not self.leads:
                raise NotReadyError("linkwise: not ready: taking over")
            return self.cluster.core.snapshot(self.cluster.now)

    def _read_times(self, pods: Sequence[PodRecord]) -> Mapping[str, PodTimes]:
        return {pod.uid: self.times[pod.ref.name] for pod in pods if pod.ref.name in self.times}

    def start(self) -> None:
        self.live.start()
        self._thread.start()

    def stop(self) -> None:
        self._server.close()
        self._thread.join()
        self.live.stop()


@contextmanager
def served(cluster: Cluster, *, viewers: Viewers | None = None) -> Iterator[ServedPage]:
    page = ServedPage(cluster, viewers=viewers)
    page.start()
    try:
        yield page
    finally:
        page.stop()
