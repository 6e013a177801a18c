"""Shares of GPUs as planned: what the kubelet gets, and what of it is the vendor's."""

from pathlib import Path

import pytest

from linkwise.plugin.device_plugin.advisors import Advisors
from linkwise.plugin.device_plugin.allocate import pick_ring
from linkwise.plugin.device_plugin.preferred_allocation import Advisor
from linkwise.plugin.device_plugin.server import Advice
from linkwise.plugin.in_front.sharing import is_share
from linkwise.plugin.kubelet import podresources_pb2 as pods_wire
from linkwise.plugin.node.in_use import read_in_use
from linkwise.topology.annotations.plan import InUse, PlannedShares
from tests.plugin.in_front.conftest import UUIDS, FrontNode
from tests.plugin.in_front.scripted import GPU
from tests.plugin.pods import decided, pod

SHARED = "nvidia.com/gpu.shared"
REPLICAS = [f"{uuid}::{number}" for uuid in UUIDS[:2] for number in range(3)]


class Shares(FrontNode):
    """With an advisor for each resource, as the program has it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.advisors = Advisors(
            GPU,
            lambda resource: Advisor(
                node="n1",
                resource=resource,
                pick=pick_ring,
                managed=resource == GPU,
                pod_wait_seconds=0.0,
            ),
            self.metrics,
        )
        self.front.advise(
            Advice(self.advisor, self.metrics),
            on_allocated=self._on_allocated,
            on_lost=self._on_lost,
            on_change=self._on_change,
            shares=self.advisors.on_shares,
        )

    def plan(self, name: str, resource: str, *ids: str) -> None:
        notes = decided(f"uid-{name}", {}, PlannedShares("main", resource, ids))
        self.wait(name, resource, len(ids), notes)

    def wait(
        self, name: str, resource: str, count: int, notes: dict[str, str] | None = None
    ) -> None:
        """A pod that is bound to the node and not started."""
        limits = {"limits": {resource: str(count)}}
        changes = {"spec": {"containers": [{"name": "main", "resources": limits}]}}
        self.advisors.pod_event(
            "ADDED", pod(name, ("main", None), annotations=notes, changes=changes)
        )


@pytest.fixture
def shares(kubelet_dir: Path) -> object:
    running = Shares(kubelet_dir)
    yield running
    running.stop()


@pytest.mark.parametrize("resource", [SHARED, GPU])
def test_the_planned_replica_is_preferred_under_either_name(shares: Shares, resource: str) -> None:
    shares.vendor.offer(resource, REPLICAS, preference=REPLICAS[:1])
    shares.open()
    plugin = shares.plugin(resource)
    shares.plan("w", resource, REPLICAS[4])
    assert plugin.preferred(REPLICAS, 1) == [REPLICAS[4]]
    assert shares.metric("preferred_total", source="plan") == 1
    assert not shares.vendor.calls("GetPreferredAllocation", resource)


@pytest.mark.parametrize("unread", ["GPU-unread::0", "GPU-unread", "MIG-unread", "0000:05:00.0"])
@pytest.mark.parametrize("resource", [SHARED, GPU])
def test_a_device_that_linkwise_has_not_read_costs_no_share_its_plan(
    shares: Shares, resource: str, unread: str
) -> None:
    ids = [*REPLICAS, unread]
    shares.vendor.offer(resource, ids, preference=[unread])
    shares.open()
    plugin = shares.plugin(resource)
    assert shares.metric("vendor_devices", resource=resource, health="not-read") == 1
    shares.plan("w", resource, REPLICAS[4])
    assert plugin.preferred(ids, 1) == [REPLICAS[4]]
    plugin.allocate([REPLICAS[4]])
    # Without a plan the vendor may give it.
    shares.wait("free", resource, 1)
    assert plugin.preferred([*REPLICAS[:4], unread], 1) == [unread]


def test_without_a_plan_the_vendors_answer_stands_unless_it_spoils_one(shares: Shares) -> None:
    shares.vendor.offer(SHARED, REPLICAS, preference=REPLICAS[:1])
    shares.open()
    plugin = shares.plugin(SHARED)
    shares.wait("free", SHARED, 1)
    assert plugin.preferred(REPLICAS, 1) == REPLICAS[:1]
    plugin.allocate(REPLICAS[:1])
    shares.plan("two", SHARED, REPLICAS[0], REPLICAS[3])
    shares.wait("other", SHARED, 1)
    assert plugin.preferred(REPLICAS, 1) == [REPLICAS[1]], "the first that no plan needs"


def test_two_pods_of_one_size_get_their_plans_in_the_order_of_the_kubelet(shares: Shares) -> None:
    shares.vendor.offer(SHARED, REPLICAS)
    shares.open()
    plugin = shares.plugin(SHARED)
    shares.plan("a", SHARED, REPLICAS[5])
    shares.plan("b", SHARED, REPLICAS[2])
    assert plugin.preferred(REPLICAS, 1) == [REPLICAS[5]]
    plugin.allocate([REPLICAS[5]])
    assert plugin.preferred(REPLICAS[:5], 1) == [REPLICAS[2]]


def test_where_one_resource_has_whole_gpus_and_replicas_plans_of_both_are_kept(
    shares: Shares,
) -> None:
    ids = [*REPLICAS, *UUIDS[2:]]
    shares.vendor.offer(GPU, ids, preference=[UUIDS[2]])
    shares.open()
    plugin = shares.plugin()
    shares.plan("replica", GPU, REPLICAS[4])
    notes = decided("uid-whole", {"main": (UUIDS[6],)})
    shares.wait("whole", GPU, 1, notes)
    assert plugin.preferred(ids, 1) == [REPLICAS[4]]
    plugin.allocate([REPLICAS[4]])
    left = [each for each in ids if each != REPLICAS[4]]
    assert plugin.preferred(left, 1) == [UUIDS[6]]


def test_a_resource_that_registers_late_knows_the_pods_that_wait(shares: Shares) -> None:
    shares.plan("w", SHARED, REPLICAS[4])
    shares.vendor.offer(SHARED, REPLICAS)
    shares.open()
    assert shares.plugin(SHARED).preferred(REPLICAS, 1) == [REPLICAS[4]]


def test_a_plan_for_one_resource_means_nothing_for_another(shares: Shares) -> None:
    shares.vendor.offer(SHARED, REPLICAS, preference=REPLICAS[:1])
    shares.open()
    plugin = shares.plugin(SHARED)
    shares.plan("w", "nvidia.com/mig-1g.10gb", "MIG-a")
    assert plugin.preferred(REPLICAS, 1) == REPLICAS[:1]


def test_what_is_in_use_names_shares_by_resource() -> None:
    def devices(resource: str, *ids: str) -> pods_wire.ContainerDevices:
        return pods_wire.ContainerDevices(resource_name=resource, device_ids=ids)

    main = pods_wire.ContainerResources(
        name="main",
        devices=[
            devices(GPU, UUIDS[3], f"{UUIDS[1]}::1"),
            devices(SHARED, REPLICAS[1]),
            devices(SHARED, REPLICAS[0]),
            devices("nvidia.com/mig-1g.10gb", "MIG-a"),
            devices("rdma/hca", "mlx5_0"),
        ],
    )
    answer = pods_wire.ListPodResourcesResponse(
        pod_resources=[pods_wire.PodResources(name="w", namespace="ml", containers=[main])]
    )
    held = read_in_use(answer, GPU, lambda each: each in UUIDS, lambda each: is_share(each, None))
    assert held == InUse(
        pods={"ml/w": {"main": (UUIDS[3],)}},
        shares={
            "ml/w": {
                "main": {
                    GPU: (f"{UUIDS[1]}::1",),
                    SHARED: tuple(REPLICAS[:2]),
                    "nvidia.com/mig-1g.10gb": ("MIG-a",),
                }
            }
        },
    )


def test_a_pod_that_podresources_shows_is_served_and_the_next_one_is_asked_for(
    shares: Shares,
) -> None:
    shares.vendor.offer(SHARED, REPLICAS)
    shares.open()
    plugin = shares.plugin(SHARED)
    shares.plan("a", SHARED, REPLICAS[5])
    shares.plan("b", SHARED, REPLICAS[2])
    shares.advisors.on_shares(SHARED)
    shares.advisors.account_for(InUse(shares={"ml/a": {"main": {SHARED: (REPLICAS[5],)}}}))
    assert plugin.preferred(REPLICAS[:5], 1) == [REPLICAS[2]]
    (judged,) = shares.advisors.judge(InUse(shares={"ml/a": {"main": {SHARED: (REPLICAS[5],)}}}))
    assert judged.as_planned
