"""Random days of pods with late claims: writes fail or get lost, watches are late, leaders die,
drivers restart, and others take GPUs. In the end every pod has its own."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from linkwise.extender.api.actions import Action, LiftGate
from linkwise.extender.api.extender_calls import Outcome
from linkwise.kube.device_claims import ResourceClaim
from linkwise.kube.objects import Condition, Pod
from linkwise.topology import names
from tests.extender import claimed
from tests.extender.cluster import change
from tests.extender.device_cluster import DeviceCluster, devices_of
from tests.extender.late_claims import add, add_gang, claim_name

NODES = ("n1", "n2", "n3")
Key = tuple[str, str]


@dataclass(eq=False)
class Days(DeviceCluster):
    """Watches, the garbage collector and kube-scheduler each act when it is their turn."""

    random: Random = field(default_factory=Random)
    late_pods: deque[tuple[str, Pod]] = field(default_factory=deque)
    late_claims: deque[tuple[str, ResourceClaim]] = field(default_factory=deque)
    shown: dict[Key, ResourceClaim] = field(default_factory=dict)  # as the extender knows them
    faults: float = 0.0
    number: int = 0

    def restart(self) -> None:
        self.late_pods.clear()
        self.late_claims.clear()
        super().restart()
        self.shown = dict(self.claims)

    def pod_event(self, kind: str, pod: Pod) -> None:
        self.late_pods.append((kind, pod))

    def claim_event(self, kind: str, claim: ResourceClaim) -> None:
        self.late_claims.append((kind, claim))

    def show(self, *, everything: bool = False) -> None:
        while self.late_pods or self.late_claims:
            if not everything and self.random.random() < 0.3:
                return
            if self.late_pods and (not self.late_claims or self.random.random() < 0.5):
                self.core.pod_event(*self.late_pods.popleft(), self.now)
            elif self.late_claims:
                kind, claim = self.late_claims.popleft()
                key = claim.metadata.namespace, claim.metadata.name
                self.shown[key] = claim
                if kind == "DELETED":
                    del self.shown[key]
                self.core.claim_event(kind, claim, self.now)

    def carry_out(self, action: Action) -> Outcome:
        dice = self.random.random()
        if dice < self.faults:
            return Outcome.UNKNOWN if dice < self.faults / 2 else Outcome.REFUSED
        if isinstance(action, LiftGate) and action.pod.uid in self.pods:
            self.check_lift(action.pod.name)
        outcome = super().carry_out(action)
        return Outcome.UNKNOWN if dice < 2 * self.faults else outcome

    def check_lift(self, name: str) -> None:
        """As far as the extender could know, each pod that starts together has its own claim, for
        the GPUs of its plan."""
        pod = self.pod(name)
        gang = pod.metadata.annotations.get(names.PREFIX + "gang")
        for each in self.pods.values():
            if each is not pod and (
                gang is None or each.metadata.annotations.get(names.PREFIX + "gang") != gang
            ):
                continue
            if each.spec.node_name or not each.spec.scheduling_gates:
                continue
            claim = self.shown.get(("ml", claim_name(each.metadata.name)))
            assert claim is not None, f"{each.metadata.name} has no claim, and {name} is let go"
            assert claim.metadata.owner_references[0].uid == each.metadata.uid
            gpus = {u for share in self.gpus(each.metadata.name).values() for u in share}
            assert [frozenset(gpus)] == [r.uuids for r in self.requests[claim.metadata.uid]]

    # kube-scheduler

    def try_pod(self, pod: Pod) -> None:
        claim = self.claim_of(pod)
        if pod.spec.node_name or pod.spec.scheduling_gates or claim is None:
            return
        for device in devices_of(claim):
            self.put_bound(change(pod, spec=change(pod.spec, node_name=device.pool)))
            return
        if any(self.give_devices(pod, node) for node in NODES):
            return
        why = "0/3 nodes are available: 3 cannot allocate all claims."
        told = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=why)
        status = change(pod.status, conditions=(told,), nominated_node_name="")
        self.put_pod(change(pod, status=status))

    # Others

    def take_some(self) -> None:
        """An ordinary claim, of which the extender has no say."""
        node, size = self.random.choice(NODES), self.random.randint(1, 3)
        given = {(device.pool, device.name) for device in self.allocated()}
        free = [index for index in range(8) if (node, f"gpu-{index}") not in given]
        if len(free) >= size and f"{node}-{claimed.DRIVER}" in self.slices:
            self.number += 1
            chosen = self.random.sample(free, size)
            self.put_claim(claimed.claim_of(f"other-{self.number}", node, *chosen))

    def give_back_some(self, *, everything: bool = False) -> None:
        for key in [key for key in self.claims if key[1].startswith("other-")]:
            if everything or self.random.random() < 0.5:
                self.remove_claim(*key)

    def restart_driver(self) -> None:
        node = self.random.choice(NODES)
        name = f"{node}-{claimed.DRIVER}"
        if name in self.slices:
            claimed.withdraw(self, name)
        else:
            claimed.publish(self, claimed.slice_of(node, claimed.uuids(self, node)))

    def end_some(self) -> None:
        bound = [uid for uid, pod in self.pods.items() if pod.spec.node_name]
        if bound:
            self.remove_pod(self.random.choice(bound))

    def delete_some(self) -> None:
        waiting = [
            u for u, p in self.pods.items() if not p.spec.node_name and p.spec.resource_claims
        ]
        if waiting and self.random.random() < 0.5:
            self.remove_pod(self.random.choice(waiting))

    def take_a_claim_away(self) -> None:
        mine = [key for key, claim in self.claims.items() if not claim.status.allocation]
        if mine:
            self.remove_claim(*self.random.choice(mine))

    def schedule_some(self) -> None:
        for pod in [*self.pods.values()]:
            if self.random.random() < 0.5:
                self.try_pod(pod)

    def submit(self) -> None:
        if len(self.pods) > 12:
            return
        self.number += 1
        if self.random.random() < 0.5:
            add(self, f"s{self.number}", self.random.choice((1, 2, 4)))
        else:
            add_gang(self, f"g{self.number}", self.random.choice((2, 3)), 2)

    def decide_and_write(self) -> None:
        for action in self.core.decide(self.now):
            if self.random.random() < self.faults / 4:
                self.restart()  # the leader dies between two writes
                return
            self.core.done(action, self.carry_out(action), self.now)

    def live(self, steps: int) -> None:
        events: list[Callable[[], None]] = [
            self.submit,
            self.submit,
            self.take_some,
            self.give_back_some,
            self.restart_driver,
            self.end_some,
            self.delete_some,
            self.take_a_claim_away,
            self.collect_garbage,
        ]
        for _ in range(steps):
            self.random.choice(events)()
            for _ in range(3):
                self.now += self.random.choice((0.0, 0.1, 3.0, 12.0))
                self.show()
                self.decide_and_write()
                self.schedule_some()
            assert self.sound()

    def jobs(self) -> list[list[Pod]]:
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            found.setdefault(pod.metadata.name.partition("-")[0], []).append(pod)
        return [*found.values()]

    def heal(self) -> None:
        """No more faults. What has lost a member is deleted, and each job that is whole ends."""
        self.faults = 0.0
        self.drop_broken_gangs()
        self._go_on()

    def drop_broken_gangs(self) -> None:
        for job in self.jobs():
            size = job[0].metadata.annotations.get(names.PREFIX + "gang-size", "1")
            if len(job) < int(size):
                for pod in job:
                    self.remove_pod(pod.metadata.uid)

    def _go_on(self) -> None:
        for node in NODES:
            if f"{node}-{claimed.DRIVER}" not in self.slices:
                claimed.publish(self, claimed.slice_of(node, claimed.uuids(self, node)))
        for _ in range(200):
            self.give_back_some(everything=True)
            self.collect_garbage()
            for job in self.jobs():
                if self.random.random() < 0.1 and all(pod.spec.node_name for pod in job):
                    for pod in job:
                        self.remove_pod(pod.metadata.uid)
            for _ in range(4):
                self.now += 10.0
                self.show(everything=True)
                self.decide_and_write()
                self.schedule_some()


@pytest.mark.parametrize("seed", range(12))
def test_every_pod_gets_its_own_gpus_in_the_end(seed: int) -> None:
    at = Days(random=Random(seed))
    for node in NODES:
        claimed.add_node(at, node)
    at.faults = 0.15
    at.live(60)
    at.heal()
    assert [pod.metadata.name for pod in at.pods.values() if not pod.spec.node_name] == []
    assert at.sound()
