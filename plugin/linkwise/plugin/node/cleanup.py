"""Removes what the plugin wrote on its Node, when Linkwise is removed from the cluster.

SIGTERM does not say why the plugin must end: an update, a restart by hand and a removal look the
same from inside. The plugin's own DaemonSet makes the difference. While it exists, another plugin
will follow on this node. Then the topology, the labels and what is in use stay, for that plugin and
for others that read them meanwhile. If the DaemonSet is gone or being deleted, no plugin follows,
and what no plugin updates must not stay.
"""

import logging
import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

import msgspec
from tenacity import RetryCallState, Retrying, retry_if_exception
from tenacity.wait import wait_random_exponential

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import UNREACHED, ApiError
from linkwise.kube.objects import Node, ObjectMeta
from linkwise.plugin.node.publish import written_by_us

log = logging.getLogger(__name__)

_BUSY_SECONDS = 20.0  # of the minute between SIGTERM and SIGKILL; if the API server answers
_SILENT_SECONDS = 1.0  # if it does not: the end must not wait for what hangs
_LONGEST_WAIT_SECONDS = 2.0

T = TypeVar("T")


class _Owner(msgspec.Struct):
    metadata: ObjectMeta


class Leaving:
    """If the plugin's DaemonSet is gone or being deleted, removes what the plugin wrote on its
    Node."""

    def __init__(self, client: KubeClient, node_name: str, daemonset: str) -> None:
        """*daemonset* is NAMESPACE/NAME."""
        self._client, self._node_name, self._daemonset = client, node_name, daemonset
        self.answered = Event()
        """The API server answers, even if only that it is busy: the cleaning will be done."""

    def clean_up_if_removed(self) -> None:
        """Never raises; logs what it could not do."""
        try:
            if self._patiently(lambda: _removed(self._client, self._daemonset)):
                self._patiently(lambda: _clean(self._client, self._node_name))
        except (ApiError, msgspec.MsgspecError) as error:
            log.warning(
                "node: labels and annotations stay as they are: it is unknown whether Linkwise is "
                "being removed, or they cannot be removed: %s",
                error,
            )

    def _patiently(self, request: Callable[[], T]) -> T:
        """Retry *request* while the API server is busy, for `_BUSY_SECONDS` at most; while it does
        not answer at all, for `_SILENT_SECONDS`."""
        began = heard = time.monotonic()

        def enough(state: RetryCallState) -> bool:
            nonlocal heard
            now = time.monotonic()
            error = state.outcome.exception() if state.outcome else None
            if isinstance(error, ApiError) and error.status == UNREACHED:
                return now - heard > _SILENT_SECONDS
            heard = now
            self.answered.set()
            return now - began > _BUSY_SECONDS

        def ask() -> T:
            patience = _BUSY_SECONDS if self.answered.is_set() else _SILENT_SECONDS
            with self._client.within(patience):
                answer = request()
            self.answered.set()
            return answer

        return Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_random_exponential(multiplier=0.2, max=_LONGEST_WAIT_SECONDS),
            stop=enough,
            reraise=True,
        )(ask)


def _removed(client: KubeClient, daemonset: str) -> bool:
    namespace, _, name = daemonset.partition("/")
    try:
        found = client.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}", _Owner)
    except ApiError as error:
        if error.status == 404:
            return True
        raise
    return found.metadata.deletion_timestamp is not None


def _clean(client: KubeClient, node_name: str) -> None:
    path = f"/api/v1/nodes/{node_name}"
    try:
        patch = written_by_us(client.get(path, Node))
        if patch:
            client.patch(path, {"metadata": patch})
    except ApiError as error:
        if error.status != 404:  # the Node itself is gone, and everything with it
            raise
    log.info("node: removed the labels and annotations, as Linkwise is being removed")


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ApiError) and (error.status in (UNREACHED, 429) or error.status >= 500)
