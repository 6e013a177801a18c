"""`linkwise-plugin`: flags, logging, wiring; the only place that exits."""

import logging
import os
import re
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import click

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import LoadError
from linkwise.plugin.amd.source import AmdInventory
from linkwise.plugin.device_plugin.allocate import POLICIES
from linkwise.plugin.device_plugin.cdi import CdiMode
from linkwise.plugin.errors import InventoryError, ListenError, SettingError
from linkwise.plugin.gpus.inventory import Inventory
from linkwise.plugin.gpus.node_machine import LabelledInventory
from linkwise.plugin.gpus.recorded import Played, RecordedInventory
from linkwise.plugin.health.conditions import read_treatments
from linkwise.plugin.nvidia_config import read_config
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.plugin.program import Program
from linkwise.plugin.settings import Settings
from linkwise.plugin.start import Signals
from linkwise.serving.program import LOG_FORMAT, LOG_LEVEL, begin_log
from linkwise.topology.names import DEFAULT_RESOURCE, RESOURCE_NAME
from linkwise.topology.vendors.known import vendor_of_resource
from linkwise.topology.vendors.nvidia import NVIDIA

log = logging.getLogger("linkwise.plugin")
_DEFAULTS = Settings(node_name="")
_NAMESPACED = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_SECONDS = click.FloatRange(min=0.01)
_IGNORED = "linkwise.plugin.ignored"  # key of the context's meta
_END_SECONDS = 2.5  # the program's time to end after a signal
_CLEANING_SECONDS = 25.0  # the additional time if it cleans its Node


