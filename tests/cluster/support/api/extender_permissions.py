"""What the extender's account may do, and what every other account may not, request by request.

Tests carry out the allowed requests in this order.
"""

from typing import Any

from linkwise.extender.run.informers import CLAIMS, SURROUNDINGS, path_of
from linkwise.kube.client import JSON_PATCH, STRATEGIC_PATCH
from linkwise.pods.podgrouper.workloads.kinds import OwnerKind
from linkwise.pods.podgrouper.workloads.systems import READ
from linkwise.topology import names
from tests.cluster.support.api.accounts import NAMESPACE, ApiRequest
from tests.cluster.support.api.permissions import (
    ADMISSION,
    NODES,
    PODS,
    RBAC,
    STRANGE,
    SYSTEM,
    write_node,
    write_pod,
)
from tests.cluster.support.api.small_objects import binding, event, eviction, labelled, noted, pod

DECIDES = "only Linkwise's extender decides this"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


def slice_of(service: str, name: str = "linkwise-extender-leader") -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": service}
    return {
        "metadata": {"name": name, "labels": labels},
        "addressType": "IPv4",
        "endpoints": [],
    }


SLICE = slice_of("linkwise-extender")
OWN_SERVICE = "and lead no other Service"
AUTHORITY = {"metadata": {"name": "linkwise-extender"}}
SECRET = {**AUTHORITY, "type": "Opaque"}
CALLER = {"metadata": {"name": "linkwise-scheduler"}, "type": "Opaque"}
CLUSTER_AUTHORITY = "extension-apiserver-authentication"
ENDPOINTS = {"metadata": {"name": "linkwise-extender"}}


def collection(kind: OwnerKind) -> str:
    return kind.paths("ml", "")[0].rstrip("/")


PLAN = {names.GPUS: '{"main":["GPU-1"]}', names.PLAN: '{"v":1}'}
# As leaders of the second and of the first term write it.
TERM_2 = {names.PLAN: '{"v":1,"id":"x","node":"node-1","leader":2,"epoch":1}'}
TERM_1 = {names.PLAN: '{"v":1,"id":"x","node":"node-1","leader":1,"epoch":9}'}
NO_TERM = {names.PLAN: '{"v":1,"id":"x","node":"node-1","epoch":9}'}
TOO_LATE = "led in an earlier term: term 2 has begun"


def eviction_in(pod: str, term: str) -> dict[str, Any]:
    body = eviction(pod)
    return {**body, "metadata": {**body["metadata"], **noted(leader=term)["metadata"]}}


LATE_WRITES = (
    ApiRequest(
        "bind in a term that is over",
        "POST",
        f"{PODS}/term-1/binding",
        binding("term-1", TERM_1),
        TOO_LATE,
    ),
    ApiRequest(
        "evict in a term that is over",
        "POST",
        f"{PODS}/term-1/eviction",
        eviction_in("term-1", "1"),
        TOO_LATE,
    ),
    ApiRequest(
        "evict without an election",
        "POST",
        f"{PODS}/term-1/eviction",
        eviction("term-1"),
        TOO_LATE,
    ),
    ApiRequest(
        "bind without an election",
        "POST",
        f"{PODS}/term-1/binding",
        binding("term-1", NO_TERM),
        TOO_LATE,
    ),
)
NOMINATED = {"metadata": {"annotations": PLAN}, "status": {"nominatedNodeName": "node-1"}}
WITHDRAWN = {
    "metadata": {"annotations": dict.fromkeys(PLAN)},
    "status": {"nominatedNodeName": None},
}
LIFTED = {"spec": {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]}}
NEVER = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]
    }
}
NOTHING_ELSE = "and change nothing else of a pod"

EXTENDER_MAY_ASK_FOR = tuple(
    ApiRequest(f"read a {kind.kind} of {kind.group}", "GET", kind.paths("ml", "none")[0])
    for kind in READ
)

# Of DRA, which not every version serves.
EXTENDER_MAY_FOLLOW = tuple(
    ApiRequest(f"{verb} {plural}", "GET", f"{path_of(plural)}?{query}")
    for plural in CLAIMS
    for verb, query in (("list", "limit=1"), ("watch", "watch=true"))
)

