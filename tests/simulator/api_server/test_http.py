"""The stand-in as a client sees it: paths, codes, Status objects, watches, faults."""

import gc
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest
import urllib3

from linkwise.simulator.api_server import ApiServer
from tests.waiting import wait_for

PODS = "/api/v1/namespaces/ml/pods"
WORKER = {"metadata": {"name": "w"}, "spec": {"containers": [{"name": "main"}]}}

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def pool() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager(retries=False, timeout=10) as made:
        yield made


@pytest.fixture
def ask(server: ApiServer, pool: urllib3.PoolManager) -> Ask:
    def asked(
        method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body)
        answer = pool.request(
            method, server.url + path, body=sent, headers={"content-type": content_type}
        )
        return answer.status, json.loads(answer.data)

    return asked


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "reason"),
    [
        ("GET", f"{PODS}/absent", None, 404, "NotFound"),
        ("GET", "/api/v1/secrets", None, 404, "NotFound"),
        ("GET", "/api/v1/namespaces/ml/nodes", None, 404, "NotFound"),
        ("GET", "/api/v1/pods/w", None, 404, "NotFound"),
        ("GET", "/apis/batch/v1/pods", None, 404, "NotFound"),
        ("PATCH", "/api/v1/nodes/n/binding", {}, 404, "NotFound"),
        ("POST", "/api/v1/pods", WORKER, 405, "MethodNotAllowed"),
        ("PUT", PODS, WORKER, 405, "MethodNotAllowed"),
        ("GET", f"{PODS}/w/binding", None, 405, "MethodNotAllowed"),
        ("POST", PODS, b"{", 400, "BadRequest"),
        ("POST", PODS, b"\xff", 400, "BadRequest"),
        ("GET", f"{PODS}?limit=many", None, 400, "BadRequest"),
        ("POST", f"{PODS}?dryRun=All", WORKER, 400, "BadRequest"),
        ("POST", PODS, {"metadata": {"name": "w"}}, 422, "Invalid"),
    ],
)
def test_what_is_refused_is_refused_with_a_status_object(
    ask: Ask, method: str, path: str, body: Any, code: int, reason: str
) -> None:
    status, answer = ask(method, path, body)
    assert (status, answer["kind"], answer["status"]) == (code, "Status", "Failure")
    assert (answer["code"], answer["reason"]) == (code, reason)


def test_a_watcher_that_goes_away_is_forgotten(
    server: ApiServer, pool: urllib3.PoolManager
) -> None:
    answer = pool.request("GET", f"{server.url}{PODS}?watch=1", preload_content=False)
    assert server.watch_count() == 1
    answer.close()
    wait_for(lambda: not server.watch_count(), "no watcher is left")


def test_ordered_faults_befall_the_requests_they_name_and_no_others(
    server: ApiServer, ask: Ask
) -> None:
    server.fail_next("POST", "/binding", 500, times=2)
    ask("POST", PODS, WORKER)
    binding = {"metadata": {"name": "w"}, "target": {"name": "n1"}}
    codes = [ask("POST", f"{PODS}/w/binding", binding)[0] for _ in range(3)]
    assert codes == [500, 500, 201]


def test_an_answer_can_be_lost_after_the_deed(server: ApiServer, ask: Ask) -> None:
    server.fail_next("POST", "/pods", 504, carry_out=True)
    assert ask("POST", PODS, WORKER)[0] == 504
    assert ask("GET", f"{PODS}/w")[0] == 200
    server.fail_next("GET", "/pods", 0)
    with pytest.raises(urllib3.exceptions.ProtocolError):
        ask("GET", f"{PODS}/w")


def test_a_paused_server_refuses_connections_and_keeps_what_it_holds(
    server: ApiServer, ask: Ask
) -> None:
    ask("POST", PODS, WORKER)
    server.pause()
    with pytest.raises(urllib3.exceptions.HTTPError):
        ask("GET", f"{PODS}/w")
    server.resume()
    assert ask("GET", f"{PODS}/w")[0] == 200


