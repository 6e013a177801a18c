"""Groups of pods that serve one model or form one Ray cluster."""

from dataclasses import replace

from linkwise.kube.fields import (
    Fields,
    at,
    controller_of,
    count,
    has,
    items,
    mapping,
    number,
    ordinal,
    text,
)
from linkwise.kube.labels import AIBRIX, KTHENA, LWS, RAY
from linkwise.pods.podgrouper.workloads.answer import NoGang, ObjectRef
from linkwise.pods.podgrouper.workloads.case import Case
from linkwise.pods.podgrouper.workloads.essence import nodes_of
from linkwise.pods.podgrouper.workloads.foretold import Parts, TiedPods, as_text, labelled
from linkwise.pods.podgrouper.workloads.kinds import (
    DEPLOYMENT,
    EXCLUSIVE_GROUPS,
    EXCLUSIVE_SUBGROUPS,
    LEADER_WORKER_SET,
    MODEL_SERVING,
    POD_SET,
    RAY_CLUSTER,
    STATEFUL_SET,
)
from linkwise.pods.podgrouper.workloads.workload import (
    FoundWorkload,
    ReplicaRole,
    Workload,
    found,
    role_of,
    workload,
)
from linkwise.pods.spans import LABEL_KEY, required_of

KSERVE = "serving.kserve.io/inferenceservice"


def leader_worker_set(case: Case) -> FoundWorkload | None:
    """One gang per group. The size comes from the pod: during a rolling update, sizes differ."""
    name, group = case.said(LWS + "name"), case.said(LWS + "group-index")
    if not name or not group or not case.is_controlled_by(STATEFUL_SET):
        return None
    owner = case.read(LEADER_WORKER_SET, name)
    size = count(case.said(LWS + "size"), LWS + "size")
    template = "spec.leaderWorkerTemplate."
    workers = mapping(owner, template + "workerTemplate")
    leader = mapping(owner, template + "leaderTemplate") or workers
    # Workers get the domain of the leader's node as their node selector, so they come once it has
    # one (kubernetes-sigs/lws, pkg/controllers/pod_controller.go).
    domain = _said_or_in(case, owner, EXCLUSIVE_GROUPS)
    late = domain or text(owner, "spec.startupPolicy") == "LeaderReady"
    worker = role_of(case, "worker", size - 1, workers)
    roles = (
        role_of(case, "leader", 1, leader),
        replace(
            worker,
            ready=frozenset({"leader"} if late else ()),
            template=_of_group(case, worker.template, group),
            parts=_subgroups(case, owner, worker.template, group, size),
        ),
    )
    ref = ObjectRef(LEADER_WORKER_SET.group, LEADER_WORKER_SET.kind, case.namespace, name)
    work = replace(
        workload(case, ref, owner, roles),
        part=group,
        require=required_of((domain,)) if domain else (),
    )
    place = ordinal(case.said(LWS + "worker-index"))
    role = "worker" if place else "leader"
    return found(
        case,
        work,
        role,
        place - 1 if place else place,
        rule="leaderworkerset",
        because=f"group {group} of {ref} has {size} pods" + (f" in one {domain}" if domain else ""),
        subgroup=case.said(LWS + "subgroup-index"),
    )


def _said_or_in(case: Case, owner: Fields, key: str) -> str:
    """An annotation of the set, which its controller copies to the pods."""
    found = mapping(owner, "metadata.annotations").get(key)
    return found if isinstance(found, str) and found else case.annotations.get(key, "")


def _of_group(case: Case, template: Fields, group: str) -> Fields:
    labels = {LWS + key: case.said(LWS + key) for key in ("name", "group-key")}
    labels[LWS + "group-index"] = group
    return labelled(template, {key: value for key, value in labels.items() if value})


def _subgroups(case: Case, owner: Fields, template: Fields, group: str, size: int) -> Parts | None:
    """The subgroups of the workers, as LeaderWorkerSet's webhook counts them
    (kubernetes-sigs/lws, pkg/webhooks/pod_webhook.go)."""
    each = ordinal(case.said(LWS + "subgroup-size"))
    if not each:
        return None
    excluded = case.said(LWS + "subgroup-policy-type") == "LeaderExcluded"
    shift = 0 if excluded or (size - 1) % each == 0 else 1
    domain = _said_or_in(case, owner, EXCLUSIVE_SUBGROUPS)
    if not LABEL_KEY.fullmatch(domain):
        return Parts(each, "", shift)
    hashed = f"{case.said(LWS + 'name')}-{group}/"
    key, number_key = LWS + "subgroup-key", LWS + "subgroup-index"
    tied = TiedPods(as_text(_of_group(case, template, group)), domain, key, hashed, number_key)
    return Parts(each, "", shift, tied)


