"""The ConfigMap with the places that gangs keep for members to come (`state.noted_places`)."""

import logging

import msgspec

from linkwise.extender.state.actions import NotePlaces
from linkwise.extender.state.noted_places import NAME
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError

log = logging.getLogger(__name__)


class _ConfigMap(msgspec.Struct, frozen=True):
    data: dict[str, str] = {}


class Places:
    """Every method may raise ApiError. Without the ConfigMap and the right to it, which older
    manifests lack, the places are in this process's memory only."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._all = f"/api/v1/namespaces/{namespace}/configmaps"

    def read(self) -> dict[str, str]:
        try:
            return self._client.get(f"{self._all}/{NAME}", _ConfigMap).data
        except ApiError as error:
            self._only_in_memory(error, 404)
            return {}

    def write(self, action: NotePlaces) -> None:
        """The manifests bring the ConfigMap; without them it is created here."""
        try:
            self._client.patch(f"{self._all}/{NAME}", {"data": {action.key: action.text}})
        except ApiError as error:
            self._only_in_memory(error, 404)
            if error.status == 404 and action.text is not None:
                self._create({action.key: action.text})

    def _create(self, data: dict[str, str]) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}}
        try:
            self._client.post(self._all, {**body, "data": data})
        except ApiError as error:
            self._only_in_memory(error)

    def _only_in_memory(self, error: ApiError, *expected: int) -> None:
        """Raise an error that is neither *expected* nor the lack of a right."""
        if error.status in expected:
            return
        if error.status != 403:
            raise error
        log.warning("%s: a new leader will not know the places of members to come", error)
