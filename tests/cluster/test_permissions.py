"""What the programs may do, what they must not, and what no other account may. The tests send every
request to a real API server with the deployed manifests and the token of a pod on a node."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from linkwise.topology import names
from tests.cluster.support.api.accounts import NAMESPACE, Account, ApiRequest, pod_of, token
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.api.extender_permissions import (
    ANYBODY_MAY,
    DECIDES,
    EXTENDER_LEADS,
    EXTENDER_MAY,
    EXTENDER_MAY_ASK_FOR,
    EXTENDER_MAY_FOLLOW,
    EXTENDER_MUST_NOT,
    LATE_WRITES,
    LEADS_ASTRAY,
    MAKES_LEASE,
    NOBODY_MAY,
    NOMINATED,
    RENEWAL,
)
from tests.cluster.support.api.permissions import (
    NODELESS_MUST_NOT,
    NODES,
    PLUGIN_MAY,
    PLUGIN_MAY_FOLLOW,
    PLUGIN_MUST_NOT,
    PODS,
    RIGHTS,
    STRANGE,
    SYSTEM,
    WEBHOOK_MAY,
    WEBHOOK_MUST_NOT,
)
from tests.cluster.support.api.small_objects import labelled, pod
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.programs import binaries
from tests.cluster.support.scheduling.late_claims import of_chart
from tests.manifests import BASE, DAEMONSET, granted, the

WEBHOOK = DAEMONSET / "components" / "webhook"
MARKED = pod("marked", annotations={"example.com/a": "b"}, labels={"a": "b"})
MARKED["spec"]["initContainers"] = [{"name": "first", "image": "none"}]
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@pytest.fixture(scope="module", params=[binaries.NEWEST, *binaries.OLDER])
def deployed(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The accounts with their rights, and pods to modify; no controller modifies them."""
    directory = run_directory / f"permissions-{request.param}"
    control = ControlPlane(directory, version=request.param, controllers=False)
    control.start()
    control.kubectl("create", "namespace", "ml")
    control.kubectl("create", "serviceaccount", "default", "-n=ml")
    for node in ("node-1", "node-2"):
        metadata = {"name": node, "labels": {"zone": "a"}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        control.kubectl("create", "-f=-", stdin=json.dumps(body))
    control.kubectl("apply", "-k", str(DAEMONSET / "overlays" / "second-scheduler"))
    pods = [
        pod("waiting"),
        pod("other"),
        MARKED,
        pod("evictable"),
        pod("planned"),
        pod("term-1"),
        pod("term-2"),
        pod("gated", gates=(names.GATE,)),
        pod("twice-gated", gates=(names.GATE, "example.com/quota")),
        pod_of("linkwise-plugin", "node-1", name="plugin"),
        pod_of("linkwise-extender", "node-2", name="extender"),
    ]
    for each in pods:
        control.kubectl("create", "-f=-", stdin=json.dumps(each))
    yield control
    control.stop()


def in_force(account: Account, refused: ApiRequest) -> None:
    """Wait for a policy, which takes effect some time after its creation."""
    harmless = replace(refused, path=f"{refused.path}?dryRun=All")
    wait_for(lambda: refused.says in account.ask(harmless).message, f"a refusal: {refused.what}")


@pytest.fixture(scope="module")
def administrator(deployed: ControlPlane) -> Account:
    return Account(deployed, certificate_of=("admin", "system:masters"))


@pytest.fixture(scope="module")
def plugin(deployed: ControlPlane) -> Account:
    account = Account(deployed, token=token(deployed, "linkwise-plugin", pod="plugin"))
    in_force(account, PLUGIN_MUST_NOT[len(STRANGE)])
    return account


@pytest.fixture(scope="module")
def extender(deployed: ControlPlane, administrator: Account) -> Account:
    """The extender's account, after it has planned the pod that others then try to modify."""
    in_force(administrator, NOBODY_MAY[0])
    account = Account(deployed, token=token(deployed, "linkwise-extender", pod="extender"))
    in_force(account, next(each for each in EXTENDER_MUST_NOT if each.what == "label a pod"))
    planned = account.ask(ApiRequest("plan", "PATCH", f"{PODS}/planned/status", NOMINATED))
    assert planned.allowed, planned
    return account


@pytest.fixture(scope="module")
def webhook(deployed: ControlPlane) -> Account:
    """The webhook's account. Its configurations match nothing, as it does not run."""
    deployed.kubectl("apply", f"-f={WEBHOOK / 'account.yaml'}")
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "linkwise"},
        }
        deployed.kubectl("create", "-f=-", stdin=json.dumps(body))
    account = Account(deployed, token=token(deployed, "linkwise-webhook"))
    reads = [request for request in WEBHOOK_MAY if request.method == "GET"]
    wait_for(lambda: all(account.ask(each).allowed for each in reads), "its rights are in force")
    return account


