"""The objects that copies of one pod, and groups that serve one model, create."""

from collections.abc import Callable, Iterator

from linkwise.kube.controllers.batch import Given
from linkwise.kube.controllers.child import Child, child, generated, pod
from linkwise.kube.controllers.order import After, Reached
from linkwise.kube.fields import Fields, at, listed, mapping, number, ordinal, text
from linkwise.kube.labels import AIBRIX, KTHENA, LWS, RAY, TEMPLATE_HASH

_TEMPLATE = "spec.template"
_EXCLUSIVE = LWS + "exclusive-topology"
# KubeRay runs the head's image in it. Whose head that is, only a selector says.
_SUBMITTER = {"name": "ray-job-submitter", "image": "the-cluster's"}


def deployment(fields: Fields, _given: Given) -> Iterator[Child]:
    """Its ReplicaSet."""
    template = mapping(fields, _TEMPLATE)
    name = generated(text(fields, "metadata.name"), repr(template), letters=10)
    labels = {TEMPLATE_HASH: name.rpartition("-")[2]}
    metadata = mapping(template, "metadata")
    marked = {**metadata, "labels": {**mapping(metadata, "labels"), **labels}}
    spec = {
        "replicas": at(fields, "spec.replicas"),
        "template": {**template, "metadata": marked} if template else template,
    }
    yield child(
        fields,
        "apps/v1 ReplicaSet",
        name,
        {key: value for key, value in spec.items() if value is not None},
        inner="",
        outer="",
        labels=labels,
    )


def copies(fields: Fields, _given: Given) -> Iterator[Child]:
    """The pods of a ReplicaSet or a ReplicationController."""
    name, template = text(fields, "metadata.name"), mapping(fields, _TEMPLATE)
    for index in range(number(fields, "spec.replicas", 1)):
        yield pod(fields, _TEMPLATE, template, generated(name, index))


def stateful_set(fields: Fields, _given: Given) -> Iterator[Child]:
    name, template = text(fields, "metadata.name"), mapping(fields, _TEMPLATE)
    first = number(fields, "spec.ordinals.start", 0)
    revision = generated(name, repr(template), letters=10)
    in_order = text(fields, "spec.podManagementPolicy") != "Parallel"
    for index in range(first, first + number(fields, "spec.replicas", 1)):
        labels = {
            "controller-revision-hash": revision,
            "statefulset.kubernetes.io/pod-name": f"{name}-{index}",
            "apps.kubernetes.io/pod-index": str(index),
            **_of_group(template, index),
        }
        before = frozenset([f"{name}-{index - 1}"]) if in_order and index > first else None
        after = () if before is None else (After(Reached.READY, 1, before),)
        yield pod(fields, _TEMPLATE, template, f"{name}-{index}", labels, after=after)


def leader_worker_set(fields: Fields, _given: Given) -> Iterator[Child]:
    """One StatefulSet of all leaders, and one of each group's workers."""
    name, within = text(fields, "metadata.name"), "spec.leaderWorkerTemplate"
    size = number(fields, f"{within}.size", 1)
    workers = f"{within}.workerTemplate"
    leaders = f"{within}.leaderTemplate"
    leaders = leaders if mapping(fields, leaders) else workers
    said = {LWS + "size": str(size)}
    policy = mapping(fields, f"{within}.subGroupPolicy")
    if policy:
        said[LWS + "subgroup-size"] = str(
            number(policy, "subGroupSize", size, within=f"{within}.subGroupPolicy")
        )
        said[LWS + "subgroup-policy-type"] = text(policy, "type") or "LeaderWorker"
    groups = number(fields, "spec.replicas", 1)
    marks = {LWS + "name": name}
    exclusive = mapping(fields, "metadata.annotations").get(_EXCLUSIVE)
    if exclusive:
        said[_EXCLUSIVE] = str(exclusive)
    leader_is: Reached | None = Reached.SCHEDULED if exclusive else None
    if text(fields, "spec.startupPolicy") == "LeaderReady":
        leader_is = Reached.READY
    yield _set_of(fields, leaders, name, groups, 0, {**marks, LWS + "worker-index": "0"}, said)
    for group in range(groups if size > 1 else 0):
        leader = f"{name}-{group}"
        here, told = {**marks, LWS + "group-index": str(group)}, {LWS + "leader-name": leader}
        after = () if leader_is is None else (After(leader_is, 1, frozenset([leader])),)
        yield _set_of(fields, workers, leader, size - 1, 1, here, {**said, **told}, after)


