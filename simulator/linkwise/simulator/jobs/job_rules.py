"""Decides what happens to a Job: which pods to create, which to delete, and whether it is over.

Follows kube-controller-manager's job controller for the fields that training jobs use: completions,
parallelism, Indexed and NonIndexed, backoffLimit, suspend. Pure: takes a job, its pods and their
history; returns the pods to create and to delete, and the status.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from linkwise.kube.controllers.batch import pod_of_job
from linkwise.kube.labels import COMPLETION_INDEX
from linkwise.kube.objects import Condition, ObjectMeta, Pod

INDEXED = "Indexed"
_LONGEST_BACKOFF_SECONDS = 600.0


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    template: dict[str, Any] = {}
    completions: int | None = None
    parallelism: int | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit: int = 6
    suspend: bool = False


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    conditions: tuple[Condition, ...] = ()
    start_time: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def is_over(self) -> bool:
        return any(
            c.type in ("Complete", "Failed") and c.status == "True" for c in self.status.conditions
        )


@dataclass(slots=True)
class Ledger:
    """Outcome of the job's pods by uid. A pod still counts after its deletion."""

    failed: set[str] = field(default_factory=set)
    succeeded: dict[str, int | None] = field(default_factory=dict)  # uid -> completion index

    def note(self, pod: Pod, *, gone: bool = False) -> bool:
        """Count the pod if it is over. Return True if it has just failed.

        A pod that is deleted before it succeeds has failed, since the controller replaces it.
        """
        uid = pod.metadata.uid
        if pod.status.phase == "Succeeded":
            self.succeeded[uid] = index_of(pod)
            return False
        failed = gone or not pod.is_live
        if not failed or uid in self.failed:
            return False
        self.failed.add(uid)
        return True


@dataclass(frozen=True, slots=True)
class Decision:
    """`create` holds the completion index of each new pod (None in a NonIndexed job)."""

    create: tuple[int | None, ...] = ()
    delete: tuple[Pod, ...] = ()
    active: int = 0
    outcome: str = ""  # "Complete", "Failed", or "" while it goes on


def index_of(pod: Pod) -> int | None:
    text = pod.metadata.annotations.get(COMPLETION_INDEX, "")
    return int(text) if text.isdecimal() else None


def decide(job: Job, pods: Iterable[Pod], ledger: Ledger) -> Decision:
    """Decide what to do now. *pods*: the job's own, as last seen, with those just created."""
    active = [pod for pod in pods if pod.is_live]
    if job.is_over:
        return Decision(delete=tuple(active))
    if len(ledger.failed) > job.spec.backoff_limit:
        return Decision(delete=tuple(active), outcome="Failed")
    if job.spec.suspend:
        return Decision(delete=tuple(active))
    if job.spec.completion_mode == INDEXED:
        return _indexed(job.spec, active, ledger)
    return _counted(job.spec, active, ledger)


def _indexed(spec: JobSpec, active: Sequence[Pod], ledger: Ledger) -> Decision:
    done = set(ledger.succeeded.values())
    open_indices = [n for n in range(spec.completions or 0) if n not in done]
    if not open_indices:
        return Decision(delete=tuple(active), outcome="Complete")
    keep: dict[int, Pod] = {}
    surplus: list[Pod] = []
    for pod in sorted(active, key=lambda p: (index_of(p) or 0, p.metadata.name)):
        index = index_of(pod)
        if index in open_indices and index not in keep and len(keep) < _parallelism(spec):
            keep[index] = pod
        else:
            surplus.append(pod)
    missing = [n for n in open_indices if n not in keep]
    create = missing[: max(0, _parallelism(spec) - len(keep))]
    return Decision(tuple(create), tuple(surplus), len(keep))


def _counted(spec: JobSpec, active: Sequence[Pod], ledger: Ledger) -> Decision:
    succeeded = len(ledger.succeeded)
    if spec.completions is None and spec.parallelism is not None:
        # A work queue: after the first success no new pods are needed, and the others finish.
        if succeeded:
            return Decision(active=len(active), outcome="" if active else "Complete")
        wanted = _parallelism(spec)
    else:
        completions = 1 if spec.completions is None else spec.completions
        if succeeded >= completions:
            return Decision(delete=tuple(active), outcome="Complete")
        wanted = min(_parallelism(spec), completions - succeeded)
    surplus = tuple(active[wanted:])
    create = (None,) * max(0, wanted - len(active))
    return Decision(create, surplus, min(len(active), wanted))


def _parallelism(spec: JobSpec) -> int:
    return 1 if spec.parallelism is None else spec.parallelism


def seconds_after(failures: int, *, first: float) -> float:
    """Return how long the next pod waits: *first* seconds, doubled with each failure."""
    doublings = min(failures - 1, 16)  # far beyond the longest wait
    return min(first * 2.0**doublings, _LONGEST_BACKOFF_SECONDS)


def pod_of(job: Job, index: int | None, suffix: str) -> dict[str, Any]:
    """Return the body of one of the job's pods, named `<job>[-<index>]-<suffix>`."""
    meta = job.metadata
    fields = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "spec": {"template": job.spec.template},
    }
    return pod_of_job(fields, index, suffix).body


def status_of(job: Job, decision: Decision, ledger: Ledger, moment: str) -> dict[str, Any]:
    """Return the job's status; *moment* is RFC 3339."""
    status: dict[str, Any] = {
        "startTime": job.status.start_time or moment,
        "active": 0 if decision.outcome else decision.active + len(decision.create),
        "succeeded": len(ledger.succeeded),
        "failed": len(ledger.failed),
    }
    if decision.outcome:
        condition = {
            "type": decision.outcome,
            "status": "True",
            "lastProbeTime": moment,
            "lastTransitionTime": moment,
        }
        if decision.outcome == "Failed":
            condition["reason"] = "BackoffLimitExceeded"
            condition["message"] = "Job has reached the specified backoff limit"
        else:
            status["completionTime"] = moment
        status["conditions"] = [condition]
    return status
