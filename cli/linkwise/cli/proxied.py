"""Reaches the extender through the API server, which proxies a request to a Service. A user of
`kubectl` therefore needs no port-forward and no address, and the API server decides who may ask."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from kubernetes.client import Configuration
from kubernetes.config import (
    KUBE_CONFIG_DEFAULT_LOCATION,
    ConfigException,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)

from linkwise.cli.errors import AskError, BadInputError
from linkwise.kube.client import ApiError, KubeClient

_SERVICE = re.compile(r"([a-z0-9.-]+)/([a-z0-9.-]+):([a-z0-9-]+)")
_SECONDS = 30.0  # explaining a large cluster takes a few seconds
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Access:
    """Which cluster, as which user, and where its extender is."""

    kubeconfig: str | None
    context: str | None
    service: str  # NAMESPACE/SERVICE:PORT


class Extender:
    """The extender behind the API server. If it cannot be asked, AskError says what is missing."""

    def __init__(self, access: Access) -> None:
        found = _SERVICE.fullmatch(access.service)
        if found is None:
            raise BadInputError(
                f"--extender {access.service}: expected NAMESPACE/SERVICE:PORT, "
                "like kube-system/linkwise-extender:http"
            )
        self.access, self._in_namespace, self._name = access, found[1], f"{found[2]}:{found[3]}"
        self._client = KubeClient(_configuration(access), timeout_seconds=_SECONDS)

    @property
    def api(self) -> KubeClient:
        """The API server that is in between."""
        return self._client

    @property
    def system(self) -> str:
        """The namespace in which Linkwise is installed."""
        return self._in_namespace

    @property
    def namespace(self) -> str:
        """The namespace of the context, or of the pod that this runs in."""
        if _has_kubeconfig(self.access):
            contexts, active = list_kube_config_contexts(self.access.kubeconfig)  # type: ignore[no-untyped-call]
            wanted = self.access.context or (active or {}).get("name")
            for each in contexts or ():
                if each["name"] == wanted:
                    return str(each["context"].get("namespace") or "default")
            return "default"
        return _OWN_NAMESPACE.read_text() if _OWN_NAMESPACE.exists() else "default"

    @property
    def path(self) -> str:
        """Where the API server has the extender's routes."""
        return f"/api/v1/namespaces/{self._in_namespace}/services/{self._name}/proxy"

    def ask(self, *path: str, **params: str) -> bytes:
        """Return the answer to GET *path*, with each part of it quoted."""
        route = "/".join(quote(part, safe="") for part in path)
        url = f"{self.path}/{route}"
        try:
            return self._client.read(url, params=params)
        except ApiError as error:
            told = self._in_words(error, url, params)
            raise AskError(self._why_not(told, "/".join(path))) from None

    def _in_words(self, error: ApiError, url: str, params: Mapping[str, str]) -> ApiError:
        """Describe the error. If the extender refuses as JSON, use its message as text."""
        if not error.status or error.reason != "Unknown" or "format" in params:
            return error
        try:
            self._client.read(url, params={**params, "format": "text"})
        except ApiError as again:
            return again
        return error

    def _why_not(self, error: ApiError, route: str) -> str:
        said = error.message.strip()
        whole = f"{self._in_namespace}/{self._name}"
        if error.status == 0:
            return f"the API server at {self._client.url} cannot be reached: {said}"
        if error.status == 401:
            return f"the API server at {self._client.url} does not know who you are: {said}"
        if error.status == 403:
            return (
                f"you may not ask the extender: {said}. A Role in namespace {self._in_namespace} "
                f"is needed with verb get on services/proxy, resourceNames [{self._name}]"
            )
        if said.startswith("linkwise: "):
            return said.removeprefix("linkwise: ")
        if error.status == 404 and error.reason == "NotFound":
            name_it = "name it with --extender NAMESPACE/SERVICE:PORT"
            return f"Service {whole} not found: {name_it}: {said}"
        if error.status == 404:
            return f"the extender at {whole} knows no {route}"
        if error.status == 503:
            return f"the extender at {whole} is not ready: {said}"
        return f"the extender at {whole} answered {error.status}: {said}"


def annotate_node(asked: Extender, name: str, annotations: Mapping[str, str | None]) -> None:
    """Set annotations of the node, with the user's own rights; None removes one."""
    try:
        asked.api.patch(
            f"/api/v1/nodes/{quote(name, safe='')}", {"metadata": {"annotations": annotations}}
        )
    except ApiError as error:
        needed = ": verb patch on nodes is needed" if error.status == 403 else ""
        told = error.message.strip()
        raise AskError(f"node {name} cannot be annotated: {told}{needed}") from None


def _configuration(access: Access) -> Configuration:
    configuration = Configuration()
    named = access.kubeconfig or access.context
    try:
        if named or _has_kubeconfig(access):
            load_kube_config(  # type: ignore[no-untyped-call]
                access.kubeconfig, context=access.context, client_configuration=configuration
            )
        else:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        told = " ".join(str(error).split())
        if not named and not _has_kubeconfig(access):
            places = os.environ.get("KUBECONFIG") or KUBE_CONFIG_DEFAULT_LOCATION
            raise BadInputError(
                f"no kubeconfig: there is no {places}, and this is no pod"
            ) from None
        where = f"--kubeconfig {access.kubeconfig}" if access.kubeconfig else "kubeconfig"
        context = f", --context {access.context}" if access.context else ""
        raise BadInputError(f"{where}{context}: {told}") from None
    return configuration


def _has_kubeconfig(access: Access) -> bool:
    """True if there is a kubeconfig, as for kubectl: a named file, or one in a usual place, takes
    precedence over the pod's own account."""
    places = access.kubeconfig or os.environ.get("KUBECONFIG") or KUBE_CONFIG_DEFAULT_LOCATION
    return any(Path(place).expanduser().exists() for place in places.split(os.pathsep) if place)
