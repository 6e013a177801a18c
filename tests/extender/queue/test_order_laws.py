"""Whatever comes and goes in whatever order: only a more urgent reservation evicts a pod, no gang
is evicted in part, and every reservation has a member that waits."""

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from linkwise.extender.core_settings import CoreSettings
from linkwise.extender.preemption.policy import Preempt
from linkwise.extender.queue.queue_order import QueueOrder
from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster

NODES = ("n1", "n2", "n3")


class Order(RuleBasedStateMachine):
    queue_order = QueueOrder.AGE

    def __init__(self) -> None:
        super().__init__()
        self.at = Cluster(
            CoreSettings(preempt=Preempt.LOWER_PRIORITY, queue_order=self.queue_order)
        )
        self.number = 0
        for node in NODES:
            self.at.add_node(node)

    # People and controllers.

    @rule(
        size=st.integers(1, 3),
        gpus=st.sampled_from([4, 8]),
        priority=st.integers(0, 2),
        minutes=st.sampled_from([None, 1, 30]),
    )
    def add_gang(self, size: int, gpus: int, priority: int, minutes: int | None) -> None:
        self.number += 1
        gang = f"g{self.number}"
        said = {"gang": gang, "gang_size": str(size)} | self._said(minutes)
        for rank in range(size):
            self.at.add_pod(f"{gang}-{rank}", gpus, priority=priority, said=said)
        self._decide()

    @rule(gpus=st.sampled_from([1, 2, 8]), minutes=st.sampled_from([None, 1, 30]))
    def add_single(self, gpus: int, minutes: int | None) -> None:
        self.number += 1
        self.at.add_pod(f"p{self.number}", gpus, said=self._said(minutes))

    @staticmethod
    def _said(minutes: int | None) -> dict[str, str]:
        return {} if minutes is None else {"expected_duration": f"{minutes}m"}

    @precondition(lambda self: self.at.pods)
    @rule(data=st.data())
    def end_something(self, data: st.DataObject) -> None:
        """A single pod, or all of a gang."""
        one = data.draw(st.sampled_from(sorted(self._all())))
        gang = self._gang(self.at.pod(one))
        for name in self._members(gang) if gang else [one]:
            self.at.delete(name)
        self._decide()

    @rule()
    def kubelets_end_what_is_terminating(self) -> None:
        for name, pod in self._all().items():
            if pod.metadata.deletion_timestamp is not None:
                self.at.delete(name)
        self._decide()

    @rule(seconds=st.sampled_from([1, 31, 90]))
    def time_goes_on(self, seconds: int) -> None:
        self.at.now += seconds
        self._decide()

    @rule(data=st.data())
    def kube_scheduler_tries_everybody(self, data: st.DataObject) -> None:
        waiting = [n for n, pod in self._all().items() if not pod.spec.node_name]
        for name in data.draw(st.permutations(sorted(waiting))):
            if self.at.pod(name).metadata.deletion_timestamp is None and self.at.schedule(name):
                self.at.set_phase(name, "Running")
        self._decide()

    @rule()
    def restart(self) -> None:
        self.at.restart()
        self._decide()

    # What must be true.

    def _decide(self) -> None:
        before = set(self.at.evicted)
        self.at.settle(rounds=60)
        assert self.at.is_at_rest()
        assert self.at.core.take_defects() == []
        for name in set(self.at.evicted) - before:
            self._was_rightly_evicted(name)

    def _was_rightly_evicted(self, name: str) -> None:
        pod = self.at.pod(name)
        gang = self._gang(pod)
        for member in self._members(gang) if gang else [name]:
            other = self.at.pod(member)
            assert not other.spec.node_name or other.metadata.deletion_timestamp is not None
        waits_for_it = [
            hold
            for hold in self.at.core.reservations.all()
            if hold.by_preemption and -hold.urgency[0] > 0
        ]
        assert any(-hold.urgency[0] > pod.spec.priority for hold in waits_for_it)

    @invariant()
    def what_is_held_is_held_for_somebody_who_waits(self) -> None:
        self.at.sound()
        for hold in self.at.core.reservations.all():
            members = [self.at.pod(name) for name in self._members(hold.key.name)]
            assert any(not member.spec.node_name for member in members), hold

    @invariant()
    def no_two_hold_the_same(self) -> None:
        for node in NODES:
            masks = [hold.gpus[node] for hold in self.at.core.reservations.on(node)]
            assert sum(masks) == (0 if not masks else _union(masks))

    def _all(self) -> dict[str, Pod]:
        return {pod.metadata.name: pod for pod in self.at.pods.values()}

    @staticmethod
    def _gang(pod: Pod) -> str:
        return pod.metadata.annotations.get(names.GANG, "")

    def _members(self, gang: str) -> list[str]:
        return sorted(name for name, pod in self._all().items() if self._gang(pod) == gang)


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


class Multifactor(Order):
    queue_order = QueueOrder.MULTIFACTOR


TestOrder, TestMultifactor = Order.TestCase, Multifactor.TestCase
TestOrder.settings = TestMultifactor.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
