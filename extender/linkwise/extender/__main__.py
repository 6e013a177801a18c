"""Flags, logging, wiring: the extender as a program, and the only place that exits.

The program serves at once, waits for an API server that is not reachable yet, and reports on
`/readyz` when its cache is complete. On SIGTERM it stops listening and lets writes in flight
finish. Its successor continues from the API server, which has every plan and reservation. With
several replicas, only the holder of the Lease acts; the others read too, and report not ready.
"""

import gc
import logging
import math
import os
import socket
import sys
from typing import NoReturn
from uuid import uuid4

import click
import msgspec

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import MovePolicy, Moves, Preempt
from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.extender.run.leader_endpoints import CALLS, STATUS, LeaderEndpoints
from linkwise.extender.run.leadership import ALONE
from linkwise.extender.run.loop import Loop
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.open_ports import ListenError, open_ports
from linkwise.extender.run.settings import Settings, SettingsError
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError, LoadError
from linkwise.kube.lease import Elector, Timing
from linkwise.pods.flags import DURATION, IDLE_LIMIT, LEVELS, MOVABLE_NAMESPACE, PLACE
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs
from linkwise.pods.spans import DEFAULT_LEVELS
from linkwise.serving.certificates.pairs import Lifetime
from linkwise.serving.program import LOG_FORMAT, LOG_LEVEL, begin_log, exit_on_signals
from linkwise.serving.system import raise_limit
from linkwise.topology.names import DEFAULT_RESOURCES
from linkwise.topology.vendors.known import device_class_of

log = logging.getLogger("linkwise.extender")
ENV_PREFIX = "LINKWISE_EXTENDER"
_DEFAULTS = Settings()
_LEASE = "linkwise-extender"


