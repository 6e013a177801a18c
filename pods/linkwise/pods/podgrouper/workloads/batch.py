"""Kubernetes Jobs, JobSets (with or without a TrainJob above them), and Volcano Jobs."""

from collections.abc import Sequence
from dataclasses import replace

from linkwise.kube.fields import (
    Fields,
    at,
    controller_of,
    group_of,
    has,
    items,
    mapping,
    number,
    ordinal,
    text,
)
from linkwise.kube.labels import COMPLETION_INDEX, JOB_SET_LABEL, VOLCANO
from linkwise.pods.podgrouper.workloads.answer import Basis, IndexedJobs, NoGang, ObjectRef
from linkwise.pods.podgrouper.workloads.case import Case, OwnerGoneError
from linkwise.pods.podgrouper.workloads.essence import nodes_in, nodes_of
from linkwise.pods.podgrouper.workloads.foretold import Parts, TiedPods, as_text, labelled
from linkwise.pods.podgrouper.workloads.kinds import (
    EXCLUSIVE_JOBS,
    JOB,
    JOB_SET,
    NODE_SELECTOR_STRATEGY,
    VOLCANO_JOB,
)
from linkwise.pods.podgrouper.workloads.workload import (
    NO_ROLES,
    FoundWorkload,
    ReplicaRole,
    Workload,
    found,
    role_of,
    workload,
)
from linkwise.pods.spans import LABEL_KEY

_POOL = "its Job is not Indexed: its pods work one by one"


def job(case: Case) -> FoundWorkload | NoGang:
    """A gang if the Job runs all its pods at once, and is Indexed or its command names as many
    nodes.

    Without an index other pods are a pool: each takes the next piece of work by itself. With an
    index they may be shards too; the Job controller of Kubernetes 1.36 uses the same criterion.
    """
    index = ordinal(case.said(COMPLETION_INDEX))
    if index is None and not any(
        nodes_in(each.command, each.args) for each in case.pod.spec.containers
    ):
        return _alone(case, None, _POOL)  # most Jobs: none is read for them
    if index is not None and case.indexed_jobs is IndexedJobs.NONE:
        return _alone(case, index, "--indexed-jobs none: Indexed Jobs are not gangs")
    owner = case.read_controller(JOB)
    policy = "spec.scheduling.schedulingPolicy."
    work = work_of_job(case, owner)
    if has(owner, policy + "basic"):
        return _alone(case, index, f"{work.ref}: schedulingPolicy is basic")
    if has(owner, policy + "gang"):
        least = number(owner, policy + "gang.minCount", number(owner, "spec.parallelism", 1))
        said = replace(work, minimum=least)
        because = f"{work.ref}: schedulingPolicy is gang, {least} at once"
        return found(case, said, "worker", index, rule="job", because=because, basis=Basis.DECLARED)
    if index is None:
        return _nodes_of_one_job(case, owner, work)
    not_one = _why_no_gang(case, owner)
    if not_one:
        return _alone(case, index, f"{work.ref}: {not_one}")
    because = f"{work.ref} is Indexed and runs all its {work.size + work.done} pods at once"
    return found(case, work, "worker", index, rule="job", because=because, basis=Basis.HEURISTIC)


def _nodes_of_one_job(case: Case, owner: Fields, work: Workload) -> FoundWorkload | NoGang:
    """A Job without indices whose command gives the number of its pods as that of the nodes on
    which one process group runs, as torchrun's does. Each pod waits for the others."""
    nodes, pods = nodes_of(mapping(owner, "spec.template")), work.size + work.done
    parallelism, completions = _counts(owner, "spec.")
    if nodes is None or nodes[1] != pods or parallelism < (completions or 0):
        return _alone(case, None, _POOL)
    least = min(max(nodes[0] - work.done, 1), work.size)
    because = f"the command of {work.ref} starts one process group on its {pods} pods"
    return found(case, replace(work, minimum=least), "worker", None, rule="job", because=because)


def work_of_job(case: Case, owner: Fields) -> Workload:
    assert case.controller is not None
    ref = ObjectRef(JOB.group, JOB.kind, case.namespace, case.controller.name)
    parallelism, completions = _counts(owner, "spec.")
    done = min(number(owner, "status.succeeded", 0), completions or 0)
    left = parallelism if completions is None else min(parallelism, completions - done)
    roles = (role_of(case, "worker", max(left, 1), mapping(owner, "spec.template")),)
    return replace(workload(case, ref, owner, roles), done=done)


