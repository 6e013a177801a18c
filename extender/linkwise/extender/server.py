"""The port of kube-scheduler: its four calls, from callers who are known, and nothing else.

Two calls a pod come over a handful of connections that are kept open, and every microsecond is
taken from the scheduler beside us: so a thread per connection reads a call, answers it and writes,
with the standard library's HTTP (docs/decisions/0009-http-server.md has the figures). For binds at
the same time kube-scheduler opens connections that it does not keep, so threads are used again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import BoundedSemaphore

from linkwise.extender.serving.greeting import Caller
from linkwise.extender.serving.handler import Handler
from linkwise.extender.serving.server import Places, Server
from linkwise.extender.verbs import VERBS, Reply, Verbs

# kube-scheduler keeps two connections, and opens more for binds at the same time. Handshakes of
# such a moment, and of strangers, share the other places.
MOST_CONNECTIONS = Places(strangers=1000, known=1000)
# Names of 5,000 nodes are a tenth of it; what is larger has whole nodes in it, or is no call.
_LARGE_BODY = 1 << 20
_LARGE_AT_ONCE = 2  # read and answered; more would cost memory
_PATHS = {f"/{verb}": verb for verb in VERBS}


class VerbServer(Server):
    """*threads* pods are bound at the same time, and as many other calls answered: binds wait for
    the API server, and nobody else may wait for them. A call that is older than *call_seconds* is
    not carried out, as its caller has given up.

    Without *secure*, whoever reaches the port is served.
    """

    def __init__(
        self,
        address: str,
        port: int,
        verbs: Verbs,
        *,
        threads: int,
        call_seconds: float,
        secure: bool,
        count: Callable[[str], object] = lambda _result: None,
        met: Callable[[Caller], object] = lambda _caller: None,
    ) -> None:
        self.verbs, self.call_seconds = verbs, call_seconds
        self.answering, self.binding = BoundedSemaphore(threads), BoundedSemaphore(threads)
        self._large = BoundedSemaphore(_LARGE_AT_ONCE)
        places = MOST_CONNECTIONS
        super().__init__(address, port, _Handler, places, secure=secure, count=count, met=met)

    @contextmanager
    def room_for(self, length: int) -> Iterator[None]:
        """Around a body of *length* bytes, from its first byte to its answer."""
        with self._large if length > _LARGE_BODY else nullcontext():
            yield


class _Handler(Handler):
    server: VerbServer
    methods = frozenset({"POST"})

    def serve(self) -> None:
        verb = _PATHS.get(self.path)
        if verb is None:
            self.refuse(404, f"{self.path}: no such call; people ask at another port")
            return
        with self.server.call():
            self._serve(verb)
            self.wfile.flush()

    def _serve(self, verb: str) -> None:
        server = self.server
        length = self.length()
        if length is None:
            return
        if length > server.verbs.max_body:
            self.close_connection = True
            self._reply(server.verbs.too_large(verb))
            self.hear_out()
            return
        with server.room_for(length):
            body = self.body(length)
            if body is None:
                return
            with server.binding if verb == "bind" else server.answering:
                reply = server.verbs.answer(verb, body, self._waits)
        if reply is None:  # nobody is there to hear it
            self.close_connection = True
        else:
            self._reply(reply)

    def _waits(self) -> bool:
        """Whether the caller still waits for the answer."""
        age = time.monotonic() - self.arrived
        return age < self.server.call_seconds and self.caller_waits()

    def _reply(self, reply: Reply) -> None:
        # A kept connection would bring every further call here, whomever the Service leads to.
        self.close_connection |= reply.parting
        timing = f"Server-Timing: {reply.timing}"
        self.write(reply.status, "application/json", reply.body, timing)
