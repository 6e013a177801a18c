"""A call whose caller has hung up is not carried out, wherever it waited meanwhile.

If kube-scheduler has given up a bind, it takes the pod for one that is not bound, and may place it
elsewhere. A Binding that the extender still posts binds the pod behind kube-scheduler's back.
"""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import pytest

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.run.loop import Loop
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.dispatch import Verbs
from linkwise.extender.run.ports.scheduler_port import VerbServer
from linkwise.extender.state.extender_calls import BindCall
from linkwise.simulator.api_server import ApiServer
from tests.extender.world import ApiObjects, wait_for
from tests.serving.tls import Authority

BINDS = 16


class Extender:
    """As deployed, with one thread for binds, so that they wait for each other."""

    def __init__(self, world: ApiObjects, authority: Authority, *, secure: bool) -> None:
        self.world, self.authority, self.secure = world, authority, secure
        self.metrics = ExtenderMetrics()
        self.core = Core(CoreSettings())
        self.loop = Loop(self.core, world.client, self.metrics)
        verbs = Verbs(self.loop, self.metrics)
        self.server = VerbServer("127.0.0.1", 0, verbs, threads=1, call_seconds=30.0, secure=secure)
        if secure:
            self.server.use(authority.greeting())
        self.context = authority.context(authority.client())
        self._thread = Thread(target=self.server.run)
        self._thread.start()
        self.loop.start()
        wait_for(lambda: not self.loop.waits_for())

    def connect(self) -> http.client.HTTPConnection:
        if self.secure:
            return self.authority.connect(self.server.port, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)

    def filter(self, pod: dict[str, Any], *nodes: str) -> list[str]:
        connection = self.connect()
        connection.request("POST", "/filter", json.dumps({"Pod": pod, "NodeNames": nodes}))
        found: list[str] = json.loads(connection.getresponse().read())["NodeNames"]
        connection.close()
        return found

    def begin_bind(self, pod: dict[str, Any], node: str) -> http.client.HTTPConnection:
        meta = pod["metadata"]
        said = {"PodName": meta["name"], "PodNamespace": "ml", "PodUID": meta["uid"], "Node": node}
        connection = self.connect()
        connection.request("POST", "/bind", json.dumps(said))
        return connection

    def gone(self) -> float:
        sample = self.metrics.registry.get_sample_value
        labels = {"verb": "bind", "result": "gone"}
        return sample("linkwise_extender_requests_total", labels) or 0.0

    def free(self) -> int:
        return sum(view.free for view in self.core.nodes(0.0))

    def stop(self) -> None:
        self.server.close()
        self._thread.join(30)
        self.loop.stop()


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def extender(authority: Authority, request: pytest.FixtureRequest) -> Iterator[Extender]:
    with ApiServer() as server:
        world = ApiObjects(server)
        for number in range(BINDS):
            world.add_node(f"n{number}")
        started = Extender(world, authority, secure=request.param)
        yield started
        started.stop()


def bindings(extender: Extender) -> int:
    return extender.world.server.requests().get("POST pods/binding", 0)


def test_binds_that_waited_for_each_other_are_not_carried_out_once_nobody_waits(
    extender: Extender,
) -> None:
    pods = [extender.world.add_pod(f"p{number}") for number in range(BINDS)]
    places = [extender.filter(pod, f"n{number}")[0] for number, pod in enumerate(pods)]
    extender.loop._lock.acquire()  # the core is busy
    try:
        binds = [extender.begin_bind(*each) for each in zip(pods, places, strict=True)]
        wait_for(lambda: extender.server.calls == BINDS)
        for connection in binds:
            connection.close()
    finally:
        extender.loop._lock.release()
    wait_for(lambda: extender.gone() == BINDS)
    assert bindings(extender) == 0
    assert extender.free() == 8 * BINDS
    assert not any(extender.world.read(f"p{number}").spec.node_name for number in range(BINDS))


def test_a_bind_gives_back_at_once_what_it_held(
    extender: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller hangs up between the choice of GPUs and the Binding."""
    pod = extender.world.add_pod("p")
    (node,) = extender.filter(pod, "n1")
    begin_bind, connections = extender.core.begin_bind, list[http.client.HTTPConnection]()

    def then_hang_up(*arguments: Any) -> object:
        order = begin_bind(*arguments)
        connections.pop().close()
        return order

    monkeypatch.setattr(extender.core, "begin_bind", then_hang_up)
    with ThreadPoolExecutor(1) as pool:
        with extender.loop._lock:
            asked = pool.submit(extender.begin_bind, pod, node)
            connections.append(asked.result(30))
            wait_for(lambda: extender.server.calls == 1)
        wait_for(lambda: extender.gone() == 1)
    assert bindings(extender) == 0
    assert extender.free() == 8 * BINDS
    monkeypatch.undo()

    # kube-scheduler tries again, and nothing is in its way.
    assert extender.filter(pod, "n1") == ["n1"]
    again = extender.begin_bind(pod, "n1")
    assert json.loads(again.getresponse().read()) == {"Error": ""}
    again.close()
    assert bindings(extender) == 1


def test_a_bind_that_waits_for_our_watch_ends_when_its_caller_has_gone(
    extender: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = list[BindCall]()
    monkeypatch.setattr(extender.core, "bind_refused", refused.append)
    unknown = {"metadata": {"name": "later", "uid": "uid-later"}}
    connection = extender.begin_bind(unknown, "n1")
    wait_for(lambda: extender.server.calls == 1)
    connection.close()
    wait_for(lambda: extender.gone() == 1)
    wait_for(lambda: extender.server.calls == 0)
    assert [call.name for call in refused] == ["later"], "the core waits for it no longer"


def test_a_caller_that_waits_is_answered(extender: Extender) -> None:
    pod = extender.world.add_pod("p", 4)
    (node,) = extender.filter(pod, "n1")
    connection = extender.begin_bind(pod, node)
    assert json.loads(connection.getresponse().read()) == {"Error": ""}
    connection.close()
    assert extender.world.read("p").spec.node_name == "n1"
    assert extender.gone() == 0
