"""`python3 -m linkwise.plugin.removal`: deletes the plugin's DaemonSet and waits for its pods.

`helm uninstall` deletes everything within a second. The plugins would get SIGTERM when their rights
are gone, and could not clean their Nodes (docs/decisions/0007-what-is-deployed.md). So the chart
runs this before: the plugins end while they still have their rights.
"""

import sys
from collections.abc import Callable

import click
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError, LoadError

_POLL_SECONDS = 0.5


class StillThereError(Exception):
    """Pods of the DaemonSet did not end in time; the text says where to look."""


@click.command()
@click.option("--daemonset", required=True, metavar="NAMESPACE/NAME", help="The DaemonSet.")
@click.option(
    "--seconds", type=click.FloatRange(0), default=120.0, help="How long to wait for its pods."
)
@click.option("--api-server", help="URL of an API server that asks for no credentials.")
def main(daemonset: str, seconds: float, api_server: str | None) -> None:
    """Delete the plugin's DaemonSet and wait until its pods are gone; status 1 if they stay."""
    try:
        remove(KubeClient.load(kubeconfig=None, server=api_server), daemonset, seconds=seconds)
    except (ApiError, LoadError, StillThereError) as error:
        sys.exit(f"linkwise: {daemonset} is not removed: {error}")


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
