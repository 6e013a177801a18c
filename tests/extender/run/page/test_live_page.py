"""One look at the cluster and one message for all viewers, over the status port's own sockets."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from msgspec.structs import replace as change

from linkwise.extender.run.loop import NotReadyError
from linkwise.extender.run.page.live_page import LivePage, gang_key, pod_key
from linkwise.extender.run.page.viewers import Viewers
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.kube.objects import Pod
from tests.extender.cluster import Cluster
from tests.extender.show.page.example_cluster import HOSTILE, example, hostile, large, one_node
from tests.extender.show.page.served_page import HOST, ServedPage, served
from tests.extender.world import wait_for
from tests.parsed_page import ParsedPage


class Looked:
    """A live page by hand: looks are counted, and time stands still."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.now, self.looks = cluster, 100.0, 0
        self.live = LivePage(self._take, clock=lambda: self.now, cost=lambda: 0.0)

    def _take(self) -> Snapshot:
        self.looks += 1
        return self.cluster.core.snapshot(self.cluster.now)

    def join(self, version: str, key: str = "") -> socket.socket:
        ours, theirs = socket.socketpair()
        self.live.join(key, version, ours)
        theirs.settimeout(0.0)
        return theirs

    def refresh(self) -> None:
        self.now += 1.0
        self.live.refresh()

    def version(self, key: str = "") -> str:
        html = self.live.html(key) if key else self.live.html()
        assert html is not None
        (body,) = ParsedPage(html.decode()).named("body")
        return str(body["data-events"]).rpartition("since=")[2]


Look = Callable[[Cluster], Looked]


@pytest.fixture
def look() -> Iterator[Look]:
    made: list[Looked] = []

    def looked(cluster: Cluster) -> Looked:
        made.append(Looked(cluster))
        return made[-1]

    yield looked
    for each in made:
        each.live.stop()


def messages(viewer: socket.socket) -> list[tuple[str, Any]]:
    """The events that have arrived, with their data."""
    try:
        text = viewer.recv(1 << 20).decode()
    except BlockingIOError:
        return []
    found = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_a_thousand_requests_in_a_second_are_one_look_and_one_page(look: Look) -> None:
    looked = look(one_node())
    pages = {id(looked.live.html()) for _ in range(1000)}
    assert (looked.looks, len(pages)) == (1, 1)
    looked.now += 1.0
    assert id(looked.live.html()) in pages  # nothing has changed
    assert looked.looks == 2


def test_the_time_on_a_page_that_does_not_change_is_not_old(look: Look) -> None:
    looked = look(one_node())
    first = looked.live.html()
    looked.cluster.now += 31
    looked.now += 31
    second = looked.live.html()
    assert first is not None
    assert second is not None
    assert b"13:46:40" in first
    assert b"13:47:11" in second


def test_a_costly_look_is_taken_less_often() -> None:
    spent = iter(range(1000))
    cluster, now = one_node(), [0.0]
    looks = []

    def take() -> Snapshot:
        looks.append(now[0])
        return cluster.core.snapshot(cluster.now)

    live = LivePage(take, clock=lambda: now[0], cost=lambda: next(spent) * 0.098)
    for second in range(60):
        now[0] = float(second)
        live.html()
    # Each look costs 98 ms, and so does the page made of it: together a hundredth of 19.6 s.
    assert looks == [0.0, 20.0, 40.0]


def test_a_viewer_gets_what_changed_once_and_nothing_else(look: Look) -> None:
    looked = look(large(64))
    with looked.join(looked.version()) as viewer:
        looked.refresh()
        assert messages(viewer) == []
        looked.cluster.set_health("gpu-40", 6)
        looked.refresh()
        ((event, changed),) = messages(viewer)
        assert event == "change"
        assert {name.split("-")[0] for name in changed} == {"g1", "all"}
        looked.refresh()
        assert messages(viewer) == []


