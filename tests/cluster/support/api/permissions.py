"""What the plugin's and the webhook's accounts may do, request by request. `extender_permissions`
has the extender's account and all others.

Tests carry out the allowed requests in this order. A refusal must name its reason: RBAC's says what
the subject "cannot" do, a policy's has the policy's text.
"""

from linkwise.kube.client import MERGE_PATCH
from linkwise.topology import names
from tests.cluster.support.api.accounts import NAMESPACE, ApiRequest
from tests.cluster.support.api.small_objects import (
    binding,
    event,
    eviction,
    labelled,
    noted,
    pod,
    role_binding,
)

RBAC = "cannot"  # as in: User "…" cannot list resource "secrets" in API group ""
OWN_NODE = "may write only the Node it runs on, which is node-1, not node-2"
OWN_LABELS = "may write only its own labels (docs/annotations.md), not"
OWN_NOTES = "may write only its own annotations (docs/annotations.md), not"
NOTHING_ELSE = "may write labels and annotations of its Node, and nothing else of it"
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/ml/pods"
SYSTEM = f"/api/v1/namespaces/{NAMESPACE}"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def write_node(what: str, node: str, patch: object, says: str = "") -> ApiRequest:
    return ApiRequest(what, "PATCH", f"{NODES}/{node}", patch, says)


def write_pod(
    what: str, name: str, patch: object, says: str = "", content_type: str = MERGE_PATCH
) -> ApiRequest:
    return ApiRequest(what, "PATCH", f"{PODS}/{name}", patch, says, content_type)


# What none of the programs needs.
STRANGE = (
    ApiRequest("read secrets", "GET", f"{SYSTEM}/secrets", says=RBAC),
    ApiRequest("read configuration", "GET", f"{SYSTEM}/configmaps", says=RBAC),
    ApiRequest("run a command in a pod", "POST", f"{PODS}/waiting/exec?command=id", says=RBAC),
    ApiRequest("attach to a pod", "POST", f"{PODS}/waiting/attach", says=RBAC),
    ApiRequest("read a pod's log", "GET", f"{PODS}/waiting/log", says=RBAC),
    ApiRequest("create a pod", "POST", PODS, pod("mine"), says=RBAC),
    ApiRequest("delete a pod", "DELETE", f"{PODS}/waiting", says=RBAC),
    ApiRequest("replace a pod", "PUT", f"{PODS}/waiting", pod("waiting"), says=RBAC),
    ApiRequest("delete all pods", "DELETE", PODS, says=RBAC),
    ApiRequest("create a node", "POST", NODES, {"metadata": {"name": "node-3"}}, says=RBAC),
    ApiRequest("delete a node", "DELETE", f"{NODES}/node-1", says=RBAC),
    ApiRequest("write a node's status", "PATCH", f"{NODES}/node-1/status", noted(x="1"), says=RBAC),
    ApiRequest("reach a kubelet", "GET", f"{NODES}/node-1/proxy/pods", says=RBAC),
    ApiRequest(
        "make itself an administrator",
        "POST",
        f"{RIGHTS}/clusterrolebindings",
        role_binding("mine", "linkwise-plugin"),
        says=RBAC,
    ),
    ApiRequest(
        "give its own role more",
        "PATCH",
        f"{RIGHTS}/clusterroles/linkwise-plugin",
        {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]},
        says=RBAC,
    ),
    ApiRequest(
        "act as an administrator",
        "GET",
        NODES,
        headers=(("Impersonate-User", "admin"), ("Impersonate-Group", "system:masters")),
        says="cannot impersonate",
    ),
    ApiRequest(
        "ask for another account's token",
        "POST",
        f"{SYSTEM}/serviceaccounts/linkwise-scheduler/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        says=RBAC,
    ),
    ApiRequest(
        "ask for a certificate",
        "GET",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        says=RBAC,
    ),
    ApiRequest(
        "switch a policy off",
        "DELETE",
        f"{ADMISSION}/validatingadmissionpolicybindings/linkwise-plugin-own-node",
        says=RBAC,
    ),
    ApiRequest(
        "change what is deployed",
        "PATCH",
        f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/linkwise-extender",
        {"spec": {"replicas": 0}},
        says=RBAC,
    ),
    ApiRequest("read leases", "GET", "/apis/coordination.k8s.io/v1/leases", says=RBAC),
)

