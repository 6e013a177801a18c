"""Flags, logging, wiring: the extender as a program, and the only place that exits.

It starts serving at once and tells by `/readyz` when its books are complete; an API server that
is not there yet is waited for. SIGTERM ends it: it stops listening, lets writes under way finish,
and leaves the rest to its successor, since every promise stands on the API server. Where there are
several, the one that holds the Lease acts; the others read along, and say that they are not ready.
"""

import gc
import logging
import os
import signal
import socket
import sys
from types import FrameType
from typing import NoReturn
from uuid import uuid4

import click
import msgspec

from linkwise.extender.api.spans import DEFAULT_LEVELS
from linkwise.extender.core import CoreSettings, Scheduler
from linkwise.extender.flags import DURATION, LEVELS, PLACE
from linkwise.extender.podgrouper.workloads.answer import IndexedJobs
from linkwise.extender.preemption.policy import Preempt
from linkwise.extender.runtime.leader_endpoints import CALLS, STATUS, Calling
from linkwise.extender.runtime.leadership import ALONE
from linkwise.extender.runtime.loop import Shell
from linkwise.extender.runtime.metrics import ExtenderMetrics
from linkwise.extender.runtime.ports.open_ports import ListenError, open_ports
from linkwise.extender.settings import Settings, SettingsError
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError, LoadError
from linkwise.kube.lease import Elector, Timing
from linkwise.serving.certificates.pairs import Lifetime
from linkwise.serving.server import raise_limit
from linkwise.topology.names import DEFAULT_RESOURCE

log = logging.getLogger("linkwise.extender")
ENV_PREFIX = "LINKWISE_EXTENDER"
_DEFAULTS = Settings()


