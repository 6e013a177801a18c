"""Reads the ResourceClaimTemplate of a pod while the API server waits for the pod's patch.

It is the only read of an admission (docs/decisions/kubernetes.md#12-the-webhook), and it is short:
a pod whose template is not read in time is left alone.
"""

import logging
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import msgspec

from linkwise.kube.errors import ApiError
from linkwise.pods.claims import OBJECT_NAME
from linkwise.webhook.claims import ClaimTemplate

log = logging.getLogger(__name__)
_SECONDS = 0.5  # the API server itself waits for 2

T = TypeVar("T")


class ReadingApi(Protocol):
    def get(self, path: str, kind: type[T]) -> T: ...

    def within(self, seconds: float) -> AbstractContextManager[None]: ...


def no_template(_namespace: str, _name: str) -> ClaimTemplate | None:
    return None


class TemplateReader:
    def __init__(self, client: ReadingApi) -> None:
        self._client = client

    def read(self, namespace: str, name: str) -> ClaimTemplate | None:
        if not OBJECT_NAME.fullmatch(namespace):  # all who reach the port can send one
            return None
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates/{name}"
        try:
            with self._client.within(_SECONDS):
                return self._client.get(path, ClaimTemplate)
        except (ApiError, msgspec.DecodeError) as error:
            log.warning(
                "ResourceClaimTemplate %s/%s cannot be read, so its pod is left alone: %s",
                namespace,
                name,
                error,
            )
            return None
