"""Flags, logging, wiring: the admission webhook as a program.

It serves no call before its certificate is published. SIGTERM ends it once the calls in flight are
answered. While no webhook runs, pods are created without the gate.
"""

import logging
import sys
from pathlib import Path
from typing import NoReturn

import click

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import LoadError
from linkwise.pods.flags import DURATION, PLACE
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs
from linkwise.serving.certificates.callers import Place
from linkwise.serving.certificates.keeper import FileKeeper, Keeper
from linkwise.serving.certificates.pairs import Lifetime, Pair
from linkwise.serving.program import LOG_FORMAT, LOG_LEVEL, begin_log, exit_on_signals
from linkwise.topology.names import DEFAULT_RESOURCE, DEFAULT_RESOURCES, RESOURCE_NAME, is_share
from linkwise.topology.vendors.known import device_class_of
from linkwise.webhook.answers import Answers
from linkwise.webhook.claims import ReadTemplate
from linkwise.webhook.keeper import SecretKeeper
from linkwise.webhook.patch import DEFAULT_SCHEDULER, Gating, Rules
from linkwise.webhook.server import WebhookServer
from linkwise.webhook.template_reader import TemplateReader, no_template

log = logging.getLogger("linkwise.webhook")
PORT = 9403  # the plugin has 9401, the extender 9402
SERVICE = "linkwise-webhook.kube-system.svc"
_SHORTEST_LIFETIME_SECONDS = 10.0
_CONFIGURATION = "linkwise"  # of both kinds: they get the trusted certificates
_MAX_BODY = 8 << 20  # etcd accepts objects of 1.5 MiB; an update has two


def _lifetime(_context: click.Context, parameter: click.Parameter, seconds: float) -> Lifetime:
    if seconds < _SHORTEST_LIFETIME_SECONDS:
        raise click.BadParameter(f"{seconds:g} s: expected 10s or more", param=parameter)
    return Lifetime(seconds)


