"""Leads kube-scheduler's calls to this process: writes it into the Service's EndpointSlice.

The Service has no selector: whoever leads says so itself, in objects that name one address. So both
replicas can be ready, which rollouts and disruption budgets need, and a switch waits for no probe.
kube-proxy goes by EndpointSlices; the API server, which passes people's requests on to Services
(`kubectl linkwise`), by the older Endpoints. Both are written over the version that was read: a
leader that is none any more cannot undo what the next one wrote.
"""

from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any

import msgspec

from linkwise.extender.leading import Lead
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError

_MANAGER = "linkwise-extender"
_Object = dict[str, Any]


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
    """`take()` the calls to *service* over to this pod, by its name, address and port."""

    def __init__(
        self,
        client: KubeClient,
        lead: Lead,
        *,
        namespace: str,
        service: str,
        pod: str,
        address: str,
        port: int,
    ) -> None:
        self._client, self._lead = client, lead
        self._namespace, self._service = namespace, service
        self._slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._core = f"/api/v1/namespaces/{namespace}"
        self._pod, self._address, self._port = pod, address, port

    def take(self) -> None:
        """Nothing is written where it says so already. Raises ApiError, ValidationError."""
        here = [{"addresses": [self._address], "conditions": {"ready": True}}]
        pod = {"kind": "Pod", "namespace": self._namespace, "name": self._pod}
        addresses = [{"ip": self._address, "targetRef": pod}]
        with self._client.within(self._lead.write_seconds()):
            self._bring(self._slices, f"{self._service}-leader", {"endpoints": here}, self._slice)
            self._bring(
                f"{self._core}/endpoints",
                self._service,
                {"subsets": [{"addresses": addresses}]},
                self._endpoints,
            )

    def _bring(
        self,
        collection: str,
        name: str,
        said: _Object,
        make: Callable[[_Service, _Object], _Object],
    ) -> None:
        """Have the object say so; *make* it where there is none."""
        path = f"{collection}/{name}"
        try:
            found = self._client.get(path, _Object)
        except ApiError as error:
            if error.status != 404:
                raise
            service = self._client.get(f"{self._core}/services/{self._service}", _Service)
            self._client.post(collection, _named(name, service, make(service, said)))
        else:
            moved = _over(found, said)
            if moved != found:
                self._client.put(path, moved)

    def _slice(self, service: _Service, said: _Object) -> _Object:
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "labels": {
                    "kubernetes.io/service-name": self._service,
                    "endpointslice.kubernetes.io/managed-by": _MANAGER,
                }
            },
            "addressType": f"IPv{ip_address(self._address).version}",
            "ports": self._ports(service),
            **said,
        }

    def _endpoints(self, service: _Service, said: _Object) -> _Object:
        (subset,) = said["subsets"]
        return {
            "apiVersion": "v1",
            "kind": "Endpoints",
            # Else Kubernetes would make a second slice of it.
            "metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            "subsets": [{**subset, "ports": self._ports(service)}],
        }

    def _ports(self, service: _Service) -> list[_Object]:
        name = service.spec.ports[0].name if service.spec.ports else ""
        return [{"name": name, "port": self._port, "protocol": "TCP"}]


def _named(name: str, service: _Service, made: _Object) -> _Object:
    """It goes with the Service."""
    owner = {"apiVersion": "v1", "kind": "Service"}
    owner |= {"name": service.metadata.name, "uid": service.metadata.uid}
    return {**made, "metadata": {"name": name, "ownerReferences": [owner], **made["metadata"]}}


def _over(found: Any, said: Any) -> Any:
    """*found* with what is *said*; what it says beside, as of ports, stays."""
    if isinstance(found, Mapping) and isinstance(said, Mapping):
        return {**found, **{key: _over(found.get(key), value) for key, value in said.items()}}
    if isinstance(found, list) and isinstance(said, list) and len(found) == len(said):
        return [_over(one, other) for one, other in zip(found, said, strict=True)]
    return said
