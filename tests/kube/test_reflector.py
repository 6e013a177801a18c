"""A reflector against a real server: its owner gets everything, in order, in every case."""

import time
from typing import TypeVar
from weakref import ref

import pytest

from linkwise.kube.client import KubeClient, Params, Stream
from linkwise.kube.listed import Listed
from linkwise.kube.objects import Node, Pod
from linkwise.kube.reflector import Reflector
from linkwise.simulator.api_server import ApiServer
from tests.kube.reflector_owner import NODES, Owner, add, label, reflecting, wait_for
from tests.kube.scripted_server import scripted

T = TypeVar("T")


def test_first_all_then_each_change_in_order(client: KubeClient) -> None:
    add(client, "a", "b")
    owner = Owner()
    with reflecting(client, owner):
        add(client, "c")
        label(client, "a", 1)
        client.delete(f"{NODES}/b")
        wait_for(lambda: len(owner.told) == 4)
    assert owner.told == ["=a,b", "+c", "~a", "-b"]


def test_a_long_list_comes_in_pages_and_is_handed_over_once(
    server: ApiServer, client: KubeClient
) -> None:
    add(client, "a", "b", "c", "d", "e")
    owner = Owner()
    with reflecting(client, owner, page_size=2):
        pass
    assert owner.told == ["=a,b,c,d,e"]
    assert server.requests()["GET nodes"] == 3


def test_pages_that_went_stale_are_listed_again_at_once(
    server: ApiServer, client: KubeClient
) -> None:
    add(client, "a", "b", "c")
    owner = Owner()

    class Compacting(KubeClient):
        def get(self, path: str, kind: type[T], *, params: Params | None = None) -> T:
            page = super().get(path, kind, params=params)
            server.compact()
            return page

    compacting = Compacting.load(kubeconfig=None, server=server.url)
    with reflecting(compacting, owner, page_size=2):
        pass
    assert owner.told == ["=a,b,c"]


def test_no_change_is_lost_while_connections_break(server: ApiServer, client: KubeClient) -> None:
    add(client, "a")
    owner = Owner()
    with reflecting(client, owner):
        for step in range(1, 31):
            label(client, "a", step)
            if step % 5 == 0:
                server.cut_watches()
        wait_for(lambda: owner.labels["a"] == "30")
    assert owner.told == ["=a"] + ["~a"] * 30


def test_a_watch_that_worked_and_broke_is_opened_again_without_ado(
    server: ApiServer, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "a")
    owner = Owner()
    with reflecting(client, owner):
        for step in (1, 2):
            label(client, "a", step)
            wait_for(lambda: len(owner.told) > step)  # noqa: B023 - called within this turn
            server.cut_watches()
        wait_for(lambda: server.requests()["WATCH nodes"] == 3 and server.watch_count() == 1)
    assert "trying again" not in caplog.text


def test_a_watch_that_ends_by_itself_goes_on_where_it_was(
    server: ApiServer, client: KubeClient
) -> None:
    add(client, "a")
    owner = Owner()
    with reflecting(client, owner, watch_seconds=(1, 1)):
        wait_for(lambda: server.requests().get("WATCH nodes", 0) == 2)
        label(client, "a", 1)
        wait_for(lambda: owner.labels["a"] == "1")
    assert owner.told == ["=a", "~a"]


def test_a_version_too_old_is_listed_again(server: ApiServer, client: KubeClient) -> None:
    add(client, "a")
    owner = Owner()
    with reflecting(client, owner) as reflector:
        wait_for(lambda: server.watch_count() == 1)
        server.fail_next("GET", NODES, 503, times=1000)
        server.cut_watches()
        client.delete(f"{NODES}/a")
        server.compact()
        server.clear_faults()
        wait_for(lambda: owner.told == ["=a", "="])
        wait_for(lambda: reflector.failing_seconds == 0)


def test_bookmarks_alone_carry_the_version_on(server: ApiServer, client: KubeClient) -> None:
    add(client, "a")
    owner = Owner()
    with reflecting(client, owner, field_selector="metadata.name=a") as reflector:
        wait_for(lambda: server.watch_count() == 1)
        before = reflector.version
        add(client, "b", "c", "d")  # it sees none of these
        server.send_bookmarks()
        wait_for(lambda: reflector.version != before)
        server.compact()
        server.cut_watches()
        wait_for(lambda: server.requests()["WATCH nodes"] >= 2)
        label(client, "a", 1)
        wait_for(lambda: owner.labels["a"] == "1")
    assert owner.told == ["=a", "~a"], "a relist would be the second ="


def test_a_server_that_is_away_is_waited_for(server: ApiServer, client: KubeClient) -> None:
    add(client, "a")
    owner = Owner()
    with reflecting(client, owner) as reflector:
        server.pause()
        wait_for(lambda: reflector.failing_seconds > 0.05)
        server.resume()
        wait_for(lambda: reflector.failing_seconds == 0)
        add(client, "b")
        wait_for(lambda: "+b" in owner.told)
    assert owner.told == ["=a", "+b"]


