"""Calls to a real API server under a certain account, and the answers.

A program in a pod has a token from the kubelet. The token names the account, the pod and the pod's
node, and the API server passes all three to its policies. Neither a certificate nor impersonation
can replace it.
"""

import json
from dataclasses import dataclass
from typing import Any

import urllib3

from linkwise.kube.client import MERGE_PATCH
from tests.cluster.support.api.control_plane import ControlPlane

NAMESPACE = "kube-system"


@dataclass(frozen=True)
class ApiAnswer:
    status: int
    message: str

    @property
    def allowed(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True)
class ApiRequest:
    """One request to try. Its refusal must contain `says`, which shows that the reason is the right
    one."""

    what: str
    method: str
    path: str
    body: object = None
    says: str = ""
    content_type: str = MERGE_PATCH
    headers: tuple[tuple[str, str], ...] = ()


class Account:
    """A user with a bearer token or a certificate."""

    def __init__(
        self, control: ControlPlane, *, token: str = "", certificate_of: tuple[str, str] = ("", "")
    ) -> None:
        self._url = control.url
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        user, group = certificate_of
        files = control.authority.client(user, group) if user else ("", "")
        self._pool = urllib3.PoolManager(
            ca_certs=str(control.ca),
            cert_file=str(files[0]) or None,
            key_file=str(files[1]) or None,
            retries=False,
            timeout=30.0,
        )

    def ask(self, request: ApiRequest) -> ApiAnswer:
        content_type = request.content_type if request.method == "PATCH" else "application/json"
        answer = self._pool.request(
            request.method,
            self._url + request.path,
            body=None if request.body is None else json.dumps(request.body),
            headers={**self._headers, "content-type": content_type, **dict(request.headers)},
            preload_content=False,
        )
        try:
            if answer.status < 300:  # a watch would never end
                return ApiAnswer(answer.status, "")
            return ApiAnswer(answer.status, _message(answer.read()))
        finally:
            answer.close()


def _message(body: bytes) -> str:
    """Return the message; a path that the API server does not serve has a plain text."""
    return str(json.loads(body).get("message", "")) if body[:1] == b"{" else body.decode().strip()


def pod_of(account: str, node: str, *, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    """Return a pod that runs under *account* on *node*. It need not run."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "serviceAccountName": account,
            "nodeName": node,
            "containers": [{"name": "main", "image": "none"}],
        },
    }


def token(control: ControlPlane, account: str, *, pod: str = "", namespace: str = NAMESPACE) -> str:
    """Return the token that the kubelet gets when it starts *pod*; without a pod, a token of no
    node."""
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if pod:
        uid = control.kubectl("get", "pod", pod, f"-n={namespace}", "-o=jsonpath={.metadata.uid}")
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = control.kubectl(
        "create",
        f"--raw=/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
        "-f=-",
        stdin=json.dumps(asked),
    )
    return str(json.loads(answer)["status"]["token"])