def test_who_opens_a_rack_gets_changes_of_that_rack_alone(look: Look) -> None:
    looked = look(large(64))
    with (
        looked.join(looked.version("leaf-1,0"), "leaf-1,0") as there,
        looked.join(looked.version("leaf-0,0"), "leaf-0,0") as elsewhere,
    ):
        looked.cluster.set_health("gpu-40", 6)
        looked.refresh()
        ((_, changed),) = messages(there)
        assert changed["n8-g6"] == {"class": "gpu free broken"}
        assert messages(elsewhere) == []


def test_who_connects_again_gets_what_it_missed(look: Look) -> None:
    looked = look(one_node())
    version = looked.version()
    with looked.join(version):
        for gpu in (5, 6):
            looked.cluster.set_health("gpu-1", gpu)
            looked.refresh()
        looked.cluster.set_health("gpu-1")
        looked.refresh()
        with looked.join(version) as late, looked.join(looked.version()) as current:
            assert [event for event, _ in messages(late)] == ["change"] * 3
            assert messages(current) == []


@pytest.mark.parametrize("version", ["", "of-another-process-1"])
def test_who_missed_too_much_loads_the_page_again(version: str, look: Look) -> None:
    looked = look(one_node())
    looked.version()
    with looked.join(version) as viewer:
        assert messages(viewer) == [("reload", {})]


def test_a_node_more_or_a_rack_that_is_gone_loads_the_page_again(look: Look) -> None:
    looked = look(one_node())
    with looked.join(looked.version()) as first, looked.join(looked.version("0"), "0") as rack:
        looked.cluster.add_node("gpu-2")
        looked.refresh()
        assert messages(first) == messages(rack) == [("reload", {})]
        looked.cluster.remove_node("gpu-2")
        looked.cluster.remove_node("gpu-1")
        looked.refresh()
        assert messages(rack) == [("gone", {})]
    assert looked.live.html("0") is None


def test_an_open_gang_and_an_open_pod_follow_the_cluster_until_they_are_gone(look: Look) -> None:
    looked = look(example())
    gang, pod = gang_key("ml", "pretrain"), pod_key("ml", "huge")
    with (
        looked.join(looked.version(gang), gang) as one,
        looked.join(looked.version(pod), pod) as other,
    ):
        looked.cluster.now += 600
        looked.refresh()
        ((event, changed),) = messages(one)
        assert event == "change"
        assert "has waited 10m" in changed["text"]["text"]
        assert messages(other)
        looked.cluster.delete("huge")
        looked.refresh()
        messages(one)
        assert messages(other) == [("gone", {})]
    assert looked.live.html(pod) is None


def test_open_pages_that_search_have_turns_within_their_share() -> None:
    """Each search costs 0.05 s here, so one in five seconds is a hundredth."""
    spent = iter(range(10**6))
    cluster, now = example(), [100.0]
    live = LivePage(
        lambda: cluster.core.snapshot(cluster.now),
        clock=lambda: now[0],
        cost=lambda: next(spent) * 0.05,
    )
    keys = [pod_key("ml", name) for name in ("huge", "eval", "finetune", "sweep-1")]
    got = dict.fromkeys(keys, 0)
    with ExitStack() as opened:
        viewers = {}
        for key in keys:
            html = live.html(key)
            assert html is not None
            ours, theirs = socket.socketpair()
            live.join(key, since(html.decode()).rpartition("since=")[2], ours)
            viewers[key] = opened.enter_context(theirs)
            theirs.settimeout(0.0)
        for _ in range(300):
            cluster.now += 1
            now[0] += 1
            live.refresh()
            for key, viewer in viewers.items():
                got[key] += len(messages(viewer))
        live.stop()
    assert min(got.values()) >= 10
    assert sum(got.values()) <= 300 / 5 + 3


@pytest.mark.parametrize("key", ["pod/", "gang/x", "x/y/z", "/", "pod/ml/" + "x" * 9999])
def test_a_page_of_no_such_name_is_none_and_who_follows_it_reads_so(key: str, look: Look) -> None:
    looked = look(one_node())
    assert looked.live.html(key) is None
    with looked.join("", key) as viewer:
        looked.refresh()
        assert messages(viewer) == [("reload", {}), ("gone", {})]


