"""One node of a world: a kubelet and the real plugin, and all that may happen to them.

What happens to a node happens in a thread of its own, one thing after the other, so a world goes
on while a node restarts.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from traceback import format_exception

import msgspec

from linkwise.kube.client import KubeClient
from linkwise.plugin.gpus.recorded import Played, RecordedInventory
from linkwise.plugin.program import Program
from linkwise.plugin.settings import Settings
from linkwise.simulator.kubelet import Kubelet, KubeletSettings
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.machine.topology_manager import TopologyManager
from linkwise.topology.names import DEFAULT_RESOURCE
from tests.end_to_end.clients import AT_ONCE, Pace, SluggishClient
from tests.end_to_end.journal import Journal

HASTE = KubeletSettings(
    capacity={"cpu": "192", "memory": "2Ti", "pods": "110"},
    status_seconds=0.02,
    init_seconds=0.05,
    stop_seconds=0.05,
)
ContainerGpus = dict[str, frozenset[str]]


class LiveNode:
    def __init__(
        self,
        name: str,
        machine: str,
        directory: Path,
        url: str,
        *,
        seed: int,
        journal: Journal,
        pace: Pace = AT_ONCE,
        clock: Callable[[], float] = time.time,
        topology_manager: TopologyManager | None = None,
        is_read: bool = True,
    ) -> None:
        """*topology_manager*: how its kubelet aligns devices; *is_read*: whether the plugin can
        read that; *clock*: the plugin's."""
        self.name, self.machine_name = name, machine
        self.machine = recorded_machine(machine, node=name)
        self.failures: list[str] = []  # of the stand-ins, not of what is tested
        client = KubeClient.load(kubeconfig=None, server=url)
        settings = HASTE
        if topology_manager is not None:
            settings = replace(
                HASTE,
                topology_manager_policy=topology_manager.policy,
                topology_manager_scope=topology_manager.scope,
            )
        self.kubelet = Kubelet(name, directory, client, seed=seed, settings=settings)
        self._client = SluggishClient.at(url, pace, clock)
        self._faults, self._loads = directory / "faults.json", directory / "loads.json"
        self._journal = journal
        self._settings = Settings(
            node_name=name,
            kubelet_dir=self.kubelet.device_plugin_directory,
            pod_resources_socket=self.kubelet.pod_resources_socket,
            kubelet_config=(
                self.kubelet.configuration_file
                if topology_manager is not None and is_read
                else None
            ),
            listen_address="127.0.0.1",
            listen_port=0,
            health_seconds=0.1,
            idle_seconds=0.5,
            in_use_seconds=0.1,
            pod_wait_seconds=0.2,
        )
        self._program: Program | None = None
        self._thread: Thread | None = None
        self._fate = ThreadPoolExecutor(1, thread_name_prefix=f"fate of {name}")
        self._dead = False

    # Life

    def start(self) -> None:
        self.kubelet.start()
        self._start_plugin()

    def stop(self) -> None:
        self._fate.shutdown()
        self._stop_plugin()
        if not self._dead:
            self.kubelet.stop()

    def happens(self, what: Callable[[], None]) -> "Future[None]":
        """Let it happen after all that is happening already."""
        future = self._fate.submit(what)
        future.add_done_callback(self._note_failure)
        return future

    def _note_failure(self, future: "Future[None]") -> None:
        error = future.exception()
        if error is not None:
            self.failures.append(f"{self.name}: {error!r}")
            self._say("".join(format_exception(error)))

    @property
    def ready(self) -> bool:
        return self._program is not None and not self._program.not_ready()

    def held(self) -> dict[str, ContainerGpus]:
        """Who really holds what, by the kubelet: namespace/name -> container -> GPUs."""
        found: dict[str, ContainerGpus] = {}
        for pod in self.kubelet.pod_devices():
            shares = {
                container: frozenset(pod.held[container].get(DEFAULT_RESOURCE, ()))
                for container in pod.containers
                if container in pod.held
            }
            if any(shares.values()):
                found[f"{pod.namespace}/{pod.name}"] = {c: g for c, g in shares.items() if g}
        return found

    # Misfortunes

    def restart_plugin(self) -> None:
        self._say("plugin restarts")
        if not self._dead:
            self._stop_plugin()
            self._start_plugin()

    def restart_kubelet(self) -> None:
        self._say("kubelet restarts")
        if not self._dead:
            self.kubelet.restart()

    def restart_kubelet_after_advice(self) -> None:
        """The next time the plugin has given advice, the kubelet ends before it takes it."""
        going = Event()

        def restart() -> None:
            going.set()
            self.restart_kubelet()

        def meddle(chosen: frozenset[str], _: frozenset[str]) -> frozenset[str]:
            self.kubelet.meddle = _takes_the_advice
            self.happens(restart)
            going.wait(1.0)
            return chosen

        self._say("kubelet will restart between GetPreferredAllocation and Allocate")
        self.kubelet.meddle = meddle

    def swap_next(self) -> None:
        """The next time, the kubelet takes as many other GPUs as there are."""

        def meddle(chosen: frozenset[str], spare: frozenset[str]) -> frozenset[str]:
            if not spare:
                return chosen
            self.kubelet.meddle = _takes_the_advice
            others = sorted(spare)[: len(chosen)]
            self._say(f"kubelet swaps {len(others)} of {len(chosen)} GPUs")
            return frozenset([*others, *sorted(chosen)][: len(chosen)])

        self._say("kubelet will not take the next advice")
        self.kubelet.meddle = meddle

    def die(self) -> None:
        """Power off: kubelet and plugin end, and neither says so."""
        self._say("dies")
        if not self._dead:
            self._dead = True
            self.kubelet.stop()
            self._stop_plugin()

    def come_back(self) -> None:
        if not self._dead:
            return
        self._say("comes back")
        self._dead = False
        self.kubelet.restart()
        self._start_plugin()

    def set_faults(self, faults: Mapping[str, str]) -> None:
        """GPU index -> what is wrong with it."""
        self._say(f"GPU faults {dict(faults)}")
        self._faults.write_bytes(msgspec.json.encode(faults))

    def set_loads(self, busy: float) -> None:
        """What all its GPUs do from now on; before, nothing is known of them."""
        self._say(f"all GPUs are busy for {busy:.0%} of the time")
        loads = {gpu.uuid: busy for gpu in self.machine.gpus}
        self._loads.write_bytes(msgspec.json.encode(loads))

    def _start_plugin(self) -> None:
        inventory = RecordedInventory.named(
            self.machine_name, node=self.name, played=Played(self._faults, self._loads)
        )
        self._program = Program(self._settings, inventory, self._client)
        self._thread = Thread(target=self._program.run, name=f"plugin {self.name}", daemon=True)
        self._thread.start()

    def _stop_plugin(self) -> None:
        if self._program is not None and self._thread is not None:
            self._program.stop()
            self._thread.join(20)
            assert not self._thread.is_alive(), f"{self.name}: the plugin does not end"
        self._program = self._thread = None

    def _say(self, what: str) -> None:
        self._journal.say(self.name, what)


def _takes_the_advice(chosen: frozenset[str], _: frozenset[str]) -> frozenset[str]:
    return chosen
