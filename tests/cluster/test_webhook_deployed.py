"""The webhook as it is deployed: from its image, behind its Service, on real nodes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from linkwise.topology import names
from tests.cluster import workloads
from tests.cluster.control_plane import KubectlError
from tests.cluster.deployment import SYSTEM, Deployed
from tests.cluster.looking import assert_agreed, assert_sound, running
from tests.cluster.waiting import wait_for
from tests.manifests import DAEMONSET

DEPLOYMENT = "deployment/linkwise-webhook"


@pytest.fixture
def webhook(deployed: Deployed, tmp_path: Path) -> Iterator[Deployed]:
    """Beside an overlay that runs already; gone afterwards."""
    components = (DAEMONSET / "components" / name for name in ("webhook", "image"))
    made = {"components": [os.path.relpath(path, tmp_path) for path in components]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(made))
    deployed.kubectl("apply", "-k", str(tmp_path))
    try:
        deployed.kubectl("rollout", "status", f"-n={SYSTEM}", DEPLOYMENT, "--timeout=120s")
        yield deployed
    finally:
        deployed.kubectl("delete", "-k", str(tmp_path))


def test_a_gang_waits_behind_its_gate_and_runs_and_a_wrong_one_is_refused(
    webhook: Deployed,
) -> None:
    half = workloads.pod("half", 8, annotations={names.GANG: "two", names.GANG_SIZE: "2"})
    webhook.apply(half)
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


def test_an_update_of_the_webhook_lets_no_pod_go_without_its_gate(webhook: Deployed) -> None:
    """As nothing is let in without an answer here, a pod that nobody answers for would show."""
    for kind in ("mutating", "validating"):
        webhook.kubectl(
            *("patch", f"{kind}webhookconfiguration", "linkwise", "--type=json"),
            '--patch=[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Fail"},'
            '{"op":"replace","path":"/webhooks/0/timeoutSeconds","value":30}]',
        )
    said = {names.GANG: "two", names.GANG_SIZE: "2"}
    wait_for(lambda: _created(webhook, said), "the API server knows of it")
    webhook.kubectl("rollout", "restart", f"-n={SYSTEM}", DEPLOYMENT)
    status = ("rollout", "status", f"-n={SYSTEM}", DEPLOYMENT, "--watch=false")
    created = 0
    while "successfully rolled out" not in webhook.kubectl(*status):
        assert _created(webhook, said)
        created += 1
    assert created > 5


def _created(deployed: Deployed, said: dict[str, str]) -> bool:
    pod = workloads.pod("probe", 8, annotations=said)
    told = deployed.kubectl(
        *("create", "--dry-run=server", "-f=-", "-o=jsonpath={.spec.schedulingGates}"),
        stdin=yaml.safe_dump(pod),
    )
    return names.GATE in told
