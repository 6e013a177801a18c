"""Jobs of the Kubeflow training operators; each of these kinds is a gang.

The pods carry role and index; only the job has the number of pods. Labels may be missing or come
from an older operator, but the pods' names always are <job>-<role>-<index>.
"""

from dataclasses import replace

from linkwise.kube.fields import (
    Fields,
    at,
    has,
    mapping,
    number,
    ordinal,
    text,
)
from linkwise.kube.labels import TRAINING
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.pods.podgrouper.workloads.case import Case
from linkwise.pods.podgrouper.workloads.kinds import (
    JOB,
    MPI_JOB,
    PYTORCH_JOB,
    STATEFUL_SET,
    OwnerKind,
)
from linkwise.pods.podgrouper.workloads.workload import (
    FoundWorkload,
    ReplicaRole,
    Workload,
    found,
    role_of,
    workload,
)

_ROLES = (
    TRAINING + "replica-type",
    "replica-type",
    "tf-replica-type",
    "pytorch-replica-type",
    TRAINING + "job-role",  # of MPIJobs without replica-type; other kinds use it for other things
    "mpi-job-role",
    "mpi_role_type",
)
_INDICES = (
    TRAINING + "replica-index",
    "replica-index",
    "tf-replica-index",
    "pytorch-replica-index",
)
_POLICY = "spec.runPolicy.schedulingPolicy."


def training_job(
    case: Case, *, kind: OwnerKind, rule: str, specs: str, order: tuple[str, ...]
) -> FoundWorkload | None:
    """*specs* is the path of the field with the roles, *order* the order of their ranks."""
    job = case.read_controller(kind)
    assert case.controller is not None
    roles = _replicas(case, job, specs, order)
    work = _with_policy(case, kind, case.controller.name, job, roles)
    if kind is PYTORCH_JOB and work.minimum is None:
        work = replace(work, minimum=_elastic_minimum(job, work))
    role, index = _place(case, case.controller.name)
    return found(case, work, role, index, rule=rule, because=_because(work))


def mpi_job_v1(case: Case) -> FoundWorkload | None:
    """Of the training operator or the old MPI operator, where the MPIJob owns the launcher too."""
    controller = case.controller
    if controller is None or controller.api_version != "kubeflow.org/v1":
        return None
    job = case.read_controller(MPI_JOB)
    roles = _mpi_roles(_replicas(case, job, "spec.mpiReplicaSpecs", ("launcher", "worker")))
    work = _with_policy(case, MPI_JOB, controller.name, job, roles)
    role, index = _place(case, controller.name)
    if role == "launcher":
        index = 0 if _has_ranked_launcher(work) else None
    return found(case, work, role, index, rule="mpijob-v1", because=_because(work))


def mpi_job_v2(case: Case) -> FoundWorkload | None:
    """Of the MPI operator, where a Job owns the launcher and the MPIJob owns that Job."""
    name = case.said(TRAINING + "job-name")
    controller, role = case.controller, case.said(TRAINING + "job-role")
    if controller is None or case.said(TRAINING + "operator-name") != "mpi-operator":
        return None
    if case.is_controlled_by(MPI_JOB):
        if controller.api_version != "kubeflow.org/v2beta1":
            return None
        job = case.read_controller(MPI_JOB)
    elif case.is_controlled_by(JOB) and role == "launcher" and controller.name == f"{name}-{role}":
        job = case.read(MPI_JOB, name, version="v2beta1")
    else:
        return None
    name = text(job, "metadata.name") or name
    roles = _replicas(case, job, "spec.mpiReplicaSpecs", ("launcher", "worker"))
    works_too = at(job, "spec.runLauncherAsWorker") is True
    roles = tuple(
        replace(item, ranked=works_too, indexed=works_too) if item.name == "launcher" else item
        for item in roles
    )
    if text(job, "spec.launcherCreationPolicy") == "WaitForWorkersReady":
        roles = _launcher_last(roles)
    work = _with_policy(case, MPI_JOB, name, job, roles)
    index = ordinal(case.said(*_INDICES))
    if works_too and index is not None and role == "worker":
        index -= 1  # the launcher has label 0, the first worker label 1
    if role == "launcher" and not works_too:
        index = None
    return found(case, work, role, index, rule="mpijob-v2beta1", because=_because(work))


