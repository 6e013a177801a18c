"""The Topology Manager's rules, as in kubelet v1.36.3: hints, their merger, who is admitted."""

from collections.abc import Mapping, Sequence

import pytest

from linkwise.simulator.kubelet.devices import (
    AdmissionError,
    ContainerRequest,
    Device,
    DeviceManager,
)
from linkwise.simulator.kubelet.topology_manager import Hint, hints_of, merged
from linkwise.topology.machine.topology_manager import Policy, Scope
from tests.simulator.kubelet.scripted_plugin import ScriptedPlugin

GPU, NIC = "nvidia.com/gpu", "rdma/hca"
BOTH = frozenset({0, 1})
TWO_SOCKETS = {f"GPU-{n}": (n // 4,) for n in range(8)}


def hint(*nodes: int, preferred: bool = True) -> Hint:
    return Hint(frozenset(nodes), preferred)


def test_hints_are_preferred_if_the_machine_needs_no_fewer_numa_nodes_for_so_many() -> None:
    everything = list(TWO_SOCKETS)
    assert hints_of(BOTH, TWO_SOCKETS, everything, (), 4) == [
        hint(0),
        hint(1),
        hint(0, 1, preferred=False),
    ]
    assert hints_of(BOTH, TWO_SOCKETS, everything, (), 5) == [hint(0, 1)]


def test_what_is_in_use_changes_the_hints_and_not_which_are_preferred() -> None:
    free = ["GPU-2", "GPU-3", "GPU-6", "GPU-7"]
    assert hints_of(BOTH, TWO_SOCKETS, free, (), 4) == [hint(0, 1, preferred=False)]
    assert hints_of(BOTH, TWO_SOCKETS, free, (), 5) == []


def test_devices_that_are_used_again_must_be_on_the_nodes_of_a_hint() -> None:
    assert hints_of(BOTH, TWO_SOCKETS, ["GPU-4"], ["GPU-0"], 1) == [
        hint(0),
        hint(0, 1, preferred=False),
    ]


def test_devices_without_numa_nodes_give_no_hints() -> None:
    assert hints_of(BOTH, {"GPU-0": ()}, ["GPU-0"], (), 1) is None


def test_numa_nodes_that_the_machine_does_not_have_count_for_nothing() -> None:
    only = frozenset({0})
    assert hints_of(only, TWO_SOCKETS, list(TWO_SOCKETS), (), 4) == [hint(0)]
    assert hints_of(only, TWO_SOCKETS, list(TWO_SOCKETS), (), 5) == []


@pytest.mark.parametrize(
    ("policy", "hints", "affinity", "admits"),
    [
        # Of equal hints, the lowest NUMA node.
        (Policy.SINGLE_NUMA_NODE, [[hint(0), hint(1)]], {0}, True),
        (Policy.RESTRICTED, [[hint(1)]], {1}, True),
        # Two resources have to agree.
        (Policy.SINGLE_NUMA_NODE, [[hint(0), hint(1)], [hint(1)]], {1}, True),
        (Policy.SINGLE_NUMA_NODE, [[hint(0)], [hint(1)]], None, False),
        (Policy.RESTRICTED, [[hint(0)], [hint(1)]], {0, 1}, False),
        (Policy.BEST_EFFORT, [[hint(0)], [hint(1)]], {0, 1}, True),
        # Too few are free together.
        (Policy.SINGLE_NUMA_NODE, [[hint(0, 1, preferred=False)]], None, False),
        (Policy.RESTRICTED, [[hint(0, 1, preferred=False)]], {0, 1}, False),
        (Policy.BEST_EFFORT, [[hint(0, 1, preferred=False)]], {0, 1}, True),
        # So many need both nodes.
        (Policy.SINGLE_NUMA_NODE, [[hint(0, 1)]], None, False),
        (Policy.RESTRICTED, [[hint(0, 1)]], {0, 1}, True),
        # No resource has hints, or one has none that it could meet.
        (Policy.SINGLE_NUMA_NODE, [None], None, True),
        (Policy.RESTRICTED, [[]], {0, 1}, False),
        (Policy.BEST_EFFORT, [[]], {0, 1}, True),
        (Policy.SINGLE_NUMA_NODE, [], None, True),
    ],
)
def test_hints_of_all_resources_become_one(
    policy: Policy, hints: Sequence[list[Hint] | None], affinity: set[int] | None, admits: bool
) -> None:
    assert merged(policy, BOTH, hints) == (affinity and frozenset(affinity), admits)


def manager_of(
    policy: Policy, scope: Scope = Scope.CONTAINER, **nics: int
) -> tuple[DeviceManager, ScriptedPlugin]:
    plugin = ScriptedPlugin()
    manager = DeviceManager(1, policy=policy, scope=scope)
    numa_nodes: Mapping[str, Mapping[str, tuple[int, ...]]] = {
        GPU: TWO_SOCKETS,
        NIC: {nic: (node,) for nic, node in nics.items()},
    }
    for resource, of in numa_nodes.items():
        manager.set_plugin(resource, plugin if resource == GPU else ScriptedPlugin())
        manager.set_devices(
            resource, [Device(name, numa_nodes=nodes) for name, nodes in of.items()]
        )
    return manager, plugin


def wants(*gpus: int, nics: int = 0) -> list[ContainerRequest]:
    return [
        ContainerRequest(f"c{place}", False, {GPU: count, NIC: nics})
        for place, count in enumerate(gpus)
    ]


def test_the_plugin_is_asked_with_the_devices_of_the_chosen_node() -> None:
    manager, plugin = manager_of(Policy.SINGLE_NUMA_NODE)
    manager.admit("p", wants(2))
    assert plugin.preferred_calls == [({f"GPU-{n}" for n in range(4)}, set(), 2)]


def test_the_plugin_is_not_asked_if_all_devices_of_the_node_are_needed() -> None:
    manager, plugin = manager_of(Policy.BEST_EFFORT)
    manager.admit("p", wants(4))
    assert plugin.preferred_calls == []
    assert plugin.allocated == [{f"GPU-{n}" for n in range(4)}]


def test_beyond_the_chosen_nodes_the_plugin_is_asked_with_all_that_are_free() -> None:
    manager, plugin = manager_of(Policy.BEST_EFFORT)
    manager.admit("one", wants(3))
    manager.admit("two", wants(3))
    manager.admit("both", wants(2))  # one is left on each node
    assert plugin.allocated[-1] == {"GPU-0", "GPU-4"}


def test_another_resource_decides_too() -> None:
    manager, plugin = manager_of(Policy.SINGLE_NUMA_NODE, mlx5_0=1)
    manager.admit("p", wants(1, nics=1))
    assert plugin.preferred_calls == [({f"GPU-{n}" for n in range(4, 8)}, set(), 1)]


def test_a_pod_that_cannot_be_aligned_is_refused_with_the_kubelets_reason() -> None:
    manager, _ = manager_of(Policy.SINGLE_NUMA_NODE)
    manager.admit("one", wants(3))
    manager.admit("two", wants(2))
    with pytest.raises(AdmissionError, match=r"^Resources cannot be allocated with Topology") as no:
        manager.admit("three", wants(3))
    assert no.value.reason == "TopologyAffinityError"
    assert manager.held("three") == {}


def test_the_scope_pod_aligns_all_containers_together() -> None:
    manager, _ = manager_of(Policy.SINGLE_NUMA_NODE)
    manager.admit("p", wants(3, 3))
    together, _ = manager_of(Policy.SINGLE_NUMA_NODE, Scope.POD)
    with pytest.raises(AdmissionError):
        together.admit("p", wants(3, 3))
    together.admit("q", wants(2, 2))
    held = {gpu for of in together.held("q").values() for gpu in of[GPU]}
    assert held == {f"GPU-{n}" for n in range(4)}
