"""HTTP/2 over one connection of a known caller, with the library h2 for the protocol.

With HTTP/1.1, kube-scheduler keeps two idle connections and opens others for concurrent binds.
Each of these needs a TLS handshake that costs both sides more than the bind. With HTTP/2, all calls
share one connection. kube-scheduler checks its health with pings, so it gives up a connection to a
dead peer within seconds. It also resets the stream of each call that it gives up.

One thread reads, and answers short calls itself. A long call gets a thread of its own. OpenSSL must
not read and write at the same time, so a thread holds the lock for either. While it holds the lock,
it waits only for a peer that does not read.
"""

import logging
import select
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, RLock

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from linkwise.serving.reply import Calls, Reply, plain
from linkwise.serving.server import Server
from linkwise.serving.system import is_established

log = logging.getLogger(__name__)
ALPN = "h2"
_IDLE_SECONDS = 120.0  # as with HTTP/1.1; kube-scheduler's pings come more often
_PARTING_SECONDS = 10.0  # for a peer to close after a GOAWAY
_UNREAD_SECONDS = 10.0  # a peer that reads nothing for so long is gone
_MOST_STREAMS = 250  # then kube-scheduler opens another connection
_READ_AT_ONCE = 1 << 18
_WINDOW = (
    1 << 20
)  # bytes of one call before an update of the window; the names of 5,000 nodes take 0.2 MiB
_CONNECTION_WINDOW = 16 << 20
_SETTINGS = {
    SettingCodes.MAX_CONCURRENT_STREAMS: _MOST_STREAMS,
    SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
    SettingCodes.MAX_FRAME_SIZE: _READ_AT_ONCE,
    SettingCodes.MAX_HEADER_LIST_SIZE: 32 << 10,
}


@dataclass(slots=True, eq=False)
class _Stream:
    """A call, from its headers to its answer."""

    number: int
    method: str
    path: str
    arrived: float = field(default_factory=time.monotonic)
    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    ended: bool = False  # its body is complete
    gone: bool = False  # the caller has given it up


