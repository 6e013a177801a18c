"""The webhook as deployed: from its image, behind its Service, on real nodes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from linkwise.topology import names
from tests.cluster.support.api.control_plane import KubectlError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import SYSTEM, DeployedLinkwise
from tests.cluster.support.nodes.gpu_holders import assert_agreed, assert_sound, running
from tests.manifests import DAEMONSET

DEPLOYMENT = "deployment/linkwise-webhook"
SAID = {names.GANG: "two", names.GANG_SIZE: "2"}
WRONG = {**SAID, names.GANG_SIZE: "two"}
HOOKS = {"mutating": 1, "validating": 2}  # number in each configuration


@pytest.fixture
def webhook(deployed: DeployedLinkwise, tmp_path: Path) -> Iterator[DeployedLinkwise]:
    """Deploy the webhook beside a running overlay, and remove it afterwards.

    The API server waits longer than the deployed 2 s, after which it admits everything: the tests
    are about the answers, on a busy machine too.
    """
    components = (DAEMONSET / "components" / name for name in ("webhook", "image"))
    made = {
        "components": [os.path.relpath(path, tmp_path) for path in components],
        "patches": [patched(kind, "timeoutSeconds", 30) for kind in HOOKS],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(made))
    deployed.kubectl("apply", "-k", str(tmp_path))
    try:
        deployed.kubectl("rollout", "status", f"-n={SYSTEM}", DEPLOYMENT, "--timeout=120s")
        wait_for(lambda: _is_asked(deployed), "the API server asks it")
        yield deployed
    finally:
        deployed.kubectl("delete", "-k", str(tmp_path))


def patched(kind: str, field: str, value: object) -> dict[str, object]:
    """Return an entry of a kustomization that sets a field in every webhook of that
    configuration."""
    patch = [
        {"op": "replace", "path": f"/webhooks/{number}/{field}", "value": value}
        for number in range(HOOKS[kind])
    ]
    target = {"kind": f"{kind.capitalize()}WebhookConfiguration", "name": "linkwise"}
    return {"target": target, "patch": yaml.safe_dump(patch)}


def test_a_gang_waits_behind_its_gate_and_runs_and_a_wrong_one_is_refused(
    webhook: DeployedLinkwise,
) -> None:
    webhook.apply(workloads.pod("half", 8, annotations=SAID))
    gates = webhook.pod("half")["spec"].get("schedulingGates")
    assert gates == [{"name": names.GATE}]
    webhook.kubectl("delete", "pod", "half")

    webhook.apply(workloads.job("train", 8, pods=2, gang=True))
    for pod in running(webhook, "job-name=train", 2):
        assert_agreed(webhook, pod)
    assert_sound(webhook)

    wrong = workloads.job("wrong", 8, pods=2, gang=True)
    wrong["spec"]["template"]["metadata"]["annotations"][names.GANG_SIZE] = "1"
    with pytest.raises(KubectlError, match=r"Job\.batch default/wrong runs 2 pods of it"):
        webhook.apply(wrong)


def test_an_update_of_the_webhook_lets_no_pod_go_without_its_gate(
    webhook: DeployedLinkwise,
) -> None:
    """The API server admits nothing without an answer here, so a missing answer would show."""
    for kind in HOOKS:
        webhook.kubectl(
            *("patch", f"{kind}webhookconfiguration", "linkwise", "--type=json"),
            f"--patch={patched(kind, 'failurePolicy', 'Fail')['patch']}",
        )
    webhook.kubectl("rollout", "restart", f"-n={SYSTEM}", DEPLOYMENT)
    status = ("rollout", "status", f"-n={SYSTEM}", DEPLOYMENT, "--watch=false")
    created = 0
    while "successfully rolled out" not in webhook.kubectl(*status):
        assert _is_gated(webhook, SAID)
        created += 1
    assert created > 5


def _is_asked(deployed: DeployedLinkwise) -> bool:
    """True once both configurations and the Service's endpoints have reached the API server, each
    of which takes its own time."""
    try:
        _is_gated(deployed, WRONG)
    except KubectlError:
        return _is_gated(deployed, SAID)
    return False


def _is_gated(deployed: DeployedLinkwise, said: dict[str, str]) -> bool:
    """Return whether a pod with these annotations gets its gate. Raises KubectlError if it is
    refused."""
    pod = workloads.pod("probe", 8, annotations=said)
    told = deployed.kubectl(
        *("create", "--dry-run=server", "-f=-", "-o=jsonpath={.spec.schedulingGates}"),
        stdin=yaml.safe_dump(pod),
    )
    return names.GATE in told
