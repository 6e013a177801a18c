"""The ConfigMap that holds the places that gangs keep for members to come (`api.noted_places`)."""

import msgspec

from linkwise.extender.api.actions import NotePlaces
from linkwise.extender.api.noted_places import NAME
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError


class _ConfigMap(msgspec.Struct, frozen=True):
    data: dict[str, str] = {}


class Places:
    """Every method may raise ApiError."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._all = f"/api/v1/namespaces/{namespace}/configmaps"

    def read(self) -> dict[str, str]:
        try:
            return self._client.get(f"{self._all}/{NAME}", _ConfigMap).data
        except ApiError as error:
            if error.status != 404:
                raise
            return {}

    def write(self, action: NotePlaces) -> None:
        """The manifests bring the ConfigMap; it is created here where somebody runs without."""
        try:
            self._client.patch(f"{self._all}/{NAME}", {"data": {action.key: action.text}})
        except ApiError as error:
            if error.status != 404 or action.text is None:
                raise
            data = {action.key: action.text}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}}
            self._client.post(self._all, {**body, "data": data})