def _why_no_gang(case: Case, owner: Fields) -> str:
    parallelism, completions = _counts(owner, "spec.")
    if text(owner, "spec.completionMode") != "Indexed" or completions is None:
        return "not Indexed: its pods work one by one"
    if completions <= 1:
        return "runs one pod"
    if parallelism < completions:
        return f"runs {parallelism} of its {completions} pods at a time, so none needs the others"
    domain = has(owner, "spec.template.spec.subdomain")
    if case.indexed_jobs is IndexedJobs.WITH_SUBDOMAIN and not domain:
        return "its pods have no subdomain to find each other in"
    return ""


def _counts(owner: Fields, path: str) -> tuple[int, int | None]:
    """Parallelism and completions; completions are None if any number may end the Job."""
    default = None if has(owner, path + "parallelism") else 1
    completions = number(owner, path + "completions", -1 if default is None else default)
    return number(owner, path + "parallelism", 1), None if completions < 0 else completions


def _alone(case: Case, index: int | None, because: str) -> NoGang:
    return NoGang(case.member("worker", index), "job", because)


def train_job(case: Case) -> FoundWorkload | None:
    """A JobSet with a TrainJob as its owner: its pods carry only the JobSet's labels."""
    return _job_set(case, "trainjob", of_train_job=True)


def job_set(case: Case) -> FoundWorkload | None:
    return _job_set(case, "jobset", of_train_job=False)


def template_in_set(case: Case) -> Fields | None:
    """The Job of the pod as its JobSet's template has it; None: it is of no JobSet, or of one that
    cannot be read. Raises UnreadError."""
    name, role = (case.said(JOB_SET_LABEL + key) for key in ("jobset-name", "replicatedjob-name"))
    if not name or case.controller is None or not case.controller.name.startswith(f"{name}-{role}"):
        return None
    try:
        owner = case.read(JOB_SET, name, uid=case.said(JOB_SET_LABEL + "jobset-uid"))
    except OwnerGoneError:
        return None
    mine = (item for item in items(owner, "spec.replicatedJobs") if text(item, "name") == role)
    return mapping(next(mine, {}), "template") or None


def _job_set(case: Case, rule: str, *, of_train_job: bool) -> FoundWorkload | None:
    name, role = (case.said(JOB_SET_LABEL + key) for key in ("jobset-name", "replicatedjob-name"))
    if not name or case.controller is None or not case.controller.name.startswith(f"{name}-{role}"):
        return None  # labels alone prove nothing: users copy them
    owner = case.read(JOB_SET, name, uid=case.said(JOB_SET_LABEL + "jobset-uid"))
    maker = controller_of(owner)
    by_train_job = (group_of(text(maker, "apiVersion")), text(maker, "kind")) == (
        "trainer.kubeflow.org",
        "TrainJob",
    )
    if by_train_job is not of_train_job:
        return None
    jobs = items(owner, "spec.replicatedJobs")
    ref = ObjectRef(JOB_SET.group, JOB_SET.kind, case.namespace, name)
    work = workload(case, ref, owner, _replicated_jobs(case, owner, jobs))
    mine = next((item for item in jobs if text(item, "name") == role), {})
    job_index = ordinal(case.said(JOB_SET_LABEL + "job-index"))
    place = ordinal(case.said(COMPLETION_INDEX))
    index = None
    if job_index is not None and place is not None:
        index = job_index * _pods_of_one(mine) + place
    several = number(mine, "replicas", 1) > 1
    because = f"{ref} runs " + " + ".join(f"{item.pods} {item.name}" for item in work.roles)
    return found(
        case,
        work,
        role,
        index,
        rule=rule,
        because=because,
        subgroup=case.controller.name if several else "",
    )


def _replicated_jobs(case: Case, owner: Fields, jobs: Sequence[Fields]) -> tuple[ReplicaRole, ...]:
    in_order = text(owner, "spec.startupPolicy.startupPolicyOrder") == "InOrder"
    roles: list[ReplicaRole] = []
    for item in jobs:
        name, each = text(item, "name"), _pods_of_one(item)
        replicas = number(item, "replicas", 1)
        role = role_of(case, name, replicas * each, mapping(item, "template.spec.template"))
        set_name = text(owner, "metadata.name") or case.said(JOB_SET_LABEL + "jobset-name")
        of_set = {"jobset-name": set_name, "replicatedjob-name": name}
        template = labelled(role.template, {JOB_SET_LABEL + key: of_set[key] for key in of_set})
        stem, domain = f"{set_name}-{name}-", _exclusive_domain(owner, item)
        parts = Parts(
            max(each, 1),
            stem if replicas > 1 else None,
            tied=_exclusive(case, template, stem, domain) if domain else None,
            first_alone=bool(domain),
        )
        ready, ended = _depends(item, roles)
        if in_order:
            ready |= {earlier.name for earlier in roles}
        roles.append(replace(role, ready=ready, ended=ended, parts=parts, template=template))
    return tuple(roles)


