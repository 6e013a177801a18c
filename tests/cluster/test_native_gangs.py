"""Kubernetes' own gangs (PodGroup, beta in 1.37) in the real kube-scheduler with Linkwise's
extender: the group goes to the nodes of the plan, whole or not at all.

kube-scheduler tries such a group in one step: it asks the extender about each pod, assumes the
answers, and binds only if enough pods of the group have a node.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF, GPU
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    NODES,
    PODS,
    SchedulingWorld,
    maybe_gone,
    started_world,
)

GATES = "--feature-gates=GenericWorkload=true"
# With this gate the Job controller creates a PodGroup for each Job.
OF_JOBS = f"{GATES},WorkloadWithJob=true"
API = "scheduling.k8s.io/v1beta1"
GROUPS = f"/apis/{API}/namespaces/{NAMESPACE}/podgroups"


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    directory = run_directory / "native-gangs"
    control = ControlPlane(
        directory,
        disable_admission=ADMISSION_OFF,
        api_flags=(OF_JOBS, f"--runtime-config={API}=true"),
        controller_flags=("--controllers=job-controller,podgroup-protection-controller", OF_JOBS),
    )
    control.start()
    flags = ("--preempt=lower-priority",)
    made = SchedulingWorld(control, scheduler_flags=(GATES,), extender_flags=flags)
    with started_world(made) as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    started.control.kubectl("delete", "jobs", "--all", f"-n={NAMESPACE}", "--cascade=background")
    wait_for(lambda: is_empty(started), "no pods, and all GPUs are free")


def is_empty(world: SchedulingWorld) -> bool:
    """Wait for pods to go that a controller creates before it learns that their Job is deleted."""
    for pod in world.pods():
        unheld = {"metadata": {"finalizers": None}}
        with maybe_gone():
            world.client.patch(f"{PODS}/{pod.metadata.name}", unheld)
            world.delete(pod.metadata.name)
    return not world.taken()


def create_group(world: SchedulingWorld, name: str, policy: dict[str, Any], **more: object) -> None:
    spec = {"schedulingPolicy": policy, **more}
    world.client.post(GROUPS, {"metadata": {"name": name}, "spec": spec})


def create_member(
    world: SchedulingWorld,
    name: str,
    group: str,
    gpus: int = 8,
    priority: int = 0,
    *,
    gated: bool = False,
) -> str:
    resources = {"limits": {GPU: str(gpus)}}
    container = {"name": "main", "image": "none", "resources": resources}
    spec = {
        "containers": [container],
        "schedulingGroup": {"podGroupName": group},
        "priority": priority,
        "schedulingGates": [{"name": names.GATE}] if gated else [],
    }
    world.client.post(
        f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": name}, "spec": spec}
    )
    return name


def scheduled(world: SchedulingWorld, group: str) -> str:
    """Return kube-scheduler's status of the group; "" before it has tried the group."""
    status = world.client.get(f"{GROUPS}/{group}", dict[str, Any]).get("status", {})
    told = {each["type"]: str(each["status"]) for each in status.get("conditions", ())}
    return told.get("PodGroupInitiallyScheduled", "")


def bound(world: SchedulingWorld, names: list[str]) -> list[str]:
    return [name for name in names if world.node_of(name)]


def test_a_native_gang_starts_whole_at_the_places_of_our_plan(world: SchedulingWorld) -> None:
    create_group(world, "train", {"gang": {"minCount": 4}})
    members = [create_member(world, f"train-{rank}", "train") for rank in range(4)]
    world.wait_bound(members)
    assert sorted(world.node_of(name) for name in members) == list(NODES)
    assert all(len(world.gpus_of(name)) == 8 for name in members)
    wait_for(lambda: scheduled(world, "train") == "True", "kube-scheduler says it was one group")