def test_a_server_that_lost_its_memory_is_listed_again() -> None:
    owner = Owner()
    with ApiServer() as first:
        port = int(first.url.rsplit(":", 1)[1])
        old = KubeClient.load(kubeconfig=None, server=first.url)
        add(old, "a", "b", "c")
        reflector = Reflector(
            old,
            NODES,
            Node,
            on_replace=owner.replace,
            on_event=owner.event,
            longest_wait_seconds=0.05,
        )
        reflector.start()
        assert reflector.synced.wait(5)
    try:
        with ApiServer(port):
            wait_for(lambda: owner.told == ["=a,b,c", "="])
    finally:
        reflector.stop()


def test_an_object_that_does_not_decode_is_skipped_and_named(client: KubeClient) -> None:
    add(client, "a")
    client.post(NODES, {"metadata": {"name": "odd"}, "spec": {"taints": "many"}})
    owner = Owner()
    with reflecting(client, owner) as reflector:
        before = reflector.version
        client.patch(f"{NODES}/odd", {"spec": {"taints": "more"}})
        wait_for(lambda: reflector.version != before)  # it does not watch from there again
        label(client, "a", 1)
        wait_for(lambda: "~a" in owner.told)
    assert owner.told == ["=a", "~a"]
    assert owner.skipped[0].startswith("listed odd: Expected `array`")
    assert owner.skipped[1].startswith("MODIFIED odd: ")


def test_a_deleted_object_that_does_not_decode_is_not_kept(client: KubeClient) -> None:
    add(client, "a", "b")
    owner = Owner()
    with reflecting(client, owner):
        client.patch(f"{NODES}/b", {"spec": {"taints": "many"}})
        client.delete(f"{NODES}/b")
        wait_for(lambda: owner.told == ["=a,b", "=a"])


def test_an_owner_that_fails_is_told_everything_again(
    client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "a")
    owner = Owner()
    owner.failures.append(RuntimeError("out of paper"))
    with reflecting(client, owner):
        add(client, "b")
        wait_for(lambda: owner.told == ["=a", "=a,b"])
    assert "out of paper" in caplog.text


EMPTY_LIST = b'{"metadata":{"resourceVersion":"5"},"items":null}'
NODE_A = b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}\n'


def test_mangled_bytes_in_a_stream_stop_nothing() -> None:
    mangled = b'{"type":"ADDED","object":{"metad\n\n{"type":7}\n'
    failed = b'{"type":"ERROR","object":{"code":500,"message":"etcd is away"}}\n'
    owner = Owner()
    with scripted((200, EMPTY_LIST), (200, mangled + NODE_A + failed)) as server:
        with reflecting(KubeClient.load(kubeconfig=None, server=server.url), owner) as reflector:
            wait_for(lambda: reflector.failing_seconds > 0)
        watches = [path for path in server.asked if "watch=true" in path]
    assert owner.told == ["=", "+a"]
    assert [skipped.split(":")[0] for skipped in owner.skipped] == ["an unreadable event"] * 2
    assert "resourceVersion=5" in watches[0]
    assert all("resourceVersion=7" in path for path in watches[1:])


def test_a_list_that_cannot_be_read_is_asked_for_again() -> None:
    owner = Owner()
    with scripted((200, b"not JSON"), (403, b""), (200, EMPTY_LIST)) as server:
        client = KubeClient.load(kubeconfig=None, server=server.url)
        with reflecting(client, owner):
            pass
    assert owner.told == ["="]


def test_a_watch_that_always_ends_at_once_is_not_asked_for_without_pause() -> None:
    owner = Owner()
    nothing = [(200, b"")] * 1000
    with scripted((200, EMPTY_LIST), *nothing) as server:
        client = KubeClient.load(kubeconfig=None, server=server.url)
        with reflecting(client, owner, longest_wait_seconds=10.0) as reflector:
            wait_for(lambda: len(server.asked) >= 4 and reflector.failing_seconds > 0)
    assert len(server.asked) < 10


def test_an_owner_may_stop_it_from_within(client: KubeClient) -> None:
    heard: list[str] = []

    def stop_at_once(kind: str, node: Node) -> None:
        heard.append(f"{kind} {node.metadata.name}")
        reflector.stop()

    reflector = Reflector(client, NODES, Node, on_replace=lambda _: None, on_event=stop_at_once)
    reflector.start()
    assert reflector.synced.wait(5)
    add(client, "a", "b")
    wait_for(lambda: not reflector.running)
    assert heard == ["ADDED a"]


def test_stopped_while_it_opens_a_watch_it_does_not_wait_for_bytes(server: ApiServer) -> None:
    class Stopping(KubeClient):
        def stream(self, path: str, *, params: Params, idle_seconds: float) -> Stream:
            stream = super().stream(path, params=params, idle_seconds=idle_seconds)
            reflector.stop()
            return stream

    owner = Owner()
    reflector = Reflector(
        Stopping.load(kubeconfig=None, server=server.url),
        NODES,
        Node,
        on_replace=owner.replace,
        on_event=owner.event,
    )
    reflector.start()
    wait_for(lambda: owner.told == ["="] and not reflector.running)


