"""Forwards requests to Services, as the API server does at `services/NAME:PORT/proxy/`.

So `kubectl linkwise` and a browser reach an extender that is a process of this machine.
"""

import re

from aiohttp import ClientError, ClientSession, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from linkwise.simulator.api_server.refusals import (
    RequestRefusedError,
    method_not_allowed,
    not_found,
)

_PATH = re.compile(
    r"/api/v1/namespaces/(?P<namespace>[^/]+)/services/(?P<port>[^/]+)/proxy(?P<rest>(?:/.*)?)"
)
_METHODS = ("GET", "POST")
# They belong to one connection, or are written again.
_OF_A_HOP = ("connection", "keep-alive", "transfer-encoding", "host", "date", "te", "upgrade")


class ServiceProxy:
    def __init__(self) -> None:
        self._urls: dict[tuple[str, str], str] = {}

    def forward(self, namespace: str, port: str, url: str) -> None:
        """Send requests for *port*, like `linkwise-extender:http`, to the server at *url*."""
        self._urls[namespace, port] = url

    async def serve(self, request: web.Request) -> web.StreamResponse | None:
        """Answer with what the Service answers; None: the path is no Service's. Raises
        RequestRefusedError."""
        found = _PATH.fullmatch(request.rel_url.raw_path)
        if found is None:
            return None
        url = self._urls.get((found["namespace"], found["port"]))
        if url is None:
            raise not_found("services", found["port"].partition(":")[0])
        if request.method not in _METHODS:
            raise method_not_allowed()
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        return await _passed_on(request, f"{url}{found['rest'] or '/'}{query}")


async def _passed_on(request: web.Request, url: str) -> web.StreamResponse:
    answer: web.StreamResponse | None = None
    try:
        async with (
            ClientSession(auto_decompress=False) as session,
            session.request(
                request.method,
                URL(url, encoded=True),
                headers=_kept(request.headers),
                data=await request.read() or None,
                allow_redirects=False,
            ) as served,
        ):
            answer = web.StreamResponse(status=served.status, headers=_kept(served.headers))
            await answer.prepare(request)
            async for part in served.content.iter_any():  # the live page's events never end
                await answer.write(part)
            await answer.write_eof()
    except ClientError as error:
        if answer is None:
            raise RequestRefusedError(503, "ServiceUnavailable", f"{url}: {error}") from None
    assert answer is not None
    return answer


def _kept(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict((k, v) for k, v in headers.items() if k.lower() not in _OF_A_HOP)