def test_a_native_gang_of_small_pods_shares_the_closest_gpus(world: SchedulingWorld) -> None:
    create_group(world, "close", {"gang": {"minCount": 4}})
    members = [create_member(world, f"close-{rank}", "close", gpus=2) for rank in range(4)]
    world.wait_bound(members)
    assert len({world.node_of(name) for name in members}) == 1
    assert len({gpu for name in members for gpu in world.gpus_of(name)}) == 8


def test_a_native_gang_without_room_takes_none_and_starts_once_there_is(
    world: SchedulingWorld,
) -> None:
    world.create("occupant", gpus=8)
    world.wait_bound(["occupant"])
    create_group(world, "large", {"gang": {"minCount": 4}})
    members = [create_member(world, f"large-{rank}", "large") for rank in range(4)]
    wait_for(lambda: all(world.reason(name) for name in members), "all were tried", 60)
    wait_for(
        lambda: "no room for the whole gang" in world.extender.explain(NAMESPACE, members[0]),
        "it is known that there is no room",
    )
    wait_for(lambda: scheduled(world, "large") == "False", "the group was tried as one")
    assert bound(world, members) == []

    world.delete("occupant")

    # kube-scheduler puts the whole group off, for longer each time.
    wait_for(lambda: bound(world, members) == members, "all are bound", 60)
    wait_for(lambda: scheduled(world, "large") == "True", "the group was scheduled as one")


def test_a_native_gang_starts_with_its_minimum_and_grows(world: SchedulingWorld) -> None:
    world.create("occupant", gpus=8)
    world.wait_bound(["occupant"])
    create_group(world, "elastic", {"gang": {"minCount": 2}})
    members = [create_member(world, f"elastic-{rank}", "elastic") for rank in range(4)]
    wait_for(lambda: len(bound(world, members)) == 3, "as many run as there is room for", 60)

    world.delete("occupant")

    wait_for(lambda: bound(world, members) == members, "all are bound", 60)


def test_a_group_of_another_priority_than_its_pods_holds_nothing_and_says_why(
    world: SchedulingWorld,
) -> None:
    world.wait_bound([world.create("first")])  # so the extender knows that this scheduler calls
    world.delete("first")
    create_group(world, "forgotten", {"gang": {"minCount": 2}})
    members = [
        create_member(world, f"forgotten-{rank}", "forgotten", priority=100) for rank in range(2)
    ]
    why = "default-scheduler refuses its PodGroup: all pods in a single pod group should have the"
    told = f"GangWaiting: gang {NAMESPACE}/PodGroup.scheduling.k8s.io/forgotten: {why}"
    wait_for(lambda: any(told in text for text in world.events(members[0])), told, 30)
    assert "should have the same priority" in world.extender.explain(NAMESPACE, members[0])

    others = [world.create(f"other-{number}") for number in range(4)]

    world.wait_bound(others)
    assert [world.nominated(name) for name in members] == ["", ""]


def test_none_is_evicted_for_a_group_of_another_priority_than_its_pods(
    world: SchedulingWorld,
) -> None:
    humble = [world.create(f"humble-{number}", priority=1) for number in range(4)]
    world.wait_bound(humble)
    create_group(world, "mistaken", {"gang": {"minCount": 2}}, priority=0)
    members = [
        create_member(world, f"mistaken-{rank}", "mistaken", priority=100, gated=rank == 0)
        for rank in range(2)
    ]
    # The gate of the first one is lifted without a plan, so kube-scheduler says why it waits.
    for name in members:
        world.wait_waiting(name, "should have the same priority")
    wait_for(
        lambda: "should have the same priority" in world.extender.explain(NAMESPACE, members[0]),
        "the extender says it too",
    )
    assert all(world.node_of(name) for name in humble)
    assert [world.nominated(name) for name in members] == ["", ""]


