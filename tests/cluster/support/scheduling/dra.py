"""What a DRA driver publishes, and claims for it. Nodes are only objects."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.recorded import recorded_machine
from tests.cluster.support.scheduling.extender_process import GPU, gpu_node
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld

MACHINE = "hgx-h100"
DRIVER = "gpu.nvidia.com"
DEVICES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DEVICES}/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES = f"{DEVICES}/namespaces/{NAMESPACE}/resourceclaimtemplates"
_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
_NAMELESS = {"name": "without-uuid", "attributes": {"type": {"string": "gpu"}}}


@cache
def uuids(node: str) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in recorded_machine(MACHINE, node=node).gpus)


def add_nodes(
    world: SchedulingWorld, *nodes: str, labels: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Nodes without a device plugin, what the driver publishes of them, and its class."""
    for node in nodes:
        world.client.post("/api/v1/nodes", node_of_driver(node, (labels or {}).get(node)))
        world.client.post(f"{DEVICES}/resourceslices", slice_of(node, _NAMELESS))
    world.client.post(f"{DEVICES}/deviceclasses", device_class())


def node_of_driver(name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A node of which a DRA driver gives out the GPUs, and no device plugin any."""
    made = gpu_node(name, MACHINE, labels)
    for amounts in (made["status"]["capacity"], made["status"]["allocatable"]):
        amounts.pop(GPU, None)
    return made


def device_class(driver: str = DRIVER) -> dict[str, Any]:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {"metadata": {"name": driver}, "spec": {"selectors": [selector]}}


AMD_DRIVER = "gpu.amd.com"


def add_amd_node(world: SchedulingWorld, name: str) -> Sequence[str]:
    """A node of AMD's driver. Returns the PCI addresses of its GPUs, in the order of the devices
    `gpu-0`, `gpu-1` and so on."""
    recorded = recorded_machine("mi250x-frontier", node=name)
    gpus = tuple(replace(gpu, uuid=str(gpu.pci_bus_id)) for gpu in recorded.gpus)
    node = node_of_driver(name)
    node["metadata"]["annotations"][names.TOPOLOGY] = write_topology(replace(recorded, gpus=gpus))
    devices = [
        {"name": f"gpu-{n}", "attributes": {_PCI_BUS_ID: {"string": gpu.uuid}}}
        for n, gpu in enumerate(gpus)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": AMD_DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    published = {"metadata": {"name": f"{name}-{AMD_DRIVER}"}, "spec": spec}
    world.client.post("/api/v1/nodes", node)
    world.client.post(f"{DEVICES}/resourceslices", published)
    return [gpu.uuid for gpu in gpus]


def put_partitions(world: SchedulingWorld, node: str, *partitions: Sequence[int]) -> None:
    """The driver publishes NVSwitch partitions of the node, by the indices of their GPUs."""
    devices = slice_of(node, _NAMELESS)["spec"]["devices"]
    for number, gpus in enumerate(partitions):
        for index in gpus:
            own = next(device for device in devices if device["name"] == f"gpu-{index}")
            own["attributes"][f"partition{len(gpus)}"] = {"int": number}
    path = f"{DEVICES}/resourceslices/{node}-{DRIVER}"
    world.client.patch(path, {"spec": {"devices": devices}})


def slice_of(node: str, *before: Mapping[str, object]) -> dict[str, Any]:
    """The node's GPUs in the order of their indices, *before* them other devices."""
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}},
        }
        for index, uuid in enumerate(uuids(node))
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [*before, *devices]}
    return {"metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec}


def template(name: str, *, same: str = "", **asked: object) -> dict[str, Any]:
    """A ResourceClaimTemplate with one request; *asked*: `count` and so on. *same*: an attribute of
    which all devices have the same value."""
    requests = [{"name": "main", "exactly": {"deviceClassName": DRIVER, **asked}}]
    devices = {"requests": requests, "constraints": [{"matchAttribute": same}] if same else []}
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}


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