def named(request: ApiRequest) -> str:
    return request.what


def test_a_kubelet_annotates_its_pods_unless_that_is_forbidden(
    deployed: ControlPlane,
) -> None:
    kubelet = Account(deployed, certificate_of=("system:node:node-1", "system:nodes"))
    path = f"{SYSTEM}/pods/plugin/status"
    says = "a kubelet may not set, change or remove annotations of linkwise.dev"
    status = {"status": {"phase": "Running"}}

    def annotates(text: str | None) -> ApiRequest:
        body = {"metadata": {"annotations": {names.GANG: text}}, **status}
        return ApiRequest("annotate", "PATCH", path, body, says=says)

    allowed(kubelet, annotates("train"))
    deployed.kubectl(
        "apply", "-f=-", stdin=of_chart("pod-status.yaml", extender__guardPodStatus=True)
    )
    in_force(kubelet, annotates("other"))
    for text in ("other", None):
        refused(kubelet, annotates(text))
    allowed(kubelet, ApiRequest("write the status", "PATCH", path, status))
    allowed(kubelet, annotates("train"))  # which it is already


@pytest.mark.parametrize("asked", PLUGIN_MUST_NOT, ids=named)
def test_the_plugin_must_not(plugin: Account, asked: ApiRequest) -> None:
    refused(plugin, asked)


@pytest.mark.parametrize("asked", PLUGIN_MAY, ids=named)
def test_the_plugin_may(plugin: Account, asked: ApiRequest) -> None:
    allowed(plugin, asked)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("asked", NODELESS_MUST_NOT, ids=named)
def test_the_plugins_account_without_a_node_must_not(
    deployed: ControlPlane, asked: ApiRequest
) -> None:
    refused(Account(deployed, token=token(deployed, "linkwise-plugin")), asked)


@pytest.mark.parametrize("asked", EXTENDER_MUST_NOT, ids=named)
def test_the_extender_must_not(extender: Account, asked: ApiRequest) -> None:
    refused(extender, asked)


@pytest.mark.parametrize("asked", EXTENDER_MAY, ids=named)
def test_the_extender_may(extender: Account, asked: ApiRequest) -> None:
    allowed(extender, asked)


@pytest.fixture(scope="module")
def second_term(deployed: ControlPlane, extender: Account) -> Account:
    """The extender's account, while its Lease says that the second term has begun."""
    said = json.dumps({"spec": {"holderIdentity": "other", "leaseTransitions": 2}})
    deployed.kubectl("patch", f"-n={NAMESPACE}", "lease", "linkwise-extender", f"--patch={said}")
    in_force(extender, LATE_WRITES[0])
    return extender


@pytest.mark.parametrize("asked", LATE_WRITES, ids=named)
def test_the_extender_must_not_once_another_leads(second_term: Account, asked: ApiRequest) -> None:
    refused(second_term, asked)


@pytest.mark.parametrize("asked", EXTENDER_LEADS, ids=named)
def test_the_extender_may_as_the_leader(second_term: Account, asked: ApiRequest) -> None:
    allowed(second_term, asked)


def test_the_extender_may_renew_its_lease(second_term: Account, deployed: ControlPlane) -> None:
    lease = deployed.client().get(RENEWAL.path, dict[str, object])
    allowed(second_term, replace(RENEWAL, body=lease))


def test_the_extender_must_not_lead_others_astray_by_its_own_slice(second_term: Account) -> None:
    refused(second_term, LEADS_ASTRAY)


def test_the_extender_may_make_its_lease_if_there_is_none(
    second_term: Account, deployed: ControlPlane
) -> None:
    deployed.kubectl("delete", f"-n={NAMESPACE}", "lease", "linkwise-extender")
    allowed(second_term, MAKES_LEASE)


@pytest.mark.parametrize("asked", EXTENDER_MAY_ASK_FOR, ids=named)
def test_the_extender_may_ask_for_what_pods_hang_on(extender: Account, asked: ApiRequest) -> None:
    """With the right, a missing object is 404; so is a kind that the cluster does not have."""
    assert extender.ask(asked).status == 404


@pytest.mark.parametrize("asked", EXTENDER_MAY_FOLLOW, ids=named)
def test_the_extender_may_follow_where_it_is_served(extender: Account, asked: ApiRequest) -> None:
    assert extender.ask(asked).status in (200, 404)


@pytest.mark.parametrize("asked", PLUGIN_MAY_FOLLOW, ids=named)
def test_the_plugin_may_follow_where_it_is_served(plugin: Account, asked: ApiRequest) -> None:
    assert plugin.ask(asked).status in (200, 404)


@pytest.mark.parametrize("asked", WEBHOOK_MUST_NOT, ids=named)
def test_the_webhook_must_not(webhook: Account, asked: ApiRequest) -> None:
    refused(webhook, asked)


