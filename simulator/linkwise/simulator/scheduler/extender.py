"""kube-scheduler's calls to an extender, in its wire format and with its rules for answers.

`nodeCacheCapable: true`: a request has the names of nodes, not the nodes. Fields are PascalCase,
and nil pointers of Go are null. An answer that kube-scheduler drops silently (a score that is not
an integer) is dropped here too. One that ends its cycle raises ExtenderError.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import urllib3

from linkwise.kube.objects import Pod

log = logging.getLogger(__name__)

T = TypeVar("T")


class ExtenderError(Exception):
    """The call failed, or the answer broke the protocol. The scheduler retries the pod later."""


class _FilterResult(msgspec.Struct, rename="pascal"):
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str | None = None


class _HostPriority(msgspec.Struct, rename="pascal"):
    host: str
    score: int


class _BindingResult(msgspec.Struct, rename="pascal"):
    error: str | None = None


class _MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID")


class _MetaVictims(msgspec.Struct):
    pods: list[_MetaPod] | None = msgspec.field(name="Pods", default=None)
    pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptionResult(msgspec.Struct):
    victims: dict[str, _MetaVictims] | None = msgspec.field(
        name="NodeNameToMetaVictims", default=None
    )


@dataclass(frozen=True, slots=True)
class Filtered:
    """*passed* is in the extender's order; *failed* and *unresolvable* give a reason each."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]


class ExtenderClient:
    def __init__(
        self, url: str, *, managed_resources: Iterable[str], timeout_seconds: float = 5.0
    ) -> None:
        self._url = url.rstrip("/")
        self._managed = frozenset(managed_resources)
        # Binds run concurrently and without a limit, as in kube-scheduler.
        self._http = urllib3.PoolManager(maxsize=32, timeout=timeout_seconds, retries=False)

    def is_interested(self, pod: Pod) -> bool:
        """An extender without managed resources is interested in every pod."""
        if not self._managed:
            return True
        containers = (*pod.spec.init_containers, *pod.spec.containers)
        named = {r for c in containers for r in (*c.resources.requests, *c.resources.limits)}
        return bool(named & self._managed)

    def filter(self, pod: Pod, nodes: Sequence[str]) -> Filtered:
        result = self._call("filter", _args(pod, nodes), _FilterResult)
        if result.error:
            raise ExtenderError(result.error)
        passed = tuple(result.node_names or ())
        unknown = set(passed) - set(nodes)
        if unknown:
            name = sorted(unknown)[0]
            raise ExtenderError(f'extender "{self._url}" claims a filtered node "{name}"')
        return Filtered(
            passed, result.failed_nodes or {}, result.failed_and_unresolvable_nodes or {}
        )

    def prioritize(self, pod: Pod, nodes: Sequence[str]) -> dict[str, int]:
        """Return node -> score; empty if there is no answer, which kube-scheduler accepts."""
        try:
            scores = self._call("prioritize", _args(pod, nodes), list[_HostPriority])
        except ExtenderError as error:
            log.info("prioritize ignored: %s", error)
            return {}
        return {one.host: one.score for one in scores}

    def preempt(self, pod: Pod, victims: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """Return node -> uids to evict, for a subset of the scheduler's candidates."""
        asked = {
            node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
            for node, uids in victims.items()
        }
        body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": asked}
        result = self._call("preempt", body, _PreemptionResult)
        return {
            node: tuple(one.uid for one in chosen.pods or ())
            for node, chosen in (result.victims or {}).items()
            if node in victims
        }

    def bind(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        body = {
            "PodName": meta.name,
            "PodNamespace": meta.namespace,
            "PodUID": meta.uid,
            "Node": node,
        }
        result = self._call("bind", body, _BindingResult)
        if result.error:
            raise ExtenderError(result.error)

    def close(self) -> None:
        self._http.clear()

    def _call(self, verb: str, body: object, kind: type[T]) -> T:
        url = f"{self._url}/{verb}"
        headers = {"content-type": "application/json"}
        try:
            answer = self._http.request(
                "POST", url, body=msgspec.json.encode(body), headers=headers
            )
        except urllib3.exceptions.HTTPError as error:
            raise ExtenderError(f'Post "{url}": {error}') from error
        if answer.status != 200:
            raise ExtenderError(
                f"failed {verb} with extender at URL {self._url}, code {answer.status}"
            )
        try:
            return msgspec.json.decode(answer.data, type=kind)
        except msgspec.MsgspecError as error:
            raise ExtenderError(f"{url}: {error}") from error


def _args(pod: Pod, nodes: Sequence[str]) -> dict[str, object]:
    return {"Pod": pod, "Nodes": None, "NodeNames": nodes}
