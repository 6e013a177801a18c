"""Which pods are shown, and which belong together: on pods as the API server has them."""

from collections.abc import Mapping

import pytest

from linkwise.kube.objects import (
    Container,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    Resources,
)
from linkwise.simulator.gather import gather
from linkwise.simulator.jobs import INDEX
from linkwise.simulator.report import Seen
from linkwise.simulator.witness import Sighting
from linkwise.topology import names

GPU = names.DEFAULT_RESOURCE


def pod(
    name: str,
    *,
    limits: Mapping[str, Quantity] | None = None,
    annotations: Mapping[str, str] | None = None,
    job: str = "",
    namespace: str = "default",
    phase: str = "Pending",
    node: str = "",
) -> Pod:
    owners = (OwnerReference(kind="Job", name=job, uid=f"uid-{job}", controller=True),)
    taken = {GPU: 1} if limits is None else dict(limits)
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{name}",
            annotations=dict(annotations or {}),
            owner_references=owners if job else (),
        ),
        spec=PodSpec(node_name=node, containers=(Container("c", Resources(limits=taken)),)),
        status=PodStatus(phase=phase),
    )


def seen(*pods: Pod) -> tuple[Seen, ...]:
    return gather([Sighting(each, n, {}) for n, each in enumerate(pods)], {}, {}, {})


@pytest.mark.parametrize("limits", [{}, {GPU: 0}, {GPU: "0"}, {"cpu": 1}])
def test_pods_that_take_no_gpu_are_not_shown(limits: Mapping[str, Quantity]) -> None:
    assert seen(pod("p", limits=limits)) == ()


@pytest.mark.parametrize("quantity", [1, "1", "8"])
def test_pods_that_take_gpus_are_shown(quantity: Quantity) -> None:
    assert [s.pod for s in seen(pod("p", limits={GPU: quantity}))] == ["default/p"]


def test_pods_belong_to_their_gang_or_their_job_or_stand_alone() -> None:
    gang = {names.GANG: "g", names.GANG_SIZE: "2"}
    found = seen(
        pod("a", annotations=gang, job="j"),
        pod("b", job="j"),
        pod("c"),
        pod("d", annotations=gang, namespace="ml"),
    )

    assert [(s.workload, s.needed) for s in found] == [("g", 2), ("j", 0), ("c", 0), ("ml/g", 2)]


@pytest.mark.parametrize("size", ["", "two", "-2", "2.5", "²"])
def test_a_gang_whose_size_is_said_wrongly_needs_nobody(size: str) -> None:
    (found,) = seen(pod("a", annotations={names.GANG: "g", names.GANG_SIZE: size}))

    assert found.needed == 0


def test_members_are_told_apart_by_their_index_else_by_their_order() -> None:
    by_index = seen(*(pod(f"p{n}", job="j", annotations={INDEX: n}) for n in ("2", "0")))
    by_order = seen(pod("x", job="j"), pod("y", job="j"))
    same_index = seen(*(pod(f"p{n}", job="j", annotations={INDEX: "1"}) for n in range(2)))

    assert [s.member for s in by_index] == ["2", "0"]
    assert [s.member for s in by_order] == ["0", "1"]
    assert [s.member for s in same_index] == ["0", "1"]


def test_a_failed_pod_that_its_job_has_replaced_is_not_shown_twice() -> None:
    failed = pod("old", job="j", phase="Failed", node="n", annotations={INDEX: "0"})
    new = pod("new", job="j", annotations={INDEX: "0"})
    other = pod("other", job="j", annotations={INDEX: "1"})

    assert [s.pod for s in seen(failed, other, new)] == ["default/other", "default/new"]
    assert [s.pod for s in seen(failed, other)] == ["default/old", "default/other"]


def test_a_pod_that_runs_without_gpus_has_that_as_its_reason() -> None:
    """Its init container has given them back; or something is wrong, and then it must be seen."""
    (found,) = seen(pod("p", phase="Running", node="n1"))

    assert found.waits == "Running on n1, and holds no GPU."
