"""What `daemonset/` holds, for the tests that compare it with the programs and with itself."""

import os
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.support.programs.binaries import NEWEST

DAEMONSET = Path(__file__).parents[1] / "daemonset"
BASE = DAEMONSET / "base"
OVERLAYS = tuple(sorted(path.name for path in (DAEMONSET / "overlays").iterdir()))


def _probe(path: str) -> dict[str, Any]:
    asked = {"host": "127.0.0.1", "path": path, "port": "probe-port", "scheme": "HTTPS"}
    return {"httpGet": asked, "initialDelaySeconds": 1, "periodSeconds": 10, "timeoutSeconds": 15}


# Overlays with the extender, and the components that bring them the webhook.
WEBHOOK = {
    "kubeadm": ("webhook", "image"),
    "second-scheduler": ("webhook-second-scheduler", "image"),
    "simulated": ("webhook-second-scheduler", "image"),
}


# As kubeadm v1.36 writes /etc/kubernetes/manifests/kube-scheduler.yaml, with quicker probes.
STATIC_POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "labels": {"component": "kube-scheduler", "tier": "control-plane"},
        "name": "kube-scheduler",
        "namespace": "kube-system",
    },
    "spec": {
        "containers": [
            {
                "name": "kube-scheduler",
                "image": f"registry.k8s.io/kube-scheduler:{NEWEST}",
                "command": [
                    "kube-scheduler",
                    "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf",
                    "--authorization-kubeconfig=/etc/kubernetes/scheduler.conf",
                    "--bind-address=127.0.0.1",
                    "--kubeconfig=/etc/kubernetes/scheduler.conf",
                    "--leader-elect=true",
                ],
                "imagePullPolicy": "IfNotPresent",
                "livenessProbe": {**_probe("/livez"), "failureThreshold": 8},
                "readinessProbe": {**_probe("/readyz"), "failureThreshold": 3, "periodSeconds": 1},
                "startupProbe": {**_probe("/livez"), "failureThreshold": 24},
                "ports": [{"containerPort": 10259, "name": "probe-port", "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "100m"}},
                "volumeMounts": [
                    {
                        "mountPath": "/etc/kubernetes/scheduler.conf",
                        "name": "kubeconfig",
                        "readOnly": True,
                    }
                ],
            }
        ],
        "hostNetwork": True,
        "priorityClassName": "system-node-critical",
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [
            {
                "hostPath": {"path": "/etc/kubernetes/scheduler.conf", "type": "FileOrCreate"},
                "name": "kubeconfig",
            }
        ],
    },
}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def the(directory: Path, kind: str, name: str | None = None) -> dict[str, Any]:
    """The one object of *kind* in the files of *directory*."""
    (found,) = (
        item
        for path in sorted(directory.glob("*.yaml"))
        for item in documents(path)
        if item.get("kind") == kind and name in (None, item["metadata"]["name"])
    )
    return found


def write_overlay(directory: Path, name: str, *components: str) -> Path:
    """Write a kustomization of an overlay and *components* as users do; return *directory*."""
    made = {
        # kustomize accepts no absolute paths.
        "resources": [os.path.relpath(DAEMONSET / "overlays" / name, directory)],
        "components": [
            os.path.relpath(DAEMONSET / "components" / each, directory) for each in components
        ],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(made))
    return directory


def granted(role: dict[str, Any]) -> set[tuple[str, str]]:
    """(resource, verb) of every rule of a role."""
    return {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