def test_no_connection_is_left_half_made_by_a_pause(server: ApiServer) -> None:
    """Python would warn when it collects the connection, in any later test."""
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    ended = Event()

    def knock() -> None:
        while not ended.is_set():
            with suppress(OSError), socket.create_connection(address, timeout=1):
                pass

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(knock)
        for _ in range(30):
            server.pause()
            server.resume()
        ended.set()
    gc.collect()


def test_requests_are_counted_by_what_they_do(server: ApiServer, ask: Ask) -> None:
    ask("POST", PODS, WORKER)
    for phase in ("Running", "Succeeded"):
        patch = {"status": {"phase": phase}}
        ask("PATCH", f"{PODS}/w/status", patch, "application/merge-patch+json")
    assert server.requests() == {"POST pods": 1, "PATCH pods/status": 2}


def test_a_taken_port_is_said_at_the_start(server: ApiServer) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(OSError, match="address already in use"):
        ApiServer(port).start()


def test_health_and_version(ask: Ask, server: ApiServer, pool: urllib3.PoolManager) -> None:
    assert ask("GET", "/version")[1]["major"] == "1"
    assert pool.request("GET", f"{server.url}/readyz").data == b"ok"


# Services


class Service(BaseHTTPRequestHandler):
    """Answers with what it was asked; /slow sends its second line only when it is let."""

    let = Event()

    def do_GET(self) -> None:
        self.send_response(418 if self.path.startswith("/odd") else 200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        if self.path == "/slow":
            self.wfile.write(b"first\n")
            self.wfile.flush()
            self.let.wait(10)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.wfile.write(f"{self.command} {self.path} {body.decode()}".encode())

    do_POST = do_PUT = do_GET  # noqa: N815, the names that http.server looks for

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxied(server: ApiServer) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as service:
        thread = Thread(target=service.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.forward("ml", "web:http", f"http://127.0.0.1:{service.server_port}")
        service.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "answer"),
    [
        ("GET", "", None, 200, "GET / "),
        ("GET", "/a%2Fb/c?x=1&y=%20", None, 200, "GET /a%2Fb/c?x=1&y=%20 "),
        ("GET", "/odd", None, 418, "GET /odd "),
        ("POST", "/filter", b"{}", 200, "POST /filter {}"),
    ],
)
def test_a_service_is_reached_through_the_api_server(
    proxied: str,
    pool: urllib3.PoolManager,
    method: str,
    path: str,
    body: bytes | None,
    status: int,
    answer: str,
) -> None:
    found = pool.request(method, proxied + path, body=body)
    assert (found.status, found.data.decode()) == (status, answer)
    assert found.headers["Content-Type"] == "text/plain"


def test_what_a_service_sends_bit_by_bit_is_passed_on_at_once(
    proxied: str, pool: urllib3.PoolManager
) -> None:
    Service.let.clear()
    answer = pool.request("GET", f"{proxied}/slow", preload_content=False)
    assert answer.readline() == b"first\n"
    Service.let.set()
    assert answer.readline() == b"GET /slow "
    answer.release_conn()


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("PUT", "/api/v1/namespaces/ml/services/web:http/proxy/x", 405, "MethodNotAllowed"),
        ("GET", "/api/v1/namespaces/ml/services/web:https/proxy/x", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/other/services/web:http/proxy/x", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/ml/services/gone:http/proxy/x", 503, "ServiceUnavailable"),
    ],
)
@pytest.mark.usefixtures("proxied")
def test_a_service_that_cannot_be_reached_is_refused_as_by_an_api_server(
    server: ApiServer, ask: Ask, method: str, path: str, status: int, reason: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server.forward("ml", "gone:http", f"http://127.0.0.1:{free.getsockname()[1]}")
    found, said = ask(method, path)
    assert (found, said["reason"]) == (status, reason)