EXTENDER_MAY = (
    ApiRequest("list nodes", "GET", NODES),
    ApiRequest("watch nodes", "GET", f"{NODES}?watch=true"),
    ApiRequest("list pods", "GET", "/api/v1/pods"),
    ApiRequest("watch pods", "GET", "/api/v1/pods?watch=true"),
    ApiRequest("list budgets", "GET", "/apis/policy/v1/poddisruptionbudgets?limit=1"),
    ApiRequest("watch budgets", "GET", "/apis/policy/v1/poddisruptionbudgets?watch=true"),
    *(
        ApiRequest(f"{verb} {plural}", "GET", f"{path_of(plural)}?{query}")
        for plural in SURROUNDINGS
        for verb, query in (("list", "limit=1"), ("watch", "watch=true"))
    ),
    write_pod("write a plan with its nomination", "waiting/status", NOMINATED),
    write_pod("withdraw it", "waiting/status", WITHDRAWN),
    write_pod("plan a pod behind a gate", "gated/status", NOMINATED),
    write_pod("lift its gate", "gated", LIFTED, content_type=STRATEGIC_PATCH),
    ApiRequest("bind with GPUs", "POST", f"{PODS}/waiting/binding", binding("waiting", PLAN)),
    write_pod("mark a started gang", "waiting/status", noted(gang_started="its uid")),
    ApiRequest("evict", "POST", f"{PODS}/evictable/eviction", eviction("evictable")),
    ApiRequest("list events", "GET", "/api/v1/namespaces/ml/events"),
    ApiRequest("tell of it in an event", "POST", "/api/v1/namespaces/ml/events", event("told")),
    ApiRequest(
        "tell of it again",
        "PATCH",
        "/api/v1/namespaces/ml/events/told",
        {"lastTimestamp": "2026-01-02T00:00:00Z"},
    ),
)

EXTENDER_LEADS = (
    ApiRequest("see who leads", "GET", f"{LEASES}/linkwise-extender"),
    ApiRequest("see its Service", "GET", f"{SYSTEM}/services/linkwise-extender"),
    ApiRequest("lead its Service to itself", "POST", SLICES, SLICE),
    ApiRequest("see where it leads", "GET", f"{SLICES}/linkwise-extender-leader"),
    ApiRequest("lead it elsewhere", "PUT", f"{SLICES}/linkwise-extender-leader", SLICE),
    ApiRequest("tell the API server's proxy so", "POST", f"{SYSTEM}/endpoints", ENDPOINTS),
    ApiRequest("see what the proxy knows", "GET", f"{SYSTEM}/endpoints/linkwise-extender"),
    ApiRequest("tell the proxy more", "PUT", f"{SYSTEM}/endpoints/linkwise-extender", ENDPOINTS),
    ApiRequest("read its authority", "GET", f"{SYSTEM}/secrets/linkwise-extender"),
    ApiRequest("keep its authority", "PUT", f"{SYSTEM}/secrets/linkwise-extender", SECRET),
    ApiRequest("see what it published", "GET", f"{SYSTEM}/configmaps/linkwise-extender"),
    ApiRequest("publish it", "PUT", f"{SYSTEM}/configmaps/linkwise-extender", AUTHORITY),
    ApiRequest("see which places gangs keep", "GET", f"{SYSTEM}/configmaps/linkwise-places"),
    ApiRequest(
        "keep a place", "PATCH", f"{SYSTEM}/configmaps/linkwise-places", {"data": {"a": "b"}}
    ),
    ApiRequest("read its caller's certificate", "GET", f"{SYSTEM}/secrets/linkwise-scheduler"),
    ApiRequest(
        "keep its caller's certificate", "PUT", f"{SYSTEM}/secrets/linkwise-scheduler", CALLER
    ),
    ApiRequest(
        "read whom the API server trusts", "GET", f"{SYSTEM}/configmaps/{CLUSTER_AUTHORITY}"
    ),
    ApiRequest("bind in its term", "POST", f"{PODS}/term-2/binding", binding("term-2", TERM_2)),
    ApiRequest("evict in its term", "POST", f"{PODS}/term-2/eviction", eviction_in("term-2", "2")),
)
MAKES_LEASE = ApiRequest(  # where there is none
    "make its lease", "POST", LEASES, {"metadata": {"name": "linkwise-extender"}}
)
LEADS_ASTRAY = ApiRequest(  # with the slice that it has made
    "lead others astray by its own slice",
    "PUT",
    f"{SLICES}/linkwise-extender-leader",
    slice_of("kube-dns"),
    OWN_SERVICE,
)
RENEWAL = ApiRequest("renew its lease", "PUT", f"{LEASES}/linkwise-extender")  # as read before