def test_only_linkwise_evicts_for_a_native_gang_and_then_it_starts_whole(
    world: SchedulingWorld,
) -> None:
    humble = [world.create(f"humble-{number}", priority=1) for number in range(4)]
    world.wait_bound(humble)
    create_group(world, "urgent", {"gang": {"minCount": 2}}, priority=1000)
    members = [create_member(world, f"urgent-{rank}", "urgent", priority=1000) for rank in range(2)]

    def all_bound() -> bool:
        world.bury_terminating()
        return bound(world, members) == members

    wait_for(all_bound, "the gang is bound", 60)
    assert len(world.pods()) == 4
    assert any(
        text.startswith("OthersEvicted: ") for name in members for text in world.events(name)
    )


def test_a_group_that_is_disrupted_as_a_whole_keeps_no_pod_from_preempting_elsewhere(
    world: SchedulingWorld,
) -> None:
    """kube-scheduler names all members for each of their nodes, and takes no answer with a victim
    that is on another node."""
    create_group(world, "whole", {"gang": {"minCount": 2}}, disruptionMode={"all": {}}, priority=1)
    members = [create_member(world, f"whole-{rank}", "whole", priority=1) for rank in range(2)]
    world.wait_bound(members)
    alone = [world.create(f"alone-{number}", priority=2) for number in range(2)]
    world.wait_bound(alone)
    world.create("top", priority=1000)

    def is_bound() -> bool:
        world.bury_terminating()
        return bool(world.node_of("top"))

    wait_for(is_bound, "the pod has preempted", 60)
    assert bound(world, members) == members


def test_members_of_a_group_that_is_not_there_yet_wait_for_it(world: SchedulingWorld) -> None:
    members = [create_member(world, f"early-{rank}", "early") for rank in range(2)]
    wait_for(
        lambda: "does not exist" in world.extender.explain(NAMESPACE, members[0]),
        "the extender waits for the group",
    )
    create_group(world, "early", {"gang": {"minCount": 2}})
    world.wait_bound(members)


def test_pods_of_a_basic_group_go_one_by_one(world: SchedulingWorld) -> None:
    create_group(world, "shards", {"basic": {}})
    members = [create_member(world, f"shards-{rank}", "shards") for rank in range(6)]
    wait_for(lambda: len(bound(world, members)) == 4, "as many run as there is room for")


@pytest.mark.parametrize(
    "scheduling",
    [{}, {"scheduling": {"schedulingPolicy": {"gang": {}}}}],
    ids=["a basic group, which the Job did not choose", "a gang, which the Job chose"],
)
def test_a_job_whose_controller_makes_the_group_is_one_gang(
    world: SchedulingWorld, scheduling: dict[str, object]
) -> None:
    template = {
        "metadata": {"labels": {"app": "lm"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {GPU: "8"}}}],
        },
    }
    spec = {
        "completions": 4,
        "parallelism": 4,
        "completionMode": "Indexed",
        "template": template,
        **scheduling,
    }
    world.create("occupant", gpus=8)
    world.wait_bound(["occupant"])
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    world.client.post(jobs, {"metadata": {"name": "lm"}, "spec": spec})
    wait_for(lambda: len(world.pods()) == 5, "the Job has its pods")
    members = [pod.metadata.name for pod in world.pods() if pod.metadata.name != "occupant"]
    assert all(pod.spec.scheduling_group for pod in world.pods() if pod.metadata.name in members)
    wait_for(
        lambda: "no room for the whole gang" in world.extender.explain(NAMESPACE, members[0]),
        "it is known that there is no room",
    )
    assert bound(world, members) == []

    world.delete("occupant")

    wait_for(lambda: bound(world, members) == members, "all are bound", 60)
    (gang,) = [
        line for line in world.extender.get("/gangs?format=text").splitlines() if "lm" in line
    ]
    assert "Job.batch/lm" in gang


