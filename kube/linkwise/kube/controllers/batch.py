"""The objects that Jobs, CronJobs, JobSets and Volcano Jobs create."""

from collections.abc import Iterator, Mapping

from linkwise.kube.controllers.child import Child, UnknownControllerError, child, generated, pod
from linkwise.kube.fields import Fields, at, listed, mapping, number, text
from linkwise.kube.labels import COMPLETION_INDEX, JOB_SET_LABEL, VOLCANO

Given = Mapping[tuple[str, str], Fields]
"""Kind and name -> object: what a controller may read beside the object itself."""

_BATCH = "batch.kubernetes.io/"


def job(fields: Fields, _given: Given) -> Iterator[Child]:
    """The pods that run first: as many as may run at once, or as there are in all."""
    parallelism = number(fields, "spec.parallelism", 1)
    completions = number(fields, "spec.completions", parallelism)
    indexed = text(fields, "spec.completionMode") == "Indexed"
    for index in range(min(parallelism, completions)):
        suffix = generated(text(fields, "metadata.name"), index).rpartition("-")[2]
        yield pod_of_job(fields, index if indexed else None, suffix)


def pod_of_job(fields: Fields, index: int | None, suffix: str) -> Child:
    """One pod, `<job>[-<index>]-<suffix>`; the index of a NonIndexed Job's pod is None."""
    name, uid = text(fields, "metadata.name"), text(fields, "metadata.uid")
    labels = {
        _BATCH + "controller-uid": uid,
        _BATCH + "job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    template = mapping(fields, "spec.template")
    if index is None:
        return pod(fields, "spec.template", template, f"{name}-{suffix}", labels)
    stem, said = f"{name}-{index}", {COMPLETION_INDEX: str(index)}
    spec = {} if at(template, "spec.hostname") else {"hostname": stem}
    return pod(
        fields, "spec.template", template, f"{stem}-{suffix}", {**labels, **said}, said, spec
    )


def cron_job(fields: Fields, _given: Given) -> Iterator[Child]:
    """One run."""
    template = mapping(fields, "spec.jobTemplate")
    yield child(
        fields,
        "batch/v1 Job",
        f"{text(fields, 'metadata.name')}-0",
        mapping(template, "spec"),
        inner="",
        outer="spec.jobTemplate",
        labels=mapping(template, "metadata.labels"),
        annotations=mapping(template, "metadata.annotations"),
    )


def job_set(fields: Fields, _given: Given) -> Iterator[Child]:
    replicated = listed(fields, "spec.replicatedJobs")
    counts = [
        number(item, "replicas", 1, within=f"spec.replicatedJobs[{place}]")
        for place, item in enumerate(replicated)
    ]
    of_group: dict[str, int] = {}
    for item, count in zip(replicated, counts, strict=True):
        group = text(item, "groupName") or "default"
        of_group[group] = of_group.get(group, 0) + count
    at_all, at_group = 0, dict.fromkeys(of_group, 0)
    for place, (item, count) in enumerate(zip(replicated, counts, strict=True)):
        group = text(item, "groupName") or "default"
        for index in range(count):
            labels = {
                JOB_SET_LABEL + key: value
                for key, value in {
                    "jobset-name": text(fields, "metadata.name"),
                    "jobset-uid": text(fields, "metadata.uid"),
                    "replicatedjob-name": text(item, "name"),
                    "replicatedjob-replicas": str(count),
                    "global-replicas": str(sum(counts)),
                    "job-index": str(index),
                    "job-global-index": str(at_all),
                    "group-name": group,
                    "group-replicas": str(of_group[group]),
                    "job-group-index": str(at_group[group]),
                    "restart-attempt": "0",
                }.items()
            }
            yield _job_of_set(fields, place, item, index, labels)
            at_all += 1
            at_group[group] += 1


def _job_of_set(
    fields: Fields, place: int, item: Fields, index: int, labels: Mapping[str, str]
) -> Child:
    template = mapping(item, "template.spec.template")
    metadata, spec = mapping(template, "metadata"), mapping(template, "spec")
    name = text(fields, "metadata.name")
    within = f"spec.replicatedJobs[{place}]"
    pods = number(item, "template.spec.parallelism", 1, within=within)
    defaults = {"completionMode": "Indexed", "parallelism": pods, "completions": pods}
    # JobSet's webhook writes it (kubernetes-sigs/jobset, pkg/webhooks/jobset_webhook.go).
    spec = {"restartPolicy": "OnFailure", **spec}
    if at(fields, "spec.network.enableDNSHostnames") is not False and "subdomain" not in spec:
        spec = {**spec, "subdomain": text(fields, "spec.network.subdomain") or name}
    marked = {
        "metadata": {
            **metadata,
            "labels": {**mapping(metadata, "labels"), **labels},
            "annotations": {**mapping(metadata, "annotations"), **labels},
        },
        "spec": spec,
    }
    return child(
        fields,
        "batch/v1 Job",
        f"{name}-{text(item, 'name')}-{index}",
        {**defaults, **mapping(item, "template.spec"), "template": marked},
        inner="",
        outer=f"spec.replicatedJobs[{place}].template",
        labels={**mapping(item, "template.metadata.labels"), **labels},
        annotations={**mapping(item, "template.metadata.annotations"), **labels},
    )


def volcano_job(fields: Fields, _given: Given) -> Iterator[Child]:
    name, namespace = text(fields, "metadata.name"), text(fields, "metadata.namespace")
    queue = text(fields, "spec.queue")
    of_job = {
        field: text(fields, f"spec.{field}")
        for field in ("schedulerName", "priorityClassName")
        if text(fields, f"spec.{field}")
    }
    for place, task in enumerate(listed(fields, "spec.tasks")):
        role, template = text(task, "name"), mapping(task, "template")
        for index in range(number(task, "replicas", 1, within=f"spec.tasks[{place}]")):
            said = {
                VOLCANO + "job-name": name,
                VOLCANO + "task-spec": role,
                VOLCANO + "task-index": str(index),
                **({VOLCANO + "queue-name": queue} if queue else {}),
            }
            yield pod(
                fields,
                f"spec.tasks[{place}].template",
                template,
                f"{name}-{role}-{index}",
                {**said, VOLCANO + "job-namespace": namespace},
                said,
                {**of_job, **mapping(template, "spec")},
            )


def unknown(fields: Fields, _given: Given) -> Iterator[Child]:
    raise UnknownControllerError(text(fields, "kind"))
