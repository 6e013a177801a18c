"""The two API servers that the scenarios are held against."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import load_kube_config

from linkwise.simulator.api_server import ApiServer
from tests.cluster import sandbox
from tests.cluster.control_plane import ControlPlane
from tests.contract.api_world import Server

# What would stand in the way where no controller manager runs: pods would need a service account,
# nodes be tainted until somebody finds them ready, and priorities classes to take them from.
ADMISSION_OFF = ("ServiceAccount", "TaintNodesByCondition", "Priority")


@contextmanager
def stand_in_server() -> Iterator[Server]:
    with ApiServer() as running, urllib3.PoolManager(timeout=10) as pool:
        yield Server(
            url=running.url,
            pool=pool,
            add_namespace=lambda _: None,  # there when named
            forget_history=running.compact,
        )


@contextmanager
def real_control_plane() -> Iterator[ControlPlane]:
    home = sandbox.directory()
    if home is None:
        pytest_usage = "python -m tests.cluster test --real"
        raise RuntimeError(f"real programs need the sandbox around them: {pytest_usage}")
    directory = Path(tempfile.mkdtemp(prefix="contract-", dir=home))
    control = ControlPlane(directory, controllers=False, disable_admission=ADMISSION_OFF)
    try:
        control.start()
        yield control
    finally:
        control.stop()


@contextmanager
def real_server() -> Iterator[Server]:
    with real_control_plane() as control:
        yield server_of(control)


def server_of(control: ControlPlane) -> Server:
    configuration = Configuration()
    load_kube_config(  # type: ignore[no-untyped-call]
        str(control.kubeconfig()), client_configuration=configuration
    )
    pool: urllib3.PoolManager = RESTClientObject(configuration).pool_manager

    def add_namespace(name: str) -> None:
        body = {"metadata": {"name": name}}
        answer = pool.request("POST", f"{control.url}/api/v1/namespaces", json=body)
        assert answer.status == 201, answer.data

    return Server(
        url=control.url,
        pool=pool,
        add_namespace=add_namespace,
        forget_history=lambda: _forget_history(control),
    )


def _forget_history(control: ControlPlane) -> None:
    """Compact etcd, as the API server does every five minutes, and restart the API server: it keeps
    what it has seen in memory, too."""
    flag = "--listen-client-urls="
    (etcd,) = (f.removeprefix(flag) for f in control.parts["etcd"].argv if f.startswith(flag))
    with urllib3.PoolManager() as pool:
        # The newest revision survives a compaction, so there has to be a newer one.
        written = pool.request("POST", f"{etcd}/v3/kv/put", json={"key": "YQ==", "value": ""})
        newest = {"revision": written.json()["header"]["revision"]}
        done = pool.request("POST", f"{etcd}/v3/kv/compaction", json=newest)
        assert done.status == 200, done.data
    control.parts["kube-apiserver"].restart()
    control.wait_ready()
