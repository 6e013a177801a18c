"""The two worlds that the scenarios are held against: API servers, and schedulers on them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import load_kube_config

from linkwise.kube.client import KubeClient
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.scheduler import SchedulerLoop, SchedulerSettings
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host import sandbox
from tests.contract.api_world import Server
from tests.contract.scheduler_world import Configured, Schedulers

# Admission plugins that stand in the way where no controller manager runs: pods would need a
# service account, nodes would stay tainted until a controller finds them ready, and priorities
# would need classes to come from.
ADMISSION_OFF = ("ServiceAccount", "TaintNodesByCondition", "Priority")
_STAND_IN_SECOND = 0.1


@dataclass(frozen=True)
class Programs:
    server: Server
    schedulers: Schedulers


@contextmanager
def stand_ins() -> Iterator[Programs]:
    with ApiServer() as running, urllib3.PoolManager(timeout=10, maxsize=8) as pool:
        server = Server(
            url=running.url,
            pool=pool,
            add_namespace=lambda _: None,  # there when named
            forget_history=running.compact,
        )
        schedulers = Schedulers(
            run=lambda configured: _stand_in_scheduler(running.url, configured),
            second=_STAND_IN_SECOND,
            silence_seconds=0.5,
        )
        yield Programs(server, schedulers)


@contextmanager
def _stand_in_scheduler(url: str, configured: Configured) -> Iterator[None]:
    initial, longest = configured.backoff
    settings = SchedulerSettings(
        managed_resources=configured.managed,
        extender_weight=configured.weight,
        initial_backoff_seconds=initial * _STAND_IN_SECOND,
        max_backoff_seconds=longest * _STAND_IN_SECOND,
    )
    client = KubeClient.load(kubeconfig=None, server=url)
    loop = SchedulerLoop(client, configured.extender_url, settings=settings)
    loop.start()
    yield
    loop.stop()


@contextmanager
def real_programs() -> Iterator[Programs]:
    home = sandbox.directory()
    if home is None:
        raise RuntimeError("real programs need a sandbox around them: python -m tests.cluster test")
    directory = Path(tempfile.mkdtemp(prefix="contract-", dir=home))
    control = ControlPlane(directory, controllers=False, disable_admission=ADMISSION_OFF)
    try:
        control.start()
        schedulers = Schedulers(
            run=lambda configured: _real_scheduler(control, configured),
            second=1.0,
            silence_seconds=0.8,
        )
        yield Programs(server_of(control), schedulers)
    finally:
        control.stop()


@contextmanager
def _real_scheduler(control: ControlPlane, configured: Configured) -> Iterator[None]:
    initial, longest = configured.backoff
    config: dict[str, object] = {
        "podInitialBackoffSeconds": initial,
        "podMaxBackoffSeconds": longest,
    }
    if configured.extender_url:
        extender = {
            "urlPrefix": configured.extender_url,
            **{f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind", "preempt")},
            "weight": configured.weight,
            "nodeCacheCapable": True,
            "ignorable": False,
            "managedResources": [{"name": name} for name in configured.managed],
        }
        config["extenders"] = [extender]
    scheduler = control.start_scheduler(config)
    yield
    scheduler.stop()


def server_of(control: ControlPlane) -> Server:
    configuration = Configuration()
    load_kube_config(  # type: ignore[no-untyped-call]
        str(control.kubeconfig()), client_configuration=configuration
    )
    configuration.connection_pool_maxsize = 8
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