def _resources(
    _context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    for each in value:
        if not RESOURCE_NAME.fullmatch(each):
            raise click.BadParameter(
                f"{each!r}: expected a name like {DEFAULT_RESOURCE}", param=parameter
            )
    return value


@click.command(
    context_settings={
        "auto_envvar_prefix": "LINKWISE_WEBHOOK",
        "show_default": True,
        "help_option_names": ["-h", "--help"],
    },
    epilog="\b\nExample:\n  python -m linkwise.webhook --scheduler-name=linkwise-scheduler",
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
    envvar="LINKWISE_WEBHOOK_RESOURCE_NAME",
    multiple=True,
    default=DEFAULT_RESOURCES,
    callback=_resources,
    help="The extended resource that is a GPU; once for each, as for the extender.",
)
@click.option(
    "--shared-resource",
    "shared_resources",
    envvar="LINKWISE_WEBHOOK_SHARED_RESOURCE",
    multiple=True,
    callback=_resources,
    help="A resource of replicas or MIG devices about which the scheduler asks the extender too, "
    "as in its managedResources. May be repeated.",
)
@click.option(
    "--scheduler-name",
    default=DEFAULT_SCHEDULER,
    help="The scheduler that calls the extender: pods of the default scheduler are moved to it.",
)
@click.option(
    "--gate",
    type=click.Choice([gating.value for gating in Gating]),
    default=Gating.GANGS.value,
    help="GPU pods that get the gate, and wait for their plan behind it.",
)
@click.option(
    "--indexed-jobs",
    type=click.Choice([mode.value for mode in IndexedJobs]),
    default=IndexedJobs.ALL.value,
    help="Which Indexed Jobs that run all their pods at once are gangs: all, those whose pods have "
    "a subdomain, or none. Give the extender's value.",
)
@click.option(
    "--gpus-from-claims",
    is_flag=True,
    help="GPUs are devices of a DRA driver: pods wait for a ResourceClaim that the extender "
    "creates for the planned ones.",
)
@click.option(
    "--device-class",
    help="With --gpus-from-claims, the DeviceClass of whole GPUs; else gpu.nvidia.com or "
    "gpu.amd.com, by the first resource.",
)
@click.option("--listen-address", default="0.0.0.0", help="Address to serve on.")
@click.option(
    "--listen-port",
    type=click.IntRange(0, 65535),
    default=PORT,
    help="Port to serve on; 0 takes a free one and logs it.",
)
@click.option(
    "--host",
    "hosts",
    envvar="LINKWISE_WEBHOOK_HOST",
    multiple=True,
    default=(SERVICE,),
    help="Name or address by which the API server calls this server. May be repeated.",
)
@click.option(
    "--secret",
    default="kube-system/linkwise-webhook",
    type=PLACE,
    help="Existing Secret that stores the certificates, as NAMESPACE/NAME.",
)
@click.option(
    "--certificate-lifetime",
    "lifetime",
    envvar="LINKWISE_WEBHOOK_CERTIFICATE_LIFETIME",
    type=DURATION,
    default="2160h",
    callback=_lifetime,
    help="Lifetime of each certificate; the webhook renews it when a third is left.",
)
@click.option(
    "--certificate-directory",
    type=click.Path(path_type=Path),
    help="Serve tls.crt and tls.key of this directory, which another program renews; the webhook "
    "then creates, stores and publishes no certificates.",
)
@LOG_LEVEL
@LOG_FORMAT
@click.version_option(package_name="linkwise")
def command(
    kubeconfig: str | None,
    api_server: str | None,
    resource_names: tuple[str, ...],
    shared_resources: tuple[str, ...],
    scheduler_name: str,
    gate: str,
    indexed_jobs: str,
    gpus_from_claims: bool,
    device_class: str | None,
    listen_address: str,
    listen_port: int,
    hosts: tuple[str, ...],
    secret: Place,
    lifetime: Lifetime,
    certificate_directory: Path | None,
    log_level: str,
    log_format: str,
) -> None:
    """Give GPU pods their scheduler and their gate, and refuse wrong annotations."""
    begin_log(log_level, log_format)
    for name in shared_resources:
        if not any(is_share(name, each) for each in resource_names):
            gpus = " or ".join(resource_names)
            _refuse(f"--shared-resource: {name} is not planned where {gpus} is a GPU")
    rules = Rules(
        resource_names,
        frozenset(shared_resources),
        scheduler_name,
        Gating(gate),
        IndexedJobs(indexed_jobs),
        gpus_from_claims,
        device_class or device_class_of(resource_names[0]),
    )

    def use(pair: Pair) -> None:
        server.show(pair)

    if certificate_directory is not None:
        keeper: Keeper[Pair] = FileKeeper(certificate_directory, use)
    else:
        keeper = SecretKeeper(
            _client(kubeconfig, api_server),
            secret=secret,
            configuration=_CONFIGURATION,
            hosts=hosts,
            lifetime=lifetime,
            use=use,
        )
    read_template: ReadTemplate = (
        TemplateReader(_client(kubeconfig, api_server)).read if gpus_from_claims else no_template
    )
    answers = Answers(
        rules,
        waits_for=keeper.waits_for,
        trouble=lambda: "" if keeper.alive else "the certificate keeper has ended: a defect",
        certificate_ends=lambda: keeper.ends,
        read_template=read_template,
    )
    try:
        server = WebhookServer(listen_address, listen_port, answers.routes(), max_body=_MAX_BODY)
    except OSError as error:
        where = f"{listen_address}:{listen_port}"
        _refuse(f"--listen-address, --listen-port: {where}: {error}")
    log.info("listening on https://%s:%s", listen_address, server.port)
    serve(server, keeper)


def _client(kubeconfig: str | None, api_server: str | None) -> KubeClient:
    try:
        return KubeClient.load(kubeconfig=kubeconfig, server=api_server)
    except LoadError as error:
        _refuse(str(error))


def serve(server: WebhookServer, keeper: Keeper[Pair]) -> None:
    """Serve until SIGTERM or SIGINT."""
    exit_on_signals()
    keeper.start()
    try:
        server.run()  # until a signal raises SystemExit
    finally:
        server.end()
        keeper.stop()
    log.info("ended")


def _refuse(text: str) -> NoReturn:
    click.echo(f"linkwise-webhook: {text}", err=True)
    sys.exit(2)


def main() -> None:
    command(prog_name="linkwise-webhook")


if __name__ == "__main__":
    main()
