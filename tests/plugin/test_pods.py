"""A Pod as its admission needs it, and what is wrong with it."""

import pytest

from linkwise.plugin.device_plugin.allocate import ContainerPlan
from linkwise.plugin.node.pods import read_pod
from linkwise.topology.machine.model import LinkClass
from tests.plugin.pods import RESOURCE, pod

GPUS = '{"main":["GPU-a","GPU-b"]}'
PLAN = '{"v":1,"uid":"uid-w","id":"p1","node":"n1"}'


def test_containers_come_in_the_kubelets_order_with_their_planned_gpus() -> None:
    reading = read_pod(
        pod(
            "w",
            ("main", "2"),
            ("logger", None),
            init=[("load", 1), ("side", 1, "Always")],
            annotations={"linkwise.dev/gpus": GPUS, "linkwise.dev/plan": PLAN},
        ),
        node="n1",
        resource=RESOURCE,
    )
    assert reading.pod is not None
    assert reading.pod.key == "ml/w"
    assert reading.pod.containers == (
        ContainerPlan("load", 1),
        ContainerPlan("side", 1),
        ContainerPlan("main", 2, ("GPU-a", "GPU-b")),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"status": {"phase": "Running"}},
        {"status": {"phase": "Failed"}},
        {"spec": {"nodeName": "n2"}},
        {"metadata": {"deletionTimestamp": "2026-11-21T08:00:00Z"}},
        {"spec": {"containers": [{"name": "main"}]}},
    ],
)
def test_only_bound_pods_that_are_still_to_start_and_want_gpus_wait(
    changes: dict[str, dict[str, object]],
) -> None:
    assert (
        read_pod(pod("w", ("main", 1), changes=changes), node="n1", resource=RESOURCE).pod is None
    )


@pytest.mark.parametrize(
    "plan",
    [
        {"linkwise.dev/plan": PLAN.replace("n1", "n2")},
        {"linkwise.dev/plan": PLAN.replace("uid-w", "uid-x")},  # copied from another pod
        {"linkwise.dev/plan": PLAN.replace('"uid":"uid-w",', "")},  # of an older extender
        {},
    ],
)
def test_a_plan_counts_only_for_the_pod_and_node_that_it_names(plan: dict[str, str]) -> None:
    notes = {"linkwise.dev/gpus": GPUS, **plan}
    reading = read_pod(pod("w", ("main", 2), annotations=notes), node="n1", resource=RESOURCE)
    assert reading.pod is not None
    assert reading.pod.containers == (ContainerPlan("main", 2),)
    assert reading.complaint == ""


@pytest.mark.parametrize(
    ("notes", "complaint"),
    [
        (
            {"linkwise.dev/gpus": "{", "linkwise.dev/plan": PLAN},
            "linkwise.dev/gpus: '{': expected JSON like {",
        ),
        (
            {"linkwise.dev/gpus": '{"main":"GPU-a"}', "linkwise.dev/plan": PLAN},
            "Expected `array`, got `str` - at `$[...]`",
        ),
        ({"linkwise.dev/gpus": '{"main":[""]}', "linkwise.dev/plan": PLAN}, "length >= 1"),
        ({"linkwise.dev/gpus": GPUS, "linkwise.dev/plan": "[]"}, "linkwise.dev/plan: '[]'"),
        (
            {"linkwise.dev/gpus": GPUS, "linkwise.dev/plan": '{"v":9,"new":true}'},
            "version 9': expected version 1 or older; upgrade this program",
        ),
        (
            {"linkwise.dev/prefer-link": "nvlnk"},
            "linkwise.dev/prefer-link: 'nvlnk': expected one of nvlink, switch, host-bridge",
        ),
    ],
)
def test_a_bad_annotation_costs_the_pod_its_plan_and_nothing_else(
    notes: dict[str, str], complaint: str
) -> None:
    reading = read_pod(pod("w", ("main", 2), annotations=notes), node="n1", resource=RESOURCE)
    assert complaint in reading.complaint
    assert reading.pod is not None
    assert reading.pod.containers == (ContainerPlan("main", 2),)


def test_a_quantity_that_is_none_leaves_the_pod_out_with_a_reason() -> None:
    reading = read_pod(pod("w", ("main", "two")), node="n1", resource=RESOURCE)
    assert reading.pod is None
    assert "nvidia.com/gpu: 'two': expected a quantity" in reading.complaint


def test_what_a_pod_prefers_is_heard() -> None:
    notes = {"linkwise.dev/prefer-link": "switch"}
    reading = read_pod(pod("w", ("main", 2), annotations=notes), node="n1", resource=RESOURCE)
    assert reading.pod is not None
    assert reading.pod.prefer is LinkClass.PXB
