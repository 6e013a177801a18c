"""Volcano's real scheduler as a process, and the objects that it reads.

Settings are of Volcano's guide to network topology, and pods are packed by GPUs. Its other programs
open queues, and make PodGroups of its own Jobs; here the benchmark does. The module proxy has no
release of it with all its modules, so it is built elsewhere.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.beside.queues import create_objects
from tests.beside.world import RACK
from tests.cluster.support.api.control_plane import ControlPlane, free_port
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import GPU
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld
from tests.cluster.support.scheduling.workload_pods import wait_defined

SCHEDULER, QUEUE, GROUP_NAME = "volcano", "default", "scheduling.k8s.io/group-name"
_BY_GPUS = {
    "weight": 10,
    "hypernode.binpack.resources": GPU,
    f"hypernode.binpack.resources.{GPU}": 10,
    "hypernode.binpack.normal-pod.enable": True,
}
_PACKED = {"binpack.weight": 10, "binpack.resources": GPU, f"binpack.resources.{GPU}": 10}
_SETTINGS = {
    "actions": "enqueue, allocate, backfill",
    "tiers": [
        {"plugins": [{"name": name} for name in ("priority", "gang", "conformance")]},
        {
            "plugins": [
                *({"name": name} for name in ("drf", "predicates", "proportion", "nodeorder")),
                {"name": "binpack", "arguments": _PACKED},
                {"name": "network-topology-aware", "arguments": _BY_GPUS},
            ]
        },
    ],
}


def start(control: ControlPlane, built: Path) -> None:
    """Define its kinds, and start its scheduler; it ends with *control*. The folder *built* has
    `vc-scheduler`, and the definitions of a release's kinds as `*.yaml`."""
    control.kubectl("create", f"-f={built}")
    wait_defined(control)
    settings = control.directory / "volcano.json"
    settings.write_text(json.dumps(_SETTINGS))
    flags = (
        f"--kubeconfig={control.kubeconfig()}",
        f"--scheduler-conf={settings}",
        f"--listen-address=127.0.0.1:{free_port('127.0.0.1')}",
        "--leader-elect=false",
        "--cache-dumper=false",
    )
    process = LoggedProcess(
        SCHEDULER, [str(built / "vc-scheduler"), *flags], control.logs / "volcano.log"
    )
    process.start()
    control.parts[SCHEDULER] = process
    wait_for(lambda: QUEUE in control.kubectl("get", "queues", "-o=name"), "Volcano has a queue")
    opened = '-p={"status": {"state": "Open"}}'  # as its controller does
    control.kubectl("patch", "queue", QUEUE, "--subresource=status", "--type=merge", opened)


def create_racks(world: SchedulingWorld, *racks: str) -> None:
    """A HyperNode for each of *racks*."""
    create_objects(world, *map(_rack, racks))


def create_group(world: SchedulingWorld, name: str, pods: int, gpus: int) -> None:
    """A PodGroup for pods of *gpus* each; if there are several, in as few racks as possible."""
    wanted: dict[str, Any] = {"minMember": pods, "minResources": {GPU: str(pods * gpus)}}
    if pods > 1:
        wanted["networkTopology"] = {"mode": "soft"}
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
    metadata = {"name": name, "namespace": NAMESPACE}
    create_objects(world, {**group, "metadata": metadata, "spec": {"queue": QUEUE, **wanted}})


def _rack(rack: str) -> Mapping[str, Any]:
    nodes = {"labelMatch": {"matchLabels": {RACK: rack}}}
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": rack},
        "spec": {"tier": 1, "members": [{"type": "Node", "selector": nodes}]},
    }
