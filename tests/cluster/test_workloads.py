"""Jobs of all sorts on a real control plane, without annotations: gangs start whole or not at all,
and pods in no gang never wait for each other.

Kubernetes' own controllers create the pods of Kubernetes' own kinds. Operators' kinds exist as
custom resources; the tests create their pods with the operators' labels.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkwise.kube.errors import ApiError
from linkwise.pods.podgrouper.workloads.systems import READ
from tests.cluster.support.api.control_plane import KubectlError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.claims_world import ClaimsWorld, both_ways, world_with
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    SchedulingWorld,
)
from tests.cluster.support.scheduling.workload_pods import (
    CONTROLLERS,
    free,
    pod_template,
    pods_of,
)
from tests.pods.podgrouper.workload_cases import Group, groups

NODES = tuple(f"n{number}" for number in range(8))
BUILT_IN = frozenset({"batch", "apps", "scheduling.k8s.io"})
OPERATORS = [kind for kind in READ if kind.group not in BUILT_IN]
OF_OPERATORS = [
    param
    for param in groups()
    if not any(made["apiVersion"] == "batch/v1" for made in param.values[0].objects)
]


pytestmark = both_ways


@pytest.fixture(scope="module")
def started(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[SchedulingWorld]:
    with world_with(
        request.param,
        run_directory / "workloads",
        NODES,
        controllers=CONTROLLERS.split(","),
        kinds=OPERATORS,
        collects=False,
    ) as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    for kind in ("jobs", "statefulsets", "deployments"):
        started.control.kubectl("delete", kind, "--all", f"-n={NAMESPACE}", "--cascade=background")
    wait_for(lambda: is_empty(started), "no pods, and all GPUs are free")


def is_empty(world: SchedulingWorld) -> bool:
    """Wait for pods to go that a controller creates before it learns that their owner is
    deleted."""
    for pod in world.pods():
        free(world, pod.metadata.name)
    if isinstance(world, ClaimsWorld):
        world.control.kubectl("delete", "resourceclaims", "--all", f"-n={NAMESPACE}")
    return not world.taken()


def create_job(
    world: SchedulingWorld,
    name: str,
    pods: int,
    gpus: int = 8,
    *,
    indexed: bool = True,
    **said: str,
) -> None:
    template = pod_template(name, gpus, **said)
    template["spec"]["restartPolicy"] = "Never"
    spec = {
        "completions": pods,
        "parallelism": pods,
        "completionMode": "Indexed" if indexed else "NonIndexed",
        "template": template,
    }
    world.client.post(
        f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", {"metadata": {"name": name}, "spec": spec}
    )


def create_stateful_set(world: SchedulingWorld, name: str, pods: int, policy: str) -> None:
    spec = {
        "replicas": pods,
        "serviceName": name,
        "podManagementPolicy": policy,
        "selector": {"matchLabels": {"app": name}},
        "template": pod_template(name, 8),
    }
    world.client.post(
        f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets",
        {"metadata": {"name": name}, "spec": spec},
    )


def bound(world: SchedulingWorld, app: str) -> list[str]:
    return [name for name in pods_of(world, app) if world.node_of(name)]


def made(world: SchedulingWorld, app: str, pods: int) -> list[str]:
    wait_for(lambda: len(pods_of(world, app)) == pods, f"{app} has {pods} pods")
    return pods_of(world, app)


def test_an_indexed_job_starts_whole_or_not_at_all(world: SchedulingWorld) -> None:
    world.create("occupant", gpus=8)
    world.wait_bound(["occupant"])
    create_job(world, "train", len(NODES))
    members = made(world, "train", len(NODES))
    for name in members:
        world.wait_in_gang(name)
    wait_for(
        lambda: "no room for the whole gang" in world.extender.explain(NAMESPACE, members[0]),
        "it is known that there is no room",
    )
    assert bound(world, "train") == []

    world.delete("occupant")

    world.wait_bound(members)
    assert sorted(world.node_of(name) for name in members) == list(NODES)


def test_ranks_of_an_indexed_job_are_its_completion_indices(world: SchedulingWorld) -> None:
    create_job(world, "ring", 4, gpus=4)
    members = made(world, "ring", 4)
    world.wait_bound(members)
    by_index = {
        pod.metadata.annotations["batch.kubernetes.io/job-completion-index"]: pod.spec.node_name
        for pod in world.pods()
    }
    assert by_index["0"] == by_index["1"]
    assert by_index["2"] == by_index["3"]


def test_pods_of_a_job_without_an_index_go_one_by_one(world: SchedulingWorld) -> None:
    create_job(world, "pool", len(NODES) + 2, indexed=False)
    made(world, "pool", len(NODES) + 2)
    wait_for(lambda: len(bound(world, "pool")) == len(NODES), "as many run as there is room for")


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_replicas_of_a_stateful_set_do_not_wait_for_each_other(
    world: SchedulingWorld, policy: str
) -> None:
    create_stateful_set(world, "store", len(NODES) + 1, policy)
    wanted = 1 if policy == "OrderedReady" else len(NODES)
    wait_for(lambda: len(bound(world, "store")) == wanted, f"{wanted} run")


def test_a_job_that_names_a_smaller_gang_than_it_runs_is_refused_with_both(
    world: SchedulingWorld,
) -> None:
    refusal = "linkwise.dev/gang-size is 2, but Job.batch ml/torn runs 3 pods"
    if isinstance(world, ClaimsWorld):  # there the webhook refuses the Job
        with pytest.raises(ApiError, match=refusal):
            create_job(world, "torn", 3, gang="torn", gang_size="2")
        return
    create_job(world, "torn", 3, gang="torn", gang_size="2")
    for name in made(world, "torn", 3):
        world.wait_waiting(name, refusal)


def test_a_kind_that_may_not_be_read_costs_the_gang_and_not_the_pods(
    world: SchedulingWorld,
) -> None:
    """As when an administrator has removed the right: single pods are better than none."""
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/linkwise-extender"
    whole = world.client.get(role, dict[str, Any])
    less = [rule for rule in whole["rules"] if "jobs" not in rule["resources"]]
    world.client.patch(role, {"rules": less})
    try:
        wait_for(lambda: not may_read_jobs(world), "the right is gone")
        create_job(world, "blind", len(NODES) + 1)
        made(world, "blind", len(NODES) + 1)
        wait_for(lambda: len(bound(world, "blind")) == len(NODES), "as many run as there is room")
    finally:
        world.client.patch(role, {"rules": whole["rules"]})
        wait_for(lambda: may_read_jobs(world), "the right is back")
    log = (world.control.logs / "linkwise-extender.log").read_text()
    assert log.count("no right to read Job.batch: its pods count as single pods") == 1


def may_read_jobs(world: SchedulingWorld) -> bool:
    account = "--as=system:serviceaccount:kube-system:linkwise-extender"
    asked = ("get", "--raw", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/none", account)
    try:
        world.control.kubectl(*asked)
    except KubectlError as error:
        return "cannot get resource" not in str(error)
    return True


@pytest.mark.parametrize("group", OF_OPERATORS)
def test_a_gang_as_its_operator_makes_it_starts_whole(world: SchedulingWorld, group: Group) -> None:
    pods = as_here(world, group)
    *first, last = pods
    for pod in first:
        world.client.post(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    for pod in first:
        wait_forming(world, pod["metadata"]["name"])

    world.client.post(f"/api/v1/namespaces/{NAMESPACE}/pods", last)

    world.wait_bound([pod["metadata"]["name"] for pod in pods])


def wait_forming(world: SchedulingWorld, name: str) -> None:
    """Wait until the member has been tried and its incomplete gang is known. kube-scheduler's
    answer may be from before the extender read the owner."""
    world.wait_in_gang(name)
    forming = "waits for its members"
    wait_for(lambda: forming in world.extender.explain(NAMESPACE, name), f"{name} waits", 60)


def as_here(world: SchedulingWorld, group: Group) -> list[dict[str, Any]]:
    """Create the owners of the group's pods, and refer to them by the uids that they got."""
    text = json.dumps(msgspec.to_builtins(list(group.members())))
    for made_for_it in group.objects:
        kind = next((k for k in OPERATORS if (k.group, k.kind) == kind_of(made_for_it)), None)
        if kind is None:
            continue  # no program reads it
        name = made_for_it["metadata"]["name"]
        path = kind.paths(NAMESPACE, name, made_for_it["apiVersion"].rpartition("/")[2])[0]
        body = {**made_for_it, "metadata": {"name": name, "namespace": NAMESPACE}}
        with suppress(ApiError):  # another gang of the same set has created it
            world.client.post(path.removesuffix(f"/{name}"), body)
        uid = world.client.get(path, dict[str, Any])["metadata"]["uid"]
        text = text.replace(made_for_it["metadata"]["uid"], uid)
    return [slim(pod) for pod in json.loads(text)]


def kind_of(made_for_it: dict[str, Any]) -> tuple[str, str]:
    return made_for_it["apiVersion"].rpartition("/")[0], made_for_it["kind"]


def slim(pod: dict[str, Any]) -> dict[str, Any]:
    """Return what decides about the pod's gang, for Linkwise's scheduler, on these nodes."""
    meta = pod["metadata"]
    kept = {
        key: meta[key]
        for key in ("name", "labels", "annotations", "ownerReferences")
        if key in meta
    }
    containers = [{**container, "image": "none"} for container in pod["spec"]["containers"]]
    return {"metadata": kept, "spec": {"containers": containers}}
