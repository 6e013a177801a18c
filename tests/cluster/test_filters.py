"""Linkwise's filters say of each node what kube-scheduler's own plugins say.

The first tests show on cases with known answers that the plugins are really asked. More cases than
the last test has: `python -m tests.cluster.support.filters --seeds 0-9999`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.support.filters.cases import PLUGINS, draw_case
from tests.cluster.support.filters.differences import compare
from tests.cluster.support.filters.kube_scheduler import Answer, Case, Plugins, Verdict, plugins
from tests.cluster.support.filters.left_out import LEFT_OUT
from tests.cluster.support.filters.report import Report
from tests.kube.filters.verdicts import verdicts

PAIRS = 10_000
# Of the pairs about a plugin, the least share that it refuses, and that fits.
ENOUGH = 0.05
KINDS_SHOWN = 3  # each takes some ten seconds to make small

Json = dict[str, Any]

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"


@pytest.fixture(scope="module")
def asked() -> Iterator[Plugins]:
    with plugins() as running:
        yield running


def node(name: str, labels: Json | None = None, **spec: Any) -> Json:
    """A node of zone z1 if its name ends with 1 or 2, else of z2."""
    zone = "z1" if name[-1] in "12" else "z2"
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "8"}
    return {
        "metadata": {"name": name, "labels": {HOSTNAME: name, ZONE: zone, **(labels or {})}},
        "spec": spec,
        "status": {"allocatable": allocatable},
    }


def pod(name: str, labels: Json | None = None, container: Json | None = None, **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "red", "uid": name, "labels": labels or {}},
        "spec": {"containers": [{"name": "c", "image": "i", **(container or {})}], **spec},
    }


def required(*terms: Json) -> Json:
    return {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}


def claim(name: str, **spec: Any) -> Json:
    bound = {"pv.kubernetes.io/bind-completed": "yes"} if "volumeName" in spec else {}
    return {
        "metadata": {"name": name, "namespace": "red", "uid": name, "annotations": bound},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
    }


def volume(name: str, labels: Json | None = None, **spec: Any) -> Json:
    """A PersistentVolume that the claim of the same name has."""
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": "csi.example.com", "volumeHandle": name},
            "claimRef": {"namespace": "red", "name": name, "uid": name},
            **spec,
        },
    }


def mounts(*claims: str) -> Json:
    return {
        "volumes": [
            {"name": f"v-{name}", "persistentVolumeClaim": {"claimName": name}} for name in claims
        ]
    }


APP_A = {"matchLabels": {"app": "a"}}
PORT = {"ports": [{"containerPort": 80, "hostPort": 80}]}
FOUR_GPUS = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}

# The nodes of each case are n1 and n3; the plugin and reason is that of n1, and n3 fits.
KNOWN: dict[str, tuple[Case, str, str]] = {
    "a cordoned node": (
        {"nodes": [node("n1", unschedulable=True), node("n3")], "pod": pod("new")},
        "NodeUnschedulable",
        "node(s) were unschedulable",
    ),
    "a taint": (
        {
            "nodes": [
                node("n1", taints=[{"key": "gpu", "effect": "NoExecute"}]),
                node("n3", taints=[{"key": "spot", "effect": "NoSchedule"}]),
            ],
            "pod": pod("new", tolerations=[{"key": "spot", "operator": "Exists"}]),
        },
        "TaintToleration",
        "node(s) had untolerated taint(s)",
    ),
    "a node selector": (
        {"pod": pod("new", nodeSelector={ZONE: "z2"})},
        "NodeAffinity",
        "node(s) didn't match Pod's node affinity/selector",
    ),
    "a host port": (
        {"pods": [pod("p1", None, PORT, nodeName="n1")], "pod": pod("new", None, PORT)},
        "NodePorts",
        "node(s) didn't have free ports for the requested pod ports",
    ),
    "GPUs": (
        {
            "pods": [pod(name, None, FOUR_GPUS, nodeName="n1") for name in ("p1", "p2")],
            "pod": pod("new", None, FOUR_GPUS),
        },
        "NodeResourcesFit",
        "Insufficient nvidia.com/gpu",
    ),
    "a disk that one pod may write": (
        {
            "pods": [
                pod(
                    "p1",
                    nodeName="n1",
                    volumes=[{"name": "v", "gcePersistentDisk": {"pdName": "disk"}}],
                )
            ],
            "pod": pod("new", volumes=[{"name": "v", "gcePersistentDisk": {"pdName": "disk"}}]),
        },
        "VolumeRestrictions",
        "node(s) had no available disk",
    ),
    "no volume more": (
        {
            "pods": [pod("p1", nodeName="n1", **mounts("c1"))],
            "pod": pod("new", **mounts("c2")),
            "persistentVolumeClaims": [
                claim(name, volumeName=name, storageClassName="") for name in ("c1", "c2")
            ],
            "persistentVolumes": [volume("c1"), volume("c2")],
            "csiNodes": [
                {
                    "metadata": {"name": name},
                    "spec": {
                        "drivers": [
                            {"name": "csi.example.com", "nodeID": name, "allocatable": {"count": 1}}
                        ]
                    },
                }
                for name in ("n1", "n3")
            ],
        },
        "NodeVolumeLimits",
        "node(s) exceed max volume count",
    ),
    "a volume of another zone": (
        {
            "pod": pod("new", **mounts("c1")),
            "persistentVolumeClaims": [claim("c1", volumeName="c1", storageClassName="")],
            "persistentVolumes": [
                volume(
                    "c1",
                    nodeAffinity={
                        "required": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {"key": ZONE, "operator": "In", "values": ["z2"]}
                                    ]
                                }
                            ]
                        }
                    },
                )
            ],
        },
        "VolumeBinding",
        "node(s) didn't match PersistentVolume's node affinity",
    ),
    "a volume that can be made in another zone": (
        {
            "pod": pod("new", **mounts("c1")),
            "persistentVolumeClaims": [claim("c1", storageClassName="wait")],
            "storageClasses": [
                {
                    "metadata": {"name": "wait"},
                    "provisioner": "csi.example.com",
                    "volumeBindingMode": "WaitForFirstConsumer",
                    "allowedTopologies": [
                        {"matchLabelExpressions": [{"key": ZONE, "values": ["z2"]}]}
                    ],
                }
            ],
        },
        "VolumeBinding",
        "node(s) didn't find available persistent volumes to bind",
    ),
    "a volume with another zone as its label": (
        {
            "pod": pod("new", **mounts("c1")),
            "persistentVolumeClaims": [claim("c1", volumeName="c1", storageClassName="")],
            "persistentVolumes": [volume("c1", {ZONE: "z2__z3"})],
        },
        "VolumeZone",
        "node(s) had no available volume zone",
    ),
    "topology spread": (
        {
            "pods": [pod("p1", {"app": "a"}, nodeName="n1")],
            "pod": pod(
                "new",
                {"app": "a"},
                topologySpreadConstraints=[
                    {
                        "maxSkew": 1,
                        "topologyKey": ZONE,
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": APP_A,
                    }
                ],
            ),
        },
        "PodTopologySpread",
        "node(s) didn't match pod topology spread constraints",
    ),
    "anti-affinity of a running pod": (
        {
            "pods": [
                pod(
                    "p1",
                    nodeName="n1",
                    affinity={
                        "podAntiAffinity": required(
                            {"topologyKey": HOSTNAME, "labelSelector": APP_A}
                        )
                    },
                )
            ],
            "pod": pod("new", {"app": "a"}),
        },
        "InterPodAffinity",
        "node(s) didn't satisfy existing pods anti-affinity rules",
    ),
    "affinity to a running pod, in a namespace by its labels": (
        {
            "namespaces": [{"metadata": {"name": "red", "labels": {"team": "a"}}}],
            "pods": [pod("p1", {"app": "a"}, nodeName="n3")],
            "pod": pod(
                "new",
                affinity={
                    "podAffinity": required(
                        {
                            "topologyKey": ZONE,
                            "labelSelector": APP_A,
                            "namespaceSelector": {"matchLabels": {"team": "a"}},
                        }
                    )
                },
            ),
        },
        "InterPodAffinity",
        "node(s) didn't match pod affinity rules",
    ),
}


def ask(asked: Plugins, case: Case) -> Answer:
    (answer,) = asked.ask([{"nodes": [node("n1"), node("n3")], **case}])
    assert not answer.error
    return answer


@pytest.mark.parametrize("name", KNOWN)
def test_each_plugin_refuses_the_node_that_it_knows_a_reason_against(
    asked: Plugins, name: str
) -> None:
    case, plugin, reason = KNOWN[name]
    answered = ask(asked, case).nodes
    assert answered is not None
    refused = answered["n1"]
    assert (refused.plugin, refused.reasons) == (plugin, (reason,))
    assert answered["n3"] == Verdict("", "", None)


def test_every_plugin_has_a_known_answer() -> None:
    assert {plugin for _, plugin, _ in KNOWN.values()} == {*PLUGINS}


def test_a_pod_that_no_node_can_take_is_refused_before_nodes_are_looked_at(asked: Plugins) -> None:
    case: Case = {"nodes": [node("n1", unschedulable=True)], "pod": pod("new", **mounts("gone"))}
    assert ask(asked, case).plugins == {"n1": "VolumeRestrictions"}


FIELD = {"key": "metadata.name", "operator": "In", "values": ["n3"]}
TERMS = {"nodeSelectorTerms": [{"matchFields": [FIELD]}]}
BY_FIELD = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}}


@pytest.mark.parametrize(
    ("spec", "plugin"), [({"affinity": BY_FIELD}, "NodeAffinity"), ({"nodeName": "n3"}, "NodeName")]
)
def test_nodes_that_a_name_leaves_out_are_not_looked_at(
    asked: Plugins, spec: Json, plugin: str
) -> None:
    nodes = [node("n1", unschedulable=True), node("n3")]
    assert ask(asked, {"nodes": nodes, "pod": pod("new", **spec)}).plugins == {
        "n1": plugin,
        "n3": "",
    }


def test_a_case_is_stored_as_the_api_server_does(asked: Plugins) -> None:
    term = {"topologyKey": HOSTNAME, "labelSelector": APP_A, "matchLabelKeys": ["version"]}
    new = pod("new", {"version": "2"}, FOUR_GPUS, affinity={"podAntiAffinity": required(term)})
    stored = ask(asked, {"pod": new}).stored
    assert stored is not None
    spec = stored["pod"]["spec"]
    assert spec["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "4"}
    (kept,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    merged = [{"key": "version", "operator": "In", "values": ["2"]}]
    assert kept["labelSelector"] == {**APP_A, "matchExpressions": merged}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pod": {"metadata": {"uid": "u"}}}, "spec.containers: Required value"),
        ({"pod": pod("new", tolerations=[{"operator": "Equal"}])}, "spec.tolerations"),
        ({"pod": pod("new"), "services": []}, 'unknown field "services"'),
        ({"nodes": [node("n1")]}, "pod: missing"),
    ],
)
def test_what_no_api_server_takes_is_no_case(asked: Plugins, wrong: Case, said: str) -> None:
    (answer,) = asked.ask([wrong])
    assert said in answer.error


def test_ten_thousand_pairs_have_no_difference_but_those_left_out(asked: Plugins) -> None:
    report = Report()
    seed = 0
    while report.all_pairs < PAIRS:
        cases = [draw_case(each) for each in range(seed, seed + 200)]
        seed += len(cases)
        for compared in compare(cases, asked, verdicts, LEFT_OUT):
            report.add(compared)
    print(report.histogram())
    shares = report.shares()
    assert shares.keys() == set(PLUGINS)
    assert min(share for both in shares.values() for share in both) >= ENOUGH
    if report.kinds:
        pytest.fail(report.told(asked, verdicts, LEFT_OUT, KINDS_SHOWN), pytrace=False)
