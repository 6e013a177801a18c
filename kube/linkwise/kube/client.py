"""Requests to the API server. The kubernetes package configures them; msgspec decodes the answers.

The package handles kubeconfig files, a pod's token (which changes every hour), proxies and TLS. Its
generated models decode twenty times slower than msgspec and hold every field, so answers decode
straight into the caller's structs. Safe to use from several threads.

The client never repeats a write: its caller decides that, and `ApiError.maybe_done` says whether
the write may have happened. It repeats a read once if the connection breaks or stays silent, since
an idle connection may be closed. It never requests an answer twice.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from http.client import HTTPException
from threading import Lock, local
from typing import Protocol, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from linkwise.kube.clock import ServerClock
from linkwise.kube.connections import Connections, UnsentError
from linkwise.kube.errors import UNREACHED, ApiError, LoadError, error_of
from linkwise.kube.structs import build_structs

__all__ = ["ApiError", "KubeClient", "LoadError", "Stream"]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

# The callers ignore the answer to a patch; this is the shortest one that the API server offers.
_WITHOUT_SPEC = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_CONNECTIONS = 96  # threads that send requests at the same time: 64 Bindings of a gang, and others
_ONCE_MORE = urllib3.Retry(
    # An idle connection that the server has closed shows that only when it is used.
    total=1,
    # The caller decides whether to wait for a busy server: it may have other work.
    respect_retry_after_header=False,
)

_SHORTEST_SECONDS = 0.001  # libraries reject a timeout of 0

T = TypeVar("T")
Params = Mapping[str, str | int]


class _Limit(local):
    """The deadline of a thread's requests."""

    ends = math.inf


