"""An API server of a few objects, each with a version, for the keepers of certificates."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

import msgspec

from linkwise.kube.errors import ApiError

T = TypeVar("T")


class Objects:
    """By path. *before_put* comes in between a read and a write, once."""

    def __init__(self, objects: dict[str, dict[str, Any]]) -> None:
        self.objects = objects
        self.versions = dict.fromkeys(objects, 1)
        self.writes: list[str] = []  # paths
        self.down = False
        self.before_put: Callable[[], None] | None = None

    def get(self, path: str, kind: type[T]) -> T:
        if self.down:
            raise ApiError(0, "Unreachable", f"GET {path}")
        if path not in self.objects:
            raise ApiError(404, "NotFound", path)
        made = deepcopy(self.objects[path])
        made.setdefault("metadata", {})["resourceVersion"] = str(self.versions[path])
        return msgspec.json.decode(json.dumps(made), type=kind)

    def put(self, path: str, body: object) -> None:
        if self.before_put:
            between, self.before_put = self.before_put, None
            between()
        assert isinstance(body, dict)
        if body["metadata"]["resourceVersion"] != str(self.versions[path]):
            raise ApiError(409, "Conflict", path)
        self.written(path)
        self.objects[path] = body

    def written(self, path: str) -> None:
        self.versions[path] += 1
        self.writes.append(path)