# Of DRA, which not every version serves.
_OWN_SLICES = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dnode-1"
PLUGIN_MAY_FOLLOW = (
    ApiRequest("list its Node's slices", "GET", _OWN_SLICES),
    ApiRequest("watch its Node's slices", "GET", f"{_OWN_SLICES}&watch=true"),
)

PLUGIN_MAY = (
    ApiRequest("read its Node", "GET", f"{NODES}/node-1"),
    ApiRequest("list its Node", "GET", f"{NODES}?fieldSelector=metadata.name%3Dnode-1"),
    ApiRequest("watch its Node", "GET", f"{NODES}?watch=true&fieldSelector=metadata.name%3Dnode-1"),
    write_node("publish its topology", "node-1", noted(topology="{}")),
    write_node(
        "publish what is in use, and its labels",
        "node-1",
        {
            "metadata": {
                "annotations": {
                    names.IN_USE: "{}",
                    names.ACTIVITY: "{}",
                    names.OWN_LABELS: "linkwise.dev/nvlink",
                },
                "labels": {"linkwise.dev/nvlink": "NV12", "nvidia.com/gpu.product": "A100"},
            }
        },
    ),
    write_node(
        "take them back",
        "node-1",
        {
            "metadata": {
                "annotations": dict.fromkeys(names.BY_PLUGIN),
                "labels": {"linkwise.dev/nvlink": None, "nvidia.com/gpu.product": None},
            }
        },
    ),
    ApiRequest("list its pods", "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1"),
    ApiRequest(
        "watch its pods", "GET", "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dnode-1"
    ),
    ApiRequest(
        "ask for its DaemonSet",
        "GET",
        f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/linkwise-plugin",
    ),
)

PLUGIN_MUST_NOT = (
    *STRANGE,
    write_node("label another node", "node-2", labelled("linkwise.dev/nvlink", "x"), OWN_NODE),
    write_node("annotate another node", "node-2", noted(topology="{}"), OWN_NODE),
    write_node("cordon its node", "node-1", {"spec": {"unschedulable": True}}, NOTHING_ELSE),
    write_node(
        "taint its node",
        "node-1",
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        NOTHING_ELSE,
    ),
    write_node(
        "put a finalizer on its node",
        "node-1",
        {"metadata": {"finalizers": ["linkwise.dev/held"]}},
        NOTHING_ELSE,
    ),
    write_node(
        "give its node an owner",
        "node-1",
        {
            "metadata": {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "node-2", "uid": "gone"}
                ]
            }
        },
        NOTHING_ELSE,
    ),
    write_node(
        "say which zone its node is in",
        "node-1",
        labelled("topology.kubernetes.io/zone", "b"),
        f"{OWN_LABELS} topology.kubernetes.io/zone",
    ),
    write_node(
        "make its node a control plane's",
        "node-1",
        labelled("node-role.kubernetes.io/control-plane", ""),
        OWN_LABELS,
    ),
    write_node("remove a label of others", "node-1", labelled("zone", None), f"{OWN_LABELS} zone"),
    write_node(
        "write NVIDIA's other labels",
        "node-1",
        labelled("nvidia.com/gpu.present", "true"),
        OWN_LABELS,
    ),
    write_node(
        "say that its node is a GPU node",
        "node-1",
        labelled("linkwise.dev/gpu-node", "true"),
        OWN_LABELS,
    ),
    write_node(
        "choose the machine it plays",
        "node-1",
        labelled("linkwise.dev/simulated-machine", "p3"),
        OWN_LABELS,
    ),
    write_node(
        "write annotations of others",
        "node-1",
        {"metadata": {"annotations": {"node.alpha.kubernetes.io/ttl": "1"}}},
        f"{OWN_NOTES} node.alpha.kubernetes.io/ttl",
    ),
    write_node("decide in the extender's place", "node-1", noted(plan="{}"), OWN_NOTES),
    ApiRequest(
        "replace its node", "PUT", f"{NODES}/node-1", {"metadata": {"name": "node-1"}}, RBAC
    ),
    ApiRequest("read one pod", "GET", f"{PODS}/waiting", says=RBAC),
    write_pod("annotate a pod", "waiting", noted(gang="x"), RBAC),
    write_pod("write a pod's status", "waiting/status", noted(plan="{}"), RBAC),
    ApiRequest("bind a pod", "POST", f"{PODS}/waiting/binding", binding("waiting"), RBAC),
    ApiRequest("evict a pod", "POST", f"{PODS}/waiting/eviction", eviction("waiting"), RBAC),
    ApiRequest("create an event", "POST", "/api/v1/namespaces/ml/events", event("e"), RBAC),
    ApiRequest(
        "list DaemonSets", "GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets", says=RBAC
    ),
    ApiRequest(
        "read another DaemonSet",
        "GET",
        f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/kube-proxy",
        says=RBAC,
    ),
    ApiRequest(
        "update its own DaemonSet",
        "PATCH",
        f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/linkwise-plugin",
        labelled("a", "b"),
        RBAC,
    ),
)

