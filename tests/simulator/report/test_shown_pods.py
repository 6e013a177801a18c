"""Which pods a report shows: those that take GPUs, with a reason for each that holds none."""

import pytest

from linkwise.drawing.times import PodTimes
from linkwise.kube.objects import (
    Container,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    Resources,
)
from linkwise.simulator.report.build_report import seen_pods
from linkwise.simulator.report.model import SeenPod
from linkwise.simulator.report.pod_recorder import Sighting
from linkwise.topology.names import DEFAULT_RESOURCE


def seen(quantity: Quantity, *, waits: str = "") -> tuple[SeenPod, ...]:
    """Return the record of a running pod that requests GPUs and holds none."""
    asks = Resources(limits={DEFAULT_RESOURCE: quantity})
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="ml"),
        spec=PodSpec(node_name="n1", containers=(Container("main", asks),)),
        status=PodStatus(phase="Running"),
    )
    return seen_pods([Sighting(pod, 1, {}, PodTimes(0.0))], {}, {}, {"ml/p": waits}, {}, {})


@pytest.mark.parametrize("quantity", [0, "0"])
def test_a_pod_that_asks_for_no_gpu_in_so_many_words_is_left_out(quantity: Quantity) -> None:
    assert seen(quantity) == ()


@pytest.mark.parametrize("quantity", [1, "1", "8"])
def test_a_pod_that_runs_without_the_gpus_it_asked_for_is_shown_with_that(
    quantity: Quantity,
) -> None:
    """Its init container has given them back, or something is wrong and must show."""
    assert [each.waits for each in seen(quantity)] == ["Running on n1, and holds no GPU."]


def test_a_reason_that_is_known_goes_first() -> None:
    assert [each.waits for each in seen(1, waits="Evicted: swap")] == ["Evicted: swap"]
