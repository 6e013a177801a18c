"""GPUs from claims on a real cluster: a planned pod gets a claim that names its GPUs, and
kube-scheduler allocates exactly these.

The slices are published by hand, as a DRA driver would; nodes are only objects. Pods are created as
the webhook leaves them (`test_webhook_claims`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from linkwise.kube.errors import ApiError
from linkwise.pods.claims import ClaimAsk
from linkwise.topology import names
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.programs import binaries
from tests.cluster.support.scheduling.claim_races import race
from tests.cluster.support.scheduling.dra import (
    AMD_DRIVER,
    CLAIMS,
    DEVICES,
    DRIVER,
    add_amd_node,
    create_claim,
    device_class,
    pod_with,
    put_partitions,
    uuid_in,
    uuids,
)
from tests.cluster.support.scheduling.late_claims import (
    NODES,
    allocated,
    claims_of,
    create,
    create_template,
    first_fit,
    late_claims_world,
    of_chart,
    planned,
    post,
)
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, PODS, SchedulingWorld

# The older versions whose API server has resource.k8s.io/v1. kube-controller-manager is the newest.
OLDER = tuple(version for version in binaries.OLDER if version > "v1.34")
every_version = pytest.mark.parametrize("world", [binaries.NEWEST, *OLDER], indirect=True)


@pytest.fixture(scope="module", params=[binaries.NEWEST])
def world(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[SchedulingWorld]:
    directory = run_directory / f"late-claims-{request.param}"
    with late_claims_world(directory, version=request.param) as world:
        yield world


def gone(world: SchedulingWorld, *pods: str) -> None:
    for pod in pods:
        world.delete(pod)
    wait_for(
        lambda: not claims_of(world),
        "the claims are gone with their pods",
    )


@every_version
def test_a_pod_gets_exactly_its_planned_gpus(world: SchedulingWorld) -> None:
    create(world, "one", 2)
    world.wait_bound(["one"])
    assert world.node_of("one") in NODES
    assert allocated(world, "one") == planned(world, "one") != []
    gone(world, "one")


@every_version
def test_the_claim_of_a_pod_that_has_ended_is_deleted(world: SchedulingWorld) -> None:
    create(world, "ends", 2)
    world.wait_bound(["ends"])
    world.client.patch(f"{PODS}/ends/status", {"status": {"phase": "Succeeded"}})
    wait_for(
        lambda: not claims_of(world),
        "the claim is gone, and the pod is still there",
    )
    gone(world, "ends")


@every_version
def test_a_gang_starts_whole_with_its_planned_gpus(world: SchedulingWorld) -> None:
    members = [f"g-{rank}" for rank in range(4)]
    for member in members:
        create(world, member, 4, gang="g", gang_size="4")
    world.wait_bound(members)
    for member in members:
        assert allocated(world, member) == planned(world, member) != []
    gone(world, *members)


def test_a_gang_without_room_has_no_claims(world: SchedulingWorld) -> None:
    for rank in range(3):
        create(world, f"big-{rank}", 8, gang="big", gang_size="3")
    wait_for(
        lambda: "no room" in world.extender.explain(NAMESPACE, "big-0"),
        "the extender has looked for room",
    )
    assert claims_of(world) == []
    gone(world, *(f"big-{rank}" for rank in range(3)))


@every_version
def test_no_gpu_is_given_twice_in_races_with_other_claims_and_each_pod_is_served(
    world: SchedulingWorld,
) -> None:
    """Also by hand, with more rounds (docs/testing.md)."""
    print(race(world, 15, seed=0))


def test_a_claim_name_that_a_stranger_has_taken_costs_its_own_pod_only(
    world: SchedulingWorld,
) -> None:
    ask = ClaimAsk("linkwise-gpus", "linkwise-" + "0" * 20, {"main": 8})
    create_claim(world, ask.claim, 1, ["GPU-that-nobody-has"])
    post(world, "taken", ask)
    wait_for(
        lambda: "does not let ResourceClaim" in world.extender.explain(NAMESPACE, "taken"),
        "it is told",
    )
    members = [f"others-{rank}" for rank in range(2)]
    for member in members:
        create(world, member, 8, gang="others", gang_size="2")
    world.wait_bound(members)
    world.client.delete(f"{CLAIMS}/{ask.claim}")
    gone(world, *members, "taken")


def test_a_template_gives_the_claim_its_own_selectors_too(world: SchedulingWorld) -> None:
    create_template(world, "three", count=3, selectors=[uuid_in(uuids("c2"))])
    create(world, "templated", 3, template="three")
    world.wait_bound(["templated"])
    assert world.node_of("templated") == "c2"
    assert allocated(world, "templated") == planned(world, "templated") != []
    gone(world, "templated")


def test_a_pod_gets_exactly_its_planned_gpus_of_amd(world: SchedulingWorld) -> None:
    """These are known by their PCI addresses. The device of another node has the same one."""
    world.client.post(f"{DEVICES}/deviceclasses", device_class(AMD_DRIVER))
    addresses = add_amd_node(world, "a1")
    add_amd_node(world, "a2")
    create_template(world, "amd", count=2, deviceClassName=AMD_DRIVER)
    there = {"nodeSelector": {"kubernetes.io/hostname": "a1"}}
    create(world, "amd", 2, template="amd", spec=there)
    world.wait_bound(["amd"])
    [claim] = claims_of(world)
    results = claim["status"]["allocation"]["devices"]["results"]
    given = (addresses[int(each["device"].removeprefix("gpu-"))] for each in results)
    assert sorted(given) == planned(world, "amd") != []
    assert {each["pool"] for each in results} == {"a1"}
    gone(world, "amd")
    for node in ("a1", "a2"):
        world.client.delete(f"/api/v1/nodes/{node}")
        world.client.delete(f"{DEVICES}/resourceslices/{node}-{AMD_DRIVER}")


def test_a_pod_gets_a_whole_partition_of_nvswitch(world: SchedulingWorld) -> None:
    """kube-scheduler judges it too, by the template's constraint."""
    halves = ((0, 2, 4, 6), (1, 3, 5, 7))
    for node in NODES:
        put_partitions(world, node, *halves)
    create_template(world, "half", count=4, same=f"{DRIVER}/partition4")
    pods = [f"half-{number}" for number in range(2 * len(NODES))]
    for pod in pods:
        create(world, pod, 4, template="half")
    world.wait_bound(pods)
    for pod in pods:
        assert allocated(world, pod) == planned(world, pod)
        own = uuids(world.node_of(pod))
        assert tuple(sorted(map(own.index, allocated(world, pod)))) in halves
    create(world, "two", 2)
    wait_for(
        lambda: "partition" in world.extender.explain(NAMESPACE, "two"),
        "explain says that no partition has two GPUs",
    )
    gone(world, *pods, "two")
    for node in NODES:
        put_partitions(world, node)