def pod_set(case: Case) -> FoundWorkload:
    """One replica of a role of AIBrix's StormService that spans several pods
    (vllm-project/aibrix, pkg/controller/podset/podset_controller.go)."""
    owner = case.read_controller(POD_SET)
    assert case.controller is not None
    ref = ObjectRef(POD_SET.group, POD_SET.kind, case.namespace, case.controller.name)
    size = number(owner, "spec.podGroupSize", 1)
    roles = (role_of(case, "pod", size, mapping(owner, "spec.template")),)
    work = workload(case, ref, owner, roles)
    index = ordinal(case.said(AIBRIX + "pod-group-index"))
    because = f"{ref} has {size} pods"
    shown = case.said("role-name").lower()
    return found(case, work, "pod", index, rule="podset", because=because, shown_role=shown)


def model_serving(case: Case) -> FoundWorkload:
    """One replica of a role of kthena's ModelServing, an entry pod and its workers; or all roles
    of a serving group, where kthena would create a Volcano PodGroup for them if Volcano placed
    them (volcano-sh/kthena, pkg/model-serving-controller/podgroupmanager/manager.go)."""
    owner = case.read_controller(MODEL_SERVING)
    assert case.controller is not None
    ref = ObjectRef(MODEL_SERVING.group, MODEL_SERVING.kind, case.namespace, case.controller.name)
    group, mine = case.said(KTHENA + "group-name"), case.said(KTHENA + "role")
    replica, within = case.said(KTHENA + "role-id"), "spec.template."
    whole = has(owner, within + "gangPolicy") or has(owner, within + "networkTopology")
    least_of = mapping(owner, within + "gangPolicy.minRoleReplicas")
    roles, least, workers = list[ReplicaRole](), 0, 0
    for each in items(owner, within + "roles"):
        name, beside = text(each, "name"), number(each, "workerReplicas", 0)
        if name == mine:
            workers = beside
        elif not whole:
            continue
        replicas = number(each, "replicas", 1) if whole else 1
        least += (1 + beside) * min(replicas, number(least_of, name, replicas))
        roles += (
            role_of(case, name, replicas, mapping(each, "entryTemplate")),
            role_of(case, f"{name}/worker", replicas * beside, mapping(each, "workerTemplate")),
        )
    work = workload(case, ref, owner, tuple(roles), least)
    work = replace(work, part=group if whole else f"{group}-{replica}")
    key, index = mine, ordinal(replica.rpartition("-")[2])
    # kthena writes the place of a worker, counted from 1, into its name alone.
    place = ordinal(case.pod.metadata.name.rpartition("-")[2])
    if case.said(KTHENA + "entry") != "true":
        key = f"{mine}/worker"
        index = None if index is None or not place else index * workers + place - 1
    if not whole:
        index = 0 if key == mine else place and place - 1
    parts = " + ".join(f"{role.pods} {role.name}" for role in roles if role.pods)
    because = f"{work.part} of {ref} has {parts}" + (f", {least} at once" if whole else "")
    return found(
        case,
        work,
        key,
        index,
        rule="modelserving",
        because=because,
        shown_role=mine,
        subgroup=replica if whole else "",
    )


def nodes_of_one_server(case: Case) -> FoundWorkload | None:
    """A StatefulSet that creates all its pods at once, and whose command gives their number as
    that of the nodes of one server, as KAITO's and SGLang's do. Each pod waits for the others."""
    owner = case.read_controller(STATEFUL_SET)
    assert case.controller is not None
    template, size = mapping(owner, "spec.template"), number(owner, "spec.replicas", 1)
    nodes = nodes_of(template)
    if text(owner, "spec.podManagementPolicy") != "Parallel" or not nodes or nodes[1] != size:
        return None
    ref = ObjectRef(STATEFUL_SET.group, STATEFUL_SET.kind, case.namespace, case.controller.name)
    work = workload(case, ref, owner, (role_of(case, "node", size, template),), nodes[0])
    because = f"the command of {ref} starts one server on its {size} pods"
    return found(case, work, "node", case.index(), rule="statefulset-nodes", because=because)


