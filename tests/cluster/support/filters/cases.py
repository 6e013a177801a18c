"""Random small clusters, each with a pod that waits, made of a seed.

A case is about one to three of kube-scheduler's plugins: what these read is drawn in full, for the
pod, the nodes and the pods that run there. The rest stays plain, or the first plugins would refuse
nearly every node and hide the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.cluster.support.filters import volumes
from tests.cluster.support.filters.draw import (
    HOSTNAME,
    NAMESPACES,
    ZONE,
    ZONES,
    Draw,
    Json,
    container,
    expression,
    label_selector,
    namespace,
    node,
    pod,
    running_pod,
    topology_key,
)
from tests.cluster.support.filters.kube_scheduler import Case

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class Drawn:
    seed: int
    about: tuple[str, ...]  # names of plugins
    case: Case


def draw_case(seed: int) -> Drawn:
    """Make the case of *seed*."""
    draw = Draw(seed)
    nodes = [node(draw, index) for index in range(1, draw.randint(3, 8) + 1)]
    case: Case = {
        "nodes": nodes,
        "pods": [running_pod(draw, f"p{index}", nodes) for index in range(draw.randint(0, 10))],
        "pod": pod(draw, "new"),
        "namespaces": [namespace(name) for name in NAMESPACES],
        **volumes.empty(),
    }
    drawn = draw.choices(PLUGINS, _WEIGHTS, k=draw.choices((1, 2, 3), (6, 3, 1))[0])
    about = tuple(plugin for plugin in PLUGINS if plugin in drawn)
    for plugin in about:
        _ABOUT[plugin](draw, case)
    return Drawn(seed, about, case)


def _unschedulable(draw: Draw, case: Case) -> None:
    for each in case["nodes"]:
        if draw.chance(0.4):
            each["spec"]["unschedulable"] = True
            if draw.chance(0.5):  # the node controller adds it a moment later
                each["spec"]["taints"] = [{"key": UNSCHEDULABLE, "effect": "NoSchedule"}]
    if draw.chance(0.4):
        case["pod"]["spec"]["tolerations"] = [
            {"key": UNSCHEDULABLE, "operator": "Exists", **_effect(draw)}
        ]


def _effect(draw: Draw) -> Json:
    effect = draw.choice(("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule", None))
    return {} if effect is None else {"effect": effect}


_TAINTS = ("gpu", "dedicated", "example.com/spot")
_TAINT_VALUES = ("", "x", "y")


def _taint_toleration(draw: Draw, case: Case) -> None:
    for each in case["nodes"]:
        taints = each["spec"].setdefault("taints", [])
        taken = {taint["key"] for taint in taints}
        taints.extend(
            {
                "key": key,
                **({"value": value} if (value := draw.choice(_TAINT_VALUES)) else {}),
                "effect": draw.choice(
                    ("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule")
                ),
            }
            for key in draw.some(_TAINTS, most=2)
            if key not in taken
        )
    tolerations = case["pod"]["spec"].setdefault("tolerations", [])
    tolerations.extend(_toleration(draw) for _ in range(draw.randint(0, 3)))


def _toleration(draw: Draw) -> Json:
    toleration = _effect(draw)
    if draw.chance(0.08):
        return {"operator": "Exists", **toleration}
    toleration["key"] = draw.choice(_TAINTS)
    if draw.chance(0.5):
        toleration["operator"] = "Exists"
    else:
        toleration["value"] = draw.choice(_TAINT_VALUES)
        if draw.chance(0.7):
            toleration["operator"] = "Equal"
    if toleration.get("effect") == "NoExecute" and draw.chance(0.5):
        toleration["tolerationSeconds"] = 60
    return toleration


_NODE_LABELS = {
    ZONE: ZONES,
    "disk": ("ssd", "hdd"),
    "rack": ("r1", "r2", ""),
    HOSTNAME: ("n1", "n2", "n3", "n4"),
    "none": ("1",),
}


def _node_affinity(draw: Draw, case: Case) -> None:
    spec = case["pod"]["spec"]
    if draw.chance(0.4):
        key = draw.choice((ZONE, "disk", "rack"))
        spec["nodeSelector"] = {key: draw.choice(_NODE_LABELS[key])}
        if draw.chance(0.2):
            spec["nodeSelector"]["cores"] = "16"
    if draw.chance(0.8):
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
            "nodeSelectorTerms": [_node_term(draw) for _ in range(draw.randint(1, 2))]
        }
        if draw.chance(0.1):
            affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": 1, "preference": {"matchExpressions": [_node_requirement(draw)]}}
            ]


def _node_term(draw: Draw) -> Json:
    if draw.chance(0.05):
        return {}  # selects no node
    term: Json = {}
    if draw.chance(0.85):
        term["matchExpressions"] = [_node_requirement(draw) for _ in range(draw.randint(1, 2))]
    if draw.chance(0.2) or not term:
        term["matchFields"] = [
            {
                "key": "metadata.name",
                "operator": draw.choice(("In", "In", "NotIn")),
                "values": [draw.choice(("n1", "n2", "n3", "gone"))],
            }
        ]
    return term


def _node_requirement(draw: Draw) -> Json:
    if draw.chance(0.3):
        return {
            "key": draw.choice(("cores", "cores", "disk")),
            "operator": draw.choice(("Gt", "Lt")),
            "values": [draw.choice(("8", "10", "010"))],
        }
    return expression(draw, _NODE_LABELS)


def _node_ports(draw: Draw, case: Case) -> None:
    for each in case["pods"]:
        if draw.chance(0.9):
            _add_ports(draw, each["spec"], busy=True)
    _add_ports(draw, case["pod"]["spec"], busy=False)


def _add_ports(draw: Draw, spec: Json, *, busy: bool) -> None:
    ports = [
        (port, protocol, address)
        for port in draw.some((8080, 8081, 8082), least=1, most=3 if busy else 2)
        for protocol in draw.some(("TCP", "UDP", "SCTP"), least=1, most=2)
        for address in draw.some((None, "0.0.0.0", "127.0.0.1", "10.0.0.1", "::"), least=1, most=1)
    ]
    host_network = draw.chance(0.2)
    if host_network:
        spec["hostNetwork"] = True
    where = spec["containers"][0]
    if draw.chance(0.25):  # an init container's ports count if it is a sidecar
        where = container("init")
        if draw.chance(0.5):
            where["restartPolicy"] = "Always"
        spec.setdefault("initContainers", []).append(where)
    where["ports"] = [
        {
            "containerPort": port,
            # Defaults add the others for the host's network.
            **({} if host_network and draw.chance(0.5) else {"hostPort": port}),
            **({} if protocol == "TCP" and draw.chance(0.5) else {"protocol": protocol}),
            **({"hostIP": address} if address is not None else {}),
        }
        for port, protocol, address in ports
    ]


# Of each resource, what a container asks for: the ways to write a number are many.
_SMALL = {
    "cpu": ("1", "500m", "0.1", "1500m", "2", "1e0", "0"),
    "memory": ("1Gi", "2G", "1500M", "1e9", "3000000k", "128974848000m", "0"),
    "ephemeral-storage": ("10Gi", "40G"),
    "hugepages-2Mi": ("2Mi", "16Mi", "32Mi"),
    "nvidia.com/gpu": ("1", "2", "4", "0"),
    "vpc.amazonaws.com/efa": ("1", "2", "0"),
    "example.com/unknown": ("1", "0"),
}
_INTEGERS = ("nvidia.com/gpu", "vpc.amazonaws.com/efa", "example.com/unknown", "hugepages-2Mi")


# Of each resource, what a node has where it is scarce.
_SCARCE = {
    "cpu": ("1", "2", "3", "4500m", "6"),
    "memory": ("1Gi", "2Gi", "3G", "5Gi", "7G"),
    "ephemeral-storage": ("20Gi", "50Gi", "80G"),
    "hugepages-2Mi": ("16Mi", "32Mi", "50Mi"),
    "nvidia.com/gpu": ("1", "2", "3", "5", "6"),
    "vpc.amazonaws.com/efa": ("1", "2", "3"),
}


def _node_resources_fit(draw: Draw, case: Case) -> None:
    scarce = draw.some(list(_SCARCE), least=1, most=2)
    for each in case["nodes"]:
        for resource in scarce:
            amount = draw.choice(_SCARCE[resource])
            each["status"]["allocatable"][resource] = each["status"]["capacity"][resource] = amount
    for each in case["pods"]:
        if draw.chance(0.4):
            _add_requests(draw, each["spec"])
            if draw.chance(0.15):
                _resize(draw, each)
    _add_requests(draw, case["pod"]["spec"])


def _add_requests(draw: Draw, spec: Json) -> None:
    spec["containers"][0]["resources"] = _requests(draw)
    if draw.chance(0.3):
        spec["containers"].append({**container("second"), "resources": _requests(draw)})
    for index in range(draw.choices((0, 1, 2), (6, 3, 1))[0]):
        each = {**container(f"init-{index}"), "resources": _requests(draw)}
        if draw.chance(0.5):
            each["restartPolicy"] = "Always"
        spec.setdefault("initContainers", []).append(each)
    if draw.chance(0.1):
        spec["overhead"] = {"cpu": "250m", "memory": "120Mi"}
    if draw.chance(0.15):
        spec["resources"] = _pod_level(draw)


def _requests(draw: Draw) -> Json:
    """Requests of a container, alone or beside limits, or limits that become requests."""
    small = list(_SMALL)[:6] if draw.chance(0.9) else list(_SMALL)
    amounts = {resource: draw.choice(_SMALL[resource]) for resource in draw.some(small)}
    if "hugepages-2Mi" in amounts:
        amounts.setdefault("memory", "1Gi")  # they need one of the two
    integers = {resource: amounts[resource] for resource in amounts if resource in _INTEGERS}
    if draw.chance(0.3):
        return {"limits": amounts}
    return {"requests": amounts, "limits": integers}


def _pod_level(draw: Draw) -> Json:
    """More than any containers here ask for, or the API server refuses the pod."""
    amounts = {"cpu": draw.choice(("6", "7500m", "8")), "memory": draw.choice(("12Gi", "14Gi"))}
    if draw.chance(0.5):
        del amounts[draw.choice(list(amounts))]
    return {"requests": amounts}


def _resize(draw: Draw, running: Json) -> None:
    """Let a running container have other resources than it asks for: it is being resized."""
    amounts = [
        {"cpu": draw.choice(("2", "4")), "memory": draw.choice(("1Gi", "5Gi"))} for _ in range(2)
    ]
    status = {"name": "main", "ready": True, "restartCount": 0, "image": "", "imageID": ""}
    if draw.chance(0.7):
        status["allocatedResources"] = amounts[0]
    if draw.chance(0.8):
        status["resources"] = {"requests": amounts[1]}
    running["status"]["containerStatuses"] = [status]
    if draw.chance(0.3):
        running["status"]["conditions"] = [
            {
                "type": "PodResizePending",
                "status": "True",
                "reason": draw.choice(("Infeasible", "Deferred")),
            }
        ]


def _pod_topology_spread(draw: Draw, case: Case) -> None:
    if draw.chance(0.4):
        _node_affinity(draw, case)
    if draw.chance(0.4):
        _taint_toleration(draw, case)
    _more_pods(draw, case)
    if draw.chance(0.5):
        case["pod"]["metadata"]["labels"]["app"] = "a"
    keys = {topology_key(draw) for _ in range(draw.choices((1, 2, 3), (5, 3, 1))[0])}
    case["pod"]["spec"]["topologySpreadConstraints"] = [_spread(draw, key) for key in sorted(keys)]


def _more_pods(draw: Draw, case: Case) -> None:
    """Add pods of the pod's namespace, most of them on the first nodes."""
    for index in range(draw.randint(2, 10)):
        added = running_pod(draw, f"more-{index}", case["nodes"][: draw.randint(1, 3)])
        added["metadata"]["namespace"] = case["pod"]["metadata"]["namespace"]
        if draw.chance(0.6):
            added["metadata"]["labels"]["app"] = "a"
        if draw.chance(0.1):
            added["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            added["metadata"]["deletionGracePeriodSeconds"] = 30
        case["pods"].append(added)


def _spread(draw: Draw, key: str) -> Json:
    constraint: Json = {
        "topologyKey": key,
        "maxSkew": draw.choices((1, 2, 3), (6, 2, 1))[0],
        "whenUnsatisfiable": "DoNotSchedule" if draw.chance(0.93) else "ScheduleAnyway",
    }
    selector = {"matchLabels": {"app": "a"}} if draw.chance(0.5) else label_selector(draw)
    if selector is not None or draw.chance(0.5):
        constraint["labelSelector"] = selector
    if constraint["whenUnsatisfiable"] == "DoNotSchedule" and draw.chance(0.3):
        constraint["minDomains"] = draw.randint(1, 4)
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if draw.chance(0.5):
            constraint[policy] = draw.choice(("Honor", "Ignore"))
    if selector is not None and draw.chance(0.25):
        constraint["matchLabelKeys"] = draw.choice((["pod-template-hash"], ["none-such"]))
    return constraint


def _inter_pod_affinity(draw: Draw, case: Case) -> None:
    for each in case["pods"]:
        if draw.chance(0.3):
            _add_affinity(draw, each["spec"], anti=draw.chance(0.7))
    kind = draw.one(affinity=0.4, anti=0.3, both=0.15, none=0.15)
    if kind in ("affinity", "both"):
        _add_affinity(draw, case["pod"]["spec"], anti=False)
    if kind in ("anti", "both"):
        _add_affinity(draw, case["pod"]["spec"], anti=True)


def _add_affinity(draw: Draw, spec: Json, *, anti: bool) -> None:
    affinity = spec.setdefault("affinity", {}).setdefault(
        "podAntiAffinity" if anti else "podAffinity", {}
    )
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = [
        _affinity_term(draw) for _ in range(draw.choices((1, 2), (3, 2))[0])
    ]
    if draw.chance(0.1):
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": 1, "podAffinityTerm": _affinity_term(draw)}
        ]


