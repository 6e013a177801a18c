"""What the two programs may do, what they must not, and what nobody else may: asked of a real API
server with the deployed manifests, each request for real and with the token of a pod on a node.
"""

import json

import pytest

from linkwise.topology import names
from tests.cluster.accounts import NAMESPACE, Account, Request, pod_of, token
from tests.cluster.control_plane import ControlPlane
from tests.cluster.permissions import (
    ANYBODY_MAY,
    DECIDES,
    EXTENDER_MAY,
    EXTENDER_MUST_NOT,
    NOBODY_MAY,
    NODELESS_MUST_NOT,
    NODES,
    NOMINATED,
    PLUGIN_MAY,
    PLUGIN_MUST_NOT,
    PODS,
    RIGHTS,
    STRANGE,
    SYSTEM,
)
from tests.cluster.small_objects import labelled, pod
from tests.cluster.waiting import wait_for
from tests.manifests import DAEMONSET


@pytest.fixture(scope="module")
def deployed(control_plane: ControlPlane) -> ControlPlane:
    """The accounts, what they may, and pods for them to meddle with."""
    control = control_plane
    control.kubectl("create", "namespace", "ml")
    for node in ("node-1", "node-2"):
        metadata = {"name": node, "labels": {"zone": "a"}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        control.kubectl("create", "-f=-", stdin=json.dumps(body))
    control.kubectl("apply", "-k", str(DAEMONSET / "overlays" / "second-scheduler"))
    wait_for(
        lambda: control.kubectl("get", "serviceaccounts", "-n=ml", "-o=name").strip(),
        "the account that pods of a new namespace have",
    )
    pods = [
        pod("waiting"),
        pod("other"),
        pod("evictable"),
        pod("planned"),
        pod("gated", gates=(names.GATE,)),
        pod("twice-gated", gates=(names.GATE, "example.com/quota")),
        pod_of("linkwise-plugin", "node-1", name="plugin"),
        pod_of("linkwise-extender", "node-2", name="extender"),
    ]
    for each in pods:
        control.kubectl("create", "-f=-", stdin=json.dumps(each))
    return control


def in_force(account: Account, refused: Request) -> None:
    """A policy counts from some moment after it has been created."""
    wait_for(lambda: refused.says in account.ask(refused).message, f"the policy on: {refused.what}")


@pytest.fixture(scope="module")
def administrator(deployed: ControlPlane) -> Account:
    account = Account(deployed, certificate_of=("admin", "system:masters"))
    in_force(account, NOBODY_MAY[0])
    return account


@pytest.fixture(scope="module")
def plugin(deployed: ControlPlane) -> Account:
    account = Account(deployed, token=token(deployed, "linkwise-plugin", pod="plugin"))
    in_force(account, PLUGIN_MUST_NOT[len(STRANGE)])
    return account


@pytest.fixture(scope="module")
def extender(deployed: ControlPlane, administrator: Account) -> Account:
    account = Account(deployed, token=token(deployed, "linkwise-extender", pod="extender"))
    in_force(account, EXTENDER_MUST_NOT[len(STRANGE) + 4])
    planned = account.ask(Request("plan", "PATCH", f"{PODS}/planned/status", NOMINATED))
    assert planned.allowed, planned
    assert administrator  # the policy that keeps others from it is in force as well
    return account


def named(request: Request) -> str:
    return request.what


@pytest.mark.parametrize("asked", PLUGIN_MUST_NOT, ids=named)
def test_the_plugin_must_not(plugin: Account, asked: Request) -> None:
    refused(plugin, asked)


@pytest.mark.parametrize("asked", PLUGIN_MAY, ids=named)
def test_the_plugin_may(plugin: Account, asked: Request) -> None:
    allowed(plugin, asked)


@pytest.mark.parametrize("asked", NODELESS_MUST_NOT, ids=named)
def test_the_plugins_account_without_a_node_must_not(
    deployed: ControlPlane, plugin: Account, asked: Request
) -> None:
    refused(Account(deployed, token=token(deployed, "linkwise-plugin")), asked)
    assert plugin


@pytest.mark.parametrize("asked", EXTENDER_MUST_NOT, ids=named)
def test_the_extender_must_not(extender: Account, asked: Request) -> None:
    refused(extender, asked)


@pytest.mark.parametrize("asked", EXTENDER_MAY, ids=named)
def test_the_extender_may(extender: Account, asked: Request) -> None:
    allowed(extender, asked)


@pytest.mark.parametrize("asked", NOBODY_MAY, ids=named)
def test_nobody_else_may(extender: Account, administrator: Account, asked: Request) -> None:
    refused(administrator, asked)
    assert extender  # has made the plan that is meddled with


@pytest.mark.parametrize("asked", ANYBODY_MAY, ids=named)
def test_anybody_may(extender: Account, administrator: Account, asked: Request) -> None:
    allowed(administrator, asked)
    assert extender


def test_what_the_plugin_needs_to_clean_its_node_stays_as_long_as_a_node_is_labelled(
    deployed: ControlPlane, plugin: Account, administrator: Account
) -> None:
    mark = labelled("linkwise.dev/gpu.count", "8")
    allowed(plugin, Request("label its node", "PATCH", f"{NODES}/node-1", mark))
    guarded = [
        f"{RIGHTS}/clusterrolebindings/linkwise-plugin",
        f"{RIGHTS}/clusterroles/linkwise-plugin",
        f"{RIGHTS}/namespaces/{NAMESPACE}/rolebindings/linkwise-plugin",
        f"{RIGHTS}/namespaces/{NAMESPACE}/roles/linkwise-plugin",
        f"{SYSTEM}/serviceaccounts/linkwise-plugin",
    ]
    why = "node node-1 still carries Linkwise's labels"
    for path in guarded:
        asked = Request(f"delete {path}", "DELETE", f"{path}?dryRun=All", says=why)
        refused(administrator, asked)
    unmark = labelled("linkwise.dev/gpu.count", None)
    allowed(plugin, Request("take the label off", "PATCH", f"{NODES}/node-1", unmark))
    for path in guarded:
        asked = Request(f"delete {path}", "DELETE", f"{path}?dryRun=All")
        wait_for(lambda asked=asked: administrator.ask(asked).allowed, asked.what)
    assert deployed


def test_an_account_of_that_name_elsewhere_is_another(deployed: ControlPlane) -> None:
    """Who may create accounts in some namespace becomes nobody by it."""
    deployed.kubectl("create", "serviceaccount", "linkwise-extender", "-n=ml")
    name = "system:serviceaccount:ml:linkwise-extender"
    deployed.kubectl("create", "clusterrolebinding", "its", "--clusterrole=admin", f"--user={name}")
    account = Account(deployed, certificate_of=(name, "system:serviceaccounts"))
    wait_for(lambda: DECIDES in account.ask(NOBODY_MAY[0]).message, "a refusal by the policy alone")


def refused(account: Account, request: Request) -> None:
    answer = account.ask(request)
    assert answer.status == 403, f"{request.what}: {answer}"
    assert request.says, f"{request.what}: the table does not say why"
    assert request.says in answer.message


def allowed(account: Account, request: Request) -> None:
    answer = account.ask(request)
    assert answer.allowed, f"{request.what}: {answer}"
