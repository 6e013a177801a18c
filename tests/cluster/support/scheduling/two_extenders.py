"""Two extenders with leader election, on the real control plane with the real scheduler."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from linkwise.topology import names
from tests.cluster.support.api.accounts import NAMESPACE as SYSTEM
from tests.cluster.support.api.accounts import token
from tests.cluster.support.api.control_plane import ControlPlane, free_port
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.scheduling.extender_process import (
    ACCOUNT,
    ADMISSION_OFF,
    allow_extender,
    gpu_node,
    guard_plans,
    scheduler_config,
    scheduler_env,
)
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, NODES, SchedulingWorld
from tests.end_to_end.replicas import Replica, Service, Wire, leader_of, wait_for

_DENIED = "apiserver_validating_admission_policy_check_total"
_FENCE = "linkwise-extender-leads"


class ExtenderPair:
    """Two extenders behind a Service, each with its own wire to the API server.

    kubectl's proxy does TLS for them with their account's token, so that the wires can read.
    """

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        kubeconfig = control.directory / "linkwise-extender.kubeconfig"
        bearer = {"token": token(control, ACCOUNT)}
        kubeconfig.write_text(control.authority.kubeconfig_text(control.url, ACCOUNT, bearer))
        port = free_port("127.0.0.1")
        self._proxy = LoggedProcess(
            "kubectl-proxy",
            [
                str(control.programs / "kubectl"),
                f"--kubeconfig={kubeconfig}",
                "proxy",
                f"--port={port}",
            ],
            control.logs / "kubectl-proxy.log",
        )
        self._proxy.start()
        self.wires = {name: Wire(("127.0.0.1", port)) for name in ("a", "b")}
        self.replicas = [
            Replica(name, control.logs, [f"--api-server=http://127.0.0.1:{wire.port}"])
            for name, wire in self.wires.items()
        ]
        self._service = Service(self.replicas, scheme="https")
        self.url = self._service.url

    @property
    def leader(self) -> Replica:
        found = leader_of(self.replicas)
        assert found is not None, "no extender leads, or both do"
        return found

    def other(self, replica: Replica) -> Replica:
        return next(each for each in self.replicas if each is not replica)

    def renew(self) -> None:
        """Restart both, and wait until one leads."""
        for wire in self.wires.values():
            wire.mend()
            wire.let_go()
        for replica in self.replicas:
            replica.kill()
        # The holder has ended, so there is no need to wait until the Lease runs out.
        lease = ("lease", ACCOUNT, f"-n={SYSTEM}")
        self._control.kubectl("delete", *lease, "--ignore-not-found")
        for replica in self.replicas:
            replica.start()
        warm = "/readyz?exclude=leader"
        wait_for(
            lambda: leader_of(self.replicas) and all(r.status(warm) == 200 for r in self.replicas),
            "one leads and the other stands by",
            60,
        )

    def stop(self) -> None:
        self._service.close()
        for replica in self.replicas:
            replica.kill()
        for wire in self.wires.values():
            wire.close()
        self._proxy.stop()


class SwitchWorld(SchedulingWorld):
    def start(self, nodes: Sequence[str] = NODES) -> None:
        self.control.kubectl("create", "namespace", NAMESPACE)
        allow_extender(self.control)
        self.pair = ExtenderPair(self.control)
        guard_plans(self.control)
        for name in nodes:
            self.client.post("/api/v1/nodes", gpu_node(name))
        self.pair.renew()
        config = scheduler_config(self.control, self.pair.url)
        self.scheduler = self.control.start_scheduler(config, env=scheduler_env())

    def clear(self) -> None:
        for pod in self.pods():
            self.delete(pod.metadata.name)
        self.pair.renew()

    def asked(self, path: str) -> str:
        return self.pair.leader.text(path)

    def create_small_gang(self, name: str) -> list[str]:
        """Create four members of two GPUs each."""
        said = {names.GANG: name, names.GANG_SIZE: "4"}
        return [self.create(f"{name}-{rank}", 2, annotations=said) for rank in range(4)]

    @contextmanager
    def scheduler_stopped(self) -> Iterator[None]:
        assert self.scheduler is not None
        self.scheduler.pause()
        try:
            yield
        finally:
            self.scheduler.resume()

    def assert_given_once(self) -> None:
        bound = [pod.metadata.name for pod in self.pods() if pod.spec.node_name]
        given = [(self.node_of(name), gpu) for name in bound for gpu in self.gpus_of(name)]
        assert len(given) == len(set(given)), "a GPU was given twice"

    def refused_bindings(self) -> int:
        """Return how many Bindings of past terms the API server has refused."""
        text = self.control.kubectl("get", "--raw=/metrics")
        lines = [line for line in text.splitlines() if line.startswith(_DENIED) and _FENCE in line]
        return sum(int(float(line.rpartition(" ")[2])) for line in lines if '"deny"' in line)


@contextmanager
def switch_world(directory: Path, nodes: Sequence[str] = NODES) -> Iterator[SwitchWorld]:
    """A started world on a control plane of its own. If it does not start, the logs are kept."""
    control = ControlPlane(directory, controllers=False, disable_admission=ADMISSION_OFF)
    control.start()
    with started_pair(SwitchWorld(control), nodes) as world:
        yield world


@contextmanager
def started_pair(world: SwitchWorld, nodes: Sequence[str]) -> Iterator[SwitchWorld]:
    """Start *world*, and stop it and its control plane afterwards. Keep the logs if it does not
    start."""
    try:
        world.start(nodes)
        yield world
    finally:
        world.pair.stop()
        world.control.stop()
    shutil.rmtree(world.control.directory, ignore_errors=True)
