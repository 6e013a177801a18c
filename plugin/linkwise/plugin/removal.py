"""`python3 -m linkwise.plugin.removal`: deletes the plugin's DaemonSet and waits for its pods.

`helm uninstall` deletes everything within a second. The plugins would get SIGTERM when their rights
are gone, and could not clean their Nodes (docs/decisions/kubernetes.md#7-what-is-deployed). So the
chart runs this before: the plugins end while they still have their rights. It also names the pods
that would wait for Linkwise forever.
"""

import sys
from collections.abc import Callable, Iterator, Sequence

import click
import msgspec
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError, LoadError
from linkwise.kube.objects import Pod
from linkwise.topology import names

_POLL_SECONDS = 0.5
_SCHEDULER = "linkwise-scheduler"
_OF_SCHEDULER = f"--field-selector spec.nodeName=,spec.schedulerName={_SCHEDULER}"
_PAGE = "docs/operating/upgrade-and-uninstall.md#pods-that-wait-for-linkwise"


class _Pods(msgspec.Struct):
    items: tuple[Pod, ...]


class StillThereError(Exception):
    """Pods of the DaemonSet did not end in time; the text says where to look."""


@click.command()
@click.option(
    "--daemonset",
    "daemonsets",
    required=True,
    multiple=True,
    metavar="NAMESPACE/NAME",
    help="The DaemonSet. May be repeated.",
)
@click.option(
    "--seconds", type=click.FloatRange(0), default=120.0, help="How long to wait for its pods."
)
@click.option("--api-server", help="URL of an API server that asks for no credentials.")
def main(daemonsets: tuple[str, ...], seconds: float, api_server: str | None) -> None:
    """Delete the plugin's DaemonSets and wait until their pods are gone; status 1 if they stay.
    Say which pods wait for Linkwise."""
    for daemonset in daemonsets:
        try:
            client = KubeClient.load(kubeconfig=None, server=api_server)
            remove(client, daemonset, seconds=seconds)
        except (ApiError, LoadError, StillThereError) as error:
            sys.exit(f"linkwise: {daemonset} is not removed: {error}")
    try:
        for line in left_waiting(client):
            click.echo(line)
    except ApiError as error:
        click.echo(f"linkwise: which pods wait for it is unknown: {error}")


def remove(client: KubeClient, daemonset: str, *, seconds: float) -> None:
    """Return when the DaemonSet and its pods are gone, also if there was none.

    *daemonset* is NAMESPACE/NAME. Raises ApiError; StillThereError after *seconds*.
    """
    namespace, _, name = daemonset.partition("/")
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
    if not _found(lambda: client.delete(path, foreground=True)):
        return
    patiently = Retrying(
        retry=retry_if_result(bool), wait=wait_fixed(_POLL_SECONDS), stop=stop_after_delay(seconds)
    )
    try:
        patiently(lambda: _found(lambda: client.read(path)))
    except RetryError:
        raise StillThereError(
            f"after {seconds:g} s it still has pods, perhaps on nodes that are down: "
            f"kubectl -n {namespace} get pods -l app.kubernetes.io/name={name} -o wide"
        ) from None


def left_waiting(client: KubeClient) -> Iterator[str]:
    """Sentences about the pods that wait for Linkwise, with what to do; none if no pod waits. Helm
    quotes them, so they have no quotes of their own.

    Raises ApiError.
    """
    pending = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
    named, claiming, gated = list[Pod](), list[Pod](), list[Pod]()
    for pod in client.get("/api/v1/pods", _Pods, params=pending).items:
        if pod.spec.scheduler_name == _SCHEDULER:
            named.append(pod)
        elif names.CLAIMS in pod.metadata.annotations:
            claiming.append(pod)
        elif any(gate.name == names.GATE for gate in pod.spec.scheduling_gates):
            gated.append(pod)
    if named:
        yield (
            f"linkwise: {_waiting(named, f'for {_SCHEDULER}')} Once Linkwise is gone, delete them: "
            f"kubectl delete pods -n {named[0].metadata.namespace} {_OF_SCHEDULER}"
        )
    if claiming:
        yield (
            f"linkwise: {_waiting(claiming, 'for a claim of Linkwise')} Once Linkwise is gone, "
            f"delete them: {_PAGE} has the commands"
        )
    if gated:
        yield (
            f"linkwise: {_waiting(gated, f'behind the gate {names.GATE}')} Once Linkwise is gone, "
            f"lift it: {_PAGE} has the commands"
        )


def _waiting(pods: Sequence[Pod], where: str) -> str:
    verb = "pod waits" if len(pods) == 1 else "pods wait"
    first = pods[0].metadata
    return f"{len(pods)} {verb} {where}, such as {first.namespace}/{first.name}."


def _found(request: Callable[[], object]) -> bool:
    """Send *request*, and return whether its object exists."""
    try:
        request()
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


if __name__ == "__main__":
    main()
