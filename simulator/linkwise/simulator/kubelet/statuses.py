"""The kubelet's request bodies: a node's status, and a pod's status in each phase.

PURE. Moments are RFC 3339 texts, as the API server writes them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from linkwise.kube.objects import Pod

Body = dict[str, Any]

_UNEXPECTED = "UnexpectedAdmissionError"


def node(name: str, labels: Mapping[str, str], status: Body) -> Body:
    """Return a Node as its kubelet registers it."""
    own = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**own, **labels}},
        "spec": {},
        "status": status,
    }


def node_status(
    fixed: Mapping[str, str], devices: Mapping[str, tuple[int, int]], moment: str
) -> Body:
    """Return a Node's status. *fixed*: cpu, memory, pods; *devices*: (capacity, allocatable)."""
    return {
        "capacity": {**fixed, **{name: str(c) for name, (c, _) in devices.items()}},
        "allocatable": {**fixed, **{name: str(a) for name, (_, a) in devices.items()}},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "kubelet is posting ready status",
                "lastHeartbeatTime": moment,
                "lastTransitionTime": moment,
            }
        ],
    }


def rejected(pod: Pod, reason: str, why: str, moment: str) -> Body:
    """The pod is Failed: the kubelet never starts it."""
    if reason == _UNEXPECTED:
        why = f"Allocate failed due to {why}, which is unexpected"
    return _patch(
        pod,
        {
            "phase": "Failed",
            "reason": reason,
            "message": f"Pod was rejected: {why}",
            "startTime": moment,
        },
    )


def starting(pod: Pod, moment: str) -> Body:
    """The pod is admitted; its init containers run."""
    conditions = _conditions(pod, moment, initialized=False, ready=False, reason="")
    return _patch(pod, {"phase": "Pending", "startTime": moment, "conditions": conditions})


def running(pod: Pod, moment: str) -> Body:
    state = {"running": {"startedAt": moment}}
    return _patch(
        pod,
        {
            "phase": "Running",
            "startTime": moment,
            "conditions": _conditions(pod, moment, initialized=True, ready=True, reason=""),
            "containerStatuses": _containers(pod, state, ready=True),
        },
    )


def ended(pod: Pod, moment: str, *, well: bool) -> Body:
    """All containers have ended, by themselves (*well*) or because the kubelet stopped them."""
    reason = "PodCompleted" if well else "PodFailed"
    state = {
        "terminated": {
            "exitCode": 0 if well else 143,  # 128 + SIGTERM
            "reason": "Completed" if well else "Error",
            "finishedAt": moment,
        }
    }
    return _patch(
        pod,
        {
            "phase": "Succeeded" if well else "Failed",
            "conditions": _conditions(pod, moment, initialized=True, ready=False, reason=reason),
            "containerStatuses": _containers(pod, state, ready=False),
        },
    )


def _patch(pod: Pod, status: Body) -> Body:
    """The uid makes the API server refuse the patch for another pod of this name."""
    return {"metadata": {"uid": pod.metadata.uid}, "status": status}


def _conditions(
    pod: Pod, moment: str, *, initialized: bool, ready: bool, reason: str
) -> list[Body]:
    """Return the kubelet's own conditions, beside others' (PodScheduled)."""
    own = {
        "PodReadyToStartContainers": True,
        "Initialized": initialized,
        "ContainersReady": ready,
        "Ready": ready,
    }
    others = [c for c in pod.status.conditions if c.type not in own]
    return [
        *(msgspec.to_builtins(condition) for condition in others),
        *(
            {
                "type": kind,
                "status": "True" if holds else "False",
                "lastTransitionTime": moment,
                **({} if holds or not reason else {"reason": reason}),
            }
            for kind, holds in own.items()
        ),
    ]


def _containers(pod: Pod, state: Body, *, ready: bool) -> list[Body]:
    return [
        {"name": container.name, "ready": ready, "started": ready, "state": state}
        for container in pod.spec.containers
    ]