class Http2:
    """`serve()` runs until either side ends the connection. A call older than *call_seconds* counts
    as given up. The bodies of all unanswered calls together take at most *most_bytes*."""

    def __init__(
        self,
        connection: ssl.SSLSocket,
        server: Server,
        calls: Calls,
        *,
        call_seconds: float,
        most_bytes: int,
    ) -> None:
        self._connection, self._server, self._calls = connection, server, calls
        self._call_seconds, self._most_bytes = call_seconds, most_bytes
        self._changed = Condition(RLock())  # guards the fields below and the connection
        self._h2 = H2Connection(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                # These checks take a third of the library's time. Callers are known, and `_take`
                # checks every header that it uses.
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
                normalize_outbound_headers=False,
                validate_outbound_headers=False,
            )
        )
        self._h2.local_settings = Settings(client=False, initial_values=_SETTINGS)
        self._h2.max_inbound_frame_size = self._h2.local_settings.max_frame_size
        self._poll = select.poll()
        self._streams: dict[int, _Stream] = {}
        self._bytes = 0
        self._ended = self._parting = False

    def serve(self) -> None:
        self._connection.setblocking(False)
        self._poll.register(self._connection, select.POLLIN)
        self._poll.register(self._server.ending, select.POLLIN)
        with self._server.ends_itself(self._connection):
            self._serve()

    def _serve(self) -> None:
        try:
            with self._changed:
                self._h2.initiate_connection()
                self._h2.increment_flow_control_window(_CONNECTION_WINDOW)
                self._flush()
            while not self._server.closing and self._is_readable() and self._read():
                pass
            if self._server.closing:
                self._answer_last_calls()
        except ProtocolError as error:
            log.warning("%s: no HTTP/2: %s", self._connection.getpeername()[0], error)
            with suppress(OSError), self._changed:
                self._flush()  # h2 has queued a GOAWAY with the reason
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    # Reading

    def _is_readable(self) -> bool:
        """Wait for data. A poll suffices: `_received` leaves no data in OpenSSL's buffer."""
        return bool(self._poll.poll(1000 * (_PARTING_SECONDS if self._parting else _IDLE_SECONDS)))

    def _read(self) -> bool:
        """Process the data that has arrived; False once no more can come."""
        with self._changed:
            data, ended = self._received()
            whole = []
            for event in self._h2.receive_data(data) if data else ():
                if isinstance(event, ConnectionTerminated):
                    return False
                stream = self._take(event)
                if stream is not None:
                    whole.append(stream)
            self._flush()
        if ended:
            return False
        for stream in whole:
            if self._calls.waits_long(stream.path):
                self._server.run_aside(partial(self._answer, stream))
            else:
                self._answer_here(stream)
        return True

    def _received(self) -> tuple[bytes, bool]:
        """The data that has arrived, and whether the peer has ended. OpenSSL returns one record at
        a time; headers and body are two."""
        chunks, size = list[bytes](), 0
        while size < _READ_AT_ONCE:
            try:
                chunk = self._connection.recv(_READ_AT_ONCE)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not chunk:
                return b"".join(chunks), True
            chunks.append(chunk)
            size += len(chunk)
        return b"".join(chunks), False

    def _take(self, event: Event) -> _Stream | None:
        """Process *event*; return the call that it completes."""
        if isinstance(event, RequestReceived):
            head = {bytes(name): bytes(value) for name, value in event.headers or ()}
            method, path = (
                head.get(name, b"").decode("latin-1") for name in (b":method", b":path")
            )
            stream = _Stream(event.stream_id, method, path)
            stream.ended = event.stream_ended is not None
            self._streams[stream.number] = stream
            length = head.get(b"content-length", b"0")
            self._refuse(stream, int(length) if length.isdigit() else 0)
        elif isinstance(event, DataReceived):
            self._add(event)
        elif isinstance(event, StreamReset):
            self._forget(event.stream_id, gone=True)
        elif isinstance(event, StreamEnded):
            return self._streams.get(event.stream_id)
        elif isinstance(event, WindowUpdated):
            self._changed.notify_all()  # threads that wait to send the rest of an answer
        return None

    def _add(self, event: DataReceived) -> None:
        number, data = event.stream_id, event.data or b""
        stream = self._streams.get(number)
        if stream is not None:
            stream.ended = event.stream_ended is not None
            stream.chunks.append(data)
            stream.size += len(data)
            self._bytes += len(data)
            if self._bytes > self._most_bytes:
                self._forget(number, gone=True)
                self._h2.reset_stream(number, ErrorCodes.ENHANCE_YOUR_CALM)
            else:
                self._refuse(stream, stream.size)
        # Every byte must be acknowledged, or the window of the whole connection closes.
        length = event.flow_controlled_length or 0
        if length:
            self._h2.acknowledge_received_data(length, number)

    def _refuse(self, stream: _Stream, length: int) -> None:
        """Refuse the call at once if its body need not be read to its end."""
        reply = self._calls.refusal(stream.method, stream.path, length)
        if reply is not None:
            self._head(stream, reply)
            self._h2.send_data(stream.number, reply.body, end_stream=True)  # some words
            if not stream.ended:
                self._h2.reset_stream(stream.number, ErrorCodes.NO_ERROR)
            self._forget(stream.number, gone=True)

    def _forget(self, number: int, *, gone: bool) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.gone = gone
            self._bytes -= stream.size
            self._changed.notify_all()

    # Answering

    def _answer(self, stream: _Stream) -> None:
        with self._server.call():
            self._tell(stream, self._reply(stream))

    def _answer_here(self, stream: _Stream) -> None:
        """Answer on the reading thread. A reply larger than the window needs another thread,
        because only the reading thread sees the window's updates."""
        with self._server.call():
            reply = self._reply(stream)
            with self._changed:
                if reply is None or stream.gone or len(reply.body) <= self._window(stream):
                    self._tell(stream, reply)
                    return
            self._server.run_aside(partial(self._tell, stream, reply))

    def _tell(self, stream: _Stream, reply: Reply | None) -> None:
        with self._server.call(), suppress(OSError, ProtocolError), self._changed:
            self._say(stream, reply)

    def _window(self, stream: _Stream) -> int:
        return int(self._h2.local_flow_control_window(stream.number))

    def _reply(self, stream: _Stream) -> Reply | None:
        body, waits = b"".join(stream.chunks), partial(self._waits, stream)
        try:
            return self._calls.reply(stream.path, body, waits)
        except Exception:
            log.exception("%s: a defect", stream.path)
            return plain(500, "internal error, see the extender's log")

    def _waits(self, stream: _Stream) -> bool:
        age = time.monotonic() - stream.arrived
        alive = not (stream.gone or self._ended) and is_established(self._connection)
        return alive and age < self._call_seconds

    def _say(self, stream: _Stream, reply: Reply | None) -> None:
        """Send *reply*; None: reset the stream. The caller holds the lock."""
        if stream.gone or self._ended:
            return
        if reply is None:
            self._h2.reset_stream(stream.number, ErrorCodes.CANCEL)
        else:
            self._head(stream, reply)
            self._send(stream, memoryview(reply.body))
        self._forget(stream.number, gone=False)
        self._flush()
        if reply is not None and reply.parting:
            # Further calls would come here even if the Service leads elsewhere.
            self._part()

    def _head(self, stream: _Stream, reply: Reply) -> None:
        # Equal headers each time: HPACK compresses them to two bytes.
        headers = [(":status", str(reply.status)), ("content-type", reply.content_type)]
        self._h2.send_headers(stream.number, headers)

    def _send(self, stream: _Stream, left: memoryview) -> None:
        """Send as much as the window allows, then the rest as it opens."""
        while True:
            window = self._window(stream)
            part = left[: min(window, self._h2.max_outbound_frame_size)]
            left = left[len(part) :]
            if part or not left:
                self._h2.send_data(stream.number, bytes(part), end_stream=not left)
            self._flush()
            if not left:
                return
            if not part and not self._changed.wait(_UNREAD_SECONDS):
                raise TimeoutError("the peer takes nothing more")
            if stream.gone or self._ended:
                raise ConnectionAbortedError("the caller has gone")

    def _flush(self) -> None:
        """Write what h2 has queued. The caller holds the lock."""
        self._write(memoryview(self._h2.data_to_send()))

    def _write(self, left: memoryview) -> None:
        ends = time.monotonic() + _UNREAD_SECONDS
        while left:
            try:
                left = left[self._connection.send(left) :]
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError) as error:
                wanted = (
                    select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT
                )
                poll = select.poll()
                poll.register(self._connection, wanted)
                if not poll.poll(max(ends - time.monotonic(), 0) * 1000):
                    socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
                    raise TimeoutError("the peer takes nothing more") from None

    def _part(self) -> None:
        """Send a GOAWAY: the peer must open another connection for new calls, and gets answers to
        its current ones. h2's own GOAWAY would end those too. The caller holds the lock."""
        if not self._parting:
            self._parting = True
            last = self._h2.highest_inbound_stream_id
            self._write(memoryview(GoAwayFrame(0, last_stream_id=last).serialize()))

    def _answer_last_calls(self) -> None:
        """Read no more, and let the calls in flight be answered; `Server.close` waits for that.

        The reading side stays open, because its end would make TLS end the writing side too.
        """
        with self._changed:
            self._part()
            self._changed.wait_for(lambda: not self._streams, _UNREAD_SECONDS)
