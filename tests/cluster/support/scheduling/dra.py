"""What a DRA driver publishes, and claims for it. Nodes are only objects."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from linkwise.topology.machine.recorded import recorded_machine
from tests.cluster.support.scheduling.extender_process import GPU, gpu_node
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld

MACHINE = "hgx-h100"
DRIVER = "gpu.nvidia.com"
DEVICES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DEVICES}/namespaces/{NAMESPACE}/resourceclaims"


@cache
def uuids(node: str) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in recorded_machine(MACHINE, node=node).gpus)


def add_nodes(
    world: SchedulingWorld, *nodes: str, labels: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Nodes without a device plugin, what the driver publishes of them, and its class."""
    for node in nodes:
        made = gpu_node(node, MACHINE, labels=(labels or {}).get(node))
        for amounts in (made["status"]["capacity"], made["status"]["allocatable"]):
            amounts.pop(GPU, None)
        world.client.post("/api/v1/nodes", made)
        world.client.post(f"{DEVICES}/resourceslices", _slice_of(node))
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    device_class = {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}}
    world.client.post(f"{DEVICES}/deviceclasses", device_class)


def put_partitions(world: SchedulingWorld, node: str, *partitions: Sequence[int]) -> None:
    """The driver publishes NVSwitch partitions of the node, by the indices of their GPUs."""
    devices = _slice_of(node)["spec"]["devices"]
    for number, gpus in enumerate(partitions):
        for index in gpus:
            own = next(device for device in devices if device["name"] == f"gpu-{index}")
            own["attributes"][f"partition{len(gpus)}"] = {"int": number}
    path = f"{DEVICES}/resourceslices/{node}-{DRIVER}"
    world.client.patch(path, {"spec": {"devices": devices}})


def _slice_of(node: str) -> dict[str, Any]:
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}},
        }
        for index, uuid in enumerate(uuids(node))
    ]
    nameless = {"name": "without-uuid", "attributes": {"type": {"string": "gpu"}}}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [nameless, *devices]}
    return {"metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec}


def uuid_in(uuids: Sequence[str]) -> dict[str, Any]:
    """A selector: just these GPUs."""
    named = ", ".join(f'"{uuid}"' for uuid in uuids)
    attribute = f'device.attributes["{DRIVER}"].uuid'
    return {"cel": {"expression": f"has({attribute}) && {attribute} in [{named}]"}}


def create_claim(world: SchedulingWorld, name: str, gpus: int, among: Sequence[str]) -> None:
    """A claim that leaves the choice to kube-scheduler."""
    exactly = {"deviceClassName": DRIVER, "count": gpus, "selectors": [uuid_in(among)]}
    requests = [{"name": "gpus", "exactly": exactly}]
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}
    world.client.post(CLAIMS, body)


def pod_with(claim: str) -> dict[str, Any]:
    """The spec of a pod that uses this claim."""
    return {
        "containers": [
            {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpus"}]}}
        ],
        "resourceClaims": [{"name": "gpus", "resourceClaimName": claim}],
        "restartPolicy": "Never",
    }
