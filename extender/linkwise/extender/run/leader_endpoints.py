"""Routes kube-scheduler's calls to the leader: writes its address into the Service's EndpointSlice.

The Service has no selector. The leader writes its own address into the Service's endpoints, and it
is the only address there. So both replicas can be ready, which rollouts and disruption budgets
need, and a change of the leader waits for no probe. kube-proxy reads EndpointSlices. The API
server, which proxies users' requests to Services (`kubectl linkwise`), reads the older Endpoints
before Kubernetes 1.37, and from then on those endpoints of EndpointSlices that name their pod.
Each write carries the resourceVersion that was read, so a former leader cannot overwrite its
successor.

If the leader's machine dies, calls to it get no answer at all, and kube-scheduler, which tries one
pod at a time, waits for each of them. So a standby that no longer hears from the leader removes
the address long before it may lead itself: a Service without endpoints refuses calls at once.
"""

from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any

import msgspec

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError

_MANAGER = "linkwise-extender"
CALLS, STATUS = "https", "http"  # port names of the Service
_WITHDRAW_SECONDS = 1.0
_Object = dict[str, Any]


class _Meta(msgspec.Struct):
    name: str
    uid: str


class _Service(msgspec.Struct):
    metadata: _Meta


class LeaderEndpoints:
    """The endpoints of *service*: `take()` points them at this pod, `withdraw()` empties them.

    *ports* maps the Service's name of each port to its number.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        service: str,
        pod: str,
        address: str,
        ports: Mapping[str, int],
    ) -> None:
        self._client = client
        self._namespace, self._service = namespace, service
        self._slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._core = f"/api/v1/namespaces/{namespace}"
        self._pod, self._address = pod, address
        self._ports = [
            {"name": name, "port": port, "protocol": "TCP"} for name, port in ports.items()
        ]

    def take(self, seconds: float) -> None:
        """Point the Service at this pod, within *seconds*. If it does so already, nothing is
        written. Raises ApiError, ValidationError."""
        pod = {"kind": "Pod", "namespace": self._namespace, "name": self._pod}
        address = [self._address]
        here = [{"addresses": address, "conditions": {"ready": True}, "targetRef": pod}]
        addresses = [{"ip": self._address, "targetRef": pod}]
        with self._client.within(seconds):
            self._bring(
                self._slices,
                f"{self._service}-leader",
                {"endpoints": here, "ports": self._ports},
                self._slice,
            )
            self._bring(
                f"{self._core}/endpoints",
                self._service,
                {"subsets": [{"addresses": addresses, "ports": self._ports}]},
                self._endpoints,
            )

    def withdraw(self) -> None:
        """Remove the address of any pod. Calls are refused until a leader takes them. Raises
        ApiError, ValidationError."""
        with self._client.within(_WITHDRAW_SECONDS):
            for path, addresses in (
                (f"{self._slices}/{self._service}-leader", "endpoints"),
                (f"{self._core}/endpoints/{self._service}", "subsets"),
            ):
                found = self._client.get(path, _Object)
                if found.get(addresses):
                    self._client.put(path, {**found, addresses: []})

    def _bring(
        self,
        collection: str,
        name: str,
        said: _Object,
        make: Callable[[_Object], _Object],
    ) -> None:
        """Write *said* into the object; if it does not exist, create it with *make*."""
        path = f"{collection}/{name}"
        try:
            found = self._client.get(path, _Object)
        except ApiError as error:
            if error.status != 404:
                raise
            service = self._client.get(f"{self._core}/services/{self._service}", _Service)
            self._client.post(collection, _named(name, service, make(said)))
        else:
            moved = _over(found, said)
            if moved != found:
                self._client.put(path, moved)

    def _slice(self, said: _Object) -> _Object:
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
            **said,
        }

    def _endpoints(self, said: _Object) -> _Object:
        return {
            "apiVersion": "v1",
            "kind": "Endpoints",
            # Without this label, Kubernetes would mirror it into a second EndpointSlice.
            "metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
            **said,
        }


def _named(name: str, service: _Service, made: _Object) -> _Object:
    """*made* with its name, and with the Service as its owner: both are deleted together."""
    owner = {"apiVersion": "v1", "kind": "Service"}
    owner |= {"name": service.metadata.name, "uid": service.metadata.uid}
    return {**made, "metadata": {"name": name, "ownerReferences": [owner], **made["metadata"]}}


def _over(found: Any, said: Any) -> Any:
    """*found* overwritten with *said*; its other fields stay, and so does the order of ports."""
    if isinstance(found, Mapping) and isinstance(said, Mapping):
        return {**found, **{key: _over(found.get(key), value) for key, value in said.items()}}
    if isinstance(found, list) and isinstance(said, list) and len(found) == len(said):
        order = _names(found)
        if order and sorted(order) == sorted(_names(said)):
            said = sorted(said, key=lambda each: order.index(each["name"]))
        return [_over(one, other) for one, other in zip(found, said, strict=True)]
    return said


def _names(objects: list[Any]) -> list[str]:
    """The names of *objects*; empty if any has none."""
    names = [each.get("name", "") for each in objects if isinstance(each, Mapping)]
    return names if all(names) else []
