"""Removes what the plugin wrote on its Node, when Linkwise is removed from the cluster or the node.

SIGTERM does not say why the plugin must end: an update, a restart by hand and a removal look the
same from inside. The plugin's own DaemonSet makes the difference. While it exists, another plugin
will follow on this node. Then the topology, the labels and what is in use stay, for that plugin and
for others that read them meanwhile. If the DaemonSet is gone or being deleted, or its nodeSelector
does not match the Node any more, no plugin follows, and what no plugin updates must not stay.
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


class _PodSpec(msgspec.Struct, rename="camel"):
    node_selector: dict[str, str] = {}


class _Template(msgspec.Struct):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _Spec(msgspec.Struct):
    template: _Template = msgspec.field(default_factory=_Template)


class _Owner(msgspec.Struct):
    metadata: ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)


class Leaving:
    """If no plugin follows on this Node, removes what the plugin wrote on it."""

    def __init__(self, client: KubeClient, node_name: str, daemonset: str) -> None:
        """*daemonset* is NAMESPACE/NAME."""
        self._client, self._node_name, self._daemonset = client, node_name, daemonset
        self.answered = Event()
        """The API server answers, even if only that it is busy: the cleaning will be done."""

    def clean_up_if_removed(self) -> None:
        """Never raises; logs what it could not do."""
        try:
            if self._patiently(self._is_last):
                self._patiently(lambda: _clean(self._client, self._node_name))
        except (ApiError, msgspec.MsgspecError) as error:
            log.warning(
                "node: labels and annotations stay as they are: it is unknown whether Linkwise is "
                "being removed, or they cannot be removed: %s",
                error,
            )

    def _is_last(self) -> bool:
        """Whether no plugin follows on this node."""
        owner = _owner(self._client, self._daemonset)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return True
        selector = owner.spec.template.spec.node_selector
        if not selector:
            return False
        labels = self._client.get(f"/api/v1/nodes/{self._node_name}", Node).metadata.labels
        return any(labels.get(key) != value for key, value in selector.items())

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


def _owner(client: KubeClient, daemonset: str) -> _Owner | None:
    """The plugin's DaemonSet; None if it is gone."""
    namespace, _, name = daemonset.partition("/")
    try:
        return client.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}", _Owner)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _clean(client: KubeClient, node_name: str) -> None:
    path = f"/api/v1/nodes/{node_name}"
    try:
        patch = written_by_us(client.get(path, Node))
        if patch:
            client.patch(path, {"metadata": patch})
    except ApiError as error:
        if error.status != 404:  # the Node itself is gone, and everything with it
            raise
    log.info("node: removed the labels and annotations, as no plugin follows here")


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ApiError) and (error.status in (UNREACHED, 429) or error.status >= 500)
