"""The API server's claims around the core, and how kube-scheduler allocates devices to them.

Of a claim's spec, the core reads nothing, so it is kept beside the claim.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from linkwise.extender.run.claim_body import is_claim_for
from linkwise.extender.state.actions import CreateClaim, DropClaim
from linkwise.extender.state.extender_calls import Outcome
from linkwise.kube.device_claims import (
    AllocatedDevice,
    Allocation,
    Consumer,
    DeviceAllocation,
    ResourceClaim,
    ResourceClaimStatus,
    uuid_of,
)
from linkwise.kube.objects import ObjectMeta, OwnerReference, Pod
from linkwise.simulator.api_server.patches import json_patch
from linkwise.webhook.claims import NewClaim
from linkwise.webhook.patch import Rules, patch_of
from tests.extender.cluster import Cluster, change

_TAKEN_OUT = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Request:
    count: int
    uuids: frozenset[str] | None = None  # that a selector names; None: any GPU will do


class Device(NamedTuple):
    driver: str
    pool: str
    name: str


@dataclass(eq=False)
class DeviceCluster(Cluster):
    requests: dict[str, tuple[Request, ...]] = field(default_factory=dict)  # by the claim's uid
    versions: int = 0  # of claims

    # The API server

    def put_claim(self, claim: ResourceClaim) -> None:
        self.versions += 1
        meta = change(claim.metadata, resource_version=str(self.versions))
        super().put_claim(change(claim, metadata=meta))

    def write_claim(self, action: CreateClaim | DropClaim) -> Outcome:
        there = self.claims.get((action.pod.namespace, action.name))
        if isinstance(action, CreateClaim) and there is not None:
            return Outcome.DONE if is_claim_for(action, there) else Outcome.DENIED
        if isinstance(action, DropClaim) and there is not None:
            meta = there.metadata
            if (meta.uid, meta.resource_version) != (action.uid, action.version):
                return Outcome.REFUSED
        outcome = super().write_claim(action)
        if isinstance(action, CreateClaim) and outcome is Outcome.DONE:
            made = self.claims[action.pod.namespace, action.name]
            self.requests[made.metadata.uid] = tuple(
                Request(len(uuids), frozenset(uuids)) for uuids in action.gpus.values()
            )
        return outcome

    def add_claim(self, pod: Pod, asked: Request) -> None:
        """An ordinary claim, that the pod owns and names."""
        meta = ObjectMeta(
            name=pod.spec.resource_claims[0].resource_claim_name,
            namespace=pod.metadata.namespace,
            uid=f"claim-{self.versions}",
            owner_references=(OwnerReference("Pod", pod.metadata.name, pod.metadata.uid),),
        )
        self.requests[meta.uid] = (asked,)
        self.put_claim(ResourceClaim(metadata=meta))

    def collect_garbage(self) -> None:
        """Delete the claims of pods that have ended or are gone."""
        for key, claim in [*self.claims.items()]:
            owners = [self.pods.get(owner.uid) for owner in claim.metadata.owner_references]
            if owners and all(pod is None or pod.has_ended for pod in owners):
                self.remove_claim(*key)

    # kube-scheduler

    def claim_of(self, pod: Pod) -> ResourceClaim | None:
        """The claim that the pod names, if it exists."""
        (entry,) = pod.spec.resource_claims
        return self.claims.get((pod.metadata.namespace, entry.resource_claim_name))

    def allocated(self) -> set[Device]:
        found = [each for claim in self.claims.values() for each in devices_of(claim)]
        assert len(found) == len(set(found)), found
        return set(found)

    def uuid(self, device: Device) -> str | None:
        """None: its driver does not publish it at present."""
        return dict(self._published(device.pool)).get(device)

    def fit(self, claim: ResourceClaim, node: str) -> tuple[Device, ...]:
        """The first devices of the node that the claim may have, if there are enough."""
        taken, found = self.allocated(), list[Device]()
        for asked in self.requests[claim.metadata.uid]:
            fitting = [
                device
                for device, uuid in self._open(node)
                if device not in taken and (asked.uuids is None or uuid in asked.uuids)
            ]
            if len(fitting) < asked.count:
                return ()
            found += fitting[: asked.count]
            taken |= {*found}
        return tuple(found)

    def give_devices(self, pod: Pod, node: str) -> tuple[Device, ...]:
        """Give the pod's claim what fits, and reserve the claim for the pod; empty: none fits."""
        claim = self.claim_of(pod)
        assert claim is not None
        found = devices_of(claim) or self.fit(claim, node)
        if found:
            results = tuple(
                AllocatedDevice(driver=each.driver, pool=each.pool, device=each.name)
                for each in found
            )
            user = Consumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
            status = ResourceClaimStatus(
                allocation=Allocation(devices=DeviceAllocation(results=results)),
                reserved_for=(user,),
            )
            self.put_claim(change(claim, status=status))
        return found

    def deallocate(self, pod: Pod) -> None:
        """The claim that has devices, and whose pod fits nowhere, gives them back."""
        claim = self.claim_of(pod)
        if claim is not None and claim.status.allocation is not None:
            self.put_claim(change(claim, status=ResourceClaimStatus()))

    def _open(self, node: str) -> Iterator[tuple[Device, str]]:
        tainted = {
            Device(each.spec.driver, each.spec.pool.name, device.name)
            for each in self.slices.values()
            for device in each.spec.devices
            if any(taint.effect in _TAKEN_OUT for taint in device.taints)
        }
        return (each for each in self._published(node) if each[0] not in tainted)

    def _published(self, node: str) -> Iterator[tuple[Device, str]]:
        slices = [each for each in self.slices.values() if each.spec.node_name == node]
        newest = {
            pool: max(s.spec.pool.generation for s in slices if s.spec.pool.name == pool)
            for pool in {each.spec.pool.name for each in slices}
        }
        for each in slices:
            spec = each.spec
            if spec.pool.generation == newest[spec.pool.name]:
                for device in spec.devices:
                    found = Device(spec.driver, spec.pool.name, device.name)
                    yield found, uuid_of(device, spec.driver)


def devices_of(claim: ResourceClaim) -> tuple[Device, ...]:
    """Those that are allocated to it."""
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    return tuple(Device(each.driver, each.pool, each.device) for each in results)


def by_webhook(pod: Pod, claim: str) -> Pod:
    """As the webhook leaves a pod whose GPUs come from claims. *claim*: the name that it draws."""
    steps = patch_of(pod, Rules(gpus_from_claims=True), NewClaim(claim))
    return msgspec.convert(json_patch(msgspec.json.decode(msgspec.json.encode(pod)), [*steps]), Pod)