# A token without a pod: any user who may create tokens for the account may request it.
NODELESS_MUST_NOT = (
    write_node(
        "label a node",
        "node-1",
        labelled("linkwise.dev/nvlink", "x"),
        "which is not named in its token",
    ),
)

SECRETS, ITS_SECRET = f"{SYSTEM}/secrets", {"metadata": {"name": "linkwise-webhook"}}
CONFIGURATIONS = tuple(
    f"{ADMISSION}/{kind}webhookconfigurations" for kind in ("mutating", "validating")
)

WEBHOOK_MAY = (
    ApiRequest("read its certificates", "GET", f"{SECRETS}/linkwise-webhook"),
    ApiRequest("renew them", "PUT", f"{SECRETS}/linkwise-webhook", ITS_SECRET),
    *(ApiRequest(f"read {path}", "GET", f"{path}/linkwise") for path in CONFIGURATIONS),
    *(
        ApiRequest(f"say in {path} whom to trust", "PATCH", f"{path}/linkwise", labelled("a", "b"))
        for path in CONFIGURATIONS
    ),
)

WEBHOOK_MUST_NOT = (
    *STRANGE,
    ApiRequest("read another secret", "GET", f"{SECRETS}/another", says=RBAC),
    ApiRequest("create a secret", "POST", SECRETS, {"metadata": {"name": "mine"}}, RBAC),
    ApiRequest("change another secret", "PUT", f"{SECRETS}/another", ITS_SECRET, RBAC),
    ApiRequest("delete its secret", "DELETE", f"{SECRETS}/linkwise-webhook", says=RBAC),
    *(ApiRequest(f"list {path}", "GET", path, says=RBAC) for path in CONFIGURATIONS),
    *(
        ApiRequest(
            f"change another of {path}", "PATCH", f"{path}/another", labelled("a", "b"), RBAC
        )
        for path in CONFIGURATIONS
    ),
    *(
        ApiRequest(f"delete from {path}", "DELETE", f"{path}/linkwise", says=RBAC)
        for path in CONFIGURATIONS
    ),
    ApiRequest("list pods", "GET", "/api/v1/pods", says=RBAC),
    write_pod("annotate a pod", "waiting", noted(gang="x"), RBAC),
    write_pod("write a pod's status", "waiting/status", noted(plan="{}"), RBAC),
    ApiRequest("bind a pod", "POST", f"{PODS}/waiting/binding", binding("waiting"), RBAC),
    ApiRequest("evict a pod", "POST", f"{PODS}/waiting/eviction", eviction("waiting"), RBAC),
    ApiRequest("list nodes", "GET", NODES, says=RBAC),
    write_node("label a node", "node-1", labelled("linkwise.dev/nvlink", "x"), RBAC),
)
