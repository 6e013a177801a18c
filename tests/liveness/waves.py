"""Owners that create some of their pods only after others run, and lost ones again, as values.

What is created after what is `linkwise.kube.controllers.order`. A wave comes after a short while,
and sometimes never. A pod that is lost comes again alone, after its controller's back-off; or its
owner deletes all pods, to create all again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any

import msgspec

from linkwise.kube.controllers.order import Reached, SeenPods
from linkwise.kube.controllers.workload import MadePod, pods_of
from linkwise.kube.objects import Affinity, Condition, Pod
from tests.extender.cluster import GPU, change
from tests.extender.device_cluster import by_webhook
from tests.liveness.day import Day
from tests.pods.podgrouper.pods import Object, ref_of

ZONE = "topology.kubernetes.io/zone"
_LWS, _JOB_SET = "leaderworkerset.sigs.k8s.io/", "jobset.sigs.k8s.io/"
_BACK_OFF_SECONDS = 10.0  # of the Job controller
_HOUR = 3600.0


def _template(gpus: int, **said: str) -> Object:
    amounts = {GPU: str(gpus)} if gpus else {}
    requests = {"cpu": "1", "memory": "1Gi", **amounts}
    container = {"name": "main", "resources": {"limits": amounts, "requests": requests}}
    return {"metadata": {"annotations": said}, "spec": {"containers": [container]}}


def _object(kind: str, name: str, namespace: str, spec: Object, **said: str) -> Object:
    api_version, _, word = kind.rpartition(" ")
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-of-{name}",
        "annotations": {key.replace("__", "/"): text for key, text in said.items()},
    }
    return {"apiVersion": api_version, "kind": word, "metadata": metadata, "spec": spec}


def _replicated(
    name: str, pods: int, gpus: int, replicas: int = 1, after: Mapping[str, str] | None = None
) -> Object:
    job = {"parallelism": pods, "completions": pods, "template": _template(gpus)}
    depends = [{"name": name, "status": status} for name, status in (after or {}).items()]
    made: Object = {"name": name, "replicas": replicas, "template": {"spec": job}}
    return made | ({"dependsOn": depends} if depends else {})


def _job_set(name: str, namespace: str, jobs: list[Object], **spec: Any) -> Object:
    kind = "jobset.x-k8s.io/v1alpha2 JobSet"
    return _object(kind, name, namespace, {"replicatedJobs": jobs, **spec})


def _in_order(draw: Random, name: str, namespace: str, gpus: int) -> Object:
    jobs = [_replicated("driver", 1, gpus)]
    jobs.append(_replicated("workers", draw.randint(1, 2), gpus, draw.choice([1, 1, 2])))
    if draw.random() < 0.3:
        jobs.append(_replicated("report", 1, draw.choice([0, gpus])))
    startup = {"startupPolicyOrder": "InOrder"}
    return _job_set(name, namespace, jobs, startupPolicy=startup)


def _after_ready(draw: Random, name: str, namespace: str, gpus: int) -> Object:
    workers = _replicated("workers", draw.randint(1, 3), gpus, after={"driver": "Ready"})
    return _job_set(name, namespace, [_replicated("driver", 1, gpus), workers])


def _after_initializer(draw: Random, name: str, namespace: str, gpus: int) -> Object:
    nodes = _replicated("node", draw.randint(2, 3), gpus, after={"init": "Complete"})
    jobs = [_replicated("init", 1, 0), nodes]
    if draw.random() < 0.5:
        jobs.append(_replicated("launcher", 1, draw.choice([0, gpus]), after={"node": "Ready"}))
    return _job_set(name, namespace, jobs)


def _workers(draw: Random, name: str, namespace: str, gpus: int, **said: str) -> Object:
    within = {"size": draw.randint(2, 3), "workerTemplate": _template(gpus)}
    policy = {} if said and draw.random() < 0.5 else {"startupPolicy": "LeaderReady"}
    spec = {"replicas": draw.choice([1, 1, 2]), "leaderWorkerTemplate": within, **policy}
    return _object("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", name, namespace, spec, **said)


def _in_one_zone(draw: Random, name: str, namespace: str, gpus: int) -> Object:
    return _workers(draw, name, namespace, gpus, **{f"{_LWS}exclusive-topology": ZONE})


def _mpi_job(draw: Random, name: str, namespace: str, gpus: int) -> Object:
    works = draw.random() < 0.4
    replicas = {
        "Launcher": {"replicas": 1, "template": _template(gpus if works else 0)},
        "Worker": {"replicas": draw.randint(1, 3), "template": _template(gpus)},
    }
    spec: Object = {"mpiReplicaSpecs": replicas, "launcherCreationPolicy": "WaitForWorkersReady"}
    if works:
        spec["runLauncherAsWorker"] = True
    return _object("kubeflow.org/v2beta1 MPIJob", name, namespace, spec)


def _job(draw: Random, name: str, namespace: str, gpus: int) -> Object:
    pods = draw.randint(2, 4)
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods}
    return _object("batch/v1 Job", name, namespace, {**spec, "template": _template(gpus)})


_KINDS = (
    _in_order,
    _in_order,
    _after_ready,
    _after_initializer,
    _workers,
    _in_one_zone,
    _mpi_job,
    _job,
)


@dataclass
class Owner:
    """All pods of one manifest; each has a place in `made`."""

    body: Object
    gpus: int
    made: tuple[MadePod, ...]
    gang_of: tuple[str, ...]  # of each: which of them start together; empty: it is in no gang
    seconds: float  # that they run once all are ready
    priority: int
    is_recreated_whole: bool
    never: bool  # whether the later waves never come
    pods: dict[int, str] = field(default_factory=dict)  # place -> uid
    due: set[int] = field(default_factory=set)  # places of pods that are about to be created
    done: set[int] = field(default_factory=set)
    attempts: int = 0
    failures: int = 0
    was_there: set[int] = field(default_factory=set)  # in this run
    ending: bool = False  # all are ready, and end at a time that is set
    is_over: bool = False

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.body["metadata"]["namespace"])

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    def together(self, place: int) -> list[int]:
        """The places of all pods that start with that one."""
        gang = self.gang_of[place]
        return [each for each, name in enumerate(self.gang_of) if name == gang]


class Waves:
    def __init__(self, day: Day, seed: int, seconds: float, namespaces: tuple[str, ...]) -> None:
        self._day, self._seconds, self._namespaces = day, seconds, namespaces
        self._ends = day.now + seconds
        self._draw = Random(f"waves {seed}")
        self._numbers = 0
        self.owners: dict[str, Owner] = {}  # by name
        self.of_pod: dict[str, tuple[Owner, int]] = {}  # by the uid of each pod there ever was
        day.on_run = self._ran
        day.on_bound = self._bound

    def begin(self) -> None:
        draw, day = self._draw, self._day
        for number, name in enumerate(sorted(day.nodes)):
            node = day.nodes[name]
            labels = {**node.metadata.labels, ZONE: f"z{number % 2}"}
            day.put_node(change(node, metadata=change(node.metadata, labels=labels)))
        for number in range(draw.choice([6, 10, 16])):
            at = draw.uniform(0, self._seconds * 0.8)
            for twin in range(draw.choice([1, 1, 2])):
                day.at(day.now + at, partial(self._come, f"v{number}x{twin}"))

    def _come(self, name: str) -> None:
        draw = Random(f"{name} {self._day.seed}")
        gpus = draw.choice([1, 2, 4, 8, 8])
        body = draw.choice(_KINDS)(draw, name, draw.choice(self._namespaces), gpus)
        made = pods_of(body, {}).pods
        ended = {
            job
            for each in made
            for after in each.after
            if after.state is Reached.COMPLETE
            for job in after.jobs
        }
        owner = Owner(
            body,
            gpus,
            made,
            tuple("" if _controller(each) in ended else _group(each) for each in made),
            60.0 * 60 ** draw.random(),
            draw.choice([0, 0, 0, 1, 2]),
            is_recreated_whole=body["kind"] != "Job" and draw.random() < 0.5,
            never=draw.random() < 0.12,
        )
        assert self._day.owners is not None
        self._day.owners[ref_of(body)] = body
        self.owners[name] = owner
        self._look(owner)

    # What its controllers create.

    def _look(self, owner: Owner) -> None:
        """Create what is missing and whose turn it is."""
        if owner.is_over:
            return
        seen, day = SeenPods(), self._day
        for uid in owner.pods.values():
            if uid in day.pods:
                seen.put(day.pods[uid])
        for place, made in enumerate(owner.made):
            if place in owner.pods or place in owner.due or place in owner.done:
                continue
            is_again = place in owner.was_there
            if is_again and owner.is_recreated_whole:
                continue  # `_begin_again` makes all
            if not (is_again or seen.meet_all(made.after, owner.namespace)):
                continue
            if made.after and owner.never:
                continue
            owner.due.add(place)
            pause = self._pause(owner, made) if is_again else self._draw.uniform(0.1, 5.0)
            day.after(pause, partial(self._make, owner, place, owner.attempts))

    def _pause(self, owner: Owner, made: MadePod) -> float:
        """Until its controller creates a lost pod again."""
        if not _is_of_job(made):
            return self._draw.uniform(0.1, 5.0)
        failed = sum(
            self._day.pods[uid].status.phase == "Failed"
            for uid, (of, _) in self.of_pod.items()
            if of is owner and uid in self._day.pods
        )
        doubled = _BACK_OFF_SECONDS * 2.0 ** min(max(failed - 1, 0), 6)
        return min(doubled, 600.0) + self._draw.uniform(0.1, 30.0)

    def _make(self, owner: Owner, place: int, attempt: int) -> None:
        if owner.is_over or attempt != owner.attempts:
            return
        owner.due.discard(place)
        day, made = self._day, owner.made[place]
        self._numbers += 1
        day.made += 1
        name = str(made.body["metadata"]["name"])
        name = f"{name}-{self._numbers}" if _is_of_job(made) else name
        if day.find(name) is not None:  # its predecessor is not gone yet
            owner.due.add(place)
            day.after(2.0, partial(self._make, owner, place, attempt))
            return
        pod = msgspec.convert(made.body, Pod)
        meta = change(
            pod.metadata,
            name=name,
            namespace=owner.namespace,
            uid=f"uid-{day.made}",
            creation_timestamp=datetime.fromtimestamp(day.now, UTC),
        )
        spec = change(pod.spec, priority=owner.priority)
        pod = self._tied(owner, place, change(pod, metadata=meta, spec=spec))
        if day.claims_for(owner.name):
            pod = by_webhook(pod, f"linkwise-{day.made:020}")
        owner.pods[place] = pod.metadata.uid
        owner.was_there.add(place)
        self.of_pod[pod.metadata.uid] = owner, place
        day.put_pod(pod)

    def _tied(self, owner: Owner, place: int, pod: Pod) -> Pod:
        """LeaderWorkerSet gives the workers the domain of their leader, and has each leader alone
        in its domain."""
        said = pod.metadata.annotations
        if f"{_LWS}exclusive-topology" not in said:
            return pod
        group = f"{owner.name}-{pod.metadata.labels[f'{_LWS}group-index']}"
        labels = {**pod.metadata.labels, f"{_LWS}group-key": group}
        pod = change(pod, metadata=change(pod.metadata, labels=labels))
        leader = next(each for each in owner.together(place) if not owner.made[each].after)
        if place != leader:
            there = self._day.pods.get(owner.pods.get(leader, ""))
            node = self._day.nodes.get(there.spec.node_name) if there is not None else None
            selector = {} if node is None else {ZONE: node.metadata.labels[ZONE]}
            return change(pod, spec=change(pod.spec, node_selector=selector))
        mine = {"key": f"{_LWS}group-key", "operator": "In", "values": [group]}
        others = [
            {"key": f"{_LWS}group-key", "operator": "Exists"},
            {**mine, "operator": "NotIn"},
        ]
        required = "requiredDuringSchedulingIgnoredDuringExecution"

        def term(expressions: list[Any]) -> Object:
            selector = {"matchExpressions": expressions}
            return {required: [{"labelSelector": selector, "topologyKey": ZONE}]}

        tied = {"podAffinity": term([mine]), "podAntiAffinity": term(others)}
        return change(pod, spec=change(pod.spec, affinity=msgspec.convert(tied, Affinity)))

    # What becomes of them.

    def _bound(self, pod: Pod) -> None:
        if pod.metadata.uid in self.of_pod:
            self._look_soon(self.of_pod[pod.metadata.uid][0])

    def _look_soon(self, owner: Owner) -> None:
        self._day.after(self._draw.uniform(0.05, 1.0), partial(self._look, owner))

    def _ran(self, pod: Pod) -> None:
        """It runs, and is ready after a while."""
        if pod.metadata.uid not in self.of_pod:
            return
        owner, place = self.of_pod[pod.metadata.uid]
        if not owner.gang_of[place]:
            ends = partial(self._day.end, pod.metadata.uid, "Succeeded")
            self._day.after(self._draw.uniform(5.0, 60.0), ends)
        seconds = self._draw.uniform(0.5, 30.0)
        if self._draw.random() < 0.05:
            seconds = self._draw.uniform(600.0, 3000.0)
        self._day.after(seconds, partial(self._set_ready, pod.metadata.uid))

    def _set_ready(self, uid: str) -> None:
        pod = self._day.pods.get(uid)
        if pod is None or pod.status.phase != "Running":
            return
        others = tuple(each for each in pod.status.conditions if each.type != "Ready")
        conditions = (*others, Condition("Ready", "True"))
        self._day.put_pod(change(pod, status=change(pod.status, conditions=conditions)))
        owner, _ = self.of_pod[uid]
        self._look_soon(owner)
        self._set_end(owner)

    def _set_end(self, owner: Owner) -> None:
        """Once all are ready, the rest of their lives is known."""
        places = [place for place, gang in enumerate(owner.gang_of) if gang]
        if owner.ending or not all(
            place in owner.done or self._is_ready(owner, place) for place in places
        ):
            return
        owner.ending = True
        attempt, draw = owner.attempts, self._draw
        self._day.after(owner.seconds, partial(self._end_all, owner, attempt))
        if draw.random() < 0.6 and self._day.now < self._ends:
            at = draw.uniform(0.0, 1.2) * owner.seconds
            self._day.after(at, partial(self._lose_one, owner, attempt))

    def _is_ready(self, owner: Owner, place: int) -> bool:
        pod = self._day.pods.get(owner.pods.get(place, ""))
        return (
            pod is not None
            and not pod.is_leaving
            and pod.status.phase == "Running"
            and any(
                each.type == "Ready" and each.status == "True" for each in pod.status.conditions
            )
        )

    def _lose_one(self, owner: Owner, attempt: int) -> None:
        there = [uid for place, uid in sorted(owner.pods.items()) if owner.gang_of[place]]
        if owner.is_over or attempt != owner.attempts or not there:
            return
        pod = self._day.pods[self._draw.choice(there)]
        if pod.status.phase != "Running":
            return
        if self._draw.random() < 0.6:
            self._day.end(pod.metadata.uid, "Failed")
        else:
            self._day.terminate(pod.metadata.name)

    def _end_all(self, owner: Owner, attempt: int) -> None:
        if owner.is_over or attempt != owner.attempts:
            return
        places = [place for place, gang in enumerate(owner.gang_of) if gang]
        if not all(place in owner.done or self._is_ready(owner, place) for place in places):
            owner.ending = False  # until all are ready again
            return
        if owner.kind == "LeaderWorkerSet":
            self.delete(owner)
            return
        for place in places:
            if place in owner.pods:
                end = partial(self._day.end, owner.pods[place], "Succeeded")
                self._day.after(self._draw.uniform(0.0, 5.0), end)

    def ended(self, pod: Pod) -> None:
        """It has ended, or is gone."""
        uid = pod.metadata.uid
        owner, place = self.of_pod.get(uid, (None, 0))
        if owner is None or owner.pods.get(place) != uid:
            return
        is_gone = uid not in self._day.pods
        if not is_gone and pod.status.phase == "Succeeded":
            owner.done.add(place)
            if all(each in owner.done or not gang for each, gang in enumerate(owner.gang_of)):
                self._day.after(self._draw.uniform(1.0, 60.0), partial(self.delete, owner))
            self._look_soon(owner)
            return
        del owner.pods[place]
        owner.done.discard(place)
        owner.failures += 1
        owner.ending = False
        if owner.is_over:
            return
        if owner.never and self._draw.random() < 0.5:
            self.delete(owner)
            return
        owner.never = False
        if not is_gone and not _is_of_job(owner.made[place]):
            self._day.after(self._draw.uniform(0.1, 3.0), partial(self._day.clean_up, uid))
        if owner.is_recreated_whole:
            self._begin_again(owner)
        else:
            self._look_soon(owner)

    def _begin_again(self, owner: Owner) -> None:
        """Delete all, and create the first ones once all are gone."""
        owner.attempts += 1
        owner.due.clear()
        owner.pods.clear()
        owner.was_there = set(range(len(owner.made)))  # so that none is created before all are gone
        for pod in [*self._all_of(owner)]:
            if pod.metadata.uid not in self._day.pods:
                continue
            if pod.has_ended:
                self._day.remove_pod(pod.metadata.uid)
            else:
                self._day.terminate(pod.metadata.name)
        self._when_gone(owner, owner.attempts)

    def _when_gone(self, owner: Owner, attempt: int) -> None:
        if owner.is_over or attempt != owner.attempts:
            return
        if any(self._all_of(owner)):
            self._day.after(0.5, partial(self._when_gone, owner, attempt))
            return
        owner.done.clear()
        owner.was_there.clear()
        self._day.after(self._draw.uniform(0.2, 4.0), partial(self._look, owner))

    def delete(self, owner: Owner) -> None:
        """The owner, and by the garbage collector all its pods."""
        if owner.is_over:
            return
        owner.is_over = True
        assert self._day.owners is not None
        del self._day.owners[ref_of(owner.body)]
        for pod in [*self._all_of(owner)]:
            if pod.has_ended:
                self._day.remove_pod(pod.metadata.uid)
            else:
                self._day.terminate(pod.metadata.name)

    def _all_of(self, owner: Owner) -> Iterator[Pod]:
        for uid, pod in [*self._day.pods.items()]:
            if uid in self.of_pod and self.of_pod[uid][0] is owner:
                yield pod


def _controller(made: MadePod) -> str:
    return next(str(each["name"]) for each in made.body["metadata"]["ownerReferences"])


def _is_of_job(made: MadePod) -> bool:
    return any(each["kind"] == "Job" for each in made.body["metadata"]["ownerReferences"])


def _group(made: MadePod) -> str:
    """Of a LeaderWorkerSet, each group starts by itself; of others, all that have no other end."""
    return str(made.body["metadata"]["labels"].get(f"{_LWS}group-index", "all"))
