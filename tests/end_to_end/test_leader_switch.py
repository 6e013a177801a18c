"""Two extenders, one of which leads. Whatever strikes the leader, and whenever, nothing is lost, no
gang stays incomplete, and no GPU is given twice.

The extenders are the real program, as processes; API server and kube-scheduler are stand-ins. What
only a real API server can refuse is in tests/cluster/test_switch.py.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from linkwise.kube.objects import Pod
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.scheduler import SchedulerLoop, SchedulerSettings
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from tests.end_to_end.replicas import Replica, Service, Wire, leader_of, wait_for
from tests.extender.world import GPU, ApiObjects

NODES = ("n1", "n2", "n3")
GPUS = 8  # of each
PLAN = r"PATCH /api/v1/namespaces/ml/pods/g-\d/status"
BINDING = r"POST /api/v1/namespaces/ml/pods/g-\d/binding"
HASTE = SchedulerSettings(
    initial_backoff_seconds=0.05,
    max_backoff_seconds=0.3,
    max_unschedulable_seconds=10.0,
    extender_timeout_seconds=2.0,
)


class Pods(msgspec.Struct):
    items: tuple[Pod, ...]


class TwoExtenders(ApiObjects):
    """Three machines of eight GPUs, a scheduler, and two extenders behind a Service."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        super().__init__(server)
        where = urlsplit(server.url)
        target = (where.hostname or "", where.port or 0)
        self.wires = {name: Wire(target) for name in ("a", "b")}
        self.replicas = [
            Replica(
                name,
                directory,
                [f"--api-server=http://127.0.0.1:{wire.port}", "--plain-http=true"],
            )
            for name, wire in self.wires.items()
        ]
        self.struck: set[Replica] = set()
        self.service = Service(self.replicas)
        self.scheduler = SchedulerLoop(self.client, self.service.url, settings=HASTE)

    def start(self) -> None:
        for node in NODES:
            self.add_node(node)
        self.scheduler.start()
        self.heal()

    def stop(self) -> None:
        self.scheduler.stop()
        self.service.close()
        for replica in self.replicas:
            replica.stop()
        for wire in self.wires.values():
            wire.close()

    def heal(self) -> None:
        """Both run, one leads and the other could."""
        for wire in self.wires.values():
            wire.mend()
            wire.let_go()
        for replica in self.replicas:
            if replica in self.struck or not replica.runs:
                replica.kill()  # else it ends by itself once it sees that it has lost the lease
                replica.start()
        self.struck.clear()
        wait_for(self._is_whole, "one leads and the other stands by")

    def _is_whole(self) -> bool:
        warm = all(replica.status("/readyz?exclude=leader") == 200 for replica in self.replicas)
        return warm and leader_of(self.replicas) is not None

    @property
    def leader(self) -> Replica:
        found = leader_of(self.replicas)
        assert found is not None, "no extender leads, or two do"
        return found

    def other(self, replica: Replica) -> Replica:
        return next(each for each in self.replicas if each is not replica)

    def add_gated(self, name: str, *, priority: int = 0) -> str:
        """A whole machine for it, and priority before age."""
        main = {"name": "main", "image": "x", "resources": {"limits": {GPU: str(GPUS)}}}
        gates = [{"name": names.GATE}]
        spec = {"containers": [main], "schedulingGates": gates, "priority": priority}
        path = "/api/v1/namespaces/ml/pods"
        self.client.post(path, {"metadata": {"name": name}, "spec": spec})
        return name

    # What became of pods

    def pods(self) -> tuple[Pod, ...]:
        return self.client.get("/api/v1/namespaces/ml/pods", Pods).items

    def wait_bound(self, *pods: str) -> None:
        def waiting() -> list[str]:
            return [name for name in pods if not self.read(name).spec.node_name]

        wait_for(lambda: not waiting(), f"all of {pods} are bound")

    def taken(self) -> list[tuple[str, str]]:
        """Node and GPU, once for each pod that is bound to it."""
        found = []
        for pod in self.pods():
            if pod.spec.node_name:
                said = pod.metadata.annotations
                assert read_plan(said[names.PLAN]).node == pod.spec.node_name
                shares = read_gpus(said[names.GPUS]).values()
                found += [(pod.spec.node_name, gpu) for share in shares for gpu in share]
        return found

    def assert_sound(self) -> None:
        taken = self.taken()
        assert len(taken) == len(set(taken)), "a GPU was given twice"
        for replica in self.replicas:
            assert "broken invariant" not in replica.log()
            assert "Traceback" not in replica.log(), replica.log()

    def clear(self) -> None:
        for pod in self.pods():
            self.delete(pod.metadata.name)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoExtenders]:
    with ApiServer() as server:
        cluster = TwoExtenders(server, tmp_path_factory.mktemp("replicas"))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def cluster(started: TwoExtenders) -> Iterator[TwoExtenders]:
    started.clear()
    started.heal()
    yield started
    started.assert_sound()