EXTENDER_MUST_NOT = (
    *STRANGE,
    ApiRequest("see who else leads", "GET", f"{LEASES}/kube-scheduler", says=RBAC),
    ApiRequest("take another's lease", "PUT", f"{LEASES}/kube-scheduler", {}, says=RBAC),
    ApiRequest("delete its lease", "DELETE", f"{LEASES}/linkwise-extender", says=RBAC),
    ApiRequest("lead others astray", "PUT", f"{SLICES}/kube-dns", {}, says=RBAC),
    *(
        ApiRequest(f"lead others astray {how}", verb, path, body, OWN_SERVICE)
        for how, verb, path, body in (
            ("by a new slice", "POST", SLICES, slice_of("kube-dns", "new")),
            ("by a slice of its name", "POST", SLICES, slice_of("linkwise-extender", "new")),
            ("by new endpoints", "POST", f"{SYSTEM}/endpoints", {"metadata": {"name": "new"}}),
        )
    ),
    ApiRequest(
        "keep others from leading", "POST", LEASES, {"metadata": {"name": "new"}}, OWN_SERVICE
    ),
    ApiRequest("lead people astray", "PUT", f"{SYSTEM}/endpoints/kube-dns", {}, says=RBAC),
    ApiRequest("read another's secret", "GET", f"{SYSTEM}/secrets/linkwise-webhook", says=RBAC),
    ApiRequest("read all secrets", "GET", f"{SYSTEM}/secrets", says=RBAC),
    ApiRequest(
        "make a secret", "POST", f"{SYSTEM}/secrets", {"metadata": {"name": "x"}}, says=RBAC
    ),
    ApiRequest("delete its authority", "DELETE", f"{SYSTEM}/secrets/linkwise-extender", says=RBAC),
    ApiRequest(
        "say whom the API server trusts",
        "PUT",
        f"{SYSTEM}/configmaps/{CLUSTER_AUTHORITY}",
        {"metadata": {"name": CLUSTER_AUTHORITY}},
        says=RBAC,
    ),
    ApiRequest("see another Service", "GET", f"{SYSTEM}/services/kube-dns", says=RBAC),
    ApiRequest("read one pod", "GET", f"{PODS}/waiting", says=RBAC),
    ApiRequest("read one node", "GET", f"{NODES}/node-1", says=RBAC),
    write_node("label a node", "node-1", labelled("linkwise.dev/nvlink", "x"), RBAC),
    write_node("annotate a node", "node-1", noted(topology="{}"), RBAC),
    write_pod("label a pod", "other", labelled("a", "b"), NOTHING_ELSE),
    write_pod(
        "write its author's annotations",
        "other",
        noted(gang="x"),
        NOTHING_ELSE,
    ),
    write_pod(
        "write annotations of others",
        "other",
        {"metadata": {"annotations": {"example.com/a": "b"}}},
        NOTHING_ELSE,
    ),
    ApiRequest(
        "annotate beyond a plan when it binds",
        "POST",
        f"{PODS}/other/binding",
        binding("other", {"example.com/a": "b"}),
        NOTHING_ELSE,
    ),
    write_pod(
        "take annotations of others away",
        "marked",
        {"metadata": {"annotations": None}},
        NOTHING_ELSE,
    ),
    write_pod("take a label away", "marked", {"metadata": {"labels": None}}, NOTHING_ELSE),
    ApiRequest(
        "label a pod when it binds",
        "POST",
        f"{PODS}/other/binding",
        binding("other", PLAN, {"a": "b"}),
        NOTHING_ELSE,
    ),
    write_pod(
        "lift a gate of others",
        "twice-gated",
        {"spec": {"schedulingGates": [{"$patch": "delete", "name": "example.com/quota"}]}},
        NOTHING_ELSE,
        content_type=STRATEGIC_PATCH,
    ),
    write_pod("lift all gates", "twice-gated", {"spec": {"schedulingGates": None}}, NOTHING_ELSE),
    write_pod(
        "change what a pod runs",
        "other",
        [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}],
        NOTHING_ELSE,
        content_type=JSON_PATCH,
    ),
    write_pod(
        "let a pod onto other nodes",
        "other",
        [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
        NOTHING_ELSE,
        content_type=JSON_PATCH,
    ),
    write_pod(
        "end a pod by a deadline",
        "other",
        {"spec": {"activeDeadlineSeconds": 1}},
        NOTHING_ELSE,
    ),
    write_pod(
        "hold a pod by a finalizer",
        "other",
        {"metadata": {"finalizers": ["linkwise.dev/held"]}},
        NOTHING_ELSE,
    ),
    write_pod(
        "have a pod deleted with another object",
        "other",
        {
            "metadata": {
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]
            }
        },
        NOTHING_ELSE,
    ),
    write_pod(
        "change what a pod runs first",
        "marked",
        [{"op": "replace", "path": "/spec/initContainers/0/image", "value": "evil"}],
        NOTHING_ELSE,
        content_type=JSON_PATCH,
    ),
    write_pod(
        "keep a gated pod off nodes",
        "twice-gated",
        {"spec": {"nodeSelector": {"zone": "b"}}},
        NOTHING_ELSE,
    ),
    write_pod(
        "keep a gated pod off nodes by affinity",
        "twice-gated",
        {"spec": {"affinity": {"nodeAffinity": NEVER}}},
        NOTHING_ELSE,
    ),
    ApiRequest(
        "ask what it may bind by the old route",
        "POST",
        "/api/v1/namespaces/ml/bindings",
        binding("other", PLAN),
        RBAC,
    ),
    ApiRequest("watch events", "GET", "/api/v1/events?watch=true", says=RBAC),
    ApiRequest("read one event", "GET", "/api/v1/namespaces/ml/events/told", says=RBAC),
    *(
        ApiRequest(f"list {kind.plural} of {kind.group}", "GET", collection(kind), says=RBAC)
        for kind in READ
    ),
    ApiRequest(
        "loosen a disruption budget",
        "PATCH",
        f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/linkwise-extender",
        {"spec": {"maxUnavailable": 9}},
        RBAC,
    ),
    ApiRequest(
        "lock others out with a policy",
        "GET",
        f"{ADMISSION}/validatingadmissionpolicies",
        says=RBAC,
    ),
)

