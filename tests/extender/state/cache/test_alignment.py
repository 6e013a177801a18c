"""GPU sets on nodes whose Topology Manager refuses pods: what is chosen is what a kubelet gives.

The kubelet here is the simulator's, which follows Kubernetes' source hint by hint.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.extender.place import communicator
from linkwise.extender.place.communicator import ONE_NODE
from linkwise.extender.state.cache.machine_kind import (
    GpuRequest,
    MachineKind,
    containers_on,
    will_do,
)
from linkwise.pods.annotations import NOTHING_SAID
from linkwise.simulator.kubelet.devices import (
    AdmissionError,
    ContainerRequest,
    Device,
    DeviceManager,
)
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.machine.topology_manager import Policy, Scope, TopologyManager
from linkwise.topology.sets.alignment import alignment_of
from linkwise.topology.sets.choose import choose

GPU = "nvidia.com/gpu"
HGX = recorded_machine("hgx-h100", node="n")  # GPUs 0 to 3 on NUMA node 0, 4 to 7 on node 1
ANYTHING = NOTHING_SAID.requirement
SINGLE = TopologyManager(Policy.SINGLE_NUMA_NODE)


def kind_of(manager: TopologyManager | None, machine: Machine = HGX) -> MachineKind:
    return MachineKind(replace(machine, topology_manager=manager), 0)


def asks(*gpus: int) -> GpuRequest:
    containers = (ContainerDemand(f"c{place}", Role.MAIN, n) for place, n in enumerate(gpus))
    return GpuRequest(PodDemand(tuple(containers)), ANYTHING)


class PlanFollower:
    """A device plugin that prefers what the plan says, if the kubelet offers it."""

    def __init__(self, plan: Sequence[tuple[str, ...]]) -> None:
        self._plan = list(plan)

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        for share in self._plan:
            if len(share) == size and {*must_include} <= {*share} <= {*available}:
                return share
        return ()

    def allocate(self, devices: Sequence[str]) -> None:
        self._plan = [share for share in self._plan if {*share} != {*devices}]


def kubelet(machine: Machine, free: int, plan: Sequence[tuple[str, ...]] = ()) -> DeviceManager:
    """One that has given away all GPUs but the *free* ones."""
    manager = machine.topology_manager
    assert manager is not None
    devices = DeviceManager(1)
    devices.set_plugin(GPU, PlanFollower(()))
    devices.set_devices(
        GPU,
        [Device(g.uuid, numa_nodes=tuple(n for n in g.numa_nodes if n >= 0)) for g in machine.gpus],
    )
    for uuid in machine.uuids_of(machine.all_gpus & ~free):
        takes_one = ContainerRequest("main", False, {GPU: 1})
        devices.set_plugin(GPU, PlanFollower([(uuid,)]))
        devices.admit(f"holds {uuid}", [takes_one])
    # Where a machine has one NUMA node, the kubelet aligns nothing.
    nodes = {0, 1, *(node for gpu in machine.gpus for node in gpu.numa_nodes if node >= 0)}
    found = DeviceManager(1, policy=manager.policy, scope=manager.scope, numa_nodes=nodes)
    found.set_plugin(GPU, PlanFollower(plan))
    found.set_devices(GPU, [device for of in devices.devices().values() for device in of])
    found._held = devices._held  # as its checkpoint would tell it after a change of its policy
    return found


def containers(request: GpuRequest) -> list[ContainerRequest]:
    return [
        ContainerRequest(c.name, c.role is Role.INIT, {GPU: c.gpus})
        for c in request.demand.containers
    ]


numa_nodes = st.one_of(
    st.integers(0, 1).map(lambda node: (node,)),
    st.integers(0, 3).map(lambda node: (node,)),
    st.sampled_from([(), (-1,), (0, 1), (2, 3)]),
)
managers = st.builds(
    TopologyManager,
    st.sampled_from([Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED]),
    st.sampled_from(Scope),
)
roles = st.sampled_from([Role.MAIN, Role.MAIN, Role.SIDECAR, Role.INIT])


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    own = draw(st.lists(numa_nodes, min_size=8, max_size=8))
    gpus = tuple(replace(g, numa_nodes=n) for g, n in zip(HGX.gpus, own, strict=True))
    return replace(HGX, gpus=gpus, topology_manager=draw(managers))


@st.composite
def pods(draw: st.DrawFn) -> GpuRequest:
    wanted = draw(st.lists(st.tuples(roles, st.integers(1, 4)), min_size=1, max_size=3))
    in_order = sorted(wanted, key=lambda each: each[0] is Role.MAIN)
    demands = (ContainerDemand(f"c{place}", *each) for place, each in enumerate(in_order))
    return GpuRequest(PodDemand(tuple(demands)), ANYTHING)


@settings(max_examples=50)
@given(machines(), pods(), st.integers(0, 255))
def test_a_pod_gets_a_set_exactly_where_its_kubelet_admits_it(
    machine: Machine, request: GpuRequest, free: int
) -> None:
    kind = MachineKind(machine, 0)
    taken = kind.take(request, free)
    plan = {} if taken is None else containers_on(kind, machine, request, taken)
    devices = kubelet(machine, free, list(plan.values()))
    try:
        devices.admit("pod", containers(request))
    except AdmissionError:
        assert taken is None
        return
    assert taken is not None
    assert taken.bit_count() == request.size
    held = {name: set(of[GPU]) for name, of in devices.held("pod").items()}
    if not any(c.role is Role.INIT for c in request.demand.containers):
        # Containers after an init container get some of its GPUs again, by chance.
        assert held == {name: set(share) for name, share in plan.items()}
    assert will_do(kind, machine, request, plan)


@pytest.mark.parametrize(
    ("numa_nodes", "sizes"),
    [("01 0 0 1 1 1", (1, 4)), ("1 1 01 01 0 0", (2, 4)), ("1 1 01 01 0", (2, 3))],
)
def test_gpus_of_several_numa_nodes_are_left_to_later_containers(
    numa_nodes: str, sizes: Sequence[int]
) -> None:
    own = [tuple(map(int, nodes)) for nodes in numa_nodes.split()]
    own += [(2,)] * (8 - len(own))
    gpus = tuple(replace(g, numa_nodes=n) for g, n in zip(HGX.gpus, own, strict=True))
    kind, free = kind_of(SINGLE, replace(HGX, gpus=gpus)), (1 << len(numa_nodes.split())) - 1
    assert kind.take(asks(*sizes), free) is not None


@settings(max_examples=50)
@given(machines(), st.integers(1, 8), st.integers(0, 255))
def test_the_best_of_the_sets_that_the_kubelet_would_give_is_taken(
    machine: Machine, size: int, free: int
) -> None:
    kind, request = MachineKind(machine, 0), asks(size)
    taken = kind.take(request, free)
    reach = kind.reach(request, free)
    sets = [sum(1 << p for p in group) for group in combinations(range(8), size)]
    able = [gpus for gpus in sets if not gpus & ~reach]
    if not able:
        assert taken is None
        return
    assert taken in able
    assert kind.table.values[taken] == max(kind.table.values[gpus] for gpus in able)


@settings(max_examples=50)
@given(machines(), st.integers(1, 4), st.integers(1, 4), st.integers(0, 255))
def test_members_of_a_gang_get_what_the_kubelet_gives_one_after_the_other(
    machine: Machine, size: int, count: int, free: int
) -> None:
    kind, request = MachineKind(machine, 0), asks(size)
    (choices,) = communicator.Choices(kind, request, 0, count, ONE_NODE).within([free])
    most = max((each[0] for each in choices), default=0)
    devices = kubelet(machine, free)
    admitted = 0
    try:
        for number in range(count):
            devices.admit(f"member-{number}", containers(request))
            admitted += 1
    except AdmissionError:
        pass
    single = machine.topology_manager and machine.topology_manager.policy is Policy.SINGLE_NUMA_NODE
    alone = all(len(gpu.numa_nodes) < 2 for gpu in machine.gpus)
    if single and alone:  # else how many fit depends on which GPUs the first of them get
        assert most == admitted
    for chosen in choices:
        gpus, _ = communicator.cover(
            kind, request, free, 0, chosen[0], ONE_NODE, communicator.Standard()
        )
        parts = communicator.sets(kind, request, gpus, chosen[0])
        assert len(parts) == chosen[0]
        assert sum(parts) == gpus
        assert not gpus & ~free
        assert all(kind.admits(request, {"c0": part}) for part in parts)


@settings(max_examples=50)
@given(machines(), pods(), st.integers(1, 3), st.integers(0, 255))
def test_members_with_several_containers_are_cut_as_they_were_found(
    machine: Machine, request: GpuRequest, count: int, free: int
) -> None:
    kind = MachineKind(machine, 0)
    parts = kind.pack(request, free, count)
    if len(parts) == count:
        again = communicator.sets(kind, request, sum(parts), count)
        assert len(again) == count
        assert sum(again) == sum(parts)


def test_without_a_policy_that_refuses_everything_is_as_before() -> None:
    for manager in (None, TopologyManager(Policy.NONE), TopologyManager(Policy.BEST_EFFORT)):
        kind = kind_of(manager)
        assert kind.alignment is None
        assert kind.take(asks(4), 0b00110011) == 0b00110011


def test_gpus_whose_numa_nodes_are_unknown_are_aligned_by_no_kubelet() -> None:
    machine = replace(HGX, gpus=tuple(replace(gpu, numa_nodes=(-1,)) for gpu in HGX.gpus))
    assert kind_of(SINGLE, machine).take(asks(8), 0b11111111) == 0b11111111


def test_restricted_takes_more_numa_nodes_only_where_the_machine_needs_them() -> None:
    kind = kind_of(TopologyManager(Policy.RESTRICTED))
    assert kind.take(asks(4), 0b00110011) is None
    assert kind.take(asks(5), 0b00111011) == 0b00111011  # no node has five at all
    assert kind_of(SINGLE).take(asks(5), 0b11111111) is None


def test_the_scope_says_whether_containers_are_aligned_together() -> None:
    per_container, per_pod = SINGLE, replace(SINGLE, scope=Scope.POD)
    assert kind_of(per_container).take(asks(3, 3), 0b11111111) is not None
    assert kind_of(per_pod).take(asks(3, 3), 0b11111111) is None
    assert kind_of(per_pod).take(asks(2, 2), 0b11110011) == 0b11110000


def test_a_low_numa_node_with_enough_gpus_hides_the_higher_ones() -> None:
    """The kubelet gives a pod of one GPU one of node 0, whatever is planned."""
    taken = kind_of(SINGLE).take(asks(1), 0b00011111)
    assert taken is not None
    assert taken & 0b00001111


def test_what_is_left_counts_on_the_whole_machine() -> None:
    kind = kind_of(SINGLE)
    within = choose(kind.machine, 0b11111111, 2, within=0b00001111)
    assert within is not None
    assert not within.gpus & 0b11110000
    assert within.remaining_value == kind.table.remaining_value[0b11111111 & ~within.gpus]


def test_kinds_differ_where_their_kubelets_do() -> None:
    rings = communicator.own_rings(kind_of(SINGLE), 4, LinkClass.SYS, LinkClass.NVLINK)
    assert rings[0b00110011] == -float("inf")
    assert rings[0b00001111] > 0


def scattered(count: int, first: int = 0) -> Machine:
    """A machine of eight GPUs, each with *count* NUMA nodes of its own."""
    gpus = tuple(
        replace(gpu, numa_nodes=tuple(range(first + n * count, first + n * count + count)))
        for n, gpu in enumerate(HGX.gpus)
    )
    return replace(HGX, gpus=gpus)


def test_numa_nodes_may_have_any_numbers() -> None:
    found = alignment_of(replace(scattered(1, 2**40), topology_manager=SINGLE))
    assert found is not None
    assert found.regions(1) == tuple(1 << position for position in range(8))
    assert found.regions(2) == ()


def test_of_a_machine_with_very_many_numa_nodes_nothing_is_worked_out() -> None:
    restricted = TopologyManager(Policy.RESTRICTED)
    assert alignment_of(replace(scattered(5), topology_manager=restricted)) is None
    few = alignment_of(replace(scattered(2), topology_manager=restricted))
    assert few is not None
    assert few.regions(9) == ()
