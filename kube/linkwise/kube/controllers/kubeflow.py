"""The objects that the jobs of Kubeflow's training operators create."""

from collections.abc import Iterator, Mapping

from linkwise.kube.controllers.batch import Given
from linkwise.kube.controllers.child import Child, child, pod
from linkwise.kube.controllers.order import After, Reached
from linkwise.kube.fields import Fields, UnreadableError, at, mapping, number, text
from linkwise.kube.labels import TRAINING

REPLICA_SPECS = "ReplicaSpecs"
"""How the fields with the roles end: pytorchReplicaSpecs, …"""

_MASTERS = frozenset({"master", "chief", "launcher"})
_POLICIES = ("Always", "OnFailure", "Never")


def training_job(fields: Fields, _given: Given) -> Iterator[Child]:
    by_mpi_operator = text(fields, "apiVersion").endswith("/v2beta1")
    for key in mapping(fields, "spec"):
        if not key.endswith(REPLICA_SPECS):
            continue
        found = mapping(fields, f"spec.{key}").items()
        specs: dict[str, Fields] = {}
        for role, spec in found:
            if not isinstance(spec, Mapping):
                raise UnreadableError(f"spec.{key}.{role}: {spec!r}: expected a mapping")
            specs[role] = spec
        if not specs:
            raise UnreadableError(f"spec.{key}: expected a mapping with a role or more")
        roles = {role.lower() for role in specs}
        for said, spec in specs.items():
            role, path = said.lower(), f"spec.{key}.{said}.template"
            template = _with_policy(spec)
            for index in range(number(spec, "replicas", 1, within=f"spec.{key}.{said}")):
                if not by_mpi_operator:
                    yield _pod(fields, path, template, role, index, roles)
                elif role == "launcher":
                    yield _launcher(fields, path, template, specs)
                else:
                    yield _mpi_worker(fields, path, template, role, index)


def _with_policy(spec: Fields) -> Fields:
    """The template with the role's restart policy, which the operators write into it."""
    template = mapping(spec, "template")
    said = text(spec, "restartPolicy")
    # ExitCode is the operator's own: it creates the pod again, and the kubelet does not.
    policy = said if said in _POLICIES else "Never" if said else "OnFailure"
    if not mapping(template, "spec"):
        return template
    return {**template, "spec": {**mapping(template, "spec"), "restartPolicy": policy}}


def _pod(
    fields: Fields, path: str, template: Fields, role: str, index: int, roles: set[str]
) -> Child:
    name = text(fields, "metadata.name")
    labels = {
        TRAINING + "operator-name": f"{text(fields, 'kind').lower()}-controller",
        TRAINING + "job-name": name,
        TRAINING + "replica-type": role,
    }
    if role in _MASTERS or (not roles & _MASTERS and role == "worker" and index == 0):
        labels[TRAINING + "job-role"] = "master"
    if role == "launcher":  # the MPI launcher has no index
        return pod(fields, path, template, f"{name}-launcher", labels)
    labels[TRAINING + "replica-index"] = str(index)
    return pod(fields, path, template, f"{name}-{role}-{index}", labels)


def _mpi_labels(fields: Fields, role: str) -> dict[str, str]:
    return {
        TRAINING + "operator-name": "mpi-operator",
        TRAINING + "job-name": text(fields, "metadata.name"),
        TRAINING + "job-role": role,
    }


def _mpi_worker(fields: Fields, path: str, template: Fields, role: str, index: int) -> Child:
    # If the launcher works too, it has label 0 and the first worker label 1.
    place = index + 1 if at(fields, "spec.runLauncherAsWorker") is True else index
    labels = {**_mpi_labels(fields, role), TRAINING + "replica-index": str(place)}
    return pod(fields, path, template, f"{text(fields, 'metadata.name')}-{role}-{index}", labels)


def _launcher(fields: Fields, path: str, template: Fields, specs: Mapping[str, Fields]) -> Child:
    """The Job of the launcher's pod."""
    after: tuple[After, ...] = ()
    if text(fields, "spec.launcherCreationPolicy") == "WaitForWorkersReady":
        name = text(fields, "metadata.name")
        workers = frozenset(
            f"{name}-worker-{index}"
            for role, spec in specs.items()
            if role.lower() == "worker"
            for index in range(number(spec, "replicas", 1, within=f"spec.mpiReplicaSpecs.{role}"))
        )
        after = (After(Reached.READY, len(workers), workers),)
    labels = _mpi_labels(fields, "launcher")
    if at(fields, "spec.runLauncherAsWorker") is True:
        labels[TRAINING + "replica-index"] = "0"
    metadata = mapping(template, "metadata")
    marked = {**metadata, "labels": {**mapping(metadata, "labels"), **labels}}
    return child(
        fields,
        "batch/v1 Job",
        f"{text(fields, 'metadata.name')}-launcher",
        {"template": {**template, "metadata": marked}},
        inner="spec.template",
        outer=path,
        labels=labels,
        after=after,
    )