def test_selectors_narrow_what_is_heard(client: KubeClient) -> None:
    pods = "/api/v1/namespaces/ml/pods"
    heard: list[str] = []
    reflector = Reflector(
        client,
        "/api/v1/pods",
        Pod,
        field_selector="spec.nodeName=n1",
        on_replace=lambda found: heard.extend(pod.metadata.name for pod in found),
        on_event=lambda kind, pod: heard.append(f"{kind} {pod.metadata.name}"),
    )
    spec = {"containers": [{"name": "main"}]}
    client.post(pods, {"metadata": {"name": "here"}, "spec": spec | {"nodeName": "n1"}})
    client.post(pods, {"metadata": {"name": "bound-later"}, "spec": spec})
    reflector.start()
    try:
        assert reflector.synced.wait(5)
        binding = {"metadata": {"name": "bound-later"}, "target": {"name": "n1"}}
        client.post(f"{pods}/bound-later/binding", binding)
        wait_for(lambda: len(heard) == 2)
    finally:
        reflector.stop()
    assert heard == ["here", "ADDED bound-later"]


def test_stopping_ends_an_idle_watch_at_once(server: ApiServer, client: KubeClient) -> None:
    owner = Owner()
    with reflecting(client, owner) as reflector:
        wait_for(lambda: server.watch_count() == 1)
        began = time.monotonic()
        reflector.stop()
        assert time.monotonic() - began < 2
        wait_for(lambda: server.watch_count() == 0)
        add(client, "a")
    assert owner.told == ["="]


def test_it_keeps_no_list_while_it_watches(server: ApiServer, client: KubeClient) -> None:
    listed: list[ref[object]] = []
    reflector = Reflector(
        client,
        NODES,
        Node,
        on_replace=lambda nodes: listed.append(ref(nodes)),
        on_event=lambda _kind, _node: None,
    )
    reflector.start()
    try:
        wait_for(lambda: server.watch_count() == 1)
        assert [each() for each in listed] == [None]
    finally:
        reflector.stop()


def test_asked_to_it_lists_everything_again_and_says_when_that_is_done(client: KubeClient) -> None:
    add(client, "a")
    owner = Owner()
    with reflecting(client, owner) as reflector:
        assert reflector.has_listed(0)
        number = reflector.list_again()
        wait_for(lambda: reflector.has_listed(number))
        assert owner.told == ["=a", "=a"]
        add(client, "b")
        wait_for(lambda: owner.told[2:] == ["+b"])


def test_a_list_that_had_begun_before_is_not_the_one_that_was_asked_for(
    client: KubeClient,
) -> None:
    """It may show an earlier state."""
    add(client, "a")
    owner = Owner()
    with reflecting(client, owner) as reflector:
        numbers: list[int] = []
        pages = reflector._list_pages

        def asked_meanwhile(size: int) -> tuple[Listed[Node], str]:
            found = pages(size)
            if len(numbers) < 2:
                numbers.append(reflector.list_again())
            return found

        setattr(reflector, "_list_pages", asked_meanwhile)  # noqa: B010
        first = reflector.list_again()
        wait_for(lambda: len(numbers) == 2 and reflector.has_listed(numbers[1]))
    assert numbers == [first + 1, first + 2]
    assert owner.told == ["=a"] * 4


NOT_SERVED = (404, b"404 page not found\n")
AN_EMPTY_LIST = (200, b'{"metadata": {"resourceVersion": "7"}, "items": []}')


def test_an_optional_kind_that_is_not_served_has_no_objects_and_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = Owner()
    with scripted(*[NOT_SERVED] * 3, AN_EMPTY_LIST) as server:
        client = KubeClient.load(kubeconfig=None, server=server.url)
        with reflecting(client, owner, optional=True, unserved_seconds=0.05) as reflector:
            wait_for(lambda: len(server.asked) == 3)
            assert reflector.failing_seconds == 0
            assert caplog.messages == []
            assert owner.told == ["="]
            wait_for(lambda: owner.told == ["=", "="])  # it is served now


def test_an_optional_kind_that_is_no_longer_served_loses_its_objects() -> None:
    owner = Owner()
    listed = b'{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}'
    with scripted((200, listed), NOT_SERVED) as server:
        client = KubeClient.load(kubeconfig=None, server=server.url)
        with reflecting(client, owner, optional=True):
            wait_for(lambda: owner.told == ["=a", "="])


def test_another_kind_must_be_served() -> None:
    owner = Owner()
    with scripted(*[NOT_SERVED] * 2, AN_EMPTY_LIST) as server:
        client = KubeClient.load(kubeconfig=None, server=server.url)
        with reflecting(client, owner):
            assert owner.told == ["="]
            assert len(server.asked) >= 3