def mpi_job_v1alpha1(case: Case) -> FoundWorkload | None:
    """The oldest version: a StatefulSet of workers, then a Job with the launcher once they are
    ready; the spec may give the total number of GPUs instead of workers."""
    name, role = case.said("mpi_job_name"), case.said("mpi_role_type")
    if case.said("group_name") != "kubeflow.org" or not name or case.controller is None:
        return None
    hangs = {"worker": STATEFUL_SET, "launcher": JOB}.get(role)
    if hangs is None or not case.is_controlled_by(hangs):
        return None
    if case.controller.name != f"{name}-{role}":
        return None
    job = case.read(MPI_JOB, name, version="v1alpha1")
    template = mapping(job, "spec.template")
    workers = _old_workers(job)
    if workers is None:
        return None
    takes_gpus = workers > 0 and (_old_gpus(job) or case.takes_gpus_in(template))
    roles = (
        ReplicaRole("worker", workers, takes_gpus),
        ReplicaRole(
            "launcher",
            1,
            False,
            ready=frozenset({"worker"}),
            ranked=False,
            template=template,
            indexed=False,
        ),
    )
    work = _with_policy(case, MPI_JOB, name, job, roles)
    index = ordinal(case.pod.metadata.name.rpartition("-")[2]) if role == "worker" else None
    return found(case, work, role, index, rule="mpijob-v1alpha1", because=_because(work))


def _old_workers(job: Fields) -> int | None:
    """None if the GPUs of one node are a setting of the operator, which no object shows."""
    for total, each in (
        ("spec.gpus", "spec.gpusPerNode"),
        ("spec.processingUnits", "spec.processingUnitsPerNode"),
    ):
        if has(job, total):
            per_node = number(job, each, 0)
            return -(-number(job, total, 0) // per_node) if per_node else None
    return number(job, "spec.replicas", 0)


def _old_gpus(job: Fields) -> bool:
    """Whether the operator writes GPUs into the pods; the template does not have them."""
    kind = text(job, "spec.processingResourceType")
    return has(job, "spec.gpus") or (has(job, "spec.processingUnits") and kind != "cpu")


def _replicas(
    case: Case, job: Fields, specs: str, order: tuple[str, ...]
) -> tuple[ReplicaRole, ...]:
    """The roles in the order of ranks. Operators store their names in any letter case."""
    roles = [
        role_of(case, name.lower(), number(spec, "replicas", 1), mapping(spec, "template"))
        for name, spec in mapping(job, specs).items()
        if isinstance(spec, dict)
    ]
    places = {name: place for place, name in enumerate(order)}
    return tuple(sorted(roles, key=lambda role: (places.get(role.name, len(order)), role.name)))


def _mpi_roles(roles: tuple[ReplicaRole, ...]) -> tuple[ReplicaRole, ...]:
    """A launcher with GPUs is in the hostfile and has a rank; one without only starts the job."""
    return tuple(
        replace(role, ranked=role.gpus) if role.name == "launcher" else role for role in roles
    )


def _has_ranked_launcher(work: Workload) -> bool:
    launcher = work.role("launcher")
    return launcher is not None and launcher.ranked


def _launcher_last(roles: tuple[ReplicaRole, ...]) -> tuple[ReplicaRole, ...]:
    workers = frozenset(role.name for role in roles if role.name != "launcher")
    return tuple(
        replace(role, ready=workers) if role.name == "launcher" else role for role in roles
    )


def _with_policy(
    case: Case, kind: OwnerKind, name: str, job: Fields, roles: tuple[ReplicaRole, ...]
) -> Workload:
    minimum = number(job, _POLICY + "minAvailable", 0) or None
    ref = ObjectRef(kind.group, kind.kind, case.namespace, name)
    return replace(
        workload(case, ref, job, roles, minimum),
        queue=text(job, _POLICY + "queue"),
        priority_class=text(job, _POLICY + "priorityClass"),
    )


def _elastic_minimum(job: Fields, work: Workload) -> int | None:
    """The pods that torchrun needs to start. If only one bound is set, it is both bounds."""
    if not has(job, "spec.elasticPolicy"):
        return None
    workers = sum(role.pods for role in work.roles if role.name == "worker")
    most = number(job, "spec.elasticPolicy.maxReplicas", workers)
    least = number(job, "spec.elasticPolicy.minReplicas", most)
    return min(work.size, work.size - workers + min(least, workers))


def _place(case: Case, job: str) -> tuple[str, int | None]:
    """Role and index: from the labels, else from the pod's name."""
    role, index = case.said(*_ROLES).lower(), ordinal(case.said(*_INDICES))
    called = case.pod.metadata.name.removeprefix(f"{job}-")
    word, _, last = called.rpartition("-")
    if not role:
        role = (word if ordinal(last) is not None else called).lower()
    if index is None:
        index = ordinal(last)
    return role, index


def _because(work: Workload) -> str:
    parts = " + ".join(f"{role.pods} {role.name}" for role in work.roles)
    few = f"; {work.minimum} are enough" if work.minimum not in (None, work.size) else ""
    return f"{work.ref} runs {parts or 'nothing'}{few}"
