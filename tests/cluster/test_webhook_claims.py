"""GPUs from claims on a real API server: what of a pod is stored, and what is refused."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane, KubectlError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.late_claims import of_chart
from tests.cluster.support.scheduling.webhook import Webhook

GPU = "nvidia.com/gpu"
GATE = [{"name": names.GATE}]
OLDER_VERSION = "resource.k8s.io/v1beta1"
EXTENDER = ("--as=system:serviceaccount:kube-system:linkwise-extender", "--as-group=system:masters")


def rendered(file: str, part: str = "webhook") -> list[dict[str, Any]]:
    text = of_chart(file, part, webhook__closedDriver="gpu.nvidia.com")
    return [each for each in yaml.safe_load_all(text) if each]


@pytest.fixture(scope="module")
def control(run_directory: Path) -> Iterator[ControlPlane]:
    directory = run_directory / "webhook-claims"
    control = ControlPlane(
        directory,
        controllers=False,
        disable_admission=["ServiceAccount"],
        api_flags=(f"--runtime-config={OLDER_VERSION}=true",),
    )
    control.start()
    policies = rendered("admission.yaml", "extender") + rendered("closed.yaml", "extender")
    control.kubectl("apply", "-f=-", stdin=yaml.safe_dump_all(policies))
    webhook = Webhook(control, "--gpus-from-claims", manifests=rendered)
    try:
        webhook.register(timeoutSeconds=30)
        webhook.start()
        webhook.wait_asked()
        wait_for(lambda: refused_claim(control), "tolerations are refused")
        create(control, *(claim_template(name, of) for name, of in TEMPLATES.items()))
        yield control
    finally:
        webhook.process.stop()
        control.stop()
    shutil.rmtree(directory, ignore_errors=True)


TEMPLATES = {"whole": "gpu.nvidia.com", "nic": "nic.example"}


def claim_template(name: str, device_class: str) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": device_class, "count": 2}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def pod(name: str, resources: dict[str, Any], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def with_template(name: str, template: str) -> dict[str, Any]:
    entry = {"name": "mine", "resourceClaimTemplateName": template}
    return pod(name, {"claims": [{"name": "mine"}]}, resourceClaims=[entry])


def create(control: ControlPlane, *made: dict[str, Any]) -> None:
    control.kubectl("create", "-f=-", stdin=yaml.safe_dump_all(made))


def stored(control: ControlPlane, made: dict[str, Any]) -> dict[str, Any]:
    create(control, made)
    said = control.kubectl("get", "pod", made["metadata"]["name"], "-o=json")
    found: dict[str, Any] = json.loads(said)
    return found


def test_a_pod_with_the_resource_is_stored_with_a_claim_and_the_gate(
    control: ControlPlane,
) -> None:
    warm = {"name": "warm", "image": "none", "resources": {"limits": {GPU: "1"}}}
    found = stored(control, pod("one", {"limits": {GPU: "2"}}, initContainers=[warm]))
    ((entry, said),) = json.loads(found["metadata"]["annotations"][names.CLAIMS]).items()
    assert (entry, said["requests"]) == ("linkwise-gpus", {"main": 2})
    use = [{"name": entry, "request": "main"}]
    assert found["spec"]["resourceClaims"] == [{"name": entry, "resourceClaimName": said["claim"]}]
    for part in ("containers", "initContainers"):
        (container,) = found["spec"][part]
        assert container["resources"]["claims"] == use
        assert GPU not in json.dumps(container)
    assert found["spec"]["schedulingGates"] == GATE


def test_a_pod_with_a_template_of_whole_gpus_is_stored_with_a_claim(control: ControlPlane) -> None:
    found = stored(control, with_template("two", "whole"))
    said = json.loads(found["metadata"]["annotations"][names.CLAIMS])["mine"]
    assert (said["requests"], said["template"]) == ({"r": 2}, "whole")
    (entry,) = found["spec"]["resourceClaims"]
    assert entry == {"name": "mine", "resourceClaimName": said["claim"]}
    assert found["spec"]["schedulingGates"] == GATE


@pytest.mark.parametrize("template", ["nic", "missing"])
def test_other_templates_are_left_alone(control: ControlPlane, template: str) -> None:
    made = with_template(f"other-{template}", template)
    found = stored(control, made)
    assert found["spec"]["resourceClaims"] == made["spec"]["resourceClaims"]
    assert names.CLAIMS not in found["metadata"].get("annotations", {})
    assert "schedulingGates" not in found["spec"]


def test_what_the_webhook_wrote_is_fixed_and_cannot_be_forged(control: ControlPlane) -> None:
    stored(control, pod("fixed", {"limits": {GPU: "1"}}))
    for change in (f"{names.CLAIMS}=x", f"{names.CLAIMS}-"):
        with pytest.raises(KubectlError, match=r"linkwise.dev/claims: only Linkwise decides this"):
            control.kubectl("annotate", "--overwrite", "pod", "fixed", change)
    entry = {"claim": "linkwise-" + "0" * 20, "requests": {"main": 1}}
    forged = pod("forged", {})
    forged["metadata"]["annotations"] = {names.CLAIMS: json.dumps({"mine": entry})}
    with pytest.raises(KubectlError, match=r"spec\.resourceClaims with name mine and"):
        create(control, forged)


CLOSING = {"key": names.CLOSED, "operator": "Exists"}


def claim(name: str, toleration: dict[str, Any], form: str = "exactly") -> dict[str, Any]:
    asked: dict[str, Any] = {"deviceClassName": "gpu.nvidia.com", "tolerations": [toleration]}
    requests: dict[str, dict[str, Any]] = {
        "exactly": {"exactly": asked},
        "firstAvailable": {
            "firstAvailable": [
                {"name": "first", "deviceClassName": "gpu.nvidia.com"},
                {"name": "second", **asked},
            ]
        },
        "adminAccess": {"exactly": {**asked, "adminAccess": True}},
        "v1beta1": asked,
    }
    return {
        "apiVersion": OLDER_VERSION if form == "v1beta1" else "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "r", **requests[form]}]}},
    }


def template_like(made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def refused_claim(control: ControlPlane) -> bool:
    try:
        text = yaml.safe_dump(claim("probe", CLOSING))
        control.kubectl("create", "--dry-run=server", "-f=-", stdin=text)
    except KubectlError as error:
        return "only Linkwise's extender creates claims that tolerate" in str(error)
    return False


@pytest.mark.parametrize("form", ["exactly", "firstAvailable", "v1beta1"])
@pytest.mark.parametrize(
    "toleration",
    [CLOSING, {"key": names.CLOSED, "value": "x"}, {"operator": "Exists"}],
    ids=["the taint", "a value of it", "every taint"],
)
def test_only_the_extender_creates_a_claim_that_tolerates_the_taint(
    control: ControlPlane, form: str, toleration: dict[str, Any]
) -> None:
    made = claim("mine", toleration, form)
    for refused in (made, template_like(made)):
        with pytest.raises(KubectlError, match="only Linkwise's extender creates claims that"):
            create(control, refused)
    text = yaml.safe_dump(made)
    control.kubectl("create", "--dry-run=server", "-f=-", *EXTENDER, stdin=text)


def test_other_tolerations_are_let_in(control: ControlPlane) -> None:
    for form in ("exactly", "firstAvailable"):
        made = claim(f"other-{form.lower()}", {"key": "example.com/slow"}, form)
        create(control, made, template_like(made))


def test_a_claim_with_admin_access_takes_no_device_and_tolerates_what_it_likes(
    control: ControlPlane,
) -> None:
    control.kubectl("label", "ns", "default", "resource.kubernetes.io/admin-access=true")
    made = claim("watches", {"operator": "Exists"}, "adminAccess")
    create(control, made, template_like(made))


def test_what_others_do_to_the_extenders_claims_goes_on(control: ControlPlane) -> None:
    """Kubernetes' own controllers write finalizers and status. Nothing changes a spec."""
    made = claim("planned", CLOSING)
    control.kubectl("create", "-f=-", *EXTENDER, stdin=yaml.safe_dump(made))
    scheduler = control.client("system:kube-scheduler", group="")
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/planned"
    control.client().patch(path, {"metadata": {"finalizers": ["example.com/keep"]}})
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
    devices = {"results": [{**result, "tolerations": [CLOSING]}]}
    scheduler.patch(f"{path}/status", {"status": {"allocation": {"devices": devices}}})
    control.client().patch(path, {"metadata": {"finalizers": None}})
    before, after = claim("plain", {"key": "example.com/slow"}), claim("plain", CLOSING)
    create(control, before, template_like(before))
    for change in (after, template_like(after)):
        with pytest.raises(KubectlError, match="field is immutable"):
            control.kubectl("replace", "-f=-", stdin=yaml.safe_dump(change))
