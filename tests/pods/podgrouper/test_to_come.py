"""The members that an owner creates only after others run are foretold as they will be."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from linkwise.kube.controllers.workload import pods_of
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import (
    Member,
    Missing,
    NoGang,
    ObjectRef,
    Recognised,
    RoleToCome,
)
from linkwise.pods.podgrouper.workloads.essence import essence
from tests.pods.podgrouper.pods import Object, broken, owner, pod, ref_of, template

LWS = "leaderworkerset.sigs.k8s.io/"
JOB_SET = "jobset.sigs.k8s.io/"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
RACK = "topology.example.com/rack"


def said(size: int, name: str = "train") -> dict[str, str]:
    return {"linkwise.dev/gang": name, "linkwise.dev/gang-size": str(size)}


def replicated(name: str, pods: int, replicas: int = 1, **more: Any) -> Object:
    gpus = more.pop("gpus", 8)
    made = more.pop("template", None) or template(gpus)
    job = {"spec": {"parallelism": pods, "completions": pods, "template": made}}
    return {"name": name, "replicas": replicas, "template": job, **more}


def job_set(*jobs: Object, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    made = owner("jobset.x-k8s.io/v1alpha2 JobSet", "run", {"replicatedJobs": list(jobs), **spec})
    made["metadata"]["annotations"] = annotations or {}
    return made


def lws(
    size: int = 3,
    annotations: dict[str, str] | None = None,
    workers: Object | None = None,
    **spec: Any,
) -> Object:
    within = {"size": size, "workerTemplate": workers or template(8), **spec.pop("within", {})}
    spec = {"replicas": 1, "leaderWorkerTemplate": within, **spec}
    made = owner("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", "vllm", spec)
    made["metadata"]["annotations"] = annotations or {}
    return made


def volcano(*tasks: Object) -> Object:
    return owner("batch.volcano.sh/v1alpha1 Job", "tf", {"queue": "research", "tasks": list(tasks)})


def task(name: str, replicas: int, *depends_on: str) -> Object:
    made = {"name": name, "replicas": replicas, "template": template(8)}
    return made | ({"dependsOn": {"name": list(depends_on)}} if depends_on else {})


def mpi_job(**spec: Any) -> Object:
    replicas = {
        "Launcher": {"replicas": 1, "template": template(0)},
        "Worker": {"replicas": 4, "template": template(8)},
    }
    spec = {"mpiReplicaSpecs": replicas, "launcherCreationPolicy": "WaitForWorkersReady", **spec}
    return owner("kubeflow.org/v2beta1 MPIJob", "hvd", spec)


def stateful_set(replicas: int = 4, **spec: Any) -> Object:
    made = {"replicas": replicas, "template": template(8, annotations=said(4)), **spec}
    return owner("apps/v1 StatefulSet", "web", made)


IN_ORDER = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
INITIALIZED = job_set(
    replicated("init", 1, gpus=0),
    replicated("node", 2, dependsOn=[{"name": "init", "status": "Complete"}]),
    replicated("report", 1, dependsOn=[{"name": "node", "status": "Ready"}]),
)
SEVERAL_KINDS: dict[str, tuple[Object, tuple[str, ...]]] = {
    "JobSet InOrder": (
        job_set(replicated("driver", 1), replicated("workers", 2, replicas=2), **IN_ORDER),
        ("workers",),
    ),
    "JobSet dependsOn": (
        job_set(
            replicated("driver", 1),
            replicated("workers", 4, dependsOn=[{"name": "driver", "status": "Ready"}]),
        ),
        ("workers",),
    ),
    "JobSet after an initializer": (INITIALIZED, ("report",)),
    "LWS LeaderReady": (lws(startupPolicy="LeaderReady"), ("worker",)),
    "LWS in one domain": (lws(annotations={LWS + "exclusive-topology": RACK}), ("worker",)),
    "LWS with subgroups": (
        lws(5, startupPolicy="LeaderReady", within={"subGroupPolicy": {"subGroupSize": 2}}),
        ("worker",),
    ),
    "Volcano dependsOn": (volcano(task("worker", 2, "master"), task("master", 1)), ("worker",)),
    "MPIJob": (mpi_job(), ("launcher",)),
    "MPIJob whose launcher works": (mpi_job(runLauncherAsWorker=True), ("launcher",)),
}


def made_pod(name: str, **more: Any) -> Pod:
    return msgspec.convert(pod(name, **more), Pod)


def made_of(made: Object) -> list[Pod]:
    return [msgspec.convert(each.body, Pod) for each in pods_of(made, {}).pods]


def recognised(pods: Iterable[Pod], made: Object) -> list[Recognised]:
    """Those of them that are in a gang; by all that the API server has, and by what is kept."""
    found = []
    for each in pods:
        answer = recognise(each, {ref_of(made): made})
        assert recognise(each, {ref_of(made): essence(made)}) == answer
        if isinstance(answer, Recognised):
            found.append(answer)
    return found


def members(to_come: Iterable[RoleToCome]) -> list[Member]:
    return [member for role in to_come for member in role.members]


@pytest.mark.parametrize("kind", SEVERAL_KINDS)
def test_those_to_come_are_foretold_as_they_are_recognised_once_they_exist(kind: str) -> None:
    made, late = SEVERAL_KINDS[kind]
    answers = recognised(made_of(made), made)
    exist = [answer.member for answer in answers if answer.member.role in late]
    for answer in answers:
        assert answer.to_come == answers[0].to_come
        assert members(answer.to_come) == exist
        assert answer.minimum == answer.size == len(answers)
        assert answer.waves == (len(answers) - len(exist), len(exist))
    assert all(role.gpus is not kind.startswith("MPIJob") for role in answers[0].to_come)


def test_a_gang_whose_pods_all_exist_at_once_has_none_to_come() -> None:
    made = job_set(replicated("driver", 1), replicated("workers", 2))
    assert all(answer.to_come == () for answer in recognised(made_of(made), made))


def test_nodes_are_ranked_without_the_initializer_that_ends_before_they_begin() -> None:
    init, *nodes = made_of(INITIALIZED)
    answers = recognised(nodes, INITIALIZED)
    assert [answer.member.rank for answer in answers] == [0, 1, 2]
    assert [answer.waves for answer in answers] == [(2, 1)] * 3
    alone = recognise(init, {ref_of(INITIALIZED): INITIALIZED})
    assert isinstance(alone, NoGang)
    assert alone.because == "JobSet.jobset.x-k8s.io ml/run runs init by itself"


def test_what_ends_first_is_a_gang_of_its_own_and_what_begins_at_once_beside_it_foretells() -> None:
    done = [{"name": "load", "status": "Complete"}]
    made = job_set(
        replicated("load", 3), replicated("server", 1), replicated("node", 2, dependsOn=done)
    )
    answers = recognised(made_of(made), made)
    load, server, node = answers[0], answers[3], answers[5]
    assert (load.size, load.gang.part, load.to_come) == (3, "load", ())
    assert (server.size, server.gang.part, server.member.rank) == (3, "", 0)
    assert server.gang == node.gang
    assert [member.rank for member in members(server.to_come)] == [1, 2]


def test_what_ends_after_another_has_ended_is_a_third_gang() -> None:
    made = job_set(
        replicated("a", 2),
        replicated("b", 2, dependsOn=[{"name": "a", "status": "Complete"}]),
        replicated("c", 2, dependsOn=[{"name": "b", "status": "Complete"}]),
    )
    parts = [answer.gang.part for answer in recognised(made_of(made), made)]
    assert parts == ["a", "a", "b", "b", "", ""]


# Pods of one domain.


def test_workers_of_an_exclusive_group_come_once_its_leader_has_a_node_in_its_domain() -> None:
    made, _ = SEVERAL_KINDS["LWS in one domain"]
    (leader, *_) = recognised(made_of(made), made)
    assert (leader.require, leader.waves) == ((RACK,), (1, 2))
    assert leader.because.endswith(f"has 3 pods in one {RACK}")


def test_workers_to_come_have_the_affinity_of_their_subgroup() -> None:
    made = lws(
        5,
        {LWS + "subgroup-exclusive-topology": RACK},
        startupPolicy="LeaderReady",
        within={"subGroupPolicy": {"subGroupSize": 2}},
    )
    (leader, *_) = recognised(made_of(made), made)
    assert [len(role.members) for role in leader.to_come] == [2, 2]
    labels = [role.template["metadata"]["labels"] for role in leader.to_come]  # type: ignore[index]
    assert [each[LWS + "subgroup-index"] for each in labels] == ["0", "1"]
    assert len({each[LWS + "subgroup-key"] for each in labels}) == 2


@pytest.mark.parametrize("of_set", [True, False])
def test_of_an_exclusive_job_the_pods_after_the_first_come_once_that_has_a_node(
    of_set: bool,
) -> None:
    job = replicated("node", 3, replicas=2)
    marks = {EXCLUSIVE: RACK}
    if not of_set:
        job["template"]["metadata"] = {"annotations": marks}
    made = job_set(job, annotations=marks if of_set else {})
    answers = recognised(made_of(made), made)
    first = answers[0]
    assert (first.size, first.minimum, first.waves) == (6, 6, (2, 4))
    assert all(answer.to_come == first.to_come for answer in answers)
    assert [role.members for role in first.to_come] == [
        tuple(answer.member for answer in answers[1:3]),
        tuple(answer.member for answer in answers[4:6]),
    ]
    pods = [msgspec.convert(role.template, Pod) for role in first.to_come]
    keys = [pod.metadata.labels[JOB_SET + "job-key"] for pod in pods]
    assert keys[0] == "7cb7662963f7863e81f6220ce2d2cce5ebbcb123"
    affinity = pods[0].spec.affinity
    assert affinity is not None
    assert affinity.pod_affinity is not None
    (term,) = affinity.pod_affinity.required_during_scheduling_ignored_during_execution
    assert term.topology_key == RACK
    assert term.label_selector is not None
    assert term.label_selector.match_expressions[0].values == (keys[0],)


def test_exclusive_jobs_by_node_selectors_exist_at_once() -> None:
    marks = {EXCLUSIVE: RACK, "alpha.jobset.sigs.k8s.io/node-selector": "true"}
    made = job_set(replicated("node", 3, replicas=2), annotations=marks)
    assert all(answer.to_come == () for answer in recognised(made_of(made), made))


# Gangs that their pods name.


@pytest.mark.parametrize("first", [0, 3])
def test_pods_of_a_stateful_set_that_makes_them_one_by_one_are_to_come(first: int) -> None:
    made = stateful_set(ordinals={"start": first})
    answers = recognised(made_of(made), made)
    assert members(answers[0].to_come) == [answer.member for answer in answers[1:]]
    assert all(answer.to_come == answers[0].to_come for answer in answers)
    assert answers[0].waves == (1, 3)


@pytest.mark.parametrize("spec", [{"podManagementPolicy": "Parallel"}, {"replicas": 1}])
def test_a_stateful_set_that_makes_all_at_once_or_one_pod_has_none_to_come(spec: Object) -> None:
    made = stateful_set(**spec)
    assert recognised(made_of(made), made)[0].to_come == ()


def test_late_roles_of_a_named_gang_are_to_come() -> None:
    named = template(8, annotations=said(3))
    made = lws(workers=named, startupPolicy="LeaderReady")
    answers = recognised(made_of(made), made)
    assert {answer.rule for answer in answers} == {"linkwise.dev"}
    assert members(answers[0].to_come) == [answer.member for answer in answers[1:]]
    assert (answers[0].minimum, answers[0].waves) == (3, (1, 2))


def test_only_those_whose_template_names_the_gang_are_to_come() -> None:
    named = template(8, annotations=said(2))
    made = lws(within={"leaderTemplate": named}, startupPolicy="LeaderReady")
    assert recognised(made_of(made)[:1], made)[0].to_come == ()


def test_a_named_gang_of_a_whole_exclusive_group_is_in_one_domain() -> None:
    named = template(8, annotations=said(3))
    made = lws(workers=named, annotations={LWS + "exclusive-topology": RACK})
    answers = recognised(made_of(made), made)
    assert {answer.require for answer in answers} == {(RACK,)}


def test_roles_of_a_named_gang_that_run_after_one_has_ended_are_to_come_for_each_member() -> None:
    named = template(8, annotations=said(4))
    ended = [{"name": "load", "status": "Complete"}]
    made = job_set(
        replicated("load", 2, template=named),
        replicated("node", 2, template=named, dependsOn=ended),
    )
    answers = recognised(made_of(made), made)
    assert all(answer.to_come == answers[0].to_come for answer in answers)
    assert members(answers[0].to_come) == [answer.member for answer in answers[2:]]


# Groups that their pods name.


@pytest.mark.parametrize("least", [3, 6])
def test_members_to_come_count_in_a_group_of_pods_of_several_owners(least: int) -> None:
    group = owner("scheduling.x-k8s.io/v1alpha1 PodGroup", "g", {"minMember": least})
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    made = lws(workers=template(8, labels=labels), startupPolicy="LeaderReady")
    objects = {ref_of(each): each for each in (made, group)}
    answers = [recognise(each, objects) for each in made_of(made)]
    for answer in answers:
        assert isinstance(answer, Recognised)
        assert (answer.rule, answer.minimum) == ("coscheduling", least)
        assert members(answer.to_come) == [each.member for each in answers[1:]]  # type: ignore[union-attr]


def test_a_group_that_has_enough_without_those_to_come_does_not_wait_for_them() -> None:
    tasks = task("master", 2), task("worker", 4, "master")
    group = owner("scheduling.x-k8s.io/v1alpha1 PodGroup", "g", {"minMember": 2})
    made = volcano(*tasks)
    for each in made["spec"]["tasks"]:
        each["template"]["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g"}
    objects = {ref_of(each): each for each in (made, group)}
    answer = recognise(made_of(made)[0], objects)
    assert isinstance(answer, Recognised)
    assert (answer.minimum, answer.to_come) == (2, ())


# Generations of a Deployment.


def deployment(replicas: int | None = 4, **words: str) -> Object:
    words = {f"linkwise.dev/{key.replace('_', '-')}": text for key, text in words.items()}
    spec: Object = {"template": template(8, annotations={**said(4), **words})}
    if replicas is not None:
        spec["replicas"] = replicas
    return owner("apps/v1 Deployment", "serve", spec)


def test_each_replica_set_of_a_deployment_is_a_generation_of_its_gang() -> None:
    old, new = deployment(), deployment()
    new["spec"]["template"]["metadata"]["annotations"]["example.com/version"] = "2"
    first, second = (recognised(made_of(made), made) for made in (old, new))
    assert len({answer.gang for answer in first}) == 1
    assert first[0].gang.name == second[0].gang.name == "train"
    assert first[0].gang.part != second[0].gang.part


def test_the_later_pods_of_a_generation_are_to_come() -> None:
    made = deployment()
    answers = recognised(made_of(made), made)
    (role,) = answers[0].to_come
    assert role.members == (answers[0].member,) * 3
    assert role.gpus
    assert answers[0].waves == (1, 3)
    assert all(answer.to_come == answers[0].to_come for answer in answers)


def test_a_gang_of_several_deployments_has_no_generations() -> None:
    made = deployment(3)
    assert {(each.gang.part, each.to_come) for each in recognised(made_of(made), made)} == {
        ("", ())
    }
    made = deployment(3, gang_min="3")
    answers = recognised(made_of(made), made)
    assert answers[0].gang.part
    assert len(answers[0].to_come[0].members) == 2


def test_a_replica_set_without_a_deployment_is_a_generation_with_pods_like_the_first() -> None:
    made = owner("apps/v1 ReplicaSet", "serve-old", deployment()["spec"])
    (first, *_) = made_of(made)
    answer = recognise(
        first, {ObjectRef("apps", "Deployment", "ml", "serve-old"): Missing.NOT_FOUND}
    )
    assert isinstance(answer, Recognised)
    assert (answer.gang.part, answer.waves) == ("serve-old", (1, 3))
    (role,) = answer.to_come
    assert role.template["spec"] == {
        "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
    }


# Members of which only the pod knows.


def test_a_driver_says_what_the_workers_request_that_it_will_create() -> None:
    marks = {**said(4), "linkwise.dev/gang-to-come": "nvidia.com/gpu=8,cpu=4"}
    driver = made_pod("driver", annotations=marks, gpus=0, nodeSelector={"pool": "h100"})
    answer = recognise(driver, {})
    assert isinstance(answer, Recognised)
    (role,) = answer.to_come
    assert role.members == (Member(""),) * 3
    assert role.gpus
    assert role.template["spec"] == {
        "nodeSelector": {"pool": "h100"},
        "containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "4"}}}
        ],
    }


def test_the_step_of_a_workflow_says_that_its_workers_are_not_foretold() -> None:
    by = owner("argoproj.io/v1alpha1 Workflow", "flow")
    answer = recognise(msgspec.convert(pod("flow-1", by), Pod), {})
    assert answer.because.endswith("unless its driver has linkwise.dev/gang-to-come")


# Owners that are wrong.


def test_a_role_without_a_readable_template_is_not_foretold_and_the_reason_is_said() -> None:
    made = volcano(
        task("master", 1), {"name": "worker", "replicas": 3, "dependsOn": {"name": ["master"]}}
    )
    (master, *_) = recognised(made_of(made)[:1], made)
    assert (master.size, master.minimum, master.to_come) == (4, 1, ())
    assert master.because.endswith("; the template of worker cannot be read, so none waits for it")


@pytest.mark.parametrize("kind", [*SEVERAL_KINDS, "JobSet in domains", "StatefulSet", "Deployment"])
def test_whatever_an_owner_has_pods_can_be_made_of_what_is_foretold(kind: str) -> None:
    others = {
        "JobSet in domains": job_set(replicated("node", 2), annotations={EXCLUSIVE: RACK}),
        "StatefulSet": stateful_set(),
        "Deployment": deployment(),
    }
    made = others[kind] if kind in others else SEVERAL_KINDS[kind][0]
    first = made_of(made)[0]
    foretold = False
    for wrong in broken(made):
        answer = recognise(first, {ref_of(made): wrong})
        if isinstance(answer, Recognised) and answer.to_come:
            foretold = True
            for role in answer.to_come:
                msgspec.convert(role.template, Pod)
    assert foretold


def test_very_many_are_not_planned_together() -> None:
    made = volcano(task("master", 1), task("worker", 1_000_000, "master"))
    named = {"volcano.sh/task-spec": "master", "volcano.sh/task-index": "0"}
    pod = made_of(volcano(task("master", 1)))[0]
    assert pod.metadata.labels.items() >= named.items()
    (master,) = recognised([pod], made)
    assert (master.minimum, master.to_come) == (1, ())
    assert "more than 4096 are not planned together" in master.because