def test_a_closed_driver_gives_its_gpus_to_planned_pods_alone(world: SchedulingWorld) -> None:
    """As the chart closes it. Others may write no claim that gets round it, and templates that do
    so already give none."""
    tolerant: dict[str, Any] = {"tolerations": [{"key": names.CLOSED, "operator": "Exists"}]}
    create_template(world, "older", count=1, **tolerant)
    create_template(world, "usual", count=1)
    manifests = of_chart("closed.yaml", webhook__closedDriver=DRIVER)
    world.control.kubectl("apply", "-f=-", stdin=manifests)
    first_fit(world, "kept-off", 1)
    world.wait_waiting("kept-off", "cannot allocate all claims")
    wait_for(lambda: is_refused(world, tolerant), "the policy is in force")

    create(world, "let-in", 8)
    world.wait_bound(["let-in"])
    assert allocated(world, "let-in") == planned(world, "let-in") != []
    for template in ("older", "usual"):
        spec = pod_with("none")
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]
        world.client.post(PODS, {"metadata": {"name": f"of-{template}"}, "spec": spec})
    world.wait_waiting("of-usual", "cannot allocate all claims")
    refusal = "only Linkwise's extender creates claims that tolerate"
    wait_for(
        lambda: any(refusal in said for said in world.events("of-older")),
        "the pod says why its claim is not created",
    )

    world.client.delete(f"{DEVICES}/devicetaintrules/linkwise")
    world.wait_bound(["kept-off", "of-usual"])
    world.control.kubectl("delete", "--ignore-not-found", "-f=-", stdin=manifests)
    world.client.delete(f"{CLAIMS}/kept-off")
    gone(world, "let-in", "kept-off", "of-older", "of-usual")


def test_first_fit_takes_devices_as_their_slices_list_them(world: SchedulingWorld) -> None:
    """`bench.replay` plays kube-scheduler's own allocations so: slices by name, in each of them the
    devices as listed, whatever their names. Older versions sort no slices."""
    driver, client = "order.example", world.client
    for part, devices in (("b", ("d3", "d1")), ("a", ("d4", "d2", "d0"))):
        spec = {
            "driver": driver,
            "nodeName": "c1",
            "pool": {"name": "of-c1", "generation": 1, "resourceSliceCount": 2},
            "devices": [{"name": name} for name in devices],
        }
        client.post(f"{DEVICES}/resourceslices", {"metadata": {"name": part}, "spec": spec})
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    made = {"metadata": {"name": driver}, "spec": {"selectors": [selector]}}
    client.post(f"{DEVICES}/deviceclasses", made)

    def take(name: str, count: int) -> list[str]:
        exactly = {"deviceClassName": driver, "count": count}
        asked = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        client.post(CLAIMS, {"metadata": {"name": name}, "spec": asked})
        client.post(PODS, {"metadata": {"name": name}, "spec": pod_with(name)})
        world.wait_bound([name])
        claim = client.get(f"{CLAIMS}/{name}", dict[str, Any])
        return [each["device"] for each in claim["status"]["allocation"]["devices"]["results"]]

    assert take("first", 1) == ["d4"]
    assert take("second", 2) == ["d2", "d0"]
    client.delete(f"{CLAIMS}/first")
    world.delete("first")
    wait_for(
        lambda: [each["metadata"]["name"] for each in claims_of(world)] == ["second"],
        "the first claim is gone",
    )
    assert take("third", 2) == ["d4", "d3"]
    for name in ("second", "third"):
        client.delete(f"{CLAIMS}/{name}")
    for part in ("a", "b"):
        client.delete(f"{DEVICES}/resourceslices/{part}")
    client.delete(f"{DEVICES}/deviceclasses/{driver}")
    gone(world, "second", "third")


def is_refused(world: SchedulingWorld, more: dict[str, Any]) -> bool:
    try:
        create_template(world, "probe", query="?dryRun=All", count=1, **more)
    except ApiError as error:
        return error.status == 403
    return False
