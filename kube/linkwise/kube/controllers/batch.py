"""The objects that Jobs, CronJobs, JobSets and Volcano Jobs create."""

from collections.abc import Iterator, Mapping, Sequence

from linkwise.kube.controllers.child import Child, UnknownControllerError, child, generated, pod
from linkwise.kube.controllers.order import After, Reached
from linkwise.kube.fields import Fields, at, items, listed, mapping, number, text
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
    order = _order_of_jobs(fields, replicated, counts)
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
            yield _job_of_set(fields, place, item, index, labels, order[place])
            at_all += 1
            at_group[group] += 1


def _order_of_jobs(
    fields: Fields, replicated: Sequence[Fields], counts: Sequence[int]
) -> list[tuple[After, ...]]:
    """What the Jobs of each replicated Job come after: `dependsOn`, and with `InOrder` the
    replicated Job before them."""
    in_order = text(fields, "spec.startupPolicy.startupPolicyOrder") == "InOrder"
    set_name, found = text(fields, "metadata.name"), list[tuple[After, ...]]()
    places: dict[str, int] = {}

    def after(place: int, state: Reached) -> After:
        item, within = replicated[place], f"spec.replicatedJobs[{place}]"
        parallelism = number(item, "template.spec.parallelism", 1, within=within)
        pods = number(item, "template.spec.completions", parallelism, within=within)
        pods = pods if state is Reached.COMPLETE else min(parallelism, pods)
        jobs = frozenset(
            f"{set_name}-{text(item, 'name')}-{index}" for index in range(counts[place])
        )
        return After(state, pods * counts[place], jobs=jobs)

    for place, item in enumerate(replicated):
        waits = [after(place - 1, Reached.READY)] if in_order and place else []
        for depends in items(item, "dependsOn"):
            earlier = places.get(text(depends, "name"))
            if earlier is not None:
                is_end = text(depends, "status") == "Complete"
                waits.append(after(earlier, Reached.COMPLETE if is_end else Reached.READY))
        places[text(item, "name")] = place
        found.append(tuple(waits))
    return found


def _job_of_set(
    fields: Fields,
    place: int,
    item: Fields,
    index: int,
    labels: Mapping[str, str],
    after: tuple[After, ...],
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
        after=after,
    )


def volcano_job(fields: Fields, _given: Given) -> Iterator[Child]:
    name, namespace = text(fields, "metadata.name"), text(fields, "metadata.namespace")
    queue = text(fields, "spec.queue")
    of_job = {
        field: text(fields, f"spec.{field}")
        for field in ("schedulerName", "priorityClassName")
        if text(fields, f"spec.{field}")
    }
    tasks = listed(fields, "spec.tasks")
    for place, task in enumerate(tasks):
        after = _order_of_task(name, tasks, task)
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
                after,
            )


def _order_of_task(name: str, tasks: Sequence[Fields], task: Fields) -> tuple[After, ...]:
    """`dependsOn`: its tasks have as many pods ready as their `minAvailable` says. Of several with
    `iteration: any`, one is enough, whichever is first: here the first that is named."""
    wanted = at(task, "dependsOn.name")
    wanted = wanted if isinstance(wanted, list) else []
    if at(task, "dependsOn.iteration") == "any":
        wanted = wanted[:1]
    found = []
    for place, other in enumerate(tasks):
        if text(other, "name") in wanted:
            within = f"spec.tasks[{place}]"
            replicas = number(other, "replicas", 1, within=within)
            least = min(number(other, "minAvailable", replicas, within=within), replicas)
            pods = frozenset(f"{name}-{text(other, 'name')}-{index}" for index in range(replicas))
            found.append(After(Reached.READY, least, pods))
    return tuple(found)


def unknown(fields: Fields, _given: Given) -> Iterator[Child]:
    raise UnknownControllerError(text(fields, "kind"))