def _url(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.startswith(("http://", "https://")):
        raise click.BadParameter(f"{value!r}: expected http://HOST:PORT or https://HOST:PORT")
    return value


def _namespaced(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _NAMESPACED.fullmatch(value):
        raise click.BadParameter(f"{value!r}: expected NAMESPACE/NAME")
    return value


def _config_file(
    context: click.Context, _option: click.Parameter, value: Path | None
) -> Path | None:
    """Take defaults from NVIDIA's configuration file; flags and the environment take precedence."""
    if value is not None:
        try:
            config = read_config(value)
        except SettingError as error:
            raise click.BadParameter(str(error)) from error
        context.default_map = {**(context.default_map or {}), **config.settings}
        context.meta[_IGNORED] = config.ignored
    return value


@click.command(
    context_settings={
        "auto_envvar_prefix": "LINKWISE_PLUGIN",
        "show_default": True,
        "help_option_names": ["-h", "--help"],
    },
    epilog="\b\nExample:\n  linkwise-plugin --node-name=gpu-1 --health-seconds=10",
)
@click.option(
    "--config-file",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=_config_file,
    help="The configuration file of NVIDIA's plugin; flags take precedence.",
)
@click.option("--node-name", required=True, help="The Node this runs on.")
@click.option("--machine", help="Play this recorded machine instead of asking the driver.")
@click.option("--machine-file", help="The same from a file: machines.json (FILE#name) or topo -m.")
@click.option(
    "--machine-from-label",
    metavar="KEY",
    help="The same; this label of the Node holds the machine's name.",
)
@click.option(
    "--machine-faults",
    type=click.Path(path_type=Path),
    help='Faults of a played machine: JSON {"<uuid or index>": "reason"}, read at every probe.',
)
@click.option(
    "--machine-loads",
    type=click.Path(path_type=Path),
    help='What its GPUs do: JSON {"<uuid or index>": 0.5}, the busy share, read at every probe.',
)
@click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DEFAULTS.kubelet_dir,
    help="The directory of kubelet.sock, where the plugin makes its own socket.",
)
@click.option(
    "--pod-resources-socket",
    type=click.Path(path_type=Path),
    default=_DEFAULTS.pod_resources_socket,
    help="The socket of the kubelet's podresources service.",
)
@click.option(
    "--kubelet-config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The kubelet's configuration file, read where its /configz does not answer the plugin.",
)
@click.option("--kubeconfig", help="Default: the service account of the plugin's pod.")
@click.option(
    "--api-server", callback=_url, help="URL of an API server that asks for no credentials."
)
@click.option(
    "--daemonset",
    callback=_namespaced,
    metavar="NAMESPACE/NAME",
    help="The plugin's DaemonSet: if it no longer selects the node, the plugin cleans its Node.",
)
@click.option(
    "--resource-name",
    default=_DEFAULTS.resource_name,
    help="The extended resource that is a GPU.",
)
@click.option(
    "--observe",
    is_flag=True,
    help="Publish topology, labels and GPUs in use, and register nothing with the kubelet.",
)
@click.option(
    "--in-front",
    is_flag=True,
    help="Stand in front of the vendor's device plugin, which registers with this one.",
)
@click.option(
    "--vendor-socket",
    type=click.Path(path_type=Path, dir_okay=False),
    show_default="linkwise/kubelet.sock in --kubelet-dir",
    help="With --in-front: where the vendor's plugin registers.",
)
@click.option(
    "--listen-address", default=_DEFAULTS.listen_address, help="HTTP: /metrics, /healthz, /readyz."
)
@click.option(
    "--listen-port",
    type=click.IntRange(0, 65535),
    default=_DEFAULTS.listen_port,
    help="0 takes any free port and logs it.",
)
@click.option(
    "--pass-device-specs/--no-pass-device-specs",
    default=_DEFAULTS.pass_device_specs,
    help="Pass /dev/nvidia* files as well; CDI devices bring their own.",
)
@click.option(
    "--host-dev",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DEFAULTS.host_dev,
    help="Where the host's /dev is mounted; the plugin passes only files that exist.",
)
@click.option(
    "--cdi",
    type=click.Choice(CdiMode, case_sensitive=False),
    is_flag=False,
    flag_value=CdiMode.ON,
    default=_DEFAULTS.cdi.value,
    help="Name CDI devices; auto: if the container runtime injects them and a spec has the GPUs.",
)
@click.option(
    "--cdi-dir",
    "cdi_directories",
    envvar="LINKWISE_PLUGIN_CDI_DIR",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    default=_DEFAULTS.cdi_directories,
    help="The runtime's CDI spec directories; the last takes precedence.",
)
@click.option(
    "--no-driver",
    type=click.Choice(["wait", "exit"]),
    default="wait",
    help="If there is no driver and no machine: wait for one, or exit with status 1.",
)
@click.option(
    "--policy",
    type=click.Choice(sorted(POLICIES)),
    default=_DEFAULTS.policy,
    help="For pods without a plan. ring: the best rings. partition: as NVIDIA's go-gpuallocator.",
)
@click.option(
    "--health-seconds",
    type=_SECONDS,
    default=_DEFAULTS.health_seconds,
    help="Time between probes of the GPUs.",
)
@click.option(
    "--discovery-seconds",
    type=_SECONDS,
    default=_DEFAULTS.discovery_seconds,
    help="Time between full readings of the GPUs; SIGHUP starts one at once.",
)
@click.option(
    "--in-use-seconds",
    type=_SECONDS,
    default=_DEFAULTS.in_use_seconds,
    help="Time between readings of podresources; an Allocate starts one at once.",
)
@click.option(
    "--idle-seconds",
    type=_SECONDS,
    default=_DEFAULTS.idle_seconds,
    help="A pod is idle when none of its GPUs has worked for so long.",
)
@click.option(
    "--pod-wait-seconds",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.pod_wait_seconds,
    help="How long the kubelet's question waits for the watch to show the asking pod.",
)
@click.option(
    "--probation-seconds",
    type=_SECONDS,
    default=_DEFAULTS.probation_seconds,
    help="After an XID, how long a GPU stays out with clean probes; longer each time it relapses.",
)
@click.option(
    "--driver-seconds",
    type=_SECONDS,
    default=_DEFAULTS.driver_seconds,
    help="A call to the driver that takes longer is a hang.",
)
@click.option(
    "--treat",
    multiple=True,
    metavar="NAME=TREATMENT",
    help="Treatment of a condition, as xid-94=unhealthy: ignore, note, unhealthy or reset.",
)
@LOG_LEVEL
@LOG_FORMAT
@click.version_option(package_name="linkwise")
@click.pass_context
def main(
    context: click.Context, /, *, no_driver: str, log_level: str, log_format: str, **chosen: object
) -> None:
    """Tell the kubelet about this node's GPUs, and the cluster about their topology."""
    begin_log(log_level, log_format)
    if not RESOURCE_NAME.fullmatch(str(chosen["resource_name"])):
        problem = f"{chosen['resource_name']!r}: expected domain/name, like {DEFAULT_RESOURCE}"
        raise click.BadParameter(problem, param_hint="'--resource-name'")
    if chosen["observe"] and chosen["in_front"]:
        raise click.BadParameter("expected without --in-front", param_hint="'--observe'")
    settings = Settings(wait_for_driver=no_driver == "wait", **chosen)  # type: ignore[arg-type]
    try:
        read_treatments(settings.treat)
    except SettingError as error:
        raise click.BadParameter(str(error), param_hint="'--treat'") from error
    for ignored in context.meta.get(_IGNORED, ()):
        log.warning("--config-file: Linkwise does not follow %s", ignored)
    signals = context.ensure_object(Signals)  # `start` has caught them from the first moment
    try:
        client = KubeClient.load(kubeconfig=settings.kubeconfig, server=settings.api_server)
        inventory = open_inventory(settings, client)
        serve(Program(settings, inventory, client), signals)
    except TimeoutError:
        log.error("a thread does not end: the operating system ends it")
    except (ListenError, InventoryError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    except Exception:
        log.exception("a defect ends the plugin")
        logging.shutdown()
        os._exit(1)
    # Do not return: a thread that hangs in the driver's library holds the library's locks, and the
    # interpreter would unload the library as it ends.
    logging.shutdown()
    os._exit(0)


def serve(program: Program, signals: Signals) -> None:
    """Run *program* until a signal ends it. Raises what its `run` raises, and TimeoutError if it
    does not end in time."""
    ended: Future[None] = Future()

    def run() -> None:
        try:
            program.run()
            ended.set_result(None)
        except BaseException as error:  # the main thread reports it
            ended.set_exception(error)
        signals.put(signal.SIGTERM)

    Thread(target=run, name="program", daemon=True).start()
    while signals.next() == signal.SIGHUP:
        program.discover()
    program.stop()
    try:
        ended.result(_END_SECONDS)
    except TimeoutError:
        if not program.cleaning:
            raise
        ended.result(_CLEANING_SECONDS)


def open_inventory(settings: Settings, client: KubeClient) -> Inventory:
    """The source of GPUs. Raises InventoryError if the machine cannot be loaded."""
    machine, file, label = settings.machine, settings.machine_file, settings.machine_from_label
    if sum(map(bool, (machine, file, label))) > 1:
        raise InventoryError(
            "--machine, --machine-file and --machine-from-label: expected one of them"
        )
    played = Played(settings.machine_faults, settings.machine_loads)
    if machine:
        return RecordedInventory.named(machine, node=settings.node_name, played=played)
    if file:
        return RecordedInventory.from_file(file, played=played)
    if label:
        return LabelledInventory(client, settings.node_name, label, played=played)
    for flag, value in (
        ("--machine-faults", played.faults),
        ("--machine-loads", played.loads),
    ):
        if value:
            raise InventoryError(f"{flag}: expected beside a played machine only")
    vendor = vendor_of_resource(settings.resource_name) or NVIDIA
    return SOURCES[vendor.name](settings)


def _nvidia(settings: Settings) -> Inventory:
    return NvmlInventory(
        driver_seconds=settings.driver_seconds,
        # Where a vendor's plugin stays, it passes the device files.
        minors_needed=(
            settings.pass_device_specs
            and settings.cdi is not CdiMode.ON
            and not (settings.in_front or settings.observe)
        ),
    )


def _amd(settings: Settings) -> Inventory:
    if not (settings.in_front or settings.observe):
        raise InventoryError(
            f"--resource-name={settings.resource_name}: expected --in-front or --observe: AMD's "
            "device plugin has to give out AMD's GPUs"
        )
    return AmdInventory(driver_seconds=settings.driver_seconds)


SOURCES: Mapping[str, Callable[[Settings], Inventory]] = {"nvidia": _nvidia, "amd": _amd}
"""By the name of the vendor whose resource is managed: where its GPUs are read."""


if __name__ == "__main__":
    main()
