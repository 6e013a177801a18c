"""Facts as a healthy cluster has them, and how a test spoils them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from linkwise.cli.doctor.diagnosis import findings
from linkwise.cli.doctor.facts import DaemonSet, Facts, Lease, SeenPod
from linkwise.cli.doctor.finding import Finding, Level
from linkwise.extender.state.views import StateView
from linkwise.kube.events import Event
from linkwise.kube.objects import Node
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.annotations.plan import InUse, write_in_use
from linkwise.topology.machine.recorded import recorded_machine

GPU = names.DEFAULT_RESOURCE
NOW = 1_900_000_000.0
SOCKETS = "/var/lib/kubelet/device-plugins"
OURS = f"{SOCKETS}/linkwise/kubelet.sock"
MACHINE = recorded_machine("dgx1-v100", node="n")


def at(seconds_ago: float) -> str:
    return datetime.fromtimestamp(NOW - seconds_ago, UTC).isoformat()


def node(
    name: str,
    *,
    topology: str | None = write_topology(MACHINE),
    in_use: dict[str, dict[str, tuple[str, ...]]] | None = None,
    gpus: int = 8,
    offered: int | None = None,
    labels: dict[str, str] | None = None,
) -> Node:
    """*offered*: how many of its *gpus* the kubelet offers; None: all."""
    said = {names.IN_USE: write_in_use(InUse(pods=in_use or {}))}
    if topology is not None:
        said[names.TOPOLOGY] = topology
    amounts = {GPU: str(gpus)} if gpus else {}
    metadata = {"name": name, "annotations": said, "labels": labels or {}}
    allocatable = amounts if offered is None else {GPU: str(offered)}
    status = {"capacity": amounts, "allocatable": allocatable}
    return msgspec.convert({"metadata": metadata, "status": status}, Node)


def pod(
    name: str, on: str = "", *, namespace: str = "ml", gpus: int = 0, ago: float = 3600, **said: Any
) -> SeenPod:
    """*said*: labels, args, env, hosts (host path -> mount path), image, ready, reason, message,
    gates, scheduler, phase."""
    hosts: dict[str, str] = said.get("hosts", {})
    mounts = [{"name": f"v{i}", "mountPath": path} for i, path in enumerate(hosts.values())]
    container = {
        "name": "main",
        "image": said.get("image", "x"),
        "args": said.get("args", []),
        "env": [{"name": key, "value": text} for key, text in said.get("env", {}).items()],
        "resources": {"limits": {GPU: str(gpus)} if gpus else {}},
        "volumeMounts": mounts,
    }
    ready = "True" if said.get("ready", True) else "False"
    message = said.get("message", "")
    conditions = [{"type": "Ready", "status": ready}]
    if not on:
        why = {"reason": said.get("reason", ""), "message": message}
        conditions.append({"type": "PodScheduled", "status": "False", **why})
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": said.get("labels", {}),
                "creationTimestamp": at(ago),
            },
            "spec": {
                "nodeName": on,
                "schedulerName": said.get("scheduler", "default-scheduler"),
                "schedulingGates": [{"name": gate} for gate in said.get("gates", ())],
                "containers": [container],
                "volumes": [
                    {"name": f"v{i}", "hostPath": {"path": path}} for i, path in enumerate(hosts)
                ],
            },
            "status": {
                "phase": said.get("phase", "Running" if on else "Pending"),
                "startTime": at(ago),
                "conditions": conditions,
            },
        },
        SeenPod,
    )


def plugin(on: str, mode: str = "--in-front", *, ready: bool = True) -> SeenPod:
    labels = {"app.kubernetes.io/name": "linkwise-plugin"}
    args = ["--resource-name=nvidia.com/gpu", *([mode] if mode else [])]
    name = f"linkwise-plugin-{on}"
    return pod(name, on, namespace="kube-system", labels=labels, args=args, ready=ready)


def vendor(on: str, *, told: bool = True) -> SeenPod:
    return pod(
        f"nvidia-device-plugin-daemonset-{on}",
        on,
        namespace="gpu-operator",
        image="nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
        env={"KUBELET_SOCKET": OURS} if told else {},
        hosts={SOCKETS: SOCKETS},
    )


def extender() -> SeenPod:
    labels = {"app.kubernetes.io/name": "linkwise-extender"}
    return pod("linkwise-extender-1", "control", namespace="kube-system", labels=labels)


def program(name: str, *args: str, env: dict[str, str] | None = None) -> SeenPod:
    """A pod of a program of Linkwise with these flags."""
    labels = {"app.kubernetes.io/name": name}
    return pod(
        f"{name}-1", "control", namespace="kube-system", labels=labels, args=[*args], env=env or {}
    )


def refusal(of: str, message: str, *, ago: float = 5, reason: str = "FailedCreate") -> Event:
    """As a controller writes it about the object that is to create the pods."""
    return msgspec.convert(
        {
            "involvedObject": {"kind": "DaemonSet", "name": of},
            "reason": reason,
            "message": f'Error creating: pods "{of}-x7" is forbidden: {message}',
            "lastTimestamp": at(ago),
        },
        Event,
    )


def lease(holder: str | None = "linkwise-extender-1", ago: float = 2) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": at(ago)}
    return msgspec.convert({"spec": spec}, Lease)


STATE = StateView(
    at=NOW,
    began=NOW - 86400,
    resource=GPU,
    namespaces=(),
    calls={"default-scheduler": NOW - 5},
    unplanned=(),
)
WELL = Facts(
    at=NOW,
    resources=(GPU,),
    nodes=(node("n1"), node("cpu", topology=None, gpus=0)),
    pods=(plugin("n1"), vendor("n1"), extender()),
    daemonsets=(DaemonSet(),),
    lease=lease(),
    state=STATE,
)


def with_pods(*more: SeenPod, facts: Facts = WELL) -> Facts:
    return replace(facts, pods=(*facts.pods, *more))


def problems(facts: Facts) -> list[tuple[tuple[str, ...], str]]:
    return [(it.where, it.what) for it in findings(facts) if it.level is Level.PROBLEM]


def only(facts: Facts) -> Finding:
    (found,) = findings(facts)
    return found