@click.command(
    context_settings={
        "auto_envvar_prefix": ENV_PREFIX,
        "show_default": True,
        "help_option_names": ["-h", "--help"],
    },
    epilog="\b\nExample:\n  linkwise-extender --namespace=team-a --moves=advise",
)
@click.option(
    "--kubeconfig",
    type=click.Path(),
    help="kubeconfig file; without it and --api-server, the pod's own service account.",
)
@click.option("--api-server", help="Plain URL of an API server that asks for no credentials.")
@click.option(
    "--resource-name",
    "resource_names",
    envvar=f"{ENV_PREFIX}_RESOURCE_NAME",
    multiple=True,
    default=DEFAULT_RESOURCES,
    help="The extended resource that is a GPU; once for each, where nodes have different ones.",
)
@click.option("--listen-address", default=_DEFAULTS.listen_address, help="Address to serve on.")
@click.option(
    "--listen-port",
    type=click.IntRange(0, 65535),
    default=_DEFAULTS.listen_port,
    help="Port for kube-scheduler's calls; 0 takes a free one and logs it.",
)
@click.option(
    "--status-port",
    type=click.IntRange(0, 65535),
    default=_DEFAULTS.status_port,
    help="Port for probes, metrics and views; 0 takes a free one and logs it.",
)
@click.option(
    "--plain-http",
    type=click.BOOL,
    default=_DEFAULTS.plain_http,
    help="Serve any client on --listen-port, without TLS; only with a loopback address.",
)
@click.option(
    "--host",
    "hosts",
    envvar=f"{ENV_PREFIX}_HOST",
    multiple=True,
    default=_DEFAULTS.hosts,
    help="Name or address in kube-scheduler's URL of this server. May be repeated.",
)
@click.option(
    "--certificates",
    type=PLACE,
    default="/".join(_DEFAULTS.certificates),
    help="Secret that stores the extender's authority, and ConfigMap that publishes it.",
)
@click.option(
    "--certificate-lifetime",
    type=DURATION,
    default="2160h",
    help="Lifetime of each certificate that the extender's authority signs; the extender renews it "
    "when a third is left.",
)
@click.option(
    "--caller",
    "callers",
    envvar=f"{ENV_PREFIX}_CALLER",
    multiple=True,
    default=_DEFAULTS.callers,
    help="Common name in the client certificate of an allowed caller. May be repeated.",
)
@click.option(
    "--caller-secret",
    type=PLACE,
    help="Secret for the --caller's certificate, signed by the extender's authority; without it, "
    "the extender trusts the cluster's authority for client certificates.",
)
@click.option(
    "--call-timeout",
    type=DURATION,
    default="15s",
    help="kube-scheduler's httpTimeout: the extender does not carry out older calls.",
)
@click.option(
    "--gang-timeout",
    type=DURATION,
    default="10m",
    help="How long a partial gang may have GPUs if its pods do not say.",
)
@click.option(
    "--wave-timeout",
    type=DURATION,
    default="30m",
    help="How long a gang keeps the places of pods that its owner creates later, once the others "
    "are ready.",
)
@click.option(
    "--replacement-timeout",
    type=DURATION,
    default="1m",
    help="How long a running gang keeps the place of a lost pod, beyond its Job's back-off.",
)
@click.option(
    "--max-refusals",
    type=click.IntRange(1),
    default=_DEFAULTS.max_refusals,
    help="Plans of one gang that kube-scheduler may refuse before the gang waits for a change.",
)
@click.option(
    "--lift-gates-after",
    type=DURATION,
    help="With a node autoscaler: how long a gang or pod without room stays behind the gate "
    "linkwise.dev/plan; then kube-scheduler finds it unschedulable, and nodes are added.  "
    "[default: forever]",
)
@click.option(
    "--span-levels",
    type=LEVELS,
    default=",".join(DEFAULT_LEVELS),
    help="Node labels that name domains above the node, nearest first, separated by commas.",
)
@click.option(
    "--queue-order",
    type=click.Choice([order.value for order in QueueOrder]),
    default=_DEFAULTS.queue_order.value,
    callback=lambda _context, _option, order: QueueOrder(order),
    help="What orders waiting gangs and pods of equal priority: their age, or multifactor: age, "
    "expected run time and number of GPUs.",
)
@click.option(
    "--reserve-share",
    type=click.FloatRange(0, 1),
    default=_DEFAULTS.reserve_share,
    help="Share of the GPUs that a gang could use which may be reserved for all waiting gangs.",
)
@click.option(
    "--reserve-limit",
    type=DURATION,
    default="2h",
    help="How long a namespace's reserved GPUs may idle more than --reserve-share.",
)
@click.option(
    "--preempt",
    type=click.Choice([who.value for who in Preempt]),
    default=_DEFAULTS.preempt.value,
    callback=lambda _context, _option, who: Preempt(who),
    help="Pods that the extender may evict for a more important gang: those that say that they are "
    "preemptible, all of lower priority, or none. kube-scheduler's own preemption, timeouts and "
    "repairs evict by rules of their own.",
)
@click.option(
    "--reclaim-idle",
    type=IDLE_LIMIT,
    multiple=True,
    help="NAMESPACE=DURATION: pods of this namespace that have been idle for so long may be "
    "evicted for a waiting gang or pod. A pod's own annotation takes precedence. May be repeated.",
)
@click.option(
    "--reclaim-notice",
    type=DURATION,
    default="10m",
    help="Time between the Event about an idle pod and its eviction.",
)
@click.option(
    "--moves",
    type=click.Choice([who.value for who in Moves]),
    default=_DEFAULTS.moves.moves.value,
    help="Pods that the extender may move to make room for a waiting gang or pod: those that "
    "consent, or none. advise: none, but `kubectl linkwise moves` shows which would move.",
)
@click.option(
    "--movable-after",
    type=DURATION,
    help="Pods consent to moves once they have run for so long, unless they say otherwise, except "
    "those of Jobs. By default only pods that say so do.",
)
@click.option(
    "--movable-namespace",
    "movable_namespaces",
    type=MOVABLE_NAMESPACE,
    envvar=f"{ENV_PREFIX}_MOVABLE_NAMESPACE",
    multiple=True,
    help="NAMESPACE or NAMESPACE=DURATION: the same for pods of this namespace, at once or once "
    "they have run for so long. May be repeated.",
)
@click.option(
    "--move-cost",
    type=DURATION,
    default="10m",
    help="How much of its run a pod loses by a move, if it does not say.",
)
@click.option(
    "--whole-nodes",
    type=click.IntRange(0),
    default=_DEFAULTS.moves.whole_nodes,
    help="Keep so many nodes whole, with all their GPUs free: move pods that consent from others.",
)
@click.option(
    "--whole-nodes-cost",
    type=DURATION,
    default="4h",
    help="GPU time that all moves of a day may lose, for nodes to be emptied by --whole-nodes.",
)
@click.option(
    "--indexed-jobs",
    type=click.Choice([word.value for word in IndexedJobs]),
    default=_DEFAULTS.indexed_jobs.value,
    help="Which Indexed Jobs that run all their pods at once are gangs: all, those whose pods have "
    "a subdomain, or none.",
)
@click.option(
    "--namespace",
    "namespaces",
    envvar=f"{ENV_PREFIX}_NAMESPACE",
    multiple=True,
    help="For a canary: place the pods of this namespace, and leave the pods of all others to "
    "kube-scheduler. May be repeated.  [default: all namespaces]",
)
@click.option(
    "--leader-elect",
    type=click.BOOL,
    default=_DEFAULTS.leader_elect,
    help="Elect a leader: only the holder of the Lease acts.",
)
@click.option("--lease-namespace", default=_DEFAULTS.lease_namespace, help="The Lease's namespace.")
@click.option(
    "--lease-duration",
    type=DURATION,
    default="15s",
    help="How long a Lease stays with a holder that does not renew it.",
)
@click.option(
    "--renew-deadline",
    type=DURATION,
    default="10s",
    help="How long a leader that cannot renew the Lease still acts.",
)
@click.option(
    "--retry-period", type=DURATION, default="2s", help="Time between reads of the Lease."
)
@click.option(
    "--service",
    help="A Service without selector, in the Lease's namespace; the leader receives its calls.",
)
@click.option(
    "--pod-name",
    help="The pod of which this is the only process: it takes over at once from its predecessor in "
    "that pod.",
)
@click.option("--pod-ip", help="Address to which --service leads while this process leads.")
@click.option(
    "--device-class",
    default=_DEFAULTS.device_class,
    help="DeviceClass of whole GPUs, for the claims that are created for planned GPUs; else "
    "gpu.nvidia.com or gpu.amd.com, by the first resource. Give the webhook's value.",
)
@LOG_LEVEL
@LOG_FORMAT
@click.version_option(package_name="linkwise")
def command(
    log_level: str,
    log_format: str,
    gang_timeout: float,
    wave_timeout: float,
    replacement_timeout: float,
    lift_gates_after: float | None,
    reserve_limit: float,
    reclaim_notice: float,
    moves: str,
    movable_after: float | None,
    movable_namespaces: tuple[tuple[str, float], ...],
    move_cost: float,
    whole_nodes: int,
    whole_nodes_cost: float,
    indexed_jobs: str,
    certificate_lifetime: float,
    call_timeout: float,
    lease_duration: float,
    renew_deadline: float,
    retry_period: float,
    **flags: object,
) -> None:
    """Answer kube-scheduler's filter, prioritize, bind and preempt calls for GPU pods."""
    begin_log(log_level, log_format)
    try:
        settings = Settings(
            gang_timeout_seconds=gang_timeout,
            wave_seconds=wave_timeout,
            replacement_seconds=replacement_timeout,
            lift_gates_after_seconds=lift_gates_after,
            reserve_limit_seconds=reserve_limit,
            reclaim_notice_seconds=reclaim_notice,
            moves=MovePolicy(
                Moves(moves),
                math.inf if movable_after is None else movable_after,
                movable_namespaces,
                move_cost,
                whole_nodes=whole_nodes,
                whole_nodes_cost_seconds=whole_nodes_cost,
            ),
            indexed_jobs=IndexedJobs(indexed_jobs),
            certificate_lifetime=Lifetime(certificate_lifetime),
            call_timeout_seconds=call_timeout,
            timing=Timing(lease_duration, renew_deadline, retry_period),
            **flags,  # type: ignore[arg-type]
        )
        serve(settings)
    except (SettingsError, LoadError, ListenError) as error:
        _refuse(str(error))


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises LoadError, ListenError."""
    raise_limit()
    metrics = ExtenderMetrics()
    core = Core(settings)
    client = KubeClient.load(kubeconfig=settings.kubeconfig, server=settings.api_server)
    calling = _calling(settings, client)
    elector = _elector(settings, client, calling) if settings.leader_elect else None
    lead = elector or ALONE

    def complete() -> None:
        _freeze()
        if elector is not None:
            elector.start()  # only now, because a leader must be able to act at once

    def route_calls() -> None:
        if calling is not None:
            calling.take(lead.write_seconds())

    loop = Loop(
        core,
        client,
        metrics,
        barrier_seconds=settings.barrier_seconds,
        on_complete=complete,
        lead=lead,
        route_calls=route_calls,
        device_class=settings.device_class or device_class_of(settings.resource_names[0]),
        namespace=settings.lease_namespace,
    )
    exit_on_signals()
    ports = open_ports(settings, loop, metrics, client)
    loop.start()
    try:
        ports.run()  # until a signal raises SystemExit
    finally:
        loop.end_waits()
        ports.close()  # first: calls in flight still need the loop
        at_rest = loop.stop()
        if calling is not None and lead.act_seconds() > 0:
            _let_go(calling)
        if elector is not None:
            elector.stop(release=at_rest)
    log.info("ended")


def _elector(settings: Settings, client: KubeClient, calling: LeaderEndpoints | None) -> Elector:
    # A restarted container is another process with an empty cache, so it has another identity. But
    # its predecessor has ended: the kubelet never runs two processes of one container.
    place = f"{settings.pod_name or socket.gethostname()}_"
    return Elector(
        client,
        namespace=settings.lease_namespace,
        name=_LEASE,
        identity=f"{place}{uuid4()}",
        predecessors=place if settings.pod_name else "",
        timing=settings.timing,
        on_lost=_lost,
        on_silence=calling.withdraw if calling is not None else lambda: None,
    )


def _lost(_why: str) -> NoReturn:
    """Another process leads, so this process's state is outdated. It exits, and the kubelet
    restarts it. The log has the reason."""
    logging.shutdown()
    os._exit(1)


def _let_go(calling: LeaderEndpoints) -> None:
    """Remove this process's address from the Service, so that no caller waits for it."""
    try:
        calling.withdraw()
    except (ApiError, msgspec.MsgspecError) as error:
        log.info("cannot remove this address from the Service: %s", error)


def _calling(settings: Settings, client: KubeClient) -> LeaderEndpoints | None:
    """The endpoints of --service; None without --service."""
    if settings.service is None:
        return None
    assert settings.pod_ip is not None, "the settings see to it"
    assert settings.pod_name is not None, "the settings see to it"
    return LeaderEndpoints(
        client,
        namespace=settings.lease_namespace,
        service=settings.service,
        pod=settings.pod_name,
        address=settings.pod_ip,
        ports={CALLS: settings.listen_port, STATUS: settings.status_port},
    )


def _freeze() -> None:
    """Exclude the cache from garbage collection.

    The cache of 5,000 nodes stays forever, and each collection of it takes 0.2 s. From now on,
    Python collects only newer objects, and less often: reference counts free nearly everything
    that a pod leaves behind.
    """
    gc.unfreeze()  # a cache that a new leader has replaced is garbage by now
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _refuse(text: str) -> NoReturn:
    click.echo(f"linkwise-extender: {text}", err=True)
    sys.exit(2)


def main() -> None:
    command(prog_name="linkwise-extender")


if __name__ == "__main__":
    main()