class Stream(Protocol):
    """An open answer: yields lines as they come, until either side ends it."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """End the stream now, from any thread. The iteration then ends without an error."""


class KubeClient:
    """`timeout_seconds` limits connecting and each wait for bytes; every call has one. The client
    reads a token again after `token_seconds`. `clock` is the API server's."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        timeout_seconds: float = 10.0,
        token_seconds: float = 1.0,
    ) -> None:
        self.clock = ServerClock()
        configuration.connection_pool_maxsize = _CONNECTIONS
        configuration.keep_alive = True
        self._configuration = configuration
        self._credentials = Lock()  # guards everything below
        self._token, self._token_ends, self._token_seconds = "", 0.0, token_seconds
        self._pool: urllib3.PoolManager = RESTClientObject(configuration).pool_manager
        # Only the package's own pool can use a proxy or another TLS server name.
        plain = not isinstance(self._pool, urllib3.ProxyManager)
        direct = plain and not configuration.tls_server_name
        self._writes = (
            Connections(
                configuration,
                connect_seconds=min(timeout_seconds, 5.0),
                read_seconds=timeout_seconds,
                most=_CONNECTIONS,
            )
            if direct
            else None
        )
        self._timeout_seconds = timeout_seconds
        self._limit = _Limit()
        self._timeout = urllib3.Timeout(connect=min(timeout_seconds, 5.0), read=timeout_seconds)
        self.url: str = configuration.host.rstrip("/")
        build_structs()  # a program has its client before its threads

    @classmethod
    def load(cls, *, kubeconfig: str | None, server: str | None = None) -> "KubeClient":
        """Return a client of the API server at *server* (a plain URL), else of *kubeconfig*, else
        of the pod that this program runs in.

        Raises LoadError.
        """
        configuration = Configuration()
        if server:
            configuration.host = server
            configuration.proxy = None  # an explicit URL is reached directly
            return cls(configuration)
        try:
            if kubeconfig:
                load_kube_config(  # type: ignore[no-untyped-call]
                    kubeconfig, client_configuration=configuration
                )
            else:
                load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        # a malformed file can make the kubernetes package raise anything
        except Exception as error:
            source = f"kubeconfig {kubeconfig}" if kubeconfig else "no kubeconfig, and not in a pod"
            told = " ".join(str(error).split()) or type(error).__name__
            foreseen = isinstance(error, (ConfigException, OSError))
            raise LoadError(f"{source}: {told if foreseen else f'not one: {told}'}") from error
        return cls(configuration)

    def of_server(self, url: str) -> "KubeClient":
        """A client with the same credentials and authorities for another https server, which is
        reached directly."""
        configuration = copy(self._configuration)
        configuration.host, configuration.proxy, configuration.tls_server_name = url, None, None
        return KubeClient(configuration, timeout_seconds=self._timeout_seconds)

    def get(self, path: str, kind: type[T], *, params: Params | None = None) -> T:
        """Read the object or list at *path*.

        Raises ApiError, and msgspec.ValidationError if the answer is not a *kind*.
        """
        return msgspec.json.decode(self._read("GET", path, params), type=kind)

    def read(self, path: str, *, params: Params | None = None) -> bytes:
        """Return the bytes at *path*, which need not be JSON. Raises ApiError."""
        return self._read("GET", path, params)

    def post(self, path: str, body: object) -> None:
        """Create *body* (builtins, or a struct) in the collection at *path*. Raises ApiError."""
        self._read("POST", path, None, body, "application/json")

    def create(self, path: str, body: object, kind: type[T]) -> T:
        """Create as `post`, and return the object as stored."""
        return msgspec.json.decode(
            self._read("POST", path, None, body, "application/json"), type=kind
        )

    def replace(self, path: str, body: object, kind: type[T]) -> T:
        """Replace as `put`, and return the object as stored."""
        return msgspec.json.decode(
            self._read("PUT", path, None, body, "application/json"), type=kind
        )

    def put(self, path: str, body: object) -> None:
        """Replace the object at *path*; if *body* has a resourceVersion, only that version."""
        self._read("PUT", path, None, body, "application/json")

    def patch(self, path: str, body: object, *, content_type: str = MERGE_PATCH) -> None:
        """Change the object at *path*. A merge patch removes a field by null and replaces a list
        whole."""
        self._read("PATCH", path, None, body, content_type)

    def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        grace_seconds: int | None = None,
        foreground: bool = False,
    ) -> None:
        """Delete the object at *path*. With *uid*, another object there is 409 Conflict; with
        *version*, also the same object if it has changed. With
        *foreground* it exists until the objects that it owns are gone."""
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if version is not None:
            options["preconditions"] = {"uid": uid, "resourceVersion": version}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if foreground:
            options["propagationPolicy"] = "Foreground"
        self._read("DELETE", path, None, options, "application/json")

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Limit the requests of this thread inside the block to *seconds* in all.

        After that, neither the client nor the kernel sends one of them. Their own timeout holds if
        it is shorter.
        """
        before, self._limit.ends = self._limit.ends, time.monotonic() + seconds
        try:
            yield
        finally:
            self._limit.ends = before

    def stream(self, path: str, *, params: Params, idle_seconds: float) -> Stream:
        """Open a stream. Its iteration raises ApiError if the connection breaks.

        After *idle_seconds* without a byte it ends, as if the server had ended it.
        """
        timeout = urllib3.Timeout(connect=self._timeout.connect_timeout, read=idle_seconds)
        response = self._send("GET", path, params, timeout=timeout)
        if response.status != 200:
            raise _refusal(response, "GET", path)
        return _Lines(response, path)

    def _read(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: object = None,
        content_type: str = "",
    ) -> bytes:
        if self._writes is not None and method != "GET":
            return self._write(self._writes, method, path, body, content_type)
        response = self._send(method, path, params, body, content_type)
        if not 200 <= response.status < 300:
            raise _refusal(response, method, path)
        try:
            return response.data
        except urllib3.exceptions.HTTPError as error:
            raise _broken(method, path, error) from error
        finally:
            response.release_conn()

    def _write(
        self, connections: Connections, method: str, path: str, body: object, content_type: str
    ) -> bytes:
        headers = self._headers(method, path)
        headers["content-type"] = content_type
        if method == "PATCH":
            headers["accept"] = _WITHOUT_SPEC
        left, sent = self._limit.ends - time.monotonic(), self.clock.local()
        try:
            answer = connections.request(
                method, path, msgspec.json.encode(body), headers, seconds=left
            )
        except UnsentError as error:
            raise ApiError(UNREACHED, "Unreachable", f"{method} {path}: {error}") from error
        except (OSError, HTTPException) as error:
            told = f"{method} {path}: {str(error) or type(error).__name__}"
            raise ApiError(UNREACHED, "ConnectionBroken", told, maybe_done=True) from error
        if answer.status < 500:  # else it may be a proxy's
            self.clock.heard(answer.date, sent)
        if not 200 <= answer.status < 300:
            raise error_of(answer.status, answer.body, what=f"{method} {path}")
        return answer.body

    def _send(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: object = None,
        content_type: str = "",
        timeout: urllib3.Timeout | None = None,
    ) -> urllib3.BaseHTTPResponse:
        headers = self._headers(method, path)
        if content_type:
            headers["content-type"] = content_type
        left = self._limit.ends - time.monotonic()
        if timeout is None and left < self._timeout_seconds:
            timeout = urllib3.Timeout(total=max(left, _SHORTEST_SECONDS))
        sent = self.clock.local()
        try:
            response = self._pool.request(
                method,
                f"{self.url}{path}{'?' if params else ''}{urlencode(params or {})}",
                body=None if body is None else msgspec.json.encode(body),
                headers=headers,
                timeout=timeout or self._timeout,
                retries=_ONCE_MORE if method == "GET" else False,
                redirect=False,
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise _broken(method, path, error) from error
        if response.status < 500:  # else it may be a proxy's
            self.clock.heard(response.headers.get("Date"), sent)
        return response

    def _headers(self, method: str, path: str) -> dict[str, str]:
        headers = {"accept": "application/json", "user-agent": "linkwise"}
        try:
            token = self._current_token()
        except (ConfigException, OSError) as error:
            raise ApiError(UNREACHED, "NoCredentials", f"{method} {path}: {error}") from error
        if token:
            headers["authorization"] = token
        return headers

    def _current_token(self) -> str:
        """Return the token, cached. Tokens are replaced long before they expire, and each time the
        package looks at its sources it takes as long as a small request."""
        with self._credentials:  # the package does not lock its token file while it reads
            now = time.monotonic()
            if now >= self._token_ends:
                found = self._configuration.get_api_key_with_prefix(
                    "BearerToken", alias="authorization"
                )
                self._token, self._token_ends = found or "", now + self._token_seconds
            return self._token


class _Lines:
    def __init__(self, response: urllib3.BaseHTTPResponse, path: str) -> None:
        self._response = response
        self._path = path
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        try:
            for chunk in self._response.stream(1 << 20):
                if self._closed:  # `shutdown` ends TLS: what still arrives comes encrypted
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                yield from filter(None, lines)
        except urllib3.exceptions.ReadTimeoutError:
            return
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            # The last two come from reading after another thread has closed the socket.
            if not self._closed:
                raise _broken("GET", self._path, error) from error
        finally:
            self._response.close()

    def close(self) -> None:
        self._closed = True
        try:
            self._response.shutdown()  # wakes the thread that waits for bytes; close() does not
        except (RuntimeError, ValueError, OSError):
            self._response.close()  # the stream had already ended


def _refusal(response: urllib3.BaseHTTPResponse, method: str, path: str) -> ApiError:
    try:
        body = response.data
    except urllib3.exceptions.HTTPError as error:
        body = str(error).encode()
    finally:
        response.release_conn()
    return error_of(response.status, body, what=f"{method} {path}")


def _broken(method: str, path: str, error: Exception) -> ApiError:
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason is not None:
        error = error.reason
    unsent = isinstance(
        error,
        urllib3.exceptions.NewConnectionError
        | urllib3.exceptions.ConnectTimeoutError
        | urllib3.exceptions.SSLError,
    )
    reason = "Unreachable" if unsent else "ConnectionBroken"
    return ApiError(UNREACHED, reason, f"{method} {path}: {error}", maybe_done=not unsent)
