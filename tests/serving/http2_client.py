"""A client of HTTP/2 that asks as kube-scheduler does, and may also misbehave."""

import socket
import ssl
import time
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes, Settings

from tests.serving.tls import HOST

_SECONDS = 30.0


@dataclass
class Answered:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    reset: ErrorCodes | int | None = None


class Client:
    """One connection. It takes *window* bytes of each answer, until the test asks for more."""

    def __init__(self, port: int, context: ssl.SSLContext, *, window: int = 1 << 20) -> None:
        context.set_alpn_protocols(["h2"])
        raw = socket.create_connection((HOST, port), _SECONDS)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = context.wrap_socket(raw, server_hostname=HOST)
        assert self.connection.selected_alpn_protocol() == "h2"
        self.h2 = H2Connection(H2Configuration(header_encoding="latin-1"))
        said = {SettingCodes.INITIAL_WINDOW_SIZE: window}
        self.h2.local_settings = Settings(client=True, initial_values=said)
        self.h2.initiate_connection()
        self.answers: dict[int, Answered] = {}
        self.acknowledges = True
        self.parted = self.ended = False
        self.pings = self.last_taken = 0
        self.flush()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def flush(self) -> None:
        self.connection.sendall(self.h2.data_to_send())

    def begin(self, path: str, body: bytes, *, method: str = "POST", length: int = -1) -> int:
        """The number of the call; nothing of the body is sent where it has another length."""
        number = self.h2.get_next_available_stream_id()
        self.answers[number] = Answered()
        whole = length in (-1, len(body))
        head = [
            (":method", method),
            (":scheme", "https"),
            (":authority", "10.96.0.94:9402"),
            (":path", path),
            ("content-type", "application/json"),
            ("content-length", str(len(body) if length == -1 else length)),
            ("accept-encoding", "gzip"),
            ("user-agent", "Go-http-client/2.0"),
        ]
        self.h2.send_headers(number, head, end_stream=whole and not body)
        if whole and body:
            self.send(number, body)
        self.flush()
        return number

    def send(self, number: int, body: bytes, *, ends: bool = True) -> None:
        """As fast as the server takes it, until it has answered or wants no more of it. *ends*:
        nothing more comes."""
        answer = self.answers[number]
        while body and not answer.whole and answer.reset is None:
            window = self.h2.local_flow_control_window(number)
            part = body[: min(window, self.h2.max_outbound_frame_size)]
            if part:
                body = body[len(part) :]
                self.h2.send_data(number, part, end_stream=ends and not body)
                self.flush()
            else:
                self.hear()

    def give_up(self, number: int) -> None:
        """As kube-scheduler does after its httpTimeout."""
        self.h2.reset_stream(number, ErrorCodes.CANCEL)
        self.flush()

    def answer(self, number: int) -> Answered:
        ends = time.monotonic() + _SECONDS
        found = self.answers[number]
        while not (found.whole or found.reset is not None or self.ended):
            assert time.monotonic() < ends, "no answer"
            self.hear()
        return found

    def ask(self, path: str, body: bytes = b"x", *, method: str = "POST") -> tuple[int, bytes]:
        found = self.answer(self.begin(path, body, method=method))
        return found.status, found.body

    def hear(self) -> None:
        try:
            data = self.connection.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self.ended = True
            return
        for event in self.h2.receive_data(data):
            self._take(event)
        if not self.parted:  # after it the library has nothing more to say
            self.flush()

    def _take(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            assert event.headers is not None
            headers = {str(name): str(value) for name, value in event.headers}
            found = self.answers[event.stream_id]
            found.status, found.headers = int(headers[":status"]), headers
        elif isinstance(event, DataReceived):
            self.answers[event.stream_id].body += event.data or b""
            if self.acknowledges and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self.answers[event.stream_id].whole = True
        elif isinstance(event, StreamReset):
            self.answers[event.stream_id].reset = event.error_code
        elif isinstance(event, ConnectionTerminated):
            self.parted, self.last_taken = True, event.last_stream_id or 0
        elif isinstance(event, PingAckReceived):
            self.pings += 1