# Sent as an administrator: RBAC refuses nothing.
NOBODY_MAY = (
    write_pod("plan a pod", "other", noted(plan="{}"), DECIDES),
    *(
        write_pod(
            f"write {key}",
            "other",
            {"metadata": {"annotations": {key: "x"}}},
            f"{key}: {DECIDES}",
        )
        for key in names.BY_EXTENDER
    ),
    ApiRequest("bind with GPUs", "POST", f"{PODS}/other/binding", binding("other", PLAN), DECIDES),
    ApiRequest(
        "bind with GPUs by the old route",
        "POST",
        "/api/v1/namespaces/ml/bindings",
        binding("other", PLAN),
        DECIDES,
    ),
    write_pod("change a plan", "planned", noted(plan="mine"), DECIDES),
    write_pod("remove a plan", "planned", noted(plan=None), DECIDES),
    write_pod(
        "replace all annotations of a planned pod",
        "planned",
        {"metadata": {"annotations": None}},
        f"{names.GPUS}, {names.PLAN}: {DECIDES}",
    ),
)

ANYBODY_MAY = (
    ApiRequest("create a pod of a gang", "POST", PODS, pod("new", annotations={names.GANG: "g"})),
    ApiRequest(
        "create a pod from a copied manifest, whose decisions name another pod",
        "POST",
        PODS,
        pod("copied", annotations=dict.fromkeys(names.BY_EXTENDER, "x")),
    ),
    write_pod("annotate a planned pod otherwise", "planned", noted(rank="3")),
    write_pod("label a planned pod", "planned", labelled("a", "b")),
    write_pod(
        "write the status of a planned pod, as the kubelet does",
        "planned/status",
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        content_type=STRATEGIC_PATCH,
    ),
    write_pod("lift the gate by hand", "twice-gated", LIFTED, content_type=STRATEGIC_PATCH),
    ApiRequest(
        "bind a planned pod, as a scheduler does",
        "POST",
        f"{PODS}/planned/binding",
        binding("planned"),
    ),
    ApiRequest("evict a planned pod", "POST", f"{PODS}/planned/eviction", eviction("planned")),
)
