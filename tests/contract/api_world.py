"""An API server over plain HTTP, whichever it is: the stand-in, or the real one.

The scenarios know nothing of the difference. They get a namespace of their own, so that one server
serves them all; what cannot be asked for over HTTP, that it forget its history, is a method here.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import urllib3

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NODES = "/api/v1/nodes"

Object = dict[str, Any]

_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is what its JSON says."""

    status: int
    body: Any

    @property
    def refusal(self) -> tuple[int, str]:
        """The code and the reason of an answer that is a Status."""
        assert self.body["kind"] == "Status", self.body
        assert (self.body["status"], self.body["code"]) == ("Failure", self.status), self.body
        return self.status, self.body["reason"]

    @property
    def object(self) -> Object:
        """The object of an answer that is one."""
        assert self.status in (200, 201), self.body
        return dict(self.body)


@dataclass(frozen=True)
class Server:
    """A running API server, and how a test makes it do what no client may ask for."""

    url: str
    pool: urllib3.PoolManager
    add_namespace: Callable[[str], None]
    forget_history: Callable[[], None]


class Api:
    """What one scenario sees of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.namespace = f"c{next(_NUMBERS)}"
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"
        server.add_namespace(self.namespace)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        query: Mapping[str, object] | None = None,
    ) -> Answer:
        sent = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        answer = self._server.pool.request(
            method,
            f"{self._server.url}{path}{'?' if query else ''}{urlencode(query or {})}",
            body=sent,
            headers={"content-type": content_type, "accept": "application/json"},
            retries=False,
        )
        return Answer(answer.status, json.loads(answer.data))

    def query(self, path: str, **query: object) -> Answer:
        return self.ask("GET", path, query=query)

    def get(self, path: str) -> Object:
        return self.ask("GET", path).object

    def patch(self, path: str, patch: object, content_type: str = MERGE) -> Answer:
        return self.ask("PATCH", path, patch, content_type)

    @contextmanager
    def watch(self, path: str, **query: object) -> Iterator[Iterator[Object]]:
        """The events of a watch, until the server ends it or the scenario has seen enough."""
        answer = self._server.pool.request(
            "GET",
            f"{self._server.url}{path}?{urlencode({'watch': 'true', **query})}",
            preload_content=False,
            retries=False,
            timeout=15.0,
        )
        assert answer.status == 200, answer.data
        try:
            yield (json.loads(line) for line in answer)
        finally:
            answer.close()

    def forget_history(self) -> None:
        """Make every version so far too old to watch or page from."""
        self._server.forget_history()

    # Objects that most scenarios need

    def pod(self, name: str = "w", **spec: object) -> Object:
        """Create a pod of one container; `metadata` is the rest of its metadata."""
        metadata = spec.pop("metadata", {})
        assert isinstance(metadata, Mapping)
        body = {
            "metadata": {"name": name, **metadata},
            "spec": {"containers": [{"name": "main", "image": "x"}], **spec},
        }
        return self.ask("POST", self.pods, body).object

    def bind(self, name: str = "w", node: str = "n1", **metadata: object) -> Answer:
        body = {
            "metadata": {"name": name, **metadata},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        return self.ask("POST", f"{self.pods}/{name}/binding", body)

    def node(self, name: str, **status: object) -> Object:
        """Create a node, of a name that is this scenario's alone."""
        body = {"metadata": {"name": self.node_name(name)}, "status": status}
        return self.ask("POST", NODES, body).object

    def node_name(self, name: str) -> str:
        return f"{self.namespace}-{name}"

    def version(self) -> str:
        """The version of everything as it is now."""
        return version_of(self.get(self.pods))


def version_of(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["resourceVersion"])


def names(listed: Mapping[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]
