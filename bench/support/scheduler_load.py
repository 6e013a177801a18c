"""Creates pods as fast as the API server accepts them, and records when each one is bound.

It shares the machine's cores with everything it measures, so it does little: it encodes bodies
beforehand, requests answers without spec and status, and reads only metadata from the watch. It
works alike with every scheduler.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Self

import aiohttp
import msgspec
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config

from linkwise.topology import names

CONNECTIONS = 4
# An answer without spec and status: the shortest that the API server offers.
_META_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METAS_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_JSON, _MERGE_PATCH = "application/json", "application/merge-patch+json"


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Metadata


class _Event(msgspec.Struct):
    type: str
    object: _Object


_event = msgspec.json.Decoder(_Event)


class _List(msgspec.Struct):
    metadata: _Metadata
    items: list[_Object] | None = None  # null if there are none


class _Regarding(msgspec.Struct):
    name: str = ""


class _PodEvent(msgspec.Struct, rename="camel"):
    involved_object: _Regarding


class _PodEvents(msgspec.Struct):
    items: list[_PodEvent]


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: bytes


class Load:
    """Connections to the API server; enter it before use."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        configuration = Configuration()
        load_kube_config(  # type: ignore[no-untyped-call]
            str(kubeconfig), client_configuration=configuration
        )
        self._tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        assert configuration.cert_file, "the tests' administrator has a certificate"
        self._tls.load_cert_chain(configuration.cert_file, configuration.key_file)
        self._url: str = configuration.host
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._events = f"/api/v1/namespaces/{namespace}/events"
        self._claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"

    async def __aenter__(self) -> Self:
        # Enough for three times CONNECTIONS, and the watch.
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=16)
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def create(self, bodies: Iterable[bytes], path: str = "") -> None:
        """Post all *bodies* to the pods, or to the collection at *path*, over four connections."""
        await self.send([Request("POST", path or self._path, body)] for body in bodies)

    async def offer(
        self, batches: Sequence[Mapping[str, bytes]], per_second: float, seed: int
    ) -> list[float]:
        """Post the pods of each batch at once, batches at random times, *per_second* on average,
        however long the earlier ones take. Return when each batch's last request began."""
        random, due, now = Random(seed), 0.0, time.monotonic()
        tasks = []
        for batch in batches:
            due += random.expovariate(per_second)
            await asyncio.sleep(now + due - time.monotonic())
            tasks.append(asyncio.create_task(self._post_together(batch.values())))
        return await asyncio.gather(*tasks)

    async def _post_together(self, bodies: Iterable[bytes]) -> float:
        posts = [self._request(Request("POST", self._path, body)) for body in bodies]
        began = time.monotonic()
        await asyncio.gather(*posts)
        return began

    async def create_nominated(self, bodies: Mapping[str, bytes], nodes: Sequence[str]) -> None:
        """Post gated pods, nominate each for a node and remove its gate: the writes of an extender
        that costs nothing else."""

        def life(name: str, body: bytes, node: str) -> list[Request]:
            path = f"{self._path}/{name}"
            plan = {names.PLAN: f"{name} on {node}", names.GPUS: "-" * 400}
            nomination = {
                "metadata": {"annotations": plan},
                "status": {"nominatedNodeName": node},
            }
            release = {"spec": {"schedulingGates": None}}
            return [
                Request("POST", self._path, body),
                Request("PATCH", f"{path}/status", msgspec.json.encode(nomination)),
                Request("PATCH", path, msgspec.json.encode(release)),
            ]

        # More pods at a time than connections that create, as the extender's writes are concurrent.
        lives = [life(*pod, node) for pod, node in zip(bodies.items(), nodes, strict=False)]
        await self.send(lives, 3 * CONNECTIONS)

    async def send(
        self, requests: Iterable[Sequence["Request"]], connections: int = CONNECTIONS
    ) -> None:
        """Send each sequence in order, *connections* of them at a time."""
        left = iter(requests)

        async def work() -> None:
            for sequence in left:
                for request in sequence:
                    await self._request(request)

        await asyncio.gather(*(work() for _ in range(connections)))

    async def _request(self, request: "Request", *allowed: int) -> None:
        patches = request.method == "PATCH"
        headers = {"content-type": _MERGE_PATCH if patches else _JSON, "accept": _META_ONLY}
        url = f"{self._url}{request.path}"
        async with self._http.request(
            request.method, url, data=request.body, headers=headers
        ) as answer:
            text = await answer.read()
            if answer.status not in (200, 201, *allowed):
                raise RuntimeError(f"{request.method} {request.path}: {answer.status}: {text!r}")

    async def delete_pods(self) -> None:
        """Delete all pods without a grace period, as no kubelet runs; return when they are gone."""
        while (await self._listed(self._path, "limit=1")).items:
            await self._delete_all(self._path)

    async def pod_uids(self) -> dict[str, str]:
        """By the pod's name."""
        items = (await self._listed(self._path)).items or []
        return {pod.metadata.name: pod.metadata.uid for pod in items}

    async def refused_pods(self) -> set[str]:
        """The names of the pods, of all rounds, that kube-scheduler tried and found no node for."""
        url = f"{self._url}{self._events}?fieldSelector=reason%3DFailedScheduling"
        async with self._http.get(url) as answer:
            answer.raise_for_status()
            events = msgspec.json.decode(await answer.read(), type=_PodEvents)
        return {event.involved_object.name for event in events.items}

    async def allocate(self, claims: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Create claims, of which there are name, body and status."""
        await self.send(
            [
                Request("POST", self._claims, body),
                Request("PATCH", f"{self._claims}/{name}/status", status),
            ]
            for name, body, status in claims
        )

    async def delete_claims(self) -> None:
        """Delete all claims, of which no pod is left; return when they are gone. Their controller
        would do so too, within its limits."""
        unpin = msgspec.json.encode({"metadata": {"finalizers": None}})
        while claims := (await self._listed(self._claims)).items:
            for claim in claims:
                path = f"{self._claims}/{claim.metadata.name}"
                await self._request(Request("PATCH", path, unpin), 404)
            await self._delete_all(self._claims)

    async def _delete_all(self, path: str) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        headers = {"content-type": _JSON, "accept": _METAS_ONLY}
        async with self._http.delete(
            f"{self._url}{path}", data=msgspec.json.encode(options), headers=headers
        ) as answer:
            answer.raise_for_status()
            await answer.read()

    async def _listed(self, path: str, query: str = "") -> _List:
        async with self._http.get(
            f"{self._url}{path}?{query}", headers={"accept": _METAS_ONLY}
        ) as answer:
            answer.raise_for_status()
            return msgspec.json.decode(await answer.read(), type=_List)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator["Watch"]:
        """Record from now on when each unbound pod gets its node."""
        version = (await self._listed(self._path, "limit=1")).metadata.resource_version
        watch = Watch()
        watch.reader = asyncio.create_task(self._read(watch, version))
        try:
            yield watch
        finally:
            watch.reader.cancel()
            await asyncio.gather(watch.reader, return_exceptions=True)

    async def _read(self, watch: "Watch", version: str) -> None:
        """Read the watch. If the API server ends it, which it does to slow clients, continue from
        the last change."""
        while True:
            # A pod enters this selection when it is bound, whatever happens to it before.
            selection = f"watch=1&fieldSelector=spec.nodeName!%3D&resourceVersion={version}"
            url = f"{self._url}{self._path}?{selection}"
            async with self._http.get(url, headers={"accept": _META_ONLY}) as answer:
                answer.raise_for_status()
                rest = b""
                async for chunk in answer.content.iter_any():
                    now = time.monotonic()
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        event = _event.decode(line)
                        version = event.object.metadata.resource_version
                        if event.type == "ADDED":
                            watch.bound[event.object.metadata.name] = now


@dataclass(slots=True)
class Watch:
    """When pods were bound: name -> `time.monotonic`."""

    bound: dict[str, float] = field(default_factory=dict)
    reader: asyncio.Task[None] | None = None

    async def wait_bound(self, pods: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while len(self.bound) < pods:
            assert self.reader is not None
            if self.reader.done():
                self.reader.result()
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"after {seconds:g} s {len(self.bound)} of {pods} pods are bound"
                )
            await asyncio.sleep(0.02)