def _exclusive_domain(owner: Fields, item: Fields) -> str:
    """The node label of which each child Job has a value for itself. JobSet's webhook admits the
    other pods of a Job only once that of index 0 has a node, whose domain becomes their node
    selector (kubernetes-sigs/jobset, pkg/webhooks/pod_webhook.go)."""
    of_set, of_job = (
        mapping(each, "metadata.annotations") for each in (owner, mapping(item, "template"))
    )
    said = {**of_set, **of_job}
    domain = said.get(EXCLUSIVE_JOBS)
    if NODE_SELECTOR_STRATEGY in said or not isinstance(domain, str):
        return ""
    return domain if LABEL_KEY.fullmatch(domain) else ""


def _exclusive(case: Case, template: Fields, stem: str, domain: str) -> TiedPods:
    """The affinities of each Job's pod of index 0."""
    priority = JOB_SET_LABEL + "priority"
    return TiedPods(
        as_text(template),
        domain,
        JOB_SET_LABEL + "job-key",
        f"{case.namespace}/{stem}",
        JOB_SET_LABEL + "job-index",
        (priority, case.said(priority)),
    )


def _depends(item: Fields, before: Sequence[ReplicaRole]) -> tuple[frozenset[str], frozenset[str]]:
    """The roles that must be ready, and those that must have ended, with their own dependencies.
    What one that has ended needed beside it counts as ended too, unless *item* needs it itself."""
    known = {role.name: role for role in before}
    ready, ended, needed = NO_ROLES, NO_ROLES, NO_ROLES
    for dependency in items(item, "dependsOn"):
        name = text(dependency, "name")
        earlier = known.get(name)
        if earlier is None:
            continue
        if text(dependency, "status") == "Complete":
            ended |= {name} | earlier.ended
            needed |= earlier.ready
        else:
            ready |= {name} | earlier.ready
            ended |= earlier.ended
    ended |= needed - ready
    return ready - ended, ended


def _pods_of_one(item: Fields) -> int:
    """The number of pods of one child Job."""
    parallelism = number(item, "template.spec.parallelism", 1)
    return min(parallelism, number(item, "template.spec.completions", parallelism))


def volcano_job(case: Case) -> FoundWorkload:
    """Volcano's own kind `Job`. It declares how many pods are enough."""
    owner = case.read_controller(VOLCANO_JOB)
    assert case.controller is not None
    ref = ObjectRef(VOLCANO_JOB.group, VOLCANO_JOB.kind, case.namespace, case.controller.name)
    tasks = items(owner, "spec.tasks")
    ready = _tasks_before(tasks)
    roles = list[ReplicaRole]()
    for task in tasks:
        name = text(task, "name")
        role = role_of(case, name, number(task, "replicas", 1), mapping(task, "template"))
        labels = {VOLCANO + "job-name": ref.name, VOLCANO + "task-spec": name}
        template = labelled(role.template, labels)
        roles.append(replace(role, ready=ready[name], template=template))
    of_tasks = sum(number(task, "minAvailable", number(task, "replicas", 1)) for task in tasks)
    least = number(owner, "spec.minAvailable", 0) or of_tasks
    work = replace(
        workload(case, ref, owner, tuple(roles), least),
        queue=text(owner, "spec.queue"),
        priority_class=text(owner, "spec.priorityClassName"),
    )
    return found(
        case,
        work,
        case.said(VOLCANO + "task-spec"),
        ordinal(case.said(VOLCANO + "task-index")),
        rule="volcano-job",
        because=f"{ref}: minAvailable {least} of {work.size}",
        basis=Basis.DECLARED,
    )


def _tasks_before(tasks: Sequence[Fields]) -> dict[str, frozenset[str]]:
    """Task -> the tasks that must be ready before its pods are created, whatever their order.

    Volcano starts no task of a cyclic dependency, so the result for a cycle does not matter.
    """
    named = {text(task, "name") for task in tasks}
    direct = {text(task, "name"): _named_in(task) & named for task in tasks}
    before: dict[str, frozenset[str]] = {}
    for name in named:
        found, left = set[str](), set(direct[name])
        while left:
            found |= left
            left = {each for other in left for each in direct[other]} - found
        before[name] = frozenset(found - {name})
    return before


def _named_in(task: Fields) -> set[str]:
    wanted = at(task, "dependsOn.name")
    return {name for name in wanted if isinstance(name, str)} if isinstance(wanted, list) else set()
