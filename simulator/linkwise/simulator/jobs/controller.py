"""Creates and deletes the pods of Jobs, as kube-controller-manager does.

One thread handles one job at a time; `job_rules` decides. The controller also deletes the pods of a
deleted job, which is the garbage collector's work on a real cluster.
"""

import logging
import random
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from threading import Thread

import msgspec

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.controllers.child import LETTERS
from linkwise.kube.objects import Pod
from linkwise.kube.reflector import Reflector
from linkwise.simulator.control_loop import ControlLoop
from linkwise.simulator.jobs import job_rules
from linkwise.simulator.jobs.job_rules import Decision, Job, Ledger

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class JobController(ControlLoop):
    """*seed* decides the last five letters of pod names. After a pod fails, the next one waits
    *failure_backoff_seconds* (10 in Kubernetes), doubled with each failure."""

    def __init__(
        self, client: KubeClient, *, seed: int = 0, failure_backoff_seconds: float = 10.0
    ) -> None:
        super().__init__()
        self._client = client
        self._random = random.Random(seed)
        self._backoff = failure_backoff_seconds
        self._jobs: dict[str, Job] = {}
        self._pods: defaultdict[str, dict[str, Pod]] = defaultdict(dict)  # job uid -> pod uid
        # created, but not seen in the watch yet; by name
        self._created: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
        self._deleted: set[str] = set()  # uids of pods deleted here, until the watch reports it
        self._ledgers: defaultdict[str, Ledger] = defaultdict(Ledger)
        # job uid -> earliest time of the next pod after failures
        self._not_before: dict[str, float] = {}
        self._due: dict[str, float] = {}  # job uid -> when to handle it
        self._written: dict[str, dict[str, object]] = {}  # used by the worker alone
        self._reflectors = (  # jobs before pods, or the pods would look orphaned
            Reflector(
                client,
                "/apis/batch/v1/jobs",
                Job,
                on_replace=self._replace_jobs,
                on_event=self._job_event,
            ),
            Reflector(
                client,
                "/api/v1/pods",
                Pod,
                on_replace=self._replace_pods,
                on_event=self._pod_event,
            ),
        )
        self._thread = Thread(target=self._run, name="jobs", daemon=True)

    # Events from the API server

    def _replace_jobs(self, found: Collection[Job]) -> None:
        there = {job.metadata.uid for job in found}
        with self._changed:
            gone = [job for uid, job in self._jobs.items() if uid not in there]
        for job in gone:
            self._job_event("DELETED", job)
        for job in found:
            self._job_event("MODIFIED", job)

    def _job_event(self, kind: str, job: Job) -> None:
        with self._changed:
            if kind == "DELETED":
                self._jobs.pop(job.metadata.uid, None)
            else:
                self._jobs[job.metadata.uid] = job
            self._look_at(job.metadata.uid)

    def _replace_pods(self, found: Collection[Pod]) -> None:
        there = {pod.metadata.uid for pod in found}
        with self._changed:
            known = [pod for pods in self._pods.values() for pod in pods.values()]
        for pod in known:
            if pod.metadata.uid not in there:
                self._pod_event("DELETED", pod)
        for pod in found:
            self._pod_event("MODIFIED", pod)

    def _pod_event(self, kind: str, pod: Pod) -> None:
        job = _owner_of(pod)
        if not job:
            return
        with self._changed:
            gone = kind == "DELETED"
            if gone:
                self._pods[job].pop(pod.metadata.uid, None)
            else:
                self._pods[job][pod.metadata.uid] = pod
            self._created[job].pop(pod.metadata.name, None)
            given_up = pod.metadata.uid in self._deleted  # the controller deleted it: not a failure
            if gone:
                self._deleted.discard(pod.metadata.uid)
            ledger = self._ledgers[job]
            if not given_up and ledger.note(pod, gone=gone):
                wait = job_rules.seconds_after(len(ledger.failed), first=self._backoff)
                self._not_before[job] = time.monotonic() + wait
            self._look_at(job)

    def _look_at(self, job: str, *, after_seconds: float = 0.0) -> None:
        moment = time.monotonic() + after_seconds
        self._due[job] = min(moment, self._due.get(job, moment))
        self._changed.notify_all()

    # The worker

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping:
                    now = time.monotonic()
                    due = min(self._due, key=self._due.__getitem__, default=None)
                    if due is not None and self._due[due] <= now:
                        break
                    self._changed.wait(None if due is None else self._due[due] - now)
                if self._stopping or due is None:
                    return
                del self._due[due]
            self._reconcile(due)

    def _reconcile(self, uid: str) -> None:
        with self._changed:
            job = self._jobs.get(uid)
            decision = self._decide(uid, job)
        try:
            self._delete(decision)
            if job is not None:
                self._carry_out(job, decision)
        except ApiError as error:
            log.warning("job %s: %s", job.metadata.name if job else uid, error)
            with self._changed:
                self._look_at(uid, after_seconds=_RETRY_SECONDS)

    def _decide(self, uid: str, job: Job | None) -> Decision:
        pods = [*self._pods[uid].values(), *self._created[uid].values()]
        if job is None:
            self._forget_if_done(uid)
            return Decision(delete=tuple(pods))
        decision = job_rules.decide(job, pods, self._ledgers[uid])
        wait = self._not_before.get(uid, 0.0) - time.monotonic()
        if decision.create and wait > 0:
            self._look_at(uid, after_seconds=wait)
            return replace(decision, create=())
        return decision

    def _carry_out(self, job: Job, decision: Decision) -> None:
        for index in decision.create:
            self._create(job, index)
        if not job.is_over:
            self._write_status(job, decision)

    def _create(self, job: Job, index: int | None) -> None:
        suffix = "".join(self._random.choices(LETTERS, k=5))
        body = job_rules.pod_of(job, index, suffix)
        name, uid = body["metadata"]["name"], job.metadata.uid
        with self._changed:  # before the watch can report it, so that it is not created twice
            self._created[uid][name] = msgspec.convert(body, Pod)
        try:
            self._client.post(f"/api/v1/namespaces/{job.metadata.namespace}/pods", body)
        except ApiError:
            # If the API server created it nevertheless, the watch reports it and `decide` deletes
            # one.
            with self._changed:
                self._created[uid].pop(name, None)
            raise

    def _delete(self, decision: Decision) -> None:
        for pod in decision.delete:
            meta = pod.metadata
            if not meta.uid or meta.uid in self._deleted or meta.deletion_timestamp is not None:
                continue
            with self._changed:
                self._deleted.add(meta.uid)
            path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}"
            try:
                self._client.delete(path, uid=meta.uid)
            except ApiError as error:
                if error.status not in (404, 409):
                    with self._changed:
                        self._deleted.discard(meta.uid)
                    raise

    def _write_status(self, job: Job, decision: Decision) -> None:
        uid = job.metadata.uid
        with self._changed:
            status = job_rules.status_of(job, decision, self._ledgers[uid], _moment())
        counts = {field: value for field, value in status.items() if not field.endswith("Time")}
        if self._written.get(uid) == counts:
            return
        path = f"/apis/batch/v1/namespaces/{job.metadata.namespace}/jobs/{job.metadata.name}"
        try:
            self._client.patch(f"{path}/status", {"metadata": {"uid": uid}, "status": status})
            self._written[uid] = counts
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _forget_if_done(self, uid: str) -> None:
        if not self._pods[uid]:
            self._pods.pop(uid, None)
            self._created.pop(uid, None)
            self._ledgers.pop(uid, None)
            self._not_before.pop(uid, None)
            self._written.pop(uid, None)


def _owner_of(pod: Pod) -> str:
    """Return the uid of the Job that controls the pod, or "". Volcano has Jobs of its own."""
    owners = (owner for owner in pod.metadata.owner_references if owner.controller)
    return next((o.uid for o in owners if (o.api_version, o.kind) == ("batch/v1", "Job")), "")


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
