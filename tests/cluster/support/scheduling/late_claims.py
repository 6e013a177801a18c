"""Pods that wait for claims of the extender, as the webhook leaves them, in a `SchedulingWorld`
whose extender may create claims.

The slices are published by hand, as a DRA driver would.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from linkwise.pods.claims import ClaimAsk, write_claims
from linkwise.topology import names
from tests.cluster.support.api.chart import CHART, NEEDED, helm, values
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.programs import binaries
from tests.cluster.support.scheduling.dra import (
    CLAIMS,
    TEMPLATES,
    add_nodes,
    create_claim,
    pod_with,
    template,
    uuids,
)
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    PODS,
    SchedulingWorld,
    started_world,
)

NODES = ("c1", "c2")  # of which a driver gives out the GPUs
CONTROLLERS = ("resourceclaim-controller", "garbage-collector-controller")


@contextmanager
def late_claims_world(
    directory: Path,
    *,
    version: str = binaries.NEWEST,
    api_flags: Sequence[str] = (),
    controllers: Sequence[str] = (),
    gates: Sequence[str] = (),
) -> Iterator[SchedulingWorld]:
    """*gates* and *controllers* are more flags of every component, and more controllers."""
    control = ControlPlane(
        directory,
        version=version,
        disable_admission=ADMISSION_OFF,
        api_flags=(*api_flags, *gates),
        controller_flags=(f"--controllers={','.join((*CONTROLLERS, *controllers))}", *gates),
    )
    control.start()
    with started_world(SchedulingWorld(control, scheduler_flags=gates), ("n1",)) as world:
        control.kubectl("apply", "-f=-", stdin=of_chart("account.yaml"))
        add_nodes(world, *NODES)
        yield world
    shutil.rmtree(directory, ignore_errors=True)


def of_chart(file: str, part: str = "extender", **given: object) -> str:
    return helm(
        *("template", "linkwise", str(CHART), "--namespace=kube-system"),
        f"--kube-version={binaries.NEWEST}",
        f"--show-only=templates/{part}/{file}",
        f"--values={NEEDED}",
        *values(webhook__gpusFromClaims=True, **given),
    )


def create(
    world: SchedulingWorld,
    name: str,
    gpus: int,
    *,
    template: str = "",
    spec: Mapping[str, object] | None = None,
    **said: str,
) -> ClaimAsk:
    """A pod as the webhook leaves it, with more of its *spec* and its annotations."""
    ask = ClaimAsk("linkwise-gpus", f"linkwise-{uuid4().hex[:20]}", {"main": gpus}, template)
    post(world, name, ask, spec, **said)
    return ask


def post(
    world: SchedulingWorld,
    name: str,
    ask: ClaimAsk,
    more: Mapping[str, object] | None = None,
    **said: str,
) -> None:
    words = {names.PREFIX + key.replace("_", "-"): text for key, text in said.items()}
    use = {"name": ask.entry, "request": "main"}
    spec = {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [use]}}],
        "resourceClaims": [{"name": ask.entry, "resourceClaimName": ask.claim}],
        "schedulingGates": [{"name": names.GATE}],
        "restartPolicy": "Never",
        **(more or {}),
    }
    meta = {"name": name, "annotations": {**words, names.CLAIMS: write_claims(ask)}}
    world.client.post(PODS, {"metadata": meta, "spec": spec})


def create_template(world: SchedulingWorld, name: str, *, query: str = "", **asked: Any) -> None:
    """*asked*: as of `template`."""
    world.client.post(f"{TEMPLATES}{query}", template(name, **asked))


NATIVE_GATES = "--feature-gates=GenericWorkload=true"
NATIVE_API = "scheduling.k8s.io/v1beta1"
GROUPS = f"/apis/{NATIVE_API}/namespaces/{NAMESPACE}/podgroups"


@contextmanager
def native_claims_world(directory: Path) -> Iterator[SchedulingWorld]:
    """With Kubernetes' own gangs."""
    with late_claims_world(
        directory,
        api_flags=(f"--runtime-config={NATIVE_API}=true",),
        controllers=("podgroup-protection-controller",),
        gates=(NATIVE_GATES,),
    ) as world:
        yield world


def create_group(world: SchedulingWorld, name: str, size: int) -> Mapping[str, object]:
    """A native gang; returns what the specs of its members say."""
    spec = {"schedulingPolicy": {"gang": {"minCount": size}}}
    world.client.post(GROUPS, {"metadata": {"name": name}, "spec": spec})
    return {"schedulingGroup": {"podGroupName": name}}


def first_fit(world: SchedulingWorld, name: str, gpus: int) -> None:
    """A pod whose claim leaves the choice to kube-scheduler."""
    create_claim(world, name, gpus, [uuid for node in NODES for uuid in uuids(node)])
    world.client.post(PODS, {"metadata": {"name": name}, "spec": pod_with(name)})


def claims_of(world: SchedulingWorld) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.client.get(CLAIMS, dict[str, Any])["items"]
    return found


def given(claim: Mapping[str, Any]) -> list[str]:
    """The UUIDs of the GPUs that are allocated to the claim."""
    devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
    return sorted(
        uuids(result["pool"])[int(result["device"].removeprefix("gpu-"))]
        for result in devices.get("results", [])
    )


def allocated(world: SchedulingWorld, pod: str) -> list[str]:
    """The UUIDs of the GPUs that the pod has, by its claim."""
    for claim in claims_of(world):
        if any(each["name"] == pod for each in claim.get("status", {}).get("reservedFor", [])):
            return given(claim)
    return []


def planned(world: SchedulingWorld, pod: str) -> list[str]:
    said = world.client.get(f"{PODS}/{pod}", dict[str, Any])["metadata"]["annotations"]
    gpus: dict[str, list[str]] = msgspec.json.decode(said[names.GPUS])
    return sorted(gpus["main"])