# Kubernetes 1.37 has these off: groups of groups, and a group in one domain of the network.
OF_GROUPS = f"{GATES},TopologyAwareWorkloadScheduling=true,CompositePodGroup=true"
ALPHA = "scheduling.k8s.io/v1alpha3"  # which alone has CompositePodGroups
RACK = "example.com/rack"
RACKS = {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r2"}


@pytest.fixture(scope="module")
def with_racks(run_directory: Path) -> Iterator[SchedulingWorld]:
    control = ControlPlane(
        run_directory / "groups-of-groups",
        disable_admission=ADMISSION_OFF,
        api_flags=(OF_GROUPS, f"--runtime-config={API}=true,{ALPHA}=true"),
        controller_flags=("--controllers=podgroup-protection-controller", OF_GROUPS),
    )
    control.start()
    labels = {node: {RACK: rack} for node, rack in RACKS.items()}
    made = SchedulingWorld(control, scheduler_flags=(OF_GROUPS,), labels=labels)
    with started_world(made) as world:
        yield world


@pytest.fixture
def racks(with_racks: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield with_racks
    wait_for(lambda: is_empty(with_racks), "no pods, and all GPUs are free")


def create_composite(world: SchedulingWorld, name: str, **groups: int) -> None:
    """A group of the *groups*, each with its number of pods; and the Workload of both."""
    policies = {group: {"gang": {"minCount": least}} for group, least in groups.items()}
    policy = {"gang": {"minGroupCount": len(groups)}}
    leaves = [{"name": group, "schedulingPolicy": said} for group, said in policies.items()]
    template = {"name": name, "schedulingPolicy": policy, "podGroupTemplates": leaves}
    within = f"namespaces/{NAMESPACE}"
    world.client.post(
        f"/apis/{ALPHA}/{within}/workloads",
        {"metadata": {"name": name}, "spec": {"compositePodGroupTemplates": [template]}},
    )
    spec = {
        "workloadRef": {"workloadName": name, "templateName": name},
        "schedulingPolicy": policy,
    }
    world.client.post(
        f"/apis/{ALPHA}/{within}/compositepodgroups", {"metadata": {"name": name}, "spec": spec}
    )
    for group, said in policies.items():
        create_group(
            world,
            group,
            said,
            parentCompositePodGroupName=name,
            workloadRef={"workloadName": name, "templateName": group},
        )


def test_the_groups_of_a_composite_group_start_together(racks: SchedulingWorld) -> None:
    occupants = [racks.create(f"occupant-{number}") for number in range(2)]
    racks.wait_bound(occupants)
    create_composite(racks, "serve", prefill=1, decode=2)
    members = [
        create_member(racks, "prefill-0", "prefill"),
        *(create_member(racks, f"decode-{rank}", "decode") for rank in range(2)),
    ]
    wait_for(
        lambda: all(
            "no room for the whole gang" in racks.extender.explain(NAMESPACE, name)
            for name in members
        ),
        "there is no room for both groups",
    )
    gang = f"gang {NAMESPACE}/CompositePodGroup.scheduling.k8s.io/serve"
    assert all(gang in racks.extender.explain(NAMESPACE, name) for name in members)
    assert bound(racks, members) == []

    racks.delete(occupants[0])

    wait_for(lambda: bound(racks, members) == members, "all are bound", 60)


def test_a_group_with_a_topology_constraint_goes_into_one_rack(racks: SchedulingWorld) -> None:
    racks.place("occupant-1", "n1", gpus=8)
    racks.place("occupant-3", "n3", gpus=8)
    topology = {"topology": [{"key": RACK}]}
    create_group(racks, "close", {"gang": {"minCount": 2}}, schedulingConstraints=topology)
    members = [create_member(racks, f"close-{rank}", "close") for rank in range(2)]
    wait_for(lambda: RACK in racks.extender.explain(NAMESPACE, members[0]), "no rack has room")
    assert bound(racks, members) == []

    racks.delete("occupant-3")

    wait_for(lambda: bound(racks, members) == members, "all are bound", 60)
    assert {racks.node_of(name) for name in members} == {"n3", "n4"}
