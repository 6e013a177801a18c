"""Leads kube-scheduler's calls to this process: writes it into the Service's EndpointSlice.

The Service has no selector: whoever leads says so itself, in one object that names one address. So
both replicas can be ready, which rollouts and disruption budgets need, and a switch waits for no
probe. The slice is written over the version that was read: a leader that is none any more cannot
undo what the next one wrote.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import msgspec

from linkwise.extender.leading import Lead
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError

_MANAGER = "linkwise-extender"


class _Slice(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    api_version: str = "discovery.k8s.io/v1"
    kind: str = "EndpointSlice"
    metadata: Mapping[str, Any]
    address_type: str
    endpoints: tuple[Mapping[str, Any], ...] | None = ()
    ports: tuple[Mapping[str, Any], ...] | None = ()


class _Port(msgspec.Struct):
    name: str = ""


class _ServiceSpec(msgspec.Struct):
    ports: tuple[_Port, ...] = ()


class _Meta(msgspec.Struct):
    name: str
    uid: str


class _Service(msgspec.Struct):
    metadata: _Meta
    spec: _ServiceSpec


class Calling:
    """`take()` the calls to *service* over to *address* and *port*."""

    def __init__(
        self,
        client: KubeClient,
        lead: Lead,
        *,
        namespace: str,
        service: str,
        address: str,
        port: int,
    ) -> None:
        self._client, self._lead = client, lead
        self._slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._service_path = f"/api/v1/namespaces/{namespace}/services/{service}"
        self._service, self._name = service, f"{service}-leader"
        self._address, self._port = address, port

    def take(self) -> None:
        """Nothing is written where it says so already. Raises ApiError, ValidationError."""
        with self._client.within(self._lead.write_seconds()):
            found = self._read()
            if found is None:
                self._client.post(self._slices, self._new())
            elif found.endpoints != self._endpoints:
                moved = msgspec.structs.replace(found, endpoints=self._endpoints)
                self._client.put(f"{self._slices}/{self._name}", moved)

    @property
    def _endpoints(self) -> tuple[Mapping[str, Any], ...]:
        return ({"addresses": [self._address], "conditions": {"ready": True}},)

    def _read(self) -> _Slice | None:
        try:
            return self._client.get(f"{self._slices}/{self._name}", _Slice)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def _new(self) -> _Slice:
        service = self._client.get(self._service_path, _Service)
        name = service.spec.ports[0].name if service.spec.ports else ""
        owner = {"apiVersion": "v1", "kind": "Service"}
        owner |= {"name": service.metadata.name, "uid": service.metadata.uid}
        return _Slice(
            metadata={
                "name": self._name,
                "labels": {
                    "kubernetes.io/service-name": self._service,
                    "endpointslice.kubernetes.io/managed-by": _MANAGER,
                },
                "ownerReferences": [owner],  # it goes with the Service
            },
            address_type=f"IPv{ip_address(self._address).version}",
            endpoints=self._endpoints,
            ports=({"name": name, "port": self._port, "protocol": "TCP"},),
        )
