"""Choices with odds, and what every case is made of: nodes, namespaces, pods, selectors."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
ZONES = ("z1", "z2", "z3")
APPS = ("a", "b", "c")
NAMESPACES: Mapping[str, Mapping[str, str]] = {
    "red": {"team": "a", "env": "test"},
    "green": {"team": "b"},
    "blue": {},
}
# Of each resource, how much a node has.
ALLOCATABLE = {
    "cpu": ("4", "8", "7500m"),
    "memory": ("16Gi", "8G", "10000000k"),
    "ephemeral-storage": ("100Gi",),
    "hugepages-2Mi": ("64Mi", "0"),
    "nvidia.com/gpu": ("8", "4"),
    "vpc.amazonaws.com/efa": ("4", "1"),
    "pods": ("16", "4"),
}


class Draw(random.Random):
    """The choices of one seed."""

    def chance(self, odds: float) -> bool:
        return self.random() < odds

    def some(self, items: Sequence[T], least: int = 0, most: int = 3) -> list[T]:
        """Choose *least* to *most* of *items*, in any order, each at most once."""
        return self.sample(items, self.randint(min(least, len(items)), min(most, len(items))))

    def one(self, **odds: float) -> str:
        """Choose a name by its odds."""
        return self.choices(list(odds), list(odds.values()))[0]


def node(draw: Draw, index: int) -> Json:
    name = f"n{index}"
    labels = {HOSTNAME: name, ZONE: draw.choice(ZONES), REGION: "r1"}
    for key in (HOSTNAME, ZONE, REGION):
        if draw.chance(0.1):
            del labels[key]
    if draw.chance(0.05):
        labels[HOSTNAME] = "n1"  # nothing forbids two nodes with one hostname
    if draw.chance(0.6):
        labels["rack"] = draw.choice(("r1", "r2", ""))
    if draw.chance(0.6):
        labels["disk"] = draw.choice(("ssd", "hdd"))
    if draw.chance(0.6):
        labels["cores"] = draw.choice(("8", "16", "016", "many"))
    allocatable = {
        resource: draw.choice(amounts)
        for resource, amounts in ALLOCATABLE.items()
        if resource in ("cpu", "memory", "pods") or draw.chance(0.8)
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"allocatable": allocatable, "capacity": dict(allocatable)},
    }


def namespace(name: str) -> Json:
    labels = {"kubernetes.io/metadata.name": name, **NAMESPACES[name]}
    return {"metadata": {"name": name, "labels": labels}}


def pod(draw: Draw, name: str) -> Json:
    labels = {}
    if draw.chance(0.9):
        labels["app"] = draw.choice(APPS)
    if draw.chance(0.5):
        labels["tier"] = draw.choice(("1", "2"))
    if draw.chance(0.5):
        labels["pod-template-hash"] = draw.choice(("x", "y"))
    place = draw.choices(list(NAMESPACES), (6, 2, 1))[0]
    return {
        "metadata": {"name": name, "namespace": place, "uid": f"uid-{name}", "labels": labels},
        "spec": {"containers": [container("main")], "terminationGracePeriodSeconds": 30},
        "status": {},
    }


def running_pod(draw: Draw, name: str, nodes: Sequence[Json]) -> Json:
    """A pod that has a node; a few are about to end, or have ended and hold nothing any more."""
    placed = pod(draw, name)
    placed["spec"]["nodeName"] = draw.choice(nodes)["metadata"]["name"]
    phase = draw.one(Running=0.9, Pending=0.05, Succeeded=0.03, Failed=0.02)
    placed["status"]["phase"] = phase
    if draw.chance(0.08):
        placed["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        placed["metadata"]["deletionGracePeriodSeconds"] = 30
    return placed


def container(name: str) -> Json:
    return {"name": name, "image": "image", "resources": {}}


def label_selector(draw: Draw) -> Json | None:
    """A selector of pods: null selects none, an empty one all."""
    kind = draw.one(null=0.05, empty=0.1, labels=0.5, expressions=0.3, both=0.05)
    if kind == "null":
        return None
    selector: Json = {}
    if kind in ("labels", "both"):
        selector["matchLabels"] = {"app": draw.choice(APPS)}
        if draw.chance(0.15):
            selector["matchLabels"]["tier"] = draw.choice(("1", "2"))
    if kind in ("expressions", "both"):
        selector["matchExpressions"] = [
            expression(draw, {"app": APPS, "tier": ("1", "2"), "none": ("1",)})
            for _ in range(draw.randint(1, 2))
        ]
    return selector


def expression(draw: Draw, keys: Mapping[str, Sequence[str]]) -> Json:
    """A requirement of a label selector on one of *keys*, by its possible values."""
    key = draw.choice(list(keys))
    operator = draw.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    return {"key": key, "operator": operator, "values": draw.some(keys[key], least=1, most=2)}


def topology_key(draw: Draw) -> str:
    return draw.choices((HOSTNAME, ZONE, REGION, "rack", "none"), (10, 10, 2, 3, 0.5))[0]
