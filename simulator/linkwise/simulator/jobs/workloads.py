"""Creates what workloads such as JobSets and Deployments create, as their controllers do.

A workload becomes its pods, or the objects between, as soon as it is created here. A pod that is
deleted is created again, as long as `retire` was not called. docs/simulator.md lists what operators
do beyond that.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from threading import Thread
from typing import Any

import msgspec

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.controllers.batch import Given
from linkwise.kube.controllers.workload import children
from linkwise.kube.objects import ObjectMeta, Pod
from linkwise.kube.reflector import Reflector
from linkwise.simulator.control_loop import ControlLoop

log = logging.getLogger(__name__)


class _Stored(msgspec.Struct):
    metadata: ObjectMeta


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
            if child.body["kind"] == "Pod":
                self._post(child.body)
            else:
                self._create(child.body, given, root)

    def _post(self, body: Mapping[str, Any]) -> None:
        created = self._client.create(self._collection_of(body), body, _Stored)
        with self._changed:
            self._pods[created.metadata.uid] = body

    def retire(self) -> None:
        """Delete all owners, and create no more pods. Raises ApiError."""
        with self._changed:
            self._retired = True
        for path in reversed(self._owners):
            try:
                self._client.delete(path)
            except ApiError as error:
                if error.status != 404:
                    raise

    def _replace(self, pods: Collection[Pod]) -> None:
        there = {pod.metadata.uid for pod in pods}
        with self._changed:
            for uid in self._pods.keys() - there:
                self._lost(uid)

    def _pod_event(self, kind: str, pod: Pod) -> None:
        with self._changed:
            if kind == "DELETED":
                self._lost(pod.metadata.uid)

    def _lost(self, uid: str) -> None:
        body = self._pods.pop(uid, None)
        if body is not None and not self._retired:
            self._missing.append(body)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and not self._missing:
                    self._changed.wait()
                if self._stopping:
                    return
                body = self._missing.popleft()
            try:
                self._post(body)
            except ApiError as error:
                log.warning("pod %s: %s", body["metadata"]["name"], error)
