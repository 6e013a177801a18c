"""A gang starts whole or not at all, whatever else its pods need, beside the real kube-scheduler.

What each gang lacks is what people ran into: a required anti-affinity with too few nodes, network
interfaces, hugepages or scratch space of which a node has enough for one member, a volume on a full
node, Bindings that are refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from linkwise.kube.errors import ApiError
from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF
from tests.cluster.support.scheduling.job_pods import (
    Look,
    create_members,
    create_pod,
    local_volume,
    offer,
    pod_spec,
)
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    PODS,
    SchedulingWorld,
    maybe_gone,
    started_world,
)

NODES = ("n1", "n2", "n3")
EFA = "vpc.amazonaws.com/efa"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
POLICY_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
TIMEOUT = {names.GANG_TIMEOUT: "15s"}
LOOK_SECONDS = 20.0  # longer than that: a gang that started by half would be evicted
SOON_SECONDS = 10.0
AT_ONCE_SECONDS = 5.0


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    control = ControlPlane(
        run_directory / "all-or-nothing",
        disable_admission=ADMISSION_OFF,
        controller_flags=("--controllers=job-controller",),
    )
    control.start()
    with started_world(SchedulingWorld(control), NODES) as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    started.control.kubectl("delete", "jobs", "--all", f"-n={NAMESPACE}", "--cascade=background")
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        started.control.kubectl("delete", kind, "no-bindings", "--ignore-not-found")
    wait_for(lambda: _is_empty(started), "no pods, and all GPUs are free")


def _is_empty(world: SchedulingWorld) -> bool:
    """Also of pods that a controller creates before it learns that their Job is deleted."""
    for pod in world.pods():
        with maybe_gone():
            if "job-name" in pod.metadata.labels:
                unheld = {"metadata": {"finalizers": None}}
                world.client.patch(f"{PODS}/{pod.metadata.name}", unheld)
            world.delete(pod.metadata.name)
    return not world.taken()


@dataclass(frozen=True, slots=True)
class Case:
    """A gang that cannot start whole, and why. *full*: GPUs that other pods have, by node. The one
    on n1 also has *more*, and without it the gang can start."""

    size: int
    gpus: int
    full: dict[str, int]
    more: dict[str, str] = field(default_factory=dict)
    is_apart: bool = False
    volume: bool = False  # the first member's is on n1


def short_of(resource: str, amount: str) -> Case:
    """Each node has enough of it for one member, and n3 has no GPUs."""
    return Case(2, 4, {"n1": 4, "n3": 8}, {resource: amount})


CASES = {
    "anti-affinity": Case(3, 2, {"n1": 8}, is_apart=True),
    "efa": short_of(EFA, "4"),
    "rdma": short_of("rdma/rdma_shared_device_a", "1"),
    "hugepages": short_of("hugepages-2Mi", "5120Mi"),
    "ephemeral-storage": short_of("ephemeral-storage", "900Gi"),
    "volume": Case(2, 8, {"n1": 8}, volume=True),
}


def block(world: SchedulingWorld, case: Case) -> None:
    if case.more:
        offer(world, NODES, case.more)
    for node, gpus in case.full.items():
        more = case.more if node == "n1" else {}
        create_pod(world, f"full-{node}", pod_spec(gpus, more=more), node=node)
    wait_for(lambda: len(world.taken()) == sum(case.full.values()), "the extender sees them")


def specs(world: SchedulingWorld, case: Case, *, gated: bool) -> list[dict[str, Any]]:
    apart = {"app": "tr"} if case.is_apart else None
    claims = [""] * case.size
    if case.volume:
        claims[0] = local_volume(world, f"data-{'gated' if gated else 'plain'}", "n1")
    return [
        pod_spec(case.gpus, more=case.more, apart_from=apart, claim=claim, gated=gated)
        for claim in claims
    ]


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("cause", CASES)
def test_a_gang_that_cannot_start_whole_does_not_start_and_then_does_at_once(
    world: SchedulingWorld, cause: str, gated: bool
) -> None:
    case, look = CASES[cause], Look(world)
    block(world, case)
    members = create_members(world, "tr", specs(world, case, gated=gated), annotations=TIMEOUT)
    look.none_bound(members, LOOK_SECONDS)
    world.delete("full-n1")
    took = look.until_bound(members, SOON_SECONDS)
    print(f"{cause}: whole {took:.1f} s after its room was free")


def job(size: int, template: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    said = {names.GANG: "tr", names.GANG_SIZE: str(size), **TIMEOUT}
    return {
        "metadata": {"name": "tr"},
        "spec": {
            "completions": size,
            "parallelism": size,
            "completionMode": "Indexed",
            "template": {"metadata": {"annotations": said, "labels": labels}, "spec": template},
        },
    }


JOB_CASES = {
    # As AWS documents jobs for p5.48xlarge: eight GPUs and all network interfaces of each node.
    "p5": (
        8,
        {EFA: "32", "hugepages-2Mi": "5120Mi", "memory": "32000Mi"},
        {EFA: "32", "hugepages-2Mi": "42242Mi", "memory": "2Ti"},
    ),
    # As NVIDIA's k8s-rdma-shared-dev-plugin documents its pods.
    "rdma": (8, {"rdma/rdma_shared_device_a": "1"}, {"rdma/rdma_shared_device_a": "1"}),
}


@pytest.mark.parametrize("kind", JOB_CASES)
def test_a_whole_job_waits_without_a_failed_pod_and_starts(
    world: SchedulingWorld, kind: str
) -> None:
    gpus, wanted, offered = JOB_CASES[kind]
    offer(world, NODES, offered)
    (scarce, *_) = wanted
    probe = {"cpu": "1", scarce: wanted[scarce]}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"limits": probe, "requests": probe},
    }
    create_pod(world, "probe", {"containers": [container], "restartPolicy": "Never"}, node="n1")
    template = pod_spec(gpus, more=wanted, apart_from={"app": "tr"})
    world.client.post(JOBS, job(3, template, {"app": "tr"}))
    wait_for(lambda: len(_of_job(world)) == 3, "the Job has its pods")
    look = Look(world)
    look.none_bound(_of_job(world), LOOK_SECONDS)
    status = world.client.get(f"{JOBS}/tr", dict[str, Any])["status"]
    assert not status.get("failed"), status
    world.delete("probe")
    look.until_bound(_of_job(world), SOON_SECONDS)


def _of_job(world: SchedulingWorld) -> list[str]:
    return [pod.metadata.name for pod in world.pods() if pod.metadata.name.startswith("tr-")]


def is_told_to_wait(world: SchedulingWorld, name: str) -> bool:
    """By kube-scheduler, or behind the gate by the extender."""
    (pod,) = (each for each in world.pods() if each.metadata.name == name)
    said = any(condition.reason == "Unschedulable" for condition in pod.status.conditions)
    return said or bool(world.events(name))


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_a_pod_whose_volume_is_on_a_full_node_keeps_no_other_node_from_others(
    world: SchedulingWorld, gated: bool
) -> None:
    look = Look(world)
    world.place("full", "n1", 8)
    claim = local_volume(world, f"alone-{'gated' if gated else 'plain'}", "n1")
    create_pod(world, "a", pod_spec(8, claim=claim, gated=gated))
    wait_for(lambda: is_told_to_wait(world, "a"), "the pod is told why it waits")
    others = [world.create(name, 8) for name in ("x0", "x1")]
    look.until_bound(others, AT_ONCE_SECONDS)
    world.delete("full")
    look.until_bound(["a"], SOON_SECONDS)


def forbid_bindings(world: SchedulingWorld, message: str) -> None:
    """Let the API server refuse every Binding of the gang `tr` for good, as a webhook may."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods/binding"],
    }
    validation = {
        "expression": "!object.metadata.name.startsWith('tr-')",
        "message": message,
        "reason": "Forbidden",
    }
    policy = {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    world.client.post(POLICIES, {"metadata": {"name": "no-bindings"}, "spec": policy})
    binding = {"policyName": "no-bindings", "validationActions": ["Deny"]}
    world.client.post(POLICY_BINDINGS, {"metadata": {"name": "no-bindings"}, "spec": binding})
    wait_for(lambda: message in _refusal_of_a_binding(world), "the policy is in force")


def _refusal_of_a_binding(world: SchedulingWorld) -> str:
    body = {"metadata": {"name": "tr-probe"}, "target": {"kind": "Node", "name": "none"}}
    try:
        world.client.post(f"{PODS}/tr-probe/binding?dryRun=All", body)
    except ApiError as error:
        return str(error)
    return ""


def fatten(annotations: dict[str, str]) -> dict[str, str]:
    """All annotations of a pod have 256 KiB at most; leave no room for a plan."""
    taken = sum(len(key) + len(text) for key, text in annotations.items())
    key = "example.com/blob"
    return {**annotations, key: "x" * (256 * 1024 - 100 - taken - len(key))}


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("refused_by", ["policy", "size"])
def test_bindings_that_are_refused_for_good_free_the_gpus_and_are_explained(
    world: SchedulingWorld, refused_by: str, gated: bool
) -> None:
    look = Look(world)
    for node in ("n2", "n3"):
        world.place(f"full-{node}", node, 8)
    why: Callable[[str], bool]
    if refused_by == "policy":
        message = "no Bindings today"
        forbid_bindings(world, message)
        members = create_members(world, "tr", [pod_spec(4, gated=gated)] * 2)
        why = lambda text: message in text  # noqa: E731
    else:
        said = {names.GANG: "tr", names.GANG_SIZE: "2"}
        members = [
            create_pod(world, f"tr-{rank}", pod_spec(4, gated=gated), annotations=fatten(said))
            for rank in range(2)
        ]
        why = lambda text: "annotations" in text  # noqa: E731
    wait_for(
        lambda: any(why(world.asked(f"/explain/ml/{name}?format=text")) for name in members),
        "explain says what the API server said",
        AT_ONCE_SECONDS,
    )
    other = world.create("other", 8)
    look.until_bound([other], AT_ONCE_SECONDS)
    wait_for(
        lambda: any(why(event) for name in members for event in world.events(name)),
        "so does an Event",
        SOON_SECONDS,
    )
    look.none_bound(members, AT_ONCE_SECONDS)