@pytest.mark.parametrize("asked", WEBHOOK_MAY, ids=named)
def test_the_webhook_may(webhook: Account, asked: ApiRequest) -> None:
    allowed(webhook, asked)


# The kubelet asks whether the plugin has the first one (test_topology_manager.py). No cluster here
# has the second kind (tests/plugin/test_topology_manager.py).
ASKED_ELSEWHERE = {("nodes/configz", "get"), ("noderesourcetopologies", "get")}


@pytest.mark.parametrize(
    ("account", "needs"),
    [
        (BASE / "plugin", (*PLUGIN_MAY, *PLUGIN_MAY_FOLLOW)),
        (
            BASE / "extender",
            (
                *(*EXTENDER_MAY, *EXTENDER_MAY_FOLLOW, *EXTENDER_MAY_ASK_FOR),
                *(*EXTENDER_LEADS, RENEWAL, MAKES_LEASE),
            ),
        ),
        (WEBHOOK, WEBHOOK_MAY),
    ],
    ids=lambda each: each.name if isinstance(each, Path) else "",
)
def test_no_right_is_given_that_is_not_needed_here(
    account: Path, needs: tuple[ApiRequest, ...]
) -> None:
    rights = granted(the(account, "ClusterRole")) | granted(the(account, "Role"))
    rights -= ASKED_ELSEWHERE if account.name == "plugin" else set()
    assert {right(request) for request in needs} == rights


@pytest.mark.usefixtures("extender")
@pytest.mark.parametrize("asked", NOBODY_MAY, ids=named)
def test_nobody_else_may(administrator: Account, asked: ApiRequest) -> None:
    refused(administrator, asked)


@pytest.mark.usefixtures("extender")
@pytest.mark.parametrize("asked", ANYBODY_MAY, ids=named)
def test_anybody_may(administrator: Account, asked: ApiRequest) -> None:
    allowed(administrator, asked)


@pytest.mark.parametrize(
    "path",
    [
        f"{RIGHTS}/clusterrolebindings/linkwise-plugin",
        f"{RIGHTS}/clusterroles/linkwise-plugin",
        f"{RIGHTS}/namespaces/{NAMESPACE}/rolebindings/linkwise-plugin",
        f"{RIGHTS}/namespaces/{NAMESPACE}/roles/linkwise-plugin",
        f"{SYSTEM}/serviceaccounts/linkwise-plugin",
    ],
)
def test_what_the_plugin_needs_to_clean_its_node_stays_as_long_as_a_node_is_labelled(
    plugin: Account, administrator: Account, path: str
) -> None:
    delete = ApiRequest(
        f"delete {path}", "DELETE", path, says="node node-1 still carries Linkwise's"
    )
    mark = labelled("linkwise.dev/gpu.count", "8")
    allowed(plugin, ApiRequest("label its node", "PATCH", f"{NODES}/node-1", mark))
    in_force(administrator, delete)
    refused(administrator, delete)
    unmark = labelled("linkwise.dev/gpu.count", None)
    allowed(plugin, ApiRequest("take the label off", "PATCH", f"{NODES}/node-1", unmark))
    tried = replace(delete, path=f"{path}?dryRun=All")
    wait_for(lambda: administrator.ask(tried).allowed, f"{path} can be deleted")


def test_an_account_of_that_name_elsewhere_is_another(deployed: ControlPlane) -> None:
    """A user who may create accounts in some namespace gains nothing."""
    deployed.kubectl("create", "serviceaccount", "linkwise-extender", "-n=ml")
    name = "system:serviceaccount:ml:linkwise-extender"
    deployed.kubectl(
        "create", "clusterrolebinding", "its", "--clusterrole=cluster-admin", f"--user={name}"
    )
    account = Account(deployed, certificate_of=(name, "system:serviceaccounts"))
    wait_for(lambda: DECIDES in account.ask(NOBODY_MAY[0]).message, "a refusal by the policy alone")


def refused(account: Account, request: ApiRequest) -> None:
    answer = account.ask(request)
    assert answer.status == 403, f"{request.what}: {answer}"
    assert request.says, f"{request.what}: the table does not say why"
    assert request.says in answer.message


def allowed(account: Account, request: ApiRequest) -> None:
    answer = account.ask(request)
    assert answer.allowed, f"{request.what}: {answer}"


def right(request: ApiRequest) -> tuple[str, str]:
    """Return (resource, verb), as a role has them."""
    path, _, query = request.path.removeprefix("/").partition("?")
    words = path.split("/")[2 if path.startswith("api/") else 3 :]
    if words[0] == "namespaces" and len(words) > 1:
        words = words[2:]
    resource, _, *subresource = *words, *([""] if len(words) == 1 else [])
    reads = "watch" if "watch=true" in query else "get" if len(words) > 1 else "list"
    return "/".join([resource, *subresource]), VERBS.get(request.method, reads)