Strike = Callable[[Replica, Wire], None]


def killed(leader: Replica, _wire: Wire) -> None:
    leader.signal(signal.SIGKILL)


def told_to_end(leader: Replica, _wire: Wire) -> None:
    leader.signal(signal.SIGTERM)


def frozen(leader: Replica, _wire: Wire) -> None:
    leader.signal(signal.SIGSTOP)


def cut_off(_leader: Replica, wire: Wire) -> None:
    wire.cut()


STRIKES = [killed, told_to_end, frozen, cut_off]


def wait_for_switch(cluster: TwoExtenders, before: Replica) -> Replica:
    cluster.struck.add(before)
    after = cluster.other(before)
    wait_for(lambda: after.status() == 200, f"{after.name} leads")
    return after


def test_a_standby_is_warm_says_who_leads_and_answers_nothing(cluster: TwoExtenders) -> None:
    leader = cluster.leader
    standby = cluster.other(leader)
    said = standby.text("/readyz")
    assert said.startswith("linkwise: standby: the leader is ")
    assert standby.status() == 503
    assert standby.status("/readyz?exclude=leader") == 200
    assert standby.status("/livez") == 200
    assert standby.status("/nodes") == 503
    assert "linkwise_extender_leader 0.0" in standby.text("/metrics")
    assert "linkwise_extender_leader 1.0" in leader.text("/metrics")
    assert 'linkwise_extender_gpus{state="free"}' in leader.text("/metrics")
    assert "linkwise_extender_gpus{" not in standby.text("/metrics")


@pytest.mark.parametrize("strike", STRIKES)
def test_while_a_gang_forms(cluster: TwoExtenders, strike: Strike) -> None:
    before = cluster.leader
    cluster.add_pod("g-0", 8, gang="g", gang_size="2", rank="0")
    cluster.add_pod("single", 4)
    cluster.wait_bound("single")
    strike(before, cluster.wires[before.name])
    cluster.add_pod("g-1", 8, gang="g", gang_size="2", rank="1")
    wait_for_switch(cluster, before)
    cluster.wait_bound("g-0", "g-1")


@pytest.mark.parametrize("strike", [killed, frozen, cut_off])
def test_when_half_of_a_plan_is_written(cluster: TwoExtenders, strike: Strike) -> None:
    before = cluster.leader
    wire = cluster.wires[before.name]
    wire.at(PLAN, 2, lambda: strike(before, wire))
    gang = cluster.add_gang("g", 17, gpus=1)  # with 16, the plan might be in memory only
    assert wire.struck.wait(60)
    wait_for_switch(cluster, before)
    cluster.wait_bound(*gang)
    assert len({read_plan(p.metadata.annotations[names.PLAN]).id for p in cluster.pods()}) == 1


@pytest.mark.parametrize("strike", [killed, frozen])
@pytest.mark.parametrize("after", [False, True], ids=["unbound", "bound-unheard"])
def test_when_half_of_a_gang_is_bound(
    cluster: TwoExtenders, strike: Strike, *, after: bool
) -> None:
    before = cluster.leader
    wire = cluster.wires[before.name]
    wire.at(BINDING, 2, lambda: strike(before, wire), after=after)
    cluster.add_gang("g", 3)
    assert wire.struck.wait(60)
    wait_for_switch(cluster, before)
    cluster.wait_bound("g-0", "g-1", "g-2")


