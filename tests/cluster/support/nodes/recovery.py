"""What a test does with a fault or an update, and what must hold afterwards."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import SYSTEM, DeployedLinkwise, wait_until_none
from tests.cluster.support.nodes.faults import (
    EXTENDER,
    HERE,
    REFUSED,
    SCHEDULER,
    AllocationPhase,
    ClusterFault,
    Work,
    held,
    restarts,
    taken_twice,
    takers,
    unsettled,
)
from tests.cluster.support.nodes.gpu_holders import (
    assert_agreed,
    held_twice,
    planned,
    podresources,
    running,
)

_SECONDS = 60.0
_UPDATE_SECONDS = 180.0  # node by node, while pods come and go
# kube-scheduler retries a pod after at most 10 s, not after its 5 minutes; the rest is for a busy
# machine.
_BACK_OFF_SECONDS = 10.0 + 20.0


def named(
    cells: Sequence[tuple[ClusterFault, AllocationPhase]],
) -> pytest.MarkDecorator:
    """Run a test once for each fault at its phase."""
    return pytest.mark.parametrize(
        ("fault", "phase"),
        [pytest.param(*cell, id=f"{cell[0].name}-{cell[1].name.lower()}") for cell in cells],
    )


def sharing_a_node(phase: AllocationPhase) -> Work:
    """Pods that share the first node. There is one where the test holds the kubelet between the
    pods and what they wait for."""
    count = 1 if phase is AllocationPhase.ALLOCATED else 2
    pods = workloads.deployment(
        "work",
        8 // count,
        replicas=count,
        node=HERE,
        gated=phase is AllocationPhase.PLANNED,
        stubborn=phase is AllocationPhase.ENDING,
    )
    return Work([pods], "app=work", count)


def strike(
    deployed: DeployedLinkwise,
    fault: ClusterFault,
    phase: AllocationPhase,
    work: Work,
    *,
    may_refuse: bool,
) -> None:
    """Strike at this moment of *work*, and check that everything recovers. If the kubelet *may
    refuse* pods, others may have replaced them; else they stay the same."""
    try:
        with held(deployed, phase, work):
            before = work.uids(deployed)
            fault.strike(deployed)
    finally:
        fault.mend(deployed)
    if fault in (EXTENDER, SCHEDULER):
        wait_for(lambda: not work.unbound(deployed), "the scheduler goes on", _BACK_OFF_SECONDS)
    wait_until_none(lambda: unsettled(deployed, work), _SECONDS)
    if may_refuse:
        assert set(work.refused(deployed)) <= {REFUSED}
    else:
        assert work.refused(deployed) == []
        assert work.uids(deployed) == before
        assert not any(map(restarts, work.pods(deployed)))
    taken = takers()
    for pod in work.pods(deployed):
        assert_agreed(deployed, pod)
        has = {gpu for gpu, uids in taken.items() if pod["metadata"]["uid"] in uids}
        assert has == frozenset[str]().union(*planned(pod).values())


def update_under_load(deployed: DeployedLinkwise, daemonset: str, steady: Work, load: Work) -> None:
    """Update a DaemonSet of the system while pods of *load*, a Deployment, come and go, until none
    of its old pods is left; check that those of *steady* do not notice."""
    deployed.apply(*steady.manifests, *load.manifests)
    before = running(deployed, steady.selector, steady.count)
    old = _pods_of(deployed, daemonset)
    deployed.kubectl("rollout", "restart", f"-n={SYSTEM}", f"daemonset/{daemonset}")

    def is_through() -> bool:
        for replicas in (load.count, 1):
            _scale(deployed, load, replicas)
            for node in deployed.cluster.nodes.values():
                assert not list(held_twice(podresources(node)))
            assert not taken_twice()
        # The controller's status alone does not say so: it can count a template as rolled out from
        # what its caches held before the new one.
        return _rolled_out(deployed, daemonset) and not old & _pods_of(deployed, daemonset)

    wait_for(is_through, f"no old pod of {daemonset} is left", _UPDATE_SECONDS)
    _scale(deployed, load, load.count)
    wait_until_none(lambda: unsettled(deployed, steady, load), _SECONDS)
    assert undisturbed(before, running(deployed, steady.selector, steady.count))
    assert set(load.refused(deployed)) <= {REFUSED}


def undisturbed(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> bool:
    """Whether these are the same pods, and none of their containers has restarted."""
    after = list(after)
    uids = [[pod["metadata"]["uid"] for pod in pods] for pods in (before, after)]
    return uids[0] == uids[1] and not any(map(restarts, after))


def _scale(deployed: DeployedLinkwise, load: Work, replicas: int) -> None:
    """Return once there are so many, running or not."""
    (deployment,) = load.manifests
    name = deployment["metadata"]["name"]
    path = f"/apis/apps/v1/namespaces/default/deployments/{name}"
    deployed.client.patch(path, {"spec": {"replicas": replicas}})
    wait_for(lambda: len(load.pods(deployed)) == replicas, f"{replicas} pods")


def _pods_of(deployed: DeployedLinkwise, daemonset: str) -> set[str]:
    selector = f"app.kubernetes.io/name={daemonset}"
    return {pod["metadata"]["uid"] for pod in deployed.pods(selector, namespace=SYSTEM)}


def _rolled_out(deployed: DeployedLinkwise, daemonset: str) -> bool:
    found = deployed.get(f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets/{daemonset}")
    status = found["status"]
    return bool(
        status["observedGeneration"] == found["metadata"]["generation"]
        and status.get("updatedNumberScheduled") == status["desiredNumberScheduled"]
        and status.get("numberAvailable") == status["desiredNumberScheduled"]
    )