def test_no_page_that_is_open_is_forgotten_for_others(look: Look) -> None:
    looked = look(large(80))
    keys = [pod_key("ml", f"tenant-{number}") for number in range(80)]
    with looked.join(looked.version(keys[0]), keys[0]) as viewer:
        for key in keys[1:]:
            looked.live.html(key)
        looked.cluster.now += 600
        looked.refresh()
        ((event, _),) = messages(viewer)
        assert event == "change"


def test_while_another_extender_leads_there_is_no_page() -> None:
    def take() -> Snapshot:
        raise NotReadyError("linkwise: not ready: taking over")

    with pytest.raises(NotReadyError):
        LivePage(take).html()


# Over sockets


def test_who_asks_while_another_extender_leads_reads_so() -> None:
    with served(one_node()) as page:
        page.leads = False
        status, kind, text = read(page, "")
        assert (status, kind) == (503, "text/plain; charset=utf-8")
        assert text == "linkwise: not ready: taking over\n"
        assert read(page, "no-such-page")[0] == 404


@contextmanager
def asked(page: ServedPage, path: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(HOST, page.port, timeout=30)
    with closing(connection):
        connection.request("GET", f"/ui/{path}")
        yield connection.getresponse()


def read(page: ServedPage, path: str) -> tuple[int, str, str]:
    with asked(page, path) as answer:
        return answer.status, answer.headers["content-type"], answer.read().decode()


def event(answer: http.client.HTTPResponse) -> dict[str, str]:
    """The next event of a stream."""
    fields: dict[str, str] = {}
    while not (fields.get("event") and fields.get("data")):
        name, _, value = answer.readline().decode().strip().partition(": ")
        fields[name] = value
    return fields


def since(html: str) -> str:
    (body,) = ParsedPage(html).named("body")
    return str(body["data-events"])


def test_a_change_reaches_an_open_page() -> None:
    with served(one_node()) as page, asked(page, since(read(page, "")[2])) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["content-length"] is None
        wait_for(lambda: len(page.live.viewers) == 1)
        with page.lock:
            page.cluster.set_health("gpu-1", 7)
        found = event(stream)
        assert found["event"] == "change"
        assert json.loads(found["data"])["all-unhealthy"] == {"text": "1"}


def test_every_page_is_there_and_what_is_gone_is_404() -> None:
    with served(example()) as page:
        for path, words in (
            ("", "72 GPUs on 9 nodes."),
            ("group?key=leaf-1%2C0", "ml/finetune"),
            ("gang?namespace=ml&name=pretrain", "room for 3 of 6 members"),
            ("pod?namespace=ml&name=huge", "ml/huge: has waited"),
            ("search?q=eval", "ml/eval"),
            ("moves", "Moves are off: the extender runs with --moves=never."),
            ("idle", "Pods with whole GPUs: 2 idle, with 3 GPUs"),
        ):
            status, kind, text = read(page, path)
            assert (status, kind) == (200, "text/html; charset=utf-8")
            assert words in ParsedPage(text).text, path
        for path in (
            "group?key=x",
            "group",
            "group?key=pod/ml/eval",
            "gang?namespace=ml&name=x",
            "pod?name=huge",
            "pod",
        ):
            status, kind, text = read(page, path)
            assert (status, kind) == (404, "text/html; charset=utf-8")
            assert "There is no such rack, gang or pod now." in ParsedPage(text).text
        assert 'value="huge"' in read(page, "pod?name=huge")[2], "it can be searched for"
        assert read(page, "page.css")[1] == "text/css; charset=utf-8"
        assert read(page, "page.js")[1] == "text/javascript; charset=utf-8"


def test_pods_and_gangs_lead_to_their_nodes() -> None:
    with served(example()) as page:
        pod = ParsedPage(read(page, "pod?namespace=ml&name=train-1")[2])
        gang = ParsedPage(read(page, "gang?namespace=ml&name=train")[2])
        waits = ParsedPage(read(page, "gang?namespace=ml&name=pretrain")[2])
        assert "See node gpu-2 , gang ml/train ." in pod.text
        assert "See node gpu-1 , node gpu-2 ." in gang.text
        assert "See node" not in waits.text
        links = [str(link["href"]) for link in (*pod.named("a"), *gang.named("a"))]
        for link in ("group?key=leaf-1%2C0#n1", "gang?namespace=ml&name=train"):
            assert link in links


def test_hostile_names_and_words_come_back_as_text() -> None:
    with served(hostile()) as page:
        name = quote(f"g{HOSTILE}", safe="")
        for path in (f"gang?namespace=ml&name={name}", f"search?q={quote(HOSTILE)}", ""):
            status, _, text = read(page, path)
            assert status == 200
            assert HOSTILE in ParsedPage(text).text
            assert "<script>alert" not in text


def noted(pod: Pod, text: str) -> Pod:
    """Return *pod* with an annotation that is not Linkwise's."""
    annotations = {**pod.metadata.annotations, "example.com/note": text}
    return change(pod, metadata=change(pod.metadata, annotations=annotations))


def test_ten_megabytes_of_pods_make_no_long_page() -> None:
    cluster = one_node()
    long = "x" * 200  # a pod's name may have 253 characters
    text = "y" * 8000
    for number in range(1400):
        gates = ["other.example/gate"] if number % 2 else []
        cluster.add_pod(f"pod-{number}-{long}", 8, gates=gates, alter=lambda pod: noted(pod, text))
    cluster.add_gang(f"gang-{long}", 200, 8)
    assert len(msgspec.json.encode(list(cluster.pods.values()))) > 10 << 20
    cluster.settle()
    gang, pod = f"namespace=ml&name=gang-{long}", f"namespace=ml&name=pod-1-{long}"
    with served(cluster) as page:
        for path in ("", f"gang?{gang}", f"pod?{pod}", "group?key=0", f"search?q={long}"):
            status, _, page_text = read(page, path)
            assert status == 200, path
            assert len(page_text) < 200_000, path
            assert text not in page_text
        assert f"gang-{long}" in read(page, "")[2]


def test_nothing_but_get_is_answered_and_every_answer_is_guarded() -> None:
    with served(one_node()) as page:
        for path in ("", "group?key=0", "search?q=x", "page.js", "pod?name=x"):
            with asked(page, path) as answer:
                policy = answer.headers["content-security-policy"]
                assert policy.startswith("default-src 'none'")
                assert answer.headers["x-content-type-options"] == "nosniff"
        connection = http.client.HTTPConnection(HOST, page.port, timeout=30)
        with closing(connection):
            connection.request("POST", "/ui/")
            assert connection.getresponse().status == 405
        with closing(http.client.HTTPConnection(HOST, page.port, timeout=30)) as connection:
            connection.request("HEAD", "/ui/events")
            assert connection.getresponse().read() == b""
        assert len(page.live.viewers) == 0


def test_of_a_thousand_viewers_some_get_changes_and_the_others_a_reason() -> None:
    with ExitStack() as opened, served(one_node(), viewers=Viewers(90)) as page:
        query = since(read(page, "")[2])
        streams = []
        refused = set()
        for _ in range(1000):
            answer = opened.enter_context(asked(page, query))
            if answer.status == 200:
                streams.append(answer)
                wait_for(lambda: len(page.live.viewers) == len(streams))
            else:
                refused.add((answer.status, answer.headers["content-type"], answer.read()))
        assert len(streams) == 90
        text = b"linkwise: too many viewers: reload the page to see what changed\n"
        assert refused == {(503, "text/plain; charset=utf-8", text)}
        assert read(page, "")[0] == 200
        with page.lock:
            page.cluster.set_health("gpu-1", 7)
        assert {event(stream)["event"] for stream in streams} == {"change"}


def test_viewers_take_no_place_from_other_callers_and_end_with_the_program() -> None:
    with served(one_node()) as page, ExitStack() as opened:
        query = since(read(page, "")[2])
        streams = [opened.enter_context(asked(page, query)) for _ in range(80)]
        wait_for(lambda: len(page.live.viewers) == 80)
        for _ in range(70):  # more than the port has places
            assert read(page, "page.js")[0] == 200
        assert len(page.live.viewers) == 80
        page.live.viewers.close()
        assert {stream.read()[-2:] for stream in streams} == {b"\n\n"}
