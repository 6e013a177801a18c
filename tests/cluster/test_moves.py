"""Planned moves with the real API server and its Eviction API, kube-scheduler, and the controllers
that recreate the evicted pods."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from linkwise.kube.controllers.workload import children
from linkwise.pods.podgrouper.workloads.kinds import JOB_SET, PYTORCH_JOB, OwnerKind
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.claims_world import both_ways, world_with
from tests.cluster.support.scheduling.contention import given_twice
from tests.cluster.support.scheduling.movable_pods import (
    APPS,
    CONSENT,
    COSTLIER,
    create_deployment,
    is_empty,
    moved,
    of,
    reserved,
    run,
    runs,
    template,
    terminating,
    wait_while_played,
)
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    PODS,
    SchedulingWorld,
)
from tests.cluster.support.scheduling.workload_pods import CONTROLLERS

IGNORES = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
COUNTS = {**IGNORES, "action": "Count"}
MOVERS = {"web", "store", "train"}
OPERATORS = JOB_SET, PYTORCH_JOB
KINDS = "deployments,replicasets,statefulsets,jobs,jobsets,pytorchjobs,poddisruptionbudgets"
BATCH = f"/apis/batch/v1/namespaces/{NAMESPACE}"
BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"


pytestmark = both_ways


@pytest.fixture(scope="module")
def started(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[SchedulingWorld]:
    with world_with(
        request.param,
        run_directory / "moves",
        controllers=(CONTROLLERS, "disruption-controller"),
        kinds=OPERATORS,
        extender_flags=("--moves=consent", "--move-cost=1s"),
    ) as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    started.control.kubectl("delete", KINDS, "--all", f"-n={NAMESPACE}", "--cascade=background")
    wait_for(lambda: is_empty(started), "no pods, and all GPUs are free")


def create_stateful_set(world: SchedulingWorld, app: str, node: str, **said: str) -> None:
    selector = {"matchLabels": {"app": app}}
    spec = {
        "serviceName": app,
        "selector": selector,
        "template": template(world, app, node, **said),
    }
    world.client.post(f"{APPS}/statefulsets", {"metadata": {"name": app}, "spec": spec})


def create_job(
    world: SchedulingWorld,
    app: str,
    node: str,
    rule: Mapping[str, Any],
    said: Mapping[str, str],
    *,
    pods: int = 1,
) -> None:
    """With several *pods*, they are a gang."""
    made = template(world, app, node, **said)
    made["spec"]["restartPolicy"] = "Never"
    spec = {"template": made, "backoffLimit": 0, "podFailurePolicy": {"rules": [rule]}}
    if pods > 1:
        spec |= {"completionMode": "Indexed", "completions": pods, "parallelism": pods}
    world.client.post(f"{BATCH}/jobs", {"metadata": {"name": app}, "spec": spec})


def create_job_set(world: SchedulingWorld, app: str, node: str, **said: str) -> None:
    """Two Jobs of one pod each: one gang."""
    made = template(world, app, node, **said)
    made["spec"]["restartPolicy"] = "Never"
    job = {"backoffLimit": 0, "podFailurePolicy": {"rules": [IGNORES]}, "template": made}
    both = {"name": "node", "replicas": 2, "template": {"spec": job}}
    create_by_operator(world, JOB_SET, app, {"replicatedJobs": [both]})


def create_pytorch_job(world: SchedulingWorld, app: str, node: str, **said: str) -> None:
    """A master and a worker: one gang."""
    role = {"replicas": 1, "restartPolicy": "Never", "template": template(world, app, node, **said)}
    spec = {"pytorchReplicaSpecs": {"Master": role, "Worker": role}}
    create_by_operator(world, PYTORCH_JOB, app, spec)


def create_by_operator(
    world: SchedulingWorld, kind: OwnerKind, name: str, spec: Mapping[str, Any]
) -> None:
    """Create the object, and what its operator creates: no operator runs here. Of a JobSet these
    are Jobs, whose pods the Job controller creates, and creates again."""
    path = kind.paths(NAMESPACE, name)[0]
    said = {"apiVersion": f"{kind.group}/{kind.versions[0]}", "kind": kind.kind}
    body = {**said, "metadata": {"name": name}, "spec": spec}
    world.client.post(path.removesuffix(f"/{name}"), body)
    stored = world.client.get(path, dict[str, Any])
    for child in children(stored, {}):
        collection = PODS if child.body["kind"] == "Pod" else f"{BATCH}/jobs"
        world.client.post(collection, child.body)


def job_status(world: SchedulingWorld, job: str) -> dict[str, Any]:
    found: dict[str, Any] = world.client.get(f"{BATCH}/jobs/{job}", dict)
    return dict(found["status"])


def test_pods_of_three_controllers_move_and_a_gang_starts_whole(world: SchedulingWorld) -> None:
    """All GPUs are taken in the end, so that every pod has exactly the place that was meant."""
    before = three_movers(world)
    gang = world.create_gang("large", 3)
    wait_while_played(world, lambda: terminating(world) == MOVERS, "they go", spare=MOVERS)
    # A Deployment makes a new pod at once, the others once the old one has ended.
    wait_while_played(world, lambda: runs(world, "web"), "one is there already", spare=MOVERS)
    targets = reserved(world, "n4")
    assert len(targets) == 4
    # The API server's times are whole seconds. Of equal ones, names decide.
    later = world.create("zealot", gpus=2)
    world.wait_waiting(later, "reserved for ")

    wait_while_played(world, lambda: all(map(world.node_of, gang)), "the gang starts")
    # A Job waits for 10 s before it replaces a pod that has failed.
    wait_while_played(world, lambda: all(runs(world, app) for app in MOVERS), "all run again")

    assert sorted(map(world.node_of, gang)) == ["n1", "n2", "n3"]
    after = {app: pod for app in before for pod in of(world, app)}
    assert {pod.spec.node_name for pod in after.values()} == {"n4"}
    found = {gpu for app in ("store", "train") for gpu in world.gpus_of(after[app].metadata.name)}
    assert found == targets
    assert {app for app, uid in before.items() if after[app].metadata.uid != uid} == MOVERS
    wait_for(lambda: len(moved(world, before)) >= len(MOVERS), "the Events are written")
    place = "this pod's next place is reserved on n4"
    assert moved(world, before) == dict.fromkeys(
        MOVERS, f"evicted to make room for gang ml/large: {place}"
    )
    status = job_status(world, "train")
    assert (status.get("failed", 0), status["active"]) == (0, 1)
    assert not any(each["status"] == "True" for each in status.get("conditions", ()))
    assert not given_twice(world.pods())
    assert not world.node_of(later)


def test_pods_stay_that_do_not_consent_or_whose_move_would_count_or_is_forbidden(
    world: SchedulingWorld,
) -> None:
    """Of four pods, any of which could make room, the one goes that loses the most."""
    create_deployment(world, "silent", "n1", move_cost="100ms")
    create_job(world, "counts", "n2", COUNTS, {**CONSENT, "expected_duration": "1h"})
    create_deployment(world, "guarded", "n3", **CONSENT)
    create_deployment(world, "web", "n4", **COSTLIER)
    guard = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}
    world.client.post(BUDGETS, {"metadata": {"name": "guard"}, "spec": guard})
    wait_while_played(world, lambda: is_judged(world, "guard"), "the budget protects its pod")
    before = run(world, {"silent": "n1", "counts": "n2", "guarded": "n3", "web": "n4"})

    large = world.create("large", gated=True)
    wait_while_played(world, lambda: world.node_of(large), "it starts")
    wait_while_played(world, lambda: runs(world, "web"), "the one that moved runs again")

    assert world.node_of(large) == "n4"
    wait_for(lambda: moved(world, before), "the Event is written")
    assert moved(world, before).keys() == {"web"}
    for app in ("silent", "counts", "guarded"):
        assert [pod.metadata.uid for pod in of(world, app)] == [before[app]]
    assert not given_twice(world.pods())


def test_all_run_again_if_the_extender_dies_after_the_evictions(world: SchedulingWorld) -> None:
    """The next one keeps the targets."""
    three_movers(world)
    gang = world.create_gang("large", 3)
    wait_while_played(world, lambda: terminating(world) == MOVERS, "they go", spare=MOVERS)
    world.extender.process.kill()
    world.extender.start()

    def all_run() -> bool:
        pods = world.pods()
        assert not given_twice(pods)
        return all(map(world.node_of, gang)) and all(runs(world, app) for app in MOVERS)

    wait_while_played(world, all_run, "the gang and the three run")
    status = job_status(world, "train")
    assert (status.get("failed", 0), status["active"]) == (0, 1)


def test_a_gang_moves_as_a_whole(world: SchedulingWorld) -> None:
    create_job(world, "gang", "n1", IGNORES, CONSENT, pods=2)
    stay = ("n2", "n3", "n4")
    for node in stay:
        create_deployment(world, f"stays-{node}", node)
    wait_while_played(world, lambda: len(of(world, "gang")) == 2, "both members are there")
    run(world, {"gang": "n1", **{f"stays-{node}": node for node in stay}})
    before = {pod.metadata.uid for pod in of(world, "gang")}

    large = world.create("large", gated=True)
    wait_while_played(world, lambda: world.node_of(large), "it starts")

    wait_while_played(world, lambda: both_run(world, "gang"), "the gang runs again")
    after = of(world, "gang")
    assert world.node_of(large) == "n1"
    assert before.isdisjoint(pod.metadata.uid for pod in after)
    assert len({pod.spec.node_name for pod in after}) == 1
    assert job_status(world, "gang").get("failed", 0) == 0
    assert not given_twice(world.pods())


def test_a_gang_of_a_job_set_moves_and_one_whose_operator_may_not_recreate_it_stays(
    world: SchedulingWorld,
) -> None:
    """Both consent, and the one that stays would lose less. They say how long they run: else their
    ends are estimated by what other tests have run."""
    create_job_set(world, "set", "n1", **COSTLIER, expected_duration="1h")
    create_pytorch_job(world, "torch", "n2", **CONSENT, expected_duration="1h")
    for node in ("n3", "n4"):
        create_deployment(world, f"stays-{node}", node)
    wait_while_played(world, lambda: len(of(world, "set")) == 2, "both members are there")
    run(world, {"set": "n1", "torch": "n2", "stays-n3": "n3", "stays-n4": "n4"})
    before = {app: {pod.metadata.uid for pod in of(world, app)} for app in ("set", "torch")}

    large = world.create("large", gated=True)
    wait_while_played(world, lambda: world.node_of(large), "it starts")
    wait_while_played(world, lambda: both_run(world, "set"), "the gang runs again")

    after = {app: {pod.metadata.uid for pod in of(world, app)} for app in before}
    assert world.node_of(large) == "n1"
    assert before["set"].isdisjoint(after["set"])
    assert len({pod.spec.node_name for pod in of(world, "set")}) == 1
    assert all(job_status(world, f"set-node-{each}").get("failed", 0) == 0 for each in (0, 1))
    assert after["torch"] == before["torch"]
    assert not given_twice(world.pods())


def three_movers(world: SchedulingWorld) -> dict[str, str]:
    """Run a pod on each node, of which three could move to the fourth, and return their uids."""
    create_deployment(world, "web", "n1", **CONSENT)
    create_stateful_set(world, "store", "n2", **CONSENT)
    create_job(world, "train", "n3", IGNORES, CONSENT)
    create_deployment(world, "stays", "n4")
    return run(world, {"web": "n1", "store": "n2", "train": "n3", "stays": "n4"})


def both_run(world: SchedulingWorld, gang: str) -> bool:
    return [pod.status.phase for pod in of(world, gang)] == ["Running"] * 2


def is_judged(world: SchedulingWorld, budget: str) -> bool:
    found = world.client.get(f"{BUDGETS}/{budget}", dict[str, Any])["status"]
    return bool(found.get("currentHealthy") == 1 and found["disruptionsAllowed"] == 0)
