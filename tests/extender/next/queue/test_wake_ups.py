"""No pod is forgotten: the extender wakes a pod that can go, also where kube-scheduler wakes none.

The kube-scheduler of these tests is as lazy as it may be. It tries a pod once if the pod is new,
lost its last gate, or got a new nomination. Nothing else makes it try a pod: no other event, and no
other pod that comes or goes. It counts the room on nodes as the real one does: nominated pods have
their room already, so it may refuse a pod without a call to the extender. Whatever happens,
`python -m tests.liveness.days --lazy` does the same.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.extender_calls import BindOrder, FilterCall, Outcome
from linkwise.kube.objects import Condition, Pod
from linkwise.replay.in_memory_api_server import answer_in_time
from linkwise.topology import names
from tests.extender.cluster import GPU, Cluster, change

NODES = ("n0", "n1", "n2")
NO_GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
# No pod that could go waits for longer. The extender wakes most at once. The longest waits are for
# a nomination that is written again, and for a gang that looks whether more of its members come.
WAIT_SECONDS = 10.0
TIMEOUT = 40.0
SETTINGS = CoreSettings(gang_timeout_seconds=TIMEOUT, reserve_share=0.0)


class Watched(Cluster):
    """Reports each change of a pod, one by one, as a watch does."""

    tell: Callable[[Pod], None]

    def put_pod(self, pod: Pod) -> Pod:
        put = super().put_pod(pod)
        self.tell(pod)
        return put


class LazyScheduler:
    def __init__(self, nodes: tuple[str, ...] = NODES) -> None:
        self.at = Watched(SETTINGS)
        self.at.tell = self._notice
        for node in nodes:
            self.at.add_node(node, "hgx-h100")
        self._seen: dict[str, tuple[bool, str]] = {}  # uid -> gated, nominated
        self._awake: list[str] = []
        self.ignored: set[str] = set()  # names of pods that kube-scheduler never tries
        self.asked: Counter[str] = Counter()  # by pod name: calls to the extender

    def settle(self) -> None:
        """Run until no component has anything to do at this moment."""
        for _ in range(100):
            self.at.settle(rounds=60)
            if not self._awake:
                return
            self._try(self._awake.pop(0))
        raise AssertionError("no end")

    def pass_time(self, seconds: float) -> None:
        end = self.at.now + seconds
        while self.at.now < end:
            due = self.at.core.next_due() or end
            self.at.now = min(max(due, self.at.now + 0.1), end)
            self.settle()

    def seconds_until_bound(self, *pods: str, longest: float = WAIT_SECONDS) -> float:
        began = self.at.now
        self.settle()
        while not all(self.at.pod(pod).spec.node_name for pod in pods):
            assert self.at.now - began < longest, f"{pods} wait still"
            self.pass_time(0.5)
        return self.at.now - began

    def _notice(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        gated, nominated = bool(pod.spec.scheduling_gates), pod.status.nominated_node_name
        had = self._seen.get(uid)
        self._seen[uid] = (gated, nominated)
        waits = not (gated or pod.spec.node_name or pod.metadata.deletion_timestamp)
        if not waits or pod.metadata.name in self.ignored or uid in self._awake:
            return
        if had is None or had[0] or (nominated and nominated != had[1]):
            self._awake.append(uid)

    def _try(self, uid: str) -> None:
        pod = self.at.pods.get(uid)
        if pod is None or pod.spec.node_name or pod.metadata.deletion_timestamp:
            return
        fitting = [node for node in sorted(self.at.nodes) if self._fits(pod, node)]
        nominated = pod.status.nominated_node_name
        for asked in ([nominated], fitting) if nominated in fitting else (fitting,):
            if asked and self._bind(pod, asked):
                return
        self._unschedulable(pod)

    def _fits(self, pod: Pod, name: str) -> bool:
        node = self.at.nodes[name]
        ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        if not ready or node.spec.unschedulable:
            return False
        taken = sum(
            gpus_of(other)
            for uid, other in self.at.pods.items()
            if uid != pod.metadata.uid
            and not other.has_ended
            and (
                other.spec.node_name == name
                or (not other.spec.node_name and other.status.nominated_node_name == name)
            )
        )
        return gpus_of(pod) + taken <= int(node.status.allocatable[GPU])

    def _bind(self, pod: Pod, asked: list[str]) -> bool:
        name = pod.metadata.name
        self.asked[name] += 1
        passed = answer_in_time(self.at.core, FilterCall(pod, tuple(asked)), self.at.now)
        for node in passed.node_names[:1]:
            order = self.at.begin_bind(name, node)
            if isinstance(order, BindOrder) and self.at.post_binding(order):
                self.at.core.end_bind(order, Outcome.DONE, self.at.now)
                self.at.start(name)
                return True
        return False

    def _unschedulable(self, pod: Pod) -> None:
        told = (Condition("PodScheduled", "False", "Unschedulable", NO_GPUS),)
        keeps = pod.spec.preemption_policy == "Never"
        nominated = pod.status.nominated_node_name if keeps else ""
        status = change(pod.status, conditions=told, nominated_node_name=nominated)
        self.at.put_pod(change(pod, status=status))

    def end(self, name: str) -> None:
        node = self.at.pod(name).spec.node_name
        self.at.set_phase(name, "Succeeded")
        self.at.stop(name, node)

    def never_preempts(self, name: str) -> None:
        pod = self.at.pod(name)
        self.at.put_pod(change(pod, spec=change(pod.spec, preemption_policy="Never")))


def gpus_of(pod: Pod) -> int:
    return sum(int(c.resources.limits.get(GPU, 0)) for c in pod.spec.containers)


def full() -> LazyScheduler:
    """One node, and one pod has all its GPUs."""
    world = LazyScheduler(("n0",))
    world.at.add_pod("first", 8)
    world.settle()
    assert world.at.pod("first").spec.node_name == "n0"
    return world


# From the event to the bind.


def test_the_last_member_to_come_wakes_its_gang_in_the_moment() -> None:
    world = LazyScheduler()
    for rank in range(3):
        world.at.add_pod(f"g-{rank}", 8, gang="g", gang_size="3", rank=str(rank))
        world.settle()
    assert world.seconds_until_bound("g-0", "g-1", "g-2") == 0


@pytest.mark.parametrize("gates", [(), (names.GATE,)])
def test_room_for_a_gang_wakes_it_in_the_moment(gates: tuple[str, ...]) -> None:
    world = full()
    world.at.add_gang("g", 2, 4, gates=gates)
    world.settle()
    world.end("first")
    assert world.seconds_until_bound("g-0", "g-1") == 0


def test_room_for_a_pod_behind_our_gate_wakes_it_in_the_moment() -> None:
    world = full()
    world.at.add_pod("p", 4, gates=[names.GATE])
    world.settle()
    world.end("first")
    assert world.seconds_until_bound("p") == 0


def test_room_for_a_single_pod_wakes_it_a_moment_later() -> None:
    """Mostly kube-scheduler tries the pod by itself, at once."""
    world = full()
    world.at.add_pod("p", 1)
    world.settle()
    world.end("first")
    assert world.seconds_until_bound("p") == 1.0


def test_room_for_many_wakes_many_at_once() -> None:
    world = LazyScheduler(tuple(f"n{number}" for number in range(9)))
    for number in range(9):
        world.at.add_pod(f"first-{number}", 8)
    world.settle()
    late = [f"late-{number}" for number in range(72)]
    for name in late:
        world.at.add_pod(name, 1)
    world.settle()
    for number in range(9):
        world.end(f"first-{number}")
    assert world.seconds_until_bound(*late) == 1.0


def test_a_place_kept_by_a_nomination_is_room_once_the_plan_is_taken_back() -> None:
    """kube-scheduler refuses the pod without a call to the extender: only its status tells so."""
    world = LazyScheduler(("n0",))
    world.ignored = {"g-0", "g-1"}  # never bound
    world.at.add_gang("g", 2, 4)
    world.settle()
    world.at.add_pod("p", 8)
    world.settle()
    assert world.asked["p"] == 0
    world.at.delete("g-1")
    world.at.delete("g-0")
    assert world.seconds_until_bound("p") <= 1.0


def test_a_new_extender_knows_who_was_turned_away_before_it() -> None:
    world = full()
    world.at.add_pod("p", 4)
    world.settle()
    world.end("first")
    world.at.restart()
    assert world.seconds_until_bound("p") <= 1.0


def test_one_that_may_not_preempt_keeps_its_nomination_and_is_woken_all_the_same() -> None:
    world = full()
    world.at.add_pod("p", 4)
    world.never_preempts("p")
    world.settle()
    world.at.nominate("p", "n0")  # by the extender, and then the room was gone
    world.settle()
    assert world.at.pod("p").status.nominated_node_name == "n0"
    world.end("first")
    assert world.seconds_until_bound("p") <= 5.0


def test_a_member_whose_nomination_was_taken_away_is_nominated_again() -> None:
    world = LazyScheduler(("n0",))
    world.ignored = {"g-0"}
    world.at.add_gang("g", 1, 4)
    world.settle()
    world.ignored = set()
    world.at.nominate("g-0", "")
    assert world.seconds_until_bound("g-0") <= 5.0


def test_what_frees_up_while_a_dead_member_is_replaced_wakes_the_next_one() -> None:
    world = LazyScheduler(("n0", "n1"))
    world.at.add_gang("g", 2, 8)
    world.settle()
    world.at.delete("g-1")
    world.at.add_pod("again", 8, gang="g", gang_size="2", rank="1")
    world.settle()
    world.at.stop("g-1", "n1")
    assert world.seconds_until_bound("again") == 0
