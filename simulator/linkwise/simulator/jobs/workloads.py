"""Creates what workloads such as JobSets and Deployments create, as their controllers do.

A workload becomes its pods, or the objects between, as soon as it is created here, except those
that its controller creates later (`Child.after`). A pod that is deleted is created again, as long
as `retire` was not called. The package lists what operators do beyond that.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from threading import Thread
from typing import Any

import msgspec

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.controllers.batch import Given
from linkwise.kube.controllers.child import Child
from linkwise.kube.controllers.order import Reached, SeenPods
from linkwise.kube.controllers.workload import children, pods_of
from linkwise.kube.fields import text
from linkwise.kube.objects import ObjectMeta, Pod
from linkwise.kube.reflector import Reflector
from linkwise.simulator.control_loop import ControlLoop

log = logging.getLogger(__name__)

_MOST_NAMED = 8
_AGAIN_SECONDS = 0.2


class _Stored(msgspec.Struct):
    metadata: ObjectMeta


@dataclass(frozen=True, slots=True)
class _Later:
    """What its controller creates after other pods."""

    child: Child
    given: Given
    root: str
    pods: int  # that come of it first

    @property
    def namespace(self) -> str:
        return text(self.child.body, "metadata.namespace")


class WorkloadController(ControlLoop):
    """*collection_of* returns the path to which an object is posted."""

    def __init__(
        self, client: KubeClient, collection_of: Callable[[Mapping[str, object]], str]
    ) -> None:
        super().__init__()
        self._client, self._collection_of = client, collection_of
        self._pods: dict[str, Mapping[str, Any]] = {}  # uid -> what was posted
        self._owners: list[str] = []  # paths of what it has created beside pods
        self._roots: dict[str, str] = {}  # uid -> name of the workload at the top
        self._missing: deque[Mapping[str, Any]] = deque()
        self._later: list[_Later] = []
        self._seen = SeenPods()
        self._known: dict[str, Pod] = {}  # by uid
        self._retired = False
        self._reflectors = (
            Reflector(
                client, "/api/v1/pods", Pod, on_replace=self._replace, on_event=self._pod_event
            ),
        )
        self._thread = Thread(target=self._run, name="workloads", daemon=True)

    @property
    def roots(self) -> Mapping[str, str]:
        """Return uid of an owner -> name of the workload from which it comes."""
        return dict(self._roots)

    @property
    def pods_to_come(self) -> int:
        """Return the number of pods that wait for others before they are created."""
        with self._changed:
            return sum(each.pods for each in self._later)

    def pods_to_end(self) -> tuple[Pod, ...]:
        """Return the running pods of which something waits for the end."""
        with self._changed:
            found = (
                pod
                for each in self._later
                for after in each.child.after
                if after.state is Reached.COMPLETE
                for pod in self._seen.of(after, each.namespace)
                if pod.status.phase == "Running"
            )
            return tuple({pod.metadata.uid: pod for pod in found}.values())

    def why_to_come(self) -> tuple[str, ...]:
        """Return what is not created yet, and what for."""
        with self._changed:
            found = [
                f"{each.root}: {text(each.child.body, 'kind')} "
                f"{each.namespace}/{text(each.child.body, 'metadata.name')} is created when "
                + " and ".join(
                    str(after)
                    for after in each.child.after
                    if not self._seen.meet(after, each.namespace)
                )
                for each in self._later
            ]
        more = len(found) - _MOST_NAMED
        return (*found[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else []))

    def create(self, body: Mapping[str, Any], given: Given, *, suspended: bool) -> None:
        """Post an object, and unless it is *suspended* all that comes of it. Raises ApiError."""
        self._create(body, given, body["metadata"]["name"], creates=not suspended)

    def _create(
        self, body: Mapping[str, Any], given: Given, root: str, *, creates: bool = True
    ) -> None:
        collection = self._collection_of(body)
        metadata = self._client.create(collection, body, _Stored).metadata
        self._owners.append(f"{collection}/{metadata.name}")
        self._roots[metadata.uid] = root
        kind = (body["apiVersion"], body["kind"])
        if kind in (("v1", "Pod"), ("batch/v1", "Job")) or not creates:
            return  # the Job controller creates the pods of Jobs
        stored = {**body, "metadata": {**body["metadata"], "uid": metadata.uid}}
        for child in children(stored, given):
            if child.after:
                self._put_off(child, given, root)
                continue
            try:
                self._create_child(child, given, root)
            except ApiError as error:
                if _is_final(error):
                    raise
                self._put_off(child, given, root)

    def _create_child(self, child: Child, given: Given, root: str) -> None:
        if child.body["kind"] == "Pod":
            self._post(child.body)
        else:
            self._create(child.body, given, root)

    def _put_off(self, child: Child, given: Given, root: str) -> None:
        is_pod = child.body["kind"] == "Pod"
        pods = 1 if is_pod else len(pods_of(child.body, given).pods)
        with self._changed:
            self._later.append(_Later(child, given, root, pods))
            self._changed.notify_all()

    def _post(self, body: Mapping[str, Any]) -> None:
        created = self._client.create(self._collection_of(body), body, _Stored)
        with self._changed:
            self._pods[created.metadata.uid] = body

    def retire(self) -> None:
        """Delete all owners, and create no more pods. Raises ApiError."""
        with self._changed:
            self._retired = True
            self._later.clear()
        for path in reversed(self._owners):
            try:
                self._client.delete(path)
            except ApiError as error:
                if error.status != 404:
                    raise

    def _replace(self, pods: Collection[Pod]) -> None:
        there = {pod.metadata.uid for pod in pods}
        with self._changed:
            gone = [pod for uid, pod in self._known.items() if uid not in there]
        for pod in gone:
            self._pod_event("DELETED", pod)
        for pod in pods:
            self._pod_event("MODIFIED", pod)

    def _pod_event(self, kind: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        with self._changed:
            if kind == "DELETED":
                self._known.pop(uid, None)
                self._seen.drop(pod)
                self._lost(uid)
            else:
                self._known[uid] = pod
                self._seen.put(pod)
            if self._later:
                self._changed.notify_all()

    def _lost(self, uid: str) -> None:
        body = self._pods.pop(uid, None)
        if body is not None and not self._retired:
            self._missing.append(body)
            self._changed.notify_all()

    def _next_due(self) -> _Later | None:
        return next(
            (each for each in self._later if self._seen.meet_all(each.child.after, each.namespace)),
            None,
        )

    def _run(self) -> None:
        while True:
            with self._changed:
                due = None
                while not self._stopping and not self._missing:
                    due = self._next_due()
                    if due is not None:
                        break
                    self._changed.wait()
                if self._stopping:
                    return
                body = None if due is not None else self._missing.popleft()
            try:
                if due is not None:
                    self._create_child(due.child, due.given, due.root)
                elif body is not None:
                    self._post(body)
            except ApiError as error:
                named = due.child.body if due is not None else body
                log.warning("%s: %s", text(named or {}, "metadata.name"), error)
                if not _is_final(error):
                    self._try_again(body)
                    continue
            if due is not None:
                with self._changed:  # only now, so that `pods_to_come` counts until they are there
                    self._later = [each for each in self._later if each is not due]

    def _try_again(self, body: Mapping[str, Any] | None) -> None:
        """What is due is so still; *body*: a pod that was lost."""
        with self._changed:
            if body is not None and not self._retired:
                self._missing.append(body)
            self._changed.wait(_AGAIN_SECONDS)


def _is_final(error: ApiError) -> bool:
    """Whether the API server would refuse the same request again."""
    return 400 <= error.status < 500 and error.status != 429
