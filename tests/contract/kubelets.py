"""The two kubelets that the scenarios are held against."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from linkwise.kube.client import KubeClient
from linkwise.simulator.kubelet import Kubelet as StandIn
from linkwise.simulator.kubelet import KubeletSettings, endpoint
from linkwise.topology.machine.topology_manager import Policy
from tests.cluster.support.host import sandbox
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes.cluster import RealCluster
from tests.cluster.support.nodes.node import RealNode
from tests.contract.api_world import Api
from tests.contract.kubelet_world import INIT_SECONDS, Kubelet
from tests.contract.servers import server_of, stand_ins

Kubelets = Callable[[bool], AbstractContextManager[Kubelet]]
"""Gives one for a scenario, with the API server that it belongs to: one that aligns devices, or one
that does not."""

_STATUS_SECONDS = 0.3


@contextmanager
def stand_in_kubelets() -> Iterator[Kubelets]:
    """One for each scenario, on one API server; it gives up sooner on plugins that do not serve."""
    with stand_ins() as programs, patch.object(endpoint, "DIAL_SECONDS", 1.0):

        @contextmanager
        def kubelet(aligns: bool) -> Iterator[Kubelet]:
            api = Api(programs.server)
            directory = Path(tempfile.mkdtemp(prefix="lw"))
            settings = KubeletSettings(
                status_seconds=_STATUS_SECONDS,
                stop_seconds=0.0,
                init_seconds=INIT_SECONDS,
                topology_manager_policy=Policy.SINGLE_NUMA_NODE if aligns else Policy.NONE,
            )
            client = KubeClient.load(kubeconfig=None, server=programs.server.url)
            running = StandIn(api.node_name("n1"), directory, client, settings=settings)
            running.start()
            yield Kubelet(
                api=api,
                node=running.node_name,
                device_plugins=running.device_plugin_directory,
                pod_resources=running.pod_resources_socket,
                restart=running.restart,
                status_seconds=_STATUS_SECONDS,
            )
            running.stop()
            shutil.rmtree(directory)

        yield kubelet


@contextmanager
def real_kubelets() -> Iterator[Kubelets]:
    """One of each sort for them all: it takes seconds to start."""
    home = sandbox.directory()
    if home is None:
        raise RuntimeError("real programs need a sandbox around them: python -m tests.cluster test")
    # A short name: the path of a socket may have 107 bytes.
    aligning = {"topologyManagerPolicy": Policy.SINGLE_NUMA_NODE.value}
    cluster = RealCluster(home / "kubelet", nodes=2, kubelets={"node-2": aligning})
    try:
        cluster.start()
        server = server_of(cluster.control)

        def restart(node: RealNode) -> None:
            socket = node.root / "var/lib/kubelet/device-plugins/kubelet.sock"
            before = socket.stat().st_ctime_ns

            def made_again() -> bool:
                return socket.exists() and socket.stat().st_ctime_ns != before

            node.kubelet.restart()
            node.wait_ready()
            wait_for(made_again, "the kubelet takes plugins again")

        @contextmanager
        def kubelet(aligns: bool) -> Iterator[Kubelet]:
            node = cluster.nodes["node-2" if aligns else "node-1"]
            api = Api(server)
            accounts = f"/api/v1/namespaces/{api.namespace}/serviceaccounts/default"
            wait_for(lambda: api.ask("GET", accounts).status == 200, "the namespace's account")
            home_of_all = node.root / "var/lib/kubelet"
            yield Kubelet(
                api=api,
                node=node.name,
                device_plugins=home_of_all / "device-plugins",
                pod_resources=home_of_all / "pod-resources/kubelet.sock",
                restart=partial(restart, node),
                status_seconds=1.0,
            )

        yield kubelet
    finally:
        cluster.stop()