def kserve_multi_node(case: Case) -> FoundWorkload | None:
    """A head and the workers of another Deployment. Only pods of such services carry a
    generation."""
    service, generation = case.said(KSERVE), case.said("isvc.generation")
    app = case.said("app").removeprefix("isvc.")
    if not service or not generation or not app:
        return None
    is_worker = app.endswith("-worker")
    owner = case.read(DEPLOYMENT, app if is_worker else f"{app}-worker")
    maker = controller_of(owner)
    ref = ObjectRef("serving.kserve.io", "InferenceService", case.namespace, service)
    if text(maker, "kind") != ref.kind or text(maker, "name") != service:
        return None
    # A worker requests as much as the head: the model is split into equal parts.
    workers = role_of(
        case, "worker", number(owner, "spec.replicas", 1), mapping(owner, "spec.template")
    )
    roles = (replace(workers, name="head", pods=1), workers)
    work = Workload(ref, text(maker, "uid"), roles, part=generation)
    role = "worker" if is_worker else "head"
    return found(
        case,
        work,
        role,
        None if is_worker else 0,
        rule="kserve-multi-node",
        because=f"{ref} runs a head and {workers.pods} workers",
    )


def ray_cluster(case: Case) -> FoundWorkload | NoGang:
    """The guaranteed workers: with an autoscaler the minReplicas of each group, else replicas.

    A worker beyond the minimum was requested by the autoscaler and is in no gang. If its replica
    spans several hosts, these are a gang: they are useless without each other.
    """
    owner = case.read_controller(RAY_CLUSTER)
    assert case.controller is not None
    ref = ObjectRef(RAY_CLUSTER.group, RAY_CLUSTER.kind, case.namespace, case.controller.name)
    group, kind = case.said(RAY + "group"), case.said(RAY + "node-type")
    specs = items(owner, "spec.workerGroupSpecs")
    scales = at(owner, "spec.enableInTreeAutoscaling") is True
    head = replace(role_of(case, "headgroup", 1, _template(owner, "headGroupSpec")), ranked=False)
    workers = tuple(
        role_of(
            case,
            text(spec, "groupName"),
            _ray_replicas(spec, scales=scales) * _hosts(spec),
            mapping(spec, "template"),
        )
        for spec in specs
    )
    parts = " + ".join(f"{item.pods} {item.name}" for item in workers)
    because = f"{ref} runs a head + {parts or 'no worker'}"
    work = replace(workload(case, ref, owner, (head, *workers)), open_ended=scales)
    if kind == "head":
        return found(
            case, work, head.name, None, rule="raycluster", because=because, shown_role="head"
        )
    mine = next((spec for spec in specs if text(spec, "groupName") == group), {})
    replica = ordinal(case.said(RAY + "worker-group-replica-index"))
    promised = _ray_replicas(mine, scales=scales)
    if scales and (promised == 0 or (replica is not None and replica >= promised)):
        return _extra_worker(case, work, mine)
    return found(
        case,
        work,
        group,
        _ray_index(case, mine, replica),
        rule="raycluster",
        because=because,
        shown_role="worker",
        subgroup=_ray_replica_name(case, mine),
    )


def _extra_worker(case: Case, work: Workload, spec: Fields) -> FoundWorkload | NoGang:
    replica = _ray_replica_name(case, spec)
    if not replica:
        because = f"the autoscaler of {work.ref} requested it beyond minReplicas"
        return NoGang(case.member("worker"), "raycluster", because)
    group = text(spec, "groupName")
    hosts = role_of(case, group, _hosts(spec), mapping(spec, "template"))
    return found(
        case,
        replace(work, roles=(hosts,), part=replica, open_ended=False),
        group,
        ordinal(case.said(RAY + "replica-host-index")),
        rule="raycluster",
        because=f"replica {replica} of {work.ref} spans {hosts.pods} hosts",
        shown_role="worker",
        subgroup=replica,
    )


def _ray_replica_name(case: Case, spec: Fields) -> str:
    return case.said(RAY + "worker-group-replica-name") if _hosts(spec) > 1 else ""


def _ray_index(case: Case, spec: Fields, replica: int | None) -> int | None:
    host = ordinal(case.said(RAY + "replica-host-index")) or 0
    return None if replica is None else replica * _hosts(spec) + host


def _hosts(spec: Fields) -> int:
    return max(1, number(spec, "numOfHosts", 1))


def _ray_replicas(spec: Fields, *, scales: bool) -> int:
    """Replicas of a worker group. The operator clamps them to the bounds; a suspended group has
    none."""
    least = number(spec, "minReplicas", 0)
    if at(spec, "suspend") is True:
        return 0
    if scales:
        return least
    asked = max(least, number(spec, "replicas", least))
    return min(asked, number(spec, "maxReplicas", asked))


def _template(owner: Fields, group: str) -> Fields:
    return mapping(owner, f"spec.{group}.template")
