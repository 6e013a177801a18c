"""The live page as browsers get it: the status port and its real sockets, around a core whose
cluster is in memory and changes when a test says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Thread

from flask import Flask

from linkwise.extender.explain.snapshot import Snapshot
from linkwise.extender.runtime.page.live_page import LivePage
from linkwise.extender.runtime.page.routes import page_routes
from linkwise.extender.runtime.page.viewers import Viewers
from linkwise.extender.runtime.ports.status_port import StatusServer
from linkwise.serving.fair_share import FairShare
from tests.extender.cluster import Cluster

HOST = "127.0.0.1"


class ServedPage:
    """`change` what is in `cluster` while holding `lock`."""

    def __init__(self, cluster: Cluster, *, viewers: Viewers | None = None) -> None:
        self.cluster, self.lock = cluster, Lock()
        self.live = LivePage(self._take, viewers=viewers)
        share = FairShare(1.0)
        app = Flask(__name__, static_folder=None)
        app.register_blueprint(page_routes(self.live, lambda: share.of("")))
        self._server = StatusServer(HOST, 0, app)
        self.port = self._server.port
        self.url = f"http://{HOST}:{self.port}/ui/"
        self._thread = Thread(target=self._server.run)

    def _take(self) -> Snapshot:
        with self.lock:
            return self.cluster.core.snapshot(self.cluster.now)

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
