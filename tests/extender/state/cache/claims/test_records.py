"""What is read of a ResourceSlice and of a ResourceClaim, and what is refused."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from linkwise.extender.state.cache.claims.records import (
    GpuDevice,
    PodName,
    PoolName,
    claim_record,
    slice_record,
)
from linkwise.kube.device_claims import ResourceClaim, ResourceSlice

# As NVIDIA's DRA driver writes it (kubernetes-sigs/dra-driver-nvidia-gpu), shortened.
SLICE: Mapping[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "n1-gpu.nvidia.com-x7", "generation": 1},
    "spec": {
        "driver": "gpu.nvidia.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 2},
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {
                    "type": {"string": "gpu"},
                    "uuid": {"string": "GPU-a"},
                    "driverVersion": {"version": "580.95.5"},
                    "resource.kubernetes.io/numaNode": {"int": 0},
                },
                "capacity": {"memory": {"value": "80Gi"}},
            },
            {
                "name": "gpu-1",
                "attributes": {"gpu.nvidia.com/uuid": {"string": "GPU-b"}},
                "taints": [{"key": "gpu.nvidia.com/xid", "effect": "NoExecute"}],
            },
            {
                "name": "gpu-1-mig-0",
                "attributes": {"uuid": {"string": "MIG-x"}, "parentUUID": {"string": "GPU-b"}},
                "taints": [{"key": "noted", "effect": "None"}],
            },
            {"name": "channel-0", "attributes": {"type": {"string": "channel"}}},
        ],
    },
}
CLAIM: Mapping[str, Any] = {
    "metadata": {"name": "train-gpus-4x", "namespace": "ml"},
    "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"count": 2}}]}},
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "g", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"},
                    {
                        "request": "watch",
                        "driver": "gpu.nvidia.com",
                        "pool": "n1",
                        "device": "gpu-1",
                        "adminAccess": True,
                    },
                ]
            },
            "nodeSelector": {"nodeSelectorTerms": []},
        },
        "reservedFor": [
            {"resource": "pods", "name": "train-0", "uid": "u0"},
            {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "u1"},
            {"apiGroup": "example.com", "resource": "pods", "name": "p", "uid": "u2"},
        ],
    },
}
POOL = PoolName("gpu.nvidia.com", "n1")


def test_a_slice_is_its_pool_and_its_devices_with_their_gpus() -> None:
    record = slice_record(msgspec.convert(SLICE, ResourceSlice))
    assert (record.name, record.node, record.pool) == ("n1-gpu.nvidia.com-x7", "n1", POOL)
    assert (record.generation, record.pool_size) == (3, 2)
    assert record.names == ("gpu-0", "gpu-1", "gpu-1-mig-0", "channel-0")
    assert record.gpus == (
        GpuDevice("gpu-0", "GPU-a", tainted=False),
        GpuDevice("gpu-1", "GPU-b", tainted=True),
        GpuDevice("gpu-1-mig-0", "GPU-b", tainted=False, whole=False),
    )


def test_a_gpu_of_amd_is_known_by_its_pci_address() -> None:
    """As ROCm/k8s-gpu-dra-driver publishes it, shortened. Of other drivers that is no GPU."""
    address = {"resource.kubernetes.io/pciBusID": {"string": "0000:05:00.0"}}
    device = {"name": "gpu-1-128", "attributes": {"type": {"string": "amdgpu"}, **address}}
    amd = {**SLICE["spec"], "driver": "gpu.amd.com", "devices": [device]}
    record = slice_record(msgspec.convert({**SLICE, "spec": amd}, ResourceSlice))
    assert record.gpus == (GpuDevice("gpu-1-128", "0000:05:00.0", tainted=False),)
    nic = {**amd, "driver": "nics.example"}
    assert slice_record(msgspec.convert({**SLICE, "spec": nic}, ResourceSlice)).gpus == ()


def test_a_claim_is_its_devices_and_its_pods() -> None:
    record = claim_record(msgspec.convert(CLAIM, ResourceClaim))
    assert record.key == "ml/train-gpus-4x"
    assert record.devices == ((POOL, "gpu-0"),)
    assert record.pods == (PodName("u0", "ml/train-0"),)


def test_a_claim_without_an_allocation_has_no_devices() -> None:
    record = claim_record(msgspec.convert({**CLAIM, "status": {}}, ResourceClaim))
    assert (record.devices, record.pods) == ((), ())


def read(kind: type[Any], whole: Mapping[str, Any], **parts: object) -> None:
    msgspec.json.decode(msgspec.json.encode({**whole, **parts}), type=kind)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"driver": None}, r"\$\.spec\.driver"),
        ({"driver": "d" * 254}, r"\$\.spec\.driver"),
        ({"pool": {"generation": 1}}, r"\$\.spec\.pool"),
        ({"devices": [{}]}, r"\$\.spec\.devices\[0\]"),
        ({"devices": [{"name": f"d{n}"} for n in range(129)]}, r"\$\.spec\.devices"),
        (
            {"devices": [{"name": "d", "attributes": {"uuid": {"string": "u" * 254}}}]},
            r"\$\.spec\.devices\[0\]\.attributes\[\.\.\.\]\.string",
        ),
    ],
)
def test_what_is_wrong_in_a_slice_is_named(spec: Mapping[str, object], field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        read(ResourceSlice, SLICE, spec={**SLICE["spec"], **spec})


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"allocation": []}, r"\$\.status\.allocation"),
        (
            {"allocation": {"devices": {"results": [{"driver": "d", "pool": "p"}]}}},
            r"\$\.status\.allocation\.devices\.results\[0\]",
        ),
        (
            {
                "allocation": {
                    "devices": {"results": [{"driver": "d", "pool": "p", "device": "x"}] * 33}
                }
            },
            r"\$\.status\.allocation\.devices\.results",
        ),
        (
            {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}] * 257},
            r"\$\.status\.reservedFor",
        ),
    ],
)
def test_what_is_wrong_in_a_claim_is_named(status: Mapping[str, object], field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        read(ResourceClaim, CLAIM, status=status)
