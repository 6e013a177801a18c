"""Planned moves with the real API server and its Eviction API, kube-scheduler, and the controllers
that recreate the evicted pods."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from linkwise.kube.controllers.workload import children
from linkwise.kube.errors import ApiError
from linkwise.pods.podgrouper.workloads.kinds import JOB_SET, PYTORCH_JOB, OwnerKind
from tests.cluster.support.api.small_objects import eviction
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.claims_world import both_ways, world_with
from tests.cluster.support.scheduling.contention import given_twice
from tests.cluster.support.scheduling.extender_process import ACCOUNT
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
    said_moved,
    template,
    terminating,
    wait_while_played,
    was_moved,
)
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    NODES,
    PODS,
    SchedulingWorld,
)
from tests.cluster.support.scheduling.workload_pods import CONTROLLERS, pods_of

IGNORES = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
COUNTS = {**IGNORES, "action": "Count"}
MOVERS = {"web", "store", "train"}
OPERATORS = JOB_SET, PYTORCH_JOB
KINDS = "deployments,replicasets,statefulsets,jobs,jobsets,pytorchjobs,poddisruptionbudgets"
STAY = NODES[1:]
LARGE_GPUS, STAYING_GPUS = 8, 2 * len(STAY)
BATCH = f"/apis/batch/v1/namespaces/{NAMESPACE}"
BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"

POLICY = "not-by-the-extender"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

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
    wait_for(lambda: not owners_deleted(started) and is_empty(started), "no owners, and no pods")


def owners_deleted(world: SchedulingWorld) -> bool:
    """Whether there were any. The Deployment controller may create a ReplicaSet again when its
    Deployment has just gone, and no garbage collector runs here."""
    said = world.control.kubectl(
        "delete", KINDS, "--all", f"-n={NAMESPACE}", "--cascade=background", "-o=name"
    )
    return "/" in said  # else: No resources found


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


def wait_active(world: SchedulingWorld, job: str) -> dict[str, Any]:
    """Return the Job's status once its controller has counted the pod that runs."""
    wait_for(lambda: job_status(world, job).get("active") == 1, "the Job counts its pod")
    return job_status(world, job)


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
    status = wait_active(world, "train")
    assert status.get("failed", 0) == 0
    assert not any(each["status"] == "True" for each in status.get("conditions", ()))
    assert not given_twice(world.pods())
    assert not world.node_of(later)


def test_pods_stay_that_do_not_consent_or_whose_move_would_count_or_is_forbidden(
    world: SchedulingWorld,
) -> None:
    """Of four pods, any of which could make room, the one goes that loses the most."""
    create_deployment(world, "silent", "n1", move_cost="100ms")
    create_job(world, "counts", "n2", COUNTS, CONSENT)
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
    assert wait_active(world, "train").get("failed", 0) == 0


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
    create_job_set(world, "set", "n1", **COSTLIER)
    create_pytorch_job(world, "torch", "n2", **CONSENT)
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


# Beside others, who scale or evict meanwhile


@pytest.mark.parametrize("create", [create_deployment, create_stateful_set])
def test_a_pod_that_moves_may_be_scaled_away_and_come_back(
    world: SchedulingWorld, create: Callable[..., None]
) -> None:
    """A Deployment's new pod has the target already, and frees it. A StatefulSet's is still to
    come: the target is kept for it."""
    earlier, before = said_moved(world), one_mover(world, create)
    large, at_once = world.create("large", gated=True), create is create_deployment
    wait_while_played(world, lambda: terminating(world) == {"web"}, "it goes", spare={"web"})
    if at_once:
        wait_while_played(world, lambda: runs(world, "web"), "its new pod runs", spare={"web"})
    kept = targets(world)
    assert len(kept) == (0 if at_once else 2)

    scale(world, create, 0)
    wait_while_played(world, lambda: world.node_of(large), "the one that waited starts")
    wait_while_played(world, lambda: not pods_of(world, "web"), "no pod is left")
    taken = LARGE_GPUS + STAYING_GPUS + len(kept)
    wait_for(lambda: len(world.taken()) == taken, "all others are free")
    assert targets(world) == kept

    scale(world, create, 1)
    wait_while_played(world, lambda: runs(world, "web"), "it is back")
    [back] = of(world, "web")
    assert was_moved(back) != at_once
    if not at_once:
        assert {*world.gpus_of(back.metadata.name)} == kept
    check_books(world, before, earlier, evicted={"web"})


def test_of_the_pods_that_a_deployment_adds_meanwhile_one_gets_the_target(
    world: SchedulingWorld,
) -> None:
    """Those that come before the eviction are placed like any others."""
    earlier, before = said_moved(world), one_mover(world, create_deployment)
    with only_others_evict(world):
        target = wait_for_target(world)
        scale(world, create_deployment, 3)
        wait_while_played(world, lambda: running(world, "web") == 3, "two more run")
        assert targets(world) == target

    wait_while_played(world, lambda: world.node_of("large"), "the one that waited starts")
    wait_while_played(world, lambda: running(world, "web") == 3, "three run")
    [got_it] = filter(was_moved, of(world, "web"))
    assert {*world.gpus_of(got_it.metadata.name)} == target
    check_books(world, before, earlier, evicted={"web"})