def _set_of(
    fields: Fields,
    path: str,
    name: str,
    replicas: int,
    first: int,
    labels: dict[str, str],
    annotations: dict[str, str],
    after: tuple[After, ...] = (),
) -> Child:
    template = mapping(fields, path)
    metadata = mapping(template, "metadata")
    marked = {
        **metadata,
        "labels": {**mapping(metadata, "labels"), **labels},
        "annotations": {**mapping(metadata, "annotations"), **annotations},
    }
    spec = {
        "replicas": replicas,
        "ordinals": {"start": first},
        "podManagementPolicy": "Parallel",
        "template": {**template, "metadata": marked},
    }
    return child(
        fields,
        "apps/v1 StatefulSet",
        name,
        spec,
        inner=_TEMPLATE,
        outer=path,
        labels=labels,
        after=after,
    )


def _of_group(template: Fields, index: int) -> dict[str, str]:
    """What the webhook of LeaderWorkerSet adds to a pod of one of its StatefulSets."""
    labels = mapping(template, "metadata.labels")
    if LWS + "name" not in labels:
        return {}
    leads = LWS + "worker-index" in labels
    found = {LWS + ("group-index" if leads else "worker-index"): str(index)}
    said = mapping(template, "metadata.annotations")
    size, parts = _count(said, LWS + "size"), _count(said, LWS + "subgroup-size")
    place = 0 if leads else index
    excluded = said.get(LWS + "subgroup-policy-type") == "LeaderExcluded"
    if parts and not (excluded and place == 0):
        apart = excluded or (size - 1) % parts == 0
        found[LWS + "subgroup-index"] = str((max(place - 1, 0) if apart else place) // parts)
    return found


def _count(said: Fields, key: str) -> int:
    value = said.get(key)
    return (ordinal(value) or 0) if isinstance(value, str) else 0


def pod_set(fields: Fields, _given: Given) -> Iterator[Child]:
    """The pods of AIBrix's PodSet, `<set>-<index>`."""
    name, template = text(fields, "metadata.name"), mapping(fields, _TEMPLATE)
    for index in range(number(fields, "spec.podGroupSize", 1)):
        labels = {AIBRIX + "podset-name": name, AIBRIX + "pod-group-index": str(index)}
        inherited = mapping(fields, "metadata.labels")
        said = mapping(template, "metadata.labels")
        kept = {key: str(value) for key, value in inherited.items() if key not in said}
        yield pod(fields, _TEMPLATE, template, f"{name}-{index}", {**kept, **labels})


def model_serving(fields: Fields, _given: Given) -> Iterator[Child]:
    """The pods of kthena's ModelServing, `<set>-<group>-<role>-<replica>-<place>`. Place 0 is the
    entry (volcano-sh/kthena, pkg/model-serving-controller/utils/utils.go)."""
    name, roles = text(fields, "metadata.name"), "spec.template.roles"
    # Its CustomResourceDefinition has this default.
    scheduler = text(fields, "spec.schedulerName") or "volcano"
    for serving_group in range(number(fields, "spec.replicas", 1)):
        group = f"{name}-{serving_group}"
        for nth, role in enumerate(listed(fields, roles)):
            where, called = f"{roles}[{nth}]", text(role, "name")
            workers = number(role, "workerReplicas", 0, within=where)
            for replica in range(number(role, "replicas", 1, within=where)):
                labels = {
                    KTHENA + "name": name,
                    KTHENA + "group-name": group,
                    KTHENA + "role": called,
                    KTHENA + "role-id": f"{called}-{replica}",
                }
                for place in range(1 + workers):
                    template = "workerTemplate" if place else "entryTemplate"
                    made = mapping(role, template)
                    spec = {**mapping(made, "spec"), "schedulerName": scheduler}
                    yield pod(
                        fields,
                        f"{where}.{template}",
                        {**made, "spec": spec} if made else made,
                        f"{group}-{called}-{replica}-{place}",
                        labels if place else {**labels, KTHENA + "entry": "true"},
                    )


def ray_job(fields: Fields, given: Given) -> Iterator[Child]:
    """A RayCluster. With `clusterSelector`, the job goes to one that is there, and only the Job of
    its submitter is created, if any is."""
    if not mapping(fields, "spec.clusterSelector"):
        yield from ray_above("spec.rayClusterSpec")(fields, given)
    elif text(fields, "spec.submissionMode") in ("", "K8sJobMode"):
        where, name = "spec.submitterPodTemplate", text(fields, "metadata.name")
        template = mapping(fields, where) or {"spec": {"containers": [_SUBMITTER]}}
        said = mapping(template, "metadata")
        labels = {**mapping(said, "labels"), RAY + "originated-from-crd": "RayJob"}
        template = {**template, "metadata": {**said, "labels": labels}}
        spec = {"completions": 1, "parallelism": 1, "template": template}
        yield child(fields, "batch/v1 Job", name, spec, inner=_TEMPLATE, outer=where)


def ray_above(where: str) -> Callable[[Fields, Given], Iterator[Child]]:
    """The RayCluster of a RayJob or a RayService, whose spec is at *where*."""

    def make(fields: Fields, _given: Given) -> Iterator[Child]:
        name = generated(text(fields, "metadata.name"))
        spec, kind = mapping(fields, where), f"{text(fields, 'apiVersion')} RayCluster"
        yield child(fields, kind, name, spec, inner="spec", outer=where)

    return make


def ray_cluster(fields: Fields, _given: Given) -> Iterator[Child]:
    name, head = text(fields, "metadata.name"), "spec.headGroupSpec.template"
    labels = _ray_labels(name, "head", "headgroup")
    yield pod(fields, head, mapping(fields, head), f"{name}-head", labels)
    scales = at(fields, "spec.enableInTreeAutoscaling") is True
    for place, group in enumerate(listed(fields, "spec.workerGroupSpecs", needed=False)):
        if at(group, "suspend") is True:
            continue
        path, said = f"spec.workerGroupSpecs[{place}].template", text(group, "groupName")
        within = f"spec.workerGroupSpecs[{place}]"
        least = number(group, "minReplicas", 0, within=within)
        asked = number(group, "replicas", least, within=within)
        asked = least if scales else max(least, asked)
        hosts = max(1, number(group, "numOfHosts", 1, within=within))
        stem = f"{name}-{said}-worker"
        for replica in range(min(asked, number(group, "maxReplicas", asked, within=within))):
            replica_name = generated(f"{name}-{said}", replica)
            for host in range(hosts):
                labels = {
                    **_ray_labels(name, "worker", said),
                    RAY + "worker-group-replica-index": str(replica),
                    RAY + "worker-group-replica-name": replica_name,
                    RAY + "replica-host-index": str(host),
                }
                worker = generated(stem, replica, host)
                yield pod(fields, path, mapping(group, "template"), worker, labels)


def _ray_labels(cluster: str, kind: str, group: str) -> dict[str, str]:
    return {
        RAY + "is-ray-node": "yes",
        RAY + "cluster": cluster,
        RAY + "node-type": kind,
        RAY + "group": group,
        RAY + "identifier": f"{cluster}-{kind}",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
