"""Certificates and clients for ports with TLS."""

import http.client
import socket
import ssl
from datetime import UTC, datetime, timedelta
from tempfile import NamedTemporaryFile

from linkwise.serving.certificates.pairs import (
    AUTHORITY,
    Lifetime,
    Pair,
    issue_client,
    issue_server,
    make_authority,
)
from linkwise.serving.greeting import Greeting, greet_known

HOST = "127.0.0.1"
SCHEDULER = "system:kube-scheduler"


class Authority:
    """An authority of its own, as the extender has one."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.pair = make_authority(["test"], self.now, AUTHORITY)

    def greeting(self, *names: str) -> Greeting:
        """Lets in clients that this authority certifies under these names."""
        shown = issue_server(self.pair, [HOST], self.now, Lifetime())
        return greet_known(shown, self.pair.certificate, names or (SCHEDULER,))

    def client(self, called: str = SCHEDULER, *, expired: bool = False) -> Pair:
        made = self.now - timedelta(days=200) if expired else self.now
        return issue_client(self.pair, called, made, Lifetime())

    def context(self, shown: Pair | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority, and shows a certificate or none."""
        context = ssl.create_default_context(cadata=self.pair.certificate.decode())
        if shown is not None:
            with NamedTemporaryFile() as file:
                file.write(shown.certificate + shown.key)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def connect(
        self,
        port: int,
        shown: Pair | None = None,
        *,
        source: str = "127.0.0.1",
        context: ssl.SSLContext | None = None,
    ) -> http.client.HTTPSConnection:
        """That connects with the first call. Linux has all of 127.0.0.0/8 for sources."""
        return http.client.HTTPSConnection(
            HOST,
            port,
            context=context or self.context(shown),
            timeout=30,
            source_address=(source, 0),
        )


def stranger(port: int, source: str = "127.0.0.2") -> socket.socket:
    """A connection that has said nothing yet."""
    return socket.create_connection((HOST, port), 30, source_address=(source, 0))


def ask(
    connection: http.client.HTTPConnection, path: str, body: bytes = b"", method: str = "POST"
) -> tuple[int, bytes]:
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def ask_once(connection: http.client.HTTPSConnection) -> int:
    """The status of a call over a connection that is not kept."""
    try:
        return ask(connection, "/", b"x")[0]
    finally:
        connection.close()