@click.command(context_settings={"auto_envvar_prefix": ENV_PREFIX, "show_default": True})
@click.option(
    "--kubeconfig",
    type=click.Path(),
    help="kubeconfig file; without it and --api-server, the pod's own service account.",
)
@click.option("--api-server", help="Plain URL of an API server that asks for no credentials.")
@click.option(
    "--resource-name", default=DEFAULT_RESOURCE, help="The extended resource that is a GPU."
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
    help="Port for probes, metrics and what people look at; 0 takes a free one and logs it.",
)
@click.option(
    "--plain-http",
    type=click.BOOL,
    default=_DEFAULTS.plain_http,
    help="Serve whoever reaches --listen-port, without TLS; on a loopback address only.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    default=_DEFAULTS.hosts,
    help="How kube-scheduler calls this server: name or address. More than one may be said.",
)
@click.option(
    "--certificates",
    type=PLACE,
    default="/".join(_DEFAULTS.certificates),
    help="Secret in which our authority is kept, and ConfigMap in which it is published.",
)
@click.option(
    "--certificate-lifetime",
    type=DURATION,
    default="2160h",
    help="Of each certificate that our authority signs; another is made when a third is left.",
)
@click.option(
    "--caller",
    "callers",
    multiple=True,
    default=_DEFAULTS.callers,
    help="Common name in a client certificate of who may call. More than one may be said.",
)
@click.option(
    "--caller-secret",
    type=PLACE,
    help="Secret to keep the --caller's certificate in, signed by our authority; without it, the "
    "cluster's authority for client certificates is trusted.",
)
@click.option(
    "--call-timeout",
    type=DURATION,
    default="5s",
    help="kube-scheduler's httpTimeout: a call that is older is not carried out.",
)
@click.option(
    "--gang-timeout",
    type=DURATION,
    default="10m",
    help="How long a partial gang may hold GPUs, where its pods do not say.",
)
@click.option(
    "--max-refusals",
    type=click.IntRange(1),
    default=_DEFAULTS.max_refusals,
    help="Plans of one gang that kube-scheduler may refuse before the gang waits for a change.",
)
@click.option(
    "--span-levels",
    type=LEVELS,
    default=",".join(DEFAULT_LEVELS),
    help="Node labels that name domains above the node, nearest first, with commas between them.",
)
@click.option(
    "--hold-share",
    type=click.FloatRange(0, 1),
    default=_DEFAULTS.hold_share,
    help="Share of the GPUs that a gang could use which may be kept for all who wait for them.",
)
@click.option(
    "--hold-limit",
    type=DURATION,
    default="2h",
    help="How long what is kept for a namespace may idle more than --hold-share of the GPUs.",
)
@click.option(
    "--preempt",
    type=click.Choice([who.value for who in Preempt]),
    default=_DEFAULTS.preempt.value,
    callback=lambda _context, _option, who: Preempt(who),
    help="Who may be evicted for a more important gang: those who say that they are preemptible, "
    "all of lower priority, or nobody.",
)
@click.option(
    "--indexed-jobs",
    type=click.Choice([word.value for word in IndexedJobs]),
    default=_DEFAULTS.indexed_jobs.value,
    help="Which Indexed Jobs, of those that run all their pods at once, are gangs.",
)
@click.option(
    "--leader-elect",
    type=click.BOOL,
    default=_DEFAULTS.leader_elect,
    help="Whether there are several of us, of whom the holder of a Lease acts.",
)
@click.option("--lease-namespace", default=_DEFAULTS.lease_namespace, help="Where the Lease is.")
@click.option("--lease-name", default=_DEFAULTS.lease_name, help="The Lease's name.")
@click.option(
    "--lease-duration",
    type=DURATION,
    default="15s",
    help="How long a Lease that nobody renews is left to its holder.",
)
@click.option(
    "--renew-deadline",
    type=DURATION,
    default="10s",
    help="How long a leader acts that cannot renew the Lease.",
)
@click.option("--retry-period", type=DURATION, default="2s", help="Between two looks at the Lease.")
@click.option(
    "--service",
    help="A Service without selector, in the Lease's namespace: the leader takes its calls.",
)
@click.option(
    "--pod-name",
    help="Of which this process is the only one: it need not wait for the lease of one before it.",
)
@click.option("--pod-ip", help="Where --service is to lead, when this process leads.")
@click.option(
    "--request-threads",
    type=click.IntRange(1),
    default=_DEFAULTS.request_threads,
    help="Pods bound at the same time, and as many other calls answered.",
)
@click.option(
    "--write-threads",
    type=click.IntRange(1),
    default=_DEFAULTS.write_threads,
    help="Writes of plans to the API server at the same time; Events have threads of their own.",
)
@click.option(
    "--max-body-mib",
    type=click.IntRange(1),
    default=_DEFAULTS.max_body_mib,
    help="Largest request body accepted, in MiB.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least severe messages to log.",
)
@click.version_option(package_name="linkwise")
def command(
    log_level: str,
    gang_timeout: float,
    hold_limit: float,
    indexed_jobs: str,
    certificate_lifetime: float,
    call_timeout: float,
    lease_duration: float,
    renew_deadline: float,
    retry_period: float,
    **flags: object,
) -> None:
    """Answer kube-scheduler's filter, prioritize, bind and preempt calls for GPU pods."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # what matters of it we say ourselves
    try:
        settings = Settings(
            gang_timeout_seconds=gang_timeout,
            hold_limit_seconds=hold_limit,
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
    core = Scheduler(
        CoreSettings(
            resource_name=settings.resource_name,
            gang_timeout_seconds=settings.gang_timeout_seconds,
            max_refusals=settings.max_refusals,
            span_levels=settings.span_levels,
            indexed_jobs=settings.indexed_jobs,
            hold_share=settings.hold_share,
            hold_limit_seconds=settings.hold_limit_seconds,
            preempt=settings.preempt,
        )
    )
    client = KubeClient.load(kubeconfig=settings.kubeconfig, server=settings.api_server)
    calling = _calling(settings, client)
    elector = _elector(settings, client, calling) if settings.leader_elect else None
    lead = elector or ALONE

    def complete() -> None:
        _freeze()
        if elector is not None:
            elector.start()  # not before it could act at once

    def take_calls() -> None:
        if calling is not None:
            calling.take(lead.write_seconds())

    shell = Shell(
        core,
        client,
        metrics,
        write_threads=settings.write_threads,
        on_complete=complete,
        lead=lead,
        take_calls=take_calls,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    ports = open_ports(settings, shell, metrics, client)
    shell.start()
    try:
        ports.run()  # ends by the SystemExit that a signal raises
    finally:
        ports.close()  # first: calls under way still need the shell
        at_rest = shell.stop()
        if calling is not None and lead.act_seconds() > 0:
            _let_go(calling)
        if elector is not None:
            elector.stop(release=at_rest)
    log.info("ended")


def _elector(settings: Settings, client: KubeClient, calling: Calling | None) -> Elector:
    # A container that is started anew is another process, and has none of the old one's books. But
    # the old one has ended: no kubelet runs two of the same pod.
    place = f"{settings.pod_name or socket.gethostname()}_"
    return Elector(
        client,
        namespace=settings.lease_namespace,
        name=settings.lease_name,
        identity=f"{place}{uuid4()}",
        predecessors=place if settings.pod_name else "",
        timing=settings.timing,
        on_lost=_lost,
        on_silence=calling.withdraw if calling is not None else lambda: None,
    )


def _lost(_why: str) -> NoReturn:
    """Another leads. Whatever this process still has in mind is out of date, and what it does not
    know it cannot unlearn: it starts anew. The log has the reason."""
    logging.shutdown()
    os._exit(1)


def _let_go(calling: Calling) -> None:
    """So that nobody waits for an address that answers no more, until another leads."""
    try:
        calling.withdraw()
    except (ApiError, msgspec.MsgspecError) as error:
        log.info("calls are still sent here: %s", error)


def _calling(settings: Settings, client: KubeClient) -> Calling | None:
    """What brings kube-scheduler's calls to this process, where anything does."""
    if settings.service is None:
        return None
    assert settings.pod_ip is not None, "the settings see to it"
    assert settings.pod_name is not None, "the settings see to it"
    return Calling(
        client,
        namespace=settings.lease_namespace,
        service=settings.service,
        pod=settings.pod_name,
        address=settings.pod_ip,
        ports={CALLS: settings.listen_port, STATUS: settings.status_port},
    )


def _freeze() -> None:
    """The books of 5,000 nodes are for ever, and to search them for garbage takes 0.2 s each time:
    from now on only what comes after them is searched, and less often, as nearly nothing of what
    a pod leaves behind needs a search."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    log.info("%s: ending", signal.Signals(number).name)
    raise SystemExit(0)


def _refuse(text: str) -> NoReturn:
    click.echo(f"linkwise-extender: {text}", err=True)
    sys.exit(2)


def main() -> None:
    command(prog_name="linkwise-extender")


if __name__ == "__main__":
    main()
