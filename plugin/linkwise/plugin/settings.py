"""The operator's settings, with the reason for every default."""

from dataclasses import dataclass
from pathlib import Path

from linkwise.plugin.device_plugin.cdi import SPEC_DIRECTORIES, CdiMode
from linkwise.topology.names import DEFAULT_RESOURCE

KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")  # a constant in the kubelet's source
POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")


@dataclass(frozen=True, slots=True)
class Settings:
    """One of `machine`, `machine_file` and `machine_from_label` names a recorded machine; without
    one, the plugin asks the driver."""

    node_name: str
    machine: str | None = None
    machine_file: str | None = None
    machine_from_label: str | None = None  # of the Node: a DaemonSet is the same on every node
    machine_faults: Path | None = None
    machine_loads: Path | None = None
    kubelet_dir: Path = KUBELET_DIR
    pod_resources_socket: Path = POD_RESOURCES_SOCKET
    kubelet_config: Path | None = None  # the kubelet's configuration file, if it is mounted
    kubeconfig: str | None = None
    api_server: str | None = None
    daemonset: str | None = None  # NAMESPACE/NAME; without it the plugin never cleans its Node
    resource_name: str = DEFAULT_RESOURCE
    observe: bool = False  # beside the vendor's plugin: register nothing with the kubelet
    in_front: bool = False
    vendor_socket: Path | None = None
    listen_address: str = "0.0.0.0"  # probes and Prometheus come from outside the pod
    listen_port: int = 9401
    # Else `systemctl daemon-reload` takes the GPUs from running containers
    # (docs/operating/plugin.md).
    pass_device_specs: bool = True
    host_dev: Path = Path("/dev")  # in a container, the host's /dev is elsewhere
    # A container under runc that gets NVIDIA_VISIBLE_DEVICES alone has no GPU, without an error.
    cdi: CdiMode = CdiMode.AUTO
    cdi_directories: tuple[Path, ...] = SPEC_DIRECTORIES
    wait_for_driver: bool = True  # an operator's pod may install the driver later
    policy: str = "ring"
    health_seconds: float = 10.0
    discovery_seconds: float = 300.0  # hundreds of driver calls; SIGHUP starts them at once
    # Shorter breaks are common: a job reads data, a person thinks. It also limits how often the
    # plugin writes its Node (`node.activity`).
    idle_seconds: float = 600.0
    in_use_seconds: float = 1.0  # an Allocate starts a reading at once
    pod_wait_seconds: float = 0.5  # the kubelet's watch and the plugin's differ by milliseconds
    probation_seconds: float = 300.0  # an XID may follow another; a job that starts takes minutes
    driver_seconds: float = 20.0  # a busy driver takes some seconds, a hanging one takes forever
    treat: tuple[str, ...] = ()  # NAME=TREATMENT, see `health.conditions`

    @property
    def treatments(self) -> tuple[str, ...]:
        """`treat`, after what follows from other settings: the last one for a name counts. A
        vendor's plugin gives out MIG devices, so MIG mode is in order where there is one."""
        return ("mig=note", *self.treat) if self.in_front else self.treat

    @property
    def silent_seconds(self) -> float:
        """If the driver has not answered for longer, the plugin is not ready."""
        return self.health_seconds + self.driver_seconds

    @property
    def gap_seconds(self) -> float:
        """How long a pod's activity may be unknown before its watch begins again."""
        return max(60.0, 3 * (self.health_seconds + self.driver_seconds))

    @property
    def registry_socket(self) -> Path:
        """Where vendors' plugins register.

        The socket is below the kubelet's directory, because their pods mount that already. It is in
        a directory of its own, because the kubelet empties the kubelet's at each start, and because
        a plugin with a fixed path may get this directory mounted instead of the kubelet's.
        """
        return self.vendor_socket or self.kubelet_dir / "linkwise" / "kubelet.sock"

    @property
    def kubelet_socket(self) -> Path:
        return self.kubelet_dir / "kubelet.sock"