def _affinity_term(draw: Draw) -> Json:
    term: Json = {"topologyKey": topology_key(draw)}
    if (selector := label_selector(draw)) is not None:
        term["labelSelector"] = selector
        if draw.chance(0.15):
            term["matchLabelKeys"] = ["pod-template-hash"]
        elif draw.chance(0.15):
            term["mismatchLabelKeys"] = ["pod-template-hash"]
    if draw.chance(0.25):
        term["namespaces"] = draw.some([*NAMESPACES, "gone"], least=1)
    if draw.chance(0.25):
        term["namespaceSelector"] = draw.choice(
            ({}, {"matchLabels": {"team": "a"}}, {"matchLabels": {"team": "b"}})
        )
        if draw.chance(0.3):
            term["namespaceSelector"] = {
                "matchExpressions": [expression(draw, {"team": ("a", "b"), "env": ("test",)})]
            }
    return term


# In the order in which kube-scheduler asks them. NodeName is missing: a pod that names a node waits
# for no scheduler.
_ABOUT: Mapping[str, Callable[[Draw, Case], None]] = {
    "NodeUnschedulable": _unschedulable,
    "TaintToleration": _taint_toleration,
    "NodeAffinity": _node_affinity,
    "NodePorts": _node_ports,
    "NodeResourcesFit": _node_resources_fit,
    "VolumeRestrictions": volumes.restrictions,
    "NodeVolumeLimits": volumes.limits,
    "VolumeBinding": volumes.binding,
    "VolumeZone": volumes.zone,
    "PodTopologySpread": _pod_topology_spread,
    "InterPodAffinity": _inter_pod_affinity,
}
PLUGINS = tuple(_ABOUT)
# The rules of some are longer, and each applies to few pairs.
_MORE = {"NodeResourcesFit": 2, "VolumeBinding": 2, "PodTopologySpread": 4, "InterPodAffinity": 3}
_WEIGHTS = tuple(_MORE.get(plugin, 1) for plugin in PLUGINS)
