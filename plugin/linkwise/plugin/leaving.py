"""Takes what the plugin wrote off its Node, when Linkwise is removed from the cluster.

A program that is told to end is not told why: an update, a restart by hand and a removal look the
same from inside. What tells them apart is the plugin's own DaemonSet. While it is there, another
plugin will follow on this node, and the topology, the labels and what is in use stay for it and for
whoever reads them meanwhile. Where it is gone or going, nobody follows, and what nobody keeps true
must not stay.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec
from tenacity import Retrying, retry_if_exception, stop_after_delay
from tenacity.wait import wait_random_exponential

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.kube.objects import Node, ObjectMeta
from linkwise.plugin.publish import written_by_us

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 20.0  # of the minute between SIGTERM and SIGKILL
_LONGEST_WAIT_SECONDS = 2.0

T = TypeVar("T")


class _Owner(msgspec.Struct):
    metadata: ObjectMeta


def clean_up_if_removed(client: KubeClient, node_name: str, daemonset: str) -> None:
    """*daemonset* is NAMESPACE/NAME. Never raises: what could not be done is logged."""
    try:
        if not _patiently(lambda: _removed(client, daemonset)):
            return
        _patiently(lambda: _clean(client, node_name))
    except (ApiError, msgspec.MsgspecError) as error:
        log.warning(
            "node: labels and annotations stay as they are, since it cannot be told whether "
            "Linkwise is being removed, or they cannot be removed: %s",
            error,
        )


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
    log.info("node: Linkwise is being removed, and its labels and annotations have been")


def _patiently(request: Callable[[], T]) -> T:
    """Asked again while the API server is busy or away, but not for long."""
    return Retrying(
        retry=retry_if_exception(_may_pass),
        wait=wait_random_exponential(multiplier=0.2, max=_LONGEST_WAIT_SECONDS),
        stop=stop_after_delay(_PATIENCE_SECONDS),
        reraise=True,
    )(request)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ApiError) and (error.status in (0, 429) or error.status >= 500)