def freeze_with_a_plan_on_its_way(cluster: TwoExtenders) -> Replica:
    """A pod behind the gate is planned; the leader stands still, and its plan arrives when the wire
    lets it go."""
    before = cluster.leader
    cluster.wires[before.name].at(PLAN, 1, lambda: before.signal(signal.SIGSTOP))
    cluster.add_gated("g-0")
    assert cluster.wires[before.name].struck.wait(60)
    return before


def test_a_plan_that_arrives_after_the_switch_is_taken_away(cluster: TwoExtenders) -> None:
    """It was sent in time, and the network delayed it; its GPUs are now those of others."""
    standby = cluster.other(cluster.leader)
    standby.signal(signal.SIGSTOP)  # on a busy machine it would lead before the others exist
    before = freeze_with_a_plan_on_its_way(cluster)
    urgent = [cluster.add_gated(f"urgent-{number}", priority=10) for number in range(3)]
    standby.signal(signal.SIGCONT)
    wait_for_switch(cluster, before)
    cluster.wait_bound(*urgent)
    taken = cluster.taken()
    version = cluster.read("g-0").metadata.resource_version
    cluster.wires[before.name].let_go()
    wait_for(lambda: cluster.read("g-0").metadata.resource_version != version, "it arrives")
    wait_for(lambda: names.PLAN not in cluster.read("g-0").metadata.annotations, "it is gone")
    assert cluster.taken() == taken
    cluster.delete(urgent[0])
    cluster.wait_bound("g-0")


def test_a_plan_that_arrives_after_its_pod_is_bound_changes_nothing(cluster: TwoExtenders) -> None:
    before = freeze_with_a_plan_on_its_way(cluster)
    wait_for_switch(cluster, before)
    cluster.wait_bound("g-0")
    said = cluster.read("g-0").metadata.annotations
    refused = cluster.server.requests()["PATCH pods/status"]
    cluster.wires[before.name].let_go()
    wait_for(lambda: cluster.server.requests()["PATCH pods/status"] > refused, "it arrives")
    assert cluster.read("g-0").metadata.annotations == said


@pytest.mark.parametrize("strike", STRIKES)
def test_while_everything_runs(cluster: TwoExtenders, strike: Strike) -> None:
    before = cluster.leader
    cluster.add_gang("g", 2)
    cluster.add_pod("single", 5)
    cluster.wait_bound("g-0", "g-1", "single")
    taken = cluster.taken()
    strike(before, cluster.wires[before.name])
    after = wait_for_switch(cluster, before)
    assert cluster.taken() == taken
    cluster.add_pod("small", 3)
    cluster.add_pod("large", 4)
    cluster.wait_bound("small")
    assert '"free":0' in after.text("/nodes").replace(" ", "")
    assert not cluster.read("large").spec.node_name
    cluster.delete("single")
    cluster.wait_bound("large")


def test_one_that_was_frozen_ends_when_it_wakes_and_stands_by_again(cluster: TwoExtenders) -> None:
    before = cluster.leader
    before.signal(signal.SIGSTOP)
    after = wait_for_switch(cluster, before)
    before.signal(signal.SIGCONT)
    before.ended()
    assert "lost: " in before.log()
    cluster.heal()
    assert cluster.leader is after


def test_cut_off_alone_it_stops_before_another_begins_and_ends_when_it_hears_of_it(
    cluster: TwoExtenders,
) -> None:
    before = cluster.leader
    after = cluster.other(before)
    cluster.struck.add(before)
    cluster.wires[before.name].cut()
    wait_for(lambda: before.status() == 503, "it says that it is not ready")
    assert after.status() == 503, "the lease has not ended yet"
    assert "the lease could not be renewed in time" in before.text("/readyz")
    wait_for(lambda: after.status() == 200, "the other leads")
    assert before.runs
    cluster.wires[before.name].mend()
    before.ended()


def test_with_the_api_server_away_from_both_the_leader_goes_on_afterwards(
    cluster: TwoExtenders,
) -> None:
    before = cluster.leader
    cluster.server.pause()
    wait_for(lambda: before.status() == 503, "it says that it is not ready")
    cluster.server.resume()
    wait_for(lambda: leader_of(cluster.replicas), "one leads again")
    cluster.add_pod("single", 8)
    cluster.wait_bound("single")
