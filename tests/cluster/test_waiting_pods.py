"""Two commands of docs/operating/upgrade-and-uninstall.md start the pods that wait for Linkwise."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.programs import binaries
from tests.doc_pages import OPERATING, ROOT

GATE = {"schedulingGates": [{"name": names.GATE}]}
BOTH_GATES = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}, *GATE["schedulingGates"]]}
SECOND = {"schedulerName": "linkwise-scheduler"}
CLAIMS = {names.CLAIMS: "{}"}
# By name: annotations, spec, and which gates stay; None if the pod is to be deleted.
PODS: dict[str, tuple[dict[str, str], dict[str, Any], list[str] | None]] = {
    "second-gated": ({}, GATE | SECOND, None),
    "second": ({}, SECOND, None),
    "claims": (CLAIMS, GATE, None),
    "claims-without-gate": (CLAIMS, {}, None),
    "gated": ({}, GATE, []),
    "gated-twice": ({"other": "x"}, BOTH_GATES, ["kueue.x-k8s.io/admission"]),
    "stranger": (
        {"other": "x"},
        {"schedulingGates": [{"name": "other.dev/gate"}]},
        ["other.dev/gate"],
    ),
    "bound": ({}, SECOND | {"nodeName": "n1"}, []),
}


def test_pods_that_wait_for_linkwise_are_freed_and_no_others(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    control_plane.kubectl("create", "namespace", "ml")
    control_plane.kubectl("create", "serviceaccount", "default", "-n", "ml")
    for name, (annotations, spec, _) in PODS.items():
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "ml", "annotations": annotations},
            "spec": {"containers": [{"name": "main", "image": "x"}]} | spec,
        }
        control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    page = (OPERATING / "upgrade-and-uninstall.md").read_text()
    section = page.split("### Pods that wait for Linkwise", 1)[1]
    (commands,) = re.findall(r"^```\n(.*?)^```$", section.split("\n### ", 1)[0], re.M | re.S)
    (tmp_path / "daemonset").symlink_to(ROOT / "daemonset")
    subprocess.run(
        ["sh", "-ec", commands],
        check=True,
        cwd=tmp_path,
        env=os.environ
        | {
            "KUBECONFIG": str(control_plane.kubeconfig()),
            "PATH": f"{binaries.kubernetes()}:{os.environ['PATH']}",
        },
    )
    left = json.loads(control_plane.kubectl("get", "pods", "-n", "ml", "-o", "json"))["items"]
    gates = {
        pod["metadata"]["name"]: [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]
        for pod in left
    }
    assert gates == {name: stays for name, (_, _, stays) in PODS.items() if stays is not None}