def test_another_program_may_evict_a_pod_that_is_to_move_and_its_replacement(
    world: SchedulingWorld,
) -> None:
    """The first replacement still gets the target, the second is placed like any other."""
    earlier, before = said_moved(world), one_mover(world, create_deployment)
    with only_others_evict(world):
        target = wait_for_target(world)
        evict(world, "web")
        wait_while_played(world, lambda: runs(world, "web"), "the first runs", spare={"web"})
        [first] = of(world, "web")
        assert {*world.gpus_of(first.metadata.name)} == target
        evict(world, "web")
        wait_while_played(world, lambda: world.node_of("large"), "the one that waited starts")

    wait_while_played(world, lambda: runs(world, "web"), "the second runs")
    [second] = of(world, "web")
    assert second.metadata.uid != first.metadata.uid
    assert not was_moved(second)
    check_books(world, before, earlier, evicted=set())


def one_mover(world: SchedulingWorld, create: Callable[..., None]) -> dict[str, str]:
    """Run a pod on each node, of which only that of n1 could move, and return their uids."""
    create(world, "web", "n1", **CONSENT)
    for node in STAY:
        create_deployment(world, f"stays-{node}", node)
    return run(world, {"web": "n1", **{f"stays-{node}": node for node in STAY}})


def wait_for_target(world: SchedulingWorld) -> set[str]:
    """Let one wait that fits if the pod on n1 moves. Return the GPUs that are reserved for that
    pod's replacement."""
    world.create("large", gated=True)
    wait_while_played(world, lambda: len(targets(world)) == 2, "the next place is reserved")
    return targets(world)


def targets(world: SchedulingWorld) -> set[str]:
    """Return the UUIDs of the GPUs that are reserved, except those of n1, where room is made."""
    return {gpu for node in STAY for gpu in reserved(world, node)}


def running(world: SchedulingWorld, app: str) -> int:
    return sum(pod.status.phase == "Running" for pod in of(world, app))


def scale(world: SchedulingWorld, create: Callable[..., None], replicas: int) -> None:
    kind = "deployment" if create is create_deployment else "statefulset"
    world.control.kubectl("scale", f"{kind}/web", f"--replicas={replicas}", f"-n={NAMESPACE}")


def evict(world: SchedulingWorld, app: str) -> None:
    [pod] = of(world, app)
    world.client.post(f"{PODS}/{pod.metadata.name}/eviction", eviction(pod.metadata.name))


@contextmanager
def only_others_evict(world: SchedulingWorld) -> Iterator[None]:
    """The API server refuses all evictions by the extender."""
    of_evictions = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["pods/eviction"],
        "operations": ["CREATE"],
    }
    by_others = f"!request.userInfo.username.endsWith(':{ACCOUNT}') && object.metadata.name != 'no'"
    policy = {
        "matchConstraints": {"resourceRules": [of_evictions]},
        "validations": [{"expression": by_others, "reason": "Forbidden"}],
    }
    kinds = {
        "validatingadmissionpolicies": policy,
        "validatingadmissionpolicybindings": {"policyName": POLICY, "validationActions": ["Deny"]},
    }
    for kind, spec in kinds.items():
        world.client.post(f"{ADMISSION}/{kind}", {"metadata": {"name": POLICY}, "spec": spec})
    try:
        wait_for(lambda: is_refused(world), "the policy is in force")
        yield
    finally:
        for kind in kinds:
            world.client.delete(f"{ADMISSION}/{kind}/{POLICY}")
        wait_for(lambda: not is_refused(world), "the policy is gone")


def is_refused(world: SchedulingWorld) -> bool:
    """Whether the policy is in force, as it refuses the eviction of a pod that does not exist."""
    try:
        world.client.post(f"{PODS}/no/eviction?dryRun=All", eviction("no"))
    except ApiError as error:
        return POLICY in str(error)
    return False


def check_books(
    world: SchedulingWorld,
    before: Mapping[str, str],
    earlier: Mapping[str, str],
    *,
    evicted: set[str],
) -> None:
    """`large` and all pods have their GPUs and nothing else is taken or reserved. The extender
    evicted these of the pods *before*, and no other."""
    pods = sum(len(of(world, app)) for app in before)
    wait_for(lambda: len(world.taken()) == LARGE_GPUS + 2 * pods, "nothing else is taken")
    assert world.node_of("large") == "n1"
    wait_for(lambda: moved(world, before).keys() >= evicted, "the Events are written")
    assert said_moved(world).keys() - earlier.keys() == {before[app] for app in evicted}
    for node in STAY:
        app = f"stays-{node}"
        assert [pod.metadata.uid for pod in of(world, app)] == [before[app]]
    assert not given_twice(world.pods())
