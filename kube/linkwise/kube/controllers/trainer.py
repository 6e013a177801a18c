"""The JobSet that Kubeflow Trainer makes of a TrainJob and its runtime.

After kubeflow/trainer v2.3, pkg/runtime/core/trainingruntime.go (newRuntimeInfo,
mergeRuntimePatches) and pkg/runtime/framework/plugins (mpi, jobset).
"""

from collections.abc import Iterator, Mapping

from linkwise.kube.controllers.batch import Given
from linkwise.kube.controllers.child import Child, child
from linkwise.kube.fields import (
    Fields,
    UnreadableError,
    at,
    has,
    items,
    listed,
    mapping,
    number,
    text,
)

_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_TRAINER = "trainer"
_NODE = "node"
"""The name of a container, and of an MPI runtime's replicated Job."""
_TEMPLATE = "spec.template"
# Lists of a pod template that a strategic merge patch merges by the names of their items.
_BY_NAME = frozenset({"containers", "env", "initContainers", "schedulingGates", "volumes"})


def train_job(fields: Fields, given: Given) -> Iterator[Child]:
    """Its JobSet. The template is in a runtime: one of those *given*, or else one node after the
    other with `resourcesPerNode`, as Kubeflow's own runtimes have it."""
    runtime = given.get(
        (
            text(fields, "spec.runtimeRef.kind") or "ClusterTrainingRuntime",
            text(fields, "spec.runtimeRef.name"),
        )
    )
    runtime = _plain_runtime(fields) if runtime is None else runtime
    template = mapping(runtime, _TEMPLATE)
    patches = [
        mapping(patch, "trainingRuntimeSpec.template")
        for patch in items(fields, "spec.runtimePatches")
    ]
    replicated = [
        _with_trainer(fields, runtime, _patched(fields, item, patches))
        for item in listed(template, "spec.replicatedJobs")
    ]
    said = [template, *patches]
    yield child(
        fields,
        "jobset.x-k8s.io/v1alpha2 JobSet",
        text(fields, "metadata.name"),
        {**mapping(template, "spec"), "replicatedJobs": replicated},
        inner="",
        outer="",
        labels=_all(said, "metadata.labels") | dict(mapping(fields, "spec.labels")),
        annotations=_all(said, "metadata.annotations") | dict(mapping(fields, "spec.annotations")),
    )


def _plain_runtime(fields: Fields) -> Fields:
    if not mapping(fields, "spec.trainer.resourcesPerNode"):
        said = text(fields, "spec.runtimeRef.name")
        raise UnreadableError(
            f"spec.trainer.resourcesPerNode: missing, and the runtime {said!r} was not given: "
            "expected either of them"
        )
    image = text(fields, "spec.trainer.image") or "the-runtime's"
    pods = {"containers": [{"name": _NODE, "image": image}]}
    job = {"metadata": {"labels": {_STEP: _TRAINER}}, "spec": {"template": {"spec": pods}}}
    jobs = [{"name": _NODE, "template": job}]
    return {"spec": {"mlPolicy": {}, "template": {"spec": {"replicatedJobs": jobs}}}}


def _all(said: list[Fields], path: str) -> dict[str, object]:
    return {key: value for each in said for key, value in mapping(each, path).items()}


def _patched(fields: Fields, item: Fields, patches: list[Fields]) -> Fields:
    """The replicated Job with all patches of its name, then with Trainer 2.0's overrides."""
    template, name = mapping(item, "template"), text(item, "name")
    for patch in patches:
        for job in items(patch, "spec.replicatedJobs"):
            if text(job, "name") == name:
                template = _merged(template, mapping(job, "template"))
    for override in items(fields, "spec.podTemplateOverrides"):
        if any(text(job, "name") == name for job in items(override, "targetJobs")):
            kept = {key: override[key] for key in ("metadata", "spec") if key in override}
            template = _merged(template, {"spec": {"template": kept}})
    return {**item, "template": template}


def _merged(base: Fields, patch: Fields) -> dict[str, object]:
    """A strategic merge patch, as far as pod templates need it."""
    found = dict(base)
    for key, value in patch.items():
        before = found.get(key)
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            found[key] = _merged(before if isinstance(before, Mapping) else {}, value)
        elif key in _BY_NAME and isinstance(before, list) and isinstance(value, list):
            found[key] = _merged_by_name(before, value)
        else:
            found[key] = value
    return found


def _merged_by_name(before: list[object], patch: list[object]) -> list[object]:
    left = {text(each, "name"): each for each in patch if isinstance(each, Mapping)}
    found = [
        _merged(each, left.pop(text(each, "name"), {})) if isinstance(each, Mapping) else each
        for each in before
    ]
    return [*found, *left.values()]


def _with_trainer(fields: Fields, runtime: Fields, item: Fields) -> Fields:
    """The replicated Job, with what the TrainJob says of its trainer."""
    policy = mapping(runtime, "spec.mlPolicy")
    launcher_works = at(policy, "mpi.runLauncherAsNode") is True
    is_trainer = mapping(item, "template.metadata.labels").get(_STEP) == _TRAINER
    is_trainer = is_trainer and has(runtime, "spec.mlPolicy")
    is_node = text(item, "name") == _NODE
    job = mapping(item, "template.spec")
    pods = number(job, "parallelism", 1)
    if is_trainer:
        pods = number(policy, "numNodes", 1, within="spec.mlPolicy")
    if has(fields, "spec.trainer.numNodes"):
        nodes = number(fields, "spec.trainer.numNodes", 1)
        if has(policy, "mpi"):
            # The launcher is one of the nodes; it has a replicated Job of its own.
            pods = (max(nodes - 1, 1) if launcher_works else nodes) if is_node else pods
        elif is_trainer:
            pods = nodes
    template = mapping(job, "template")
    if is_trainer or (launcher_works and is_node):
        template = _with_resources(template, mapping(fields, "spec.trainer.resourcesPerNode"))
    counted = {**job, "parallelism": pods, "completions": pods, "template": template}
    one = {"replicas": 1} if is_trainer else {}
    return {**item, **one, "template": {**mapping(item, "template"), "spec": counted}}


def _with_resources(template: Fields, resources: Fields) -> Fields:
    containers = [
        {**each, "resources": _merged(mapping(each, "resources"), resources)}
        if resources and text(each, "name") == _NODE
        else each
        for each in items(template, "spec.containers")
    ]
    return {**template, "spec": {**mapping(template, "spec"), "containers": containers}}
