"""Before an uninstallation, the plugin's DaemonSet goes, and with it the plugins, each in peace."""

from collections.abc import Mapping
from threading import Timer

import pytest
from click.testing import CliRunner

from linkwise.kube.client import KubeClient
from linkwise.plugin.removal import StillThereError, left_waiting, main, remove
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names

DAEMONSETS = "/apis/apps/v1/namespaces/gpus/daemonsets"
OURS = "gpus/linkwise-plugin"
PAGE = "docs/operating/upgrade-and-uninstall.md#pods-that-wait-for-linkwise"
WAITS = "example.com/pods-end"  # stands for what keeps it until its pods are gone


def daemonset(client: KubeClient, *finalizers: str, name: str = "linkwise-plugin") -> None:
    metadata = {"name": name, "namespace": "gpus", "finalizers": list(finalizers)}
    client.post(DAEMONSETS, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata})


def is_there(client: KubeClient) -> bool:
    return b"linkwise-plugin" in client.read(DAEMONSETS)


def let_go(client: KubeClient) -> None:
    client.patch(f"{DAEMONSETS}/linkwise-plugin", {"metadata": {"finalizers": None}})


def test_it_is_deleted(client: KubeClient) -> None:
    daemonset(client)
    remove(client, OURS, seconds=5)
    assert not is_there(client)


def test_without_one_there_is_nothing_to_do(client: KubeClient) -> None:
    remove(client, OURS, seconds=5)


def test_it_waits_until_the_last_pod_is_gone(client: KubeClient) -> None:
    daemonset(client, WAITS)
    later = Timer(0.7, let_go, (client,))
    later.start()
    remove(client, OURS, seconds=60)
    later.join()
    assert not is_there(client)


def test_it_does_not_wait_for_ever_for_a_node_that_is_down(client: KubeClient) -> None:
    daemonset(client, WAITS)
    with pytest.raises(
        StillThereError, match=r"after 0\.1 s it still has pods.*kubectl -n gpus get"
    ):
        remove(client, OURS, seconds=0.1)
    let_go(client)
    assert not is_there(client), "it is on its way out"


def pod(
    client: KubeClient, name: str, annotations: Mapping[str, str] | None = None, **spec: object
) -> None:
    body = {
        "metadata": {"name": name, "namespace": "ml", "annotations": dict(annotations or {})},
        "spec": {"containers": [{"name": "main", "image": "image"}], **spec},
    }
    client.post("/api/v1/namespaces/ml/pods", body)


def test_it_says_which_pods_will_wait_forever_and_what_to_do(
    server: ApiServer, client: KubeClient
) -> None:
    gate = [{"name": names.GATE}]
    pod(client, "train-0", schedulerName="linkwise-scheduler", schedulingGates=gate)
    pod(client, "train-1", schedulerName="linkwise-scheduler")
    pod(client, "eval", schedulingGates=gate)
    pod(client, "claims", annotations={names.CLAIMS: "{}"}, schedulingGates=gate)
    pod(client, "let-go", annotations={names.CLAIMS: "{}"})
    pod(client, "stranger", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    pod(client, "runs", schedulerName="linkwise-scheduler", nodeName="n1")
    ended = CliRunner().invoke(main, ["--daemonset", OURS, "--api-server", server.url])
    assert ended.exit_code == 0
    assert ended.output.splitlines() == [
        "linkwise: 2 pods wait for linkwise-scheduler, such as ml/train-0. Once Linkwise is gone, "
        "delete them: kubectl delete pods -n ml "
        "--field-selector spec.nodeName=,spec.schedulerName=linkwise-scheduler",
        "linkwise: 2 pods wait for a claim of Linkwise, such as ml/claims. Once Linkwise is gone, "
        f"delete them: {PAGE} has the commands",
        "linkwise: 1 pod waits behind the gate linkwise.dev/plan, such as ml/eval. Once Linkwise "
        f"is gone, lift it: {PAGE} has the commands",
    ]


def test_it_says_nothing_of_pods_if_none_waits(client: KubeClient) -> None:
    assert list(left_waiting(client)) == []


def test_a_refusal_ends_the_program_with_its_reason(server: ApiServer, client: KubeClient) -> None:
    daemonset(client)
    server.fail_next("DELETE", "daemonsets", 403)
    arguments = ["--daemonset", OURS, "--api-server", server.url]
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 1
    assert ended.output.startswith(f"linkwise: {OURS} is not removed: ")
    assert is_there(client)
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert not is_there(client)


def test_the_plugins_of_both_vendors_are_removed(server: ApiServer, client: KubeClient) -> None:
    for name in ("linkwise-plugin", "linkwise-plugin-amd"):
        daemonset(client, name=name)
    both = [f"--daemonset={OURS}", f"--daemonset={OURS}-amd"]
    assert CliRunner().invoke(main, [*both, "--api-server", server.url]).exit_code == 0
    assert not is_there(client)
