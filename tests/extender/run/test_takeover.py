"""What a standby does and does not do, and what becomes of its cache when it starts to lead."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import msgspec
import pytest

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.run.leader_endpoints import CALLS, STATUS, LeaderEndpoints
from linkwise.extender.run.loop import Loop
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.dispatch import Verbs
from linkwise.extender.run.ports.routes import create_app
from linkwise.extender.state.actions import Action, WithdrawPlan, WritePlan
from linkwise.extender.state.cache.pending_writes import annotations_of
from linkwise.extender.state.records import WrittenPlan
from linkwise.kube.errors import ApiError
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, read_plan
from tests.extender.cluster import Cluster
from tests.extender.world import ApiObjects, asked, wait_for

SLICE = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/linkwise-extender-leader"
SERVICE = "/api/v1/namespaces/kube-system/services"
ENDPOINTS = "/api/v1/namespaces/kube-system/endpoints/linkwise-extender"


@dataclass
class Told:
    """A lead that a test gives and takes."""

    term: int = 0
    handed_over: bool = True
    switches: int = 0
    left: float = 0.0
    outbids: list[int] = field(default_factory=list)
    on_change: Callable[[], object] = lambda: None

    def act_seconds(self) -> float:
        return self.left

    def write_seconds(self) -> float:
        return self.left

    def refusal(self) -> str:
        return "" if self.left else "standby: the leader is other"

    def on_lead(self, on_change: Callable[[], object]) -> None:
        self.on_change = on_change

    def outbid(self, term: int) -> None:
        self.outbids.append(term)
        self.term = term + 1

    def give(self, term: int) -> None:
        self.term, self.left = term, 60.0
        self.on_change()

    def take(self) -> None:
        self.left = 0.0


class Extender:
    def __init__(self, world: ApiObjects) -> None:
        self.lead, self.metrics = Told(), ExtenderMetrics()
        self.core = Core(CoreSettings())
        self.calls: list[int] = []
        self.loop = Loop(
            self.core,
            world.client,
            self.metrics,
            lead=self.lead,
            route_calls=lambda: self.calls.append(self.lead.term),
        )
        self.http = create_app(self.loop, self.metrics).test_client()
        self.verbs = Verbs(self.loop, self.metrics)

    def get(self, path: str) -> tuple[int, str]:
        reply = self.http.get(path)
        return reply.status_code, reply.text.strip()


@pytest.fixture
def world() -> Iterator[ApiObjects]:
    with ApiServer() as server:
        world = ApiObjects(server)
        for name in ("n1", "n2"):
            world.add_node(name)
        yield world


@pytest.fixture
def start(world: ApiObjects) -> Iterator[Callable[[], Extender]]:
    """Starts a replica, which is stopped after the test."""
    with ExitStack() as started:

        def start() -> Extender:
            extender = Extender(world)
            started.callback(extender.loop.stop)
            extender.loop.start()
            return extender

        yield start


@pytest.fixture
def extender(start: Callable[[], Extender]) -> Extender:
    extender = start()
    wait_for(lambda: not extender.loop.reads())
    return extender


def writes(world: ApiObjects) -> int:
    return sum(n for what, n in world.server.requests().items() if what.startswith("PATCH"))


def test_a_standby_decides_nothing_until_it_leads(world: ApiObjects, extender: Extender) -> None:
    said = "linkwise: standby: the leader is other"
    assert extender.get("/readyz") == (503, said)
    assert extender.get("/readyz?exclude=leader") == (200, "ok")
    assert extender.get("/nodes")[0] == 503
    _, answer = asked(extender.verbs, "filter", Pod=world.add_pod("p"), NodeNames=["n1"])
    assert answer["Error"] == said
    world.add_gang("g", 2)
    wait_for(lambda: world.server.requests()["WATCH pods"] and len(extender.core._cache.pods) == 3)
    assert (writes(world), extender.calls) == (0, [])

    extender.lead.give(4)

    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    assert read_plan(world.read("g-0").metadata.annotations[names.PLAN]).edition == (4, 1)
    assert extender.calls == [4]
    assert extender.get("/readyz") == (200, "ok")


def test_a_leader_whose_lease_lapsed_counts_nothing(extender: Extender) -> None:
    """The other replica may lead by now, and dashboards add both up."""

    def nodes() -> float | None:
        return extender.metrics.registry.get_sample_value(
            "linkwise_extender_nodes", {"state": "usable"}
        )

    extender.lead.give(1)
    wait_for(lambda: nodes() == 2)
    extender.lead.take()
    assert nodes() in (None, 0)


def test_all_pods_are_listed_once_more_before_it_decides(
    world: ApiObjects, extender: Extender
) -> None:
    """Its watch may have been dead for minutes."""
    lists = world.server.requests()["GET pods"]
    extender.lead.give(1)
    wait_for(lambda: extender.get("/readyz")[0] == 200)
    assert world.server.requests()["GET pods"] == lists + 1


@pytest.mark.parametrize(("handed_over", "waits"), [(True, []), (False, [1.0])])
def test_before_that_it_waits_for_the_last_write_of_a_leader_that_did_not_hand_over(
    extender: Extender, monkeypatch: pytest.MonkeyPatch, handed_over: bool, waits: list[float]
) -> None:
    pods, stopping = extender.loop._informers.pods, extender.loop._stopping
    steps: list[float | str] = []
    list_again, wait = pods.list_again, stopping.wait

    def noted_list() -> int:
        steps.append("list")
        return list_again()

    def noted_wait(seconds: float) -> bool:
        steps.append(seconds)
        return wait(min(seconds, 0.01))

    monkeypatch.setattr(pods, "list_again", noted_list)
    monkeypatch.setattr(stopping, "wait", noted_wait)
    extender.lead.handed_over = handed_over
    extender.lead.give(1)
    wait_for(lambda: extender.get("/readyz")[0] == 200)
    assert steps[: steps.index("list")] == waits


def test_nobody_is_answered_before_its_first_decision(
    world: ApiObjects, extender: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Till then GPUs reserved for the pods that wait longest would look free to every pod."""
    begun, decide = Event(), extender.core.decide

    def slowly(now: float) -> tuple[Action, ...]:
        begun.set()
        extender.core._planner.changes.run(lambda: finish.wait(30))  # as while room is sought
        return decide(now)

    finish = Event()
    monkeypatch.setattr(extender.core, "decide", slowly)
    extender.lead.give(1)
    assert begun.wait(30)
    _, answer = asked(extender.verbs, "filter", Pod=world.add_pod("p"), NodeNames=["n1"])
    finish.set()
    assert answer["Error"].startswith("linkwise: not ready: taking over")
    wait_for(lambda: extender.get("/readyz")[0] == 200)


def test_a_leader_that_may_act_no_more_writes_nothing(
    world: ApiObjects, extender: Extender
) -> None:
    extender.lead.give(1)
    wait_for(lambda: extender.get("/readyz")[0] == 200)
    extender.lead.take()
    before = writes(world)
    world.add_gang("g", 2)
    wait_for(lambda: len(extender.core._cache.pods) == 2)
    assert extender.get("/readyz")[0] == 503
    assert writes(world) == before
    extender.lead.give(1)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))


@pytest.mark.parametrize("term", [1, 7])
def test_a_term_that_is_not_above_what_plans_name_is_outbid(
    world: ApiObjects, extender: Extender, start: Callable[[], Extender], term: int
) -> None:
    """The Lease was deleted, so its terms start again; they may have come as far as before."""
    extender.lead.give(7)
    world.add_gang("g", 2)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    extender.loop.stop()
    successor = start()
    successor.lead.give(term)
    wait_for(lambda: successor.get("/readyz")[0] == 200)
    assert successor.lead.outbids == [7]
    assert successor.lead.term == 8


def test_a_term_that_no_leader_can_have_had_is_not_outbid(
    world: ApiObjects, extender: Extender
) -> None:
    """A kubelet may write a plan on its pods; no Lease could name a later term than this."""
    forged = Plan(id="x", node="n1", leader=2**31 - 1, epoch=1, made=1.0)
    uid = world.add_pod("forged", 1, node="n1")["metadata"]["uid"]
    said = annotations_of(WrittenPlan(forged, {"main": ("GPU-1",)}), uid)
    world.client.patch("/api/v1/namespaces/ml/pods/forged", {"metadata": {"annotations": said}})
    world.add_gang("g", 2, 4)
    wait_for(lambda: len(extender.core._cache.pods) == 3)
    extender.lead.give(1)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    assert extender.lead.outbids == []
    assert read_plan(world.read("g-0").metadata.annotations[names.PLAN]).leader == 1


def test_the_binding_of_a_planned_member_names_who_binds_it(
    world: ApiObjects, extender: Extender, start: Callable[[], Extender]
) -> None:
    """Else the API server would take it for one of the leader that planned it."""
    extender.lead.give(1)
    world.add_gang("g", 2, least=1)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    extender.loop.stop()
    successor = start()
    successor.lead.give(2)
    wait_for(lambda: successor.get("/readyz")[0] == 200)
    pod = world.pod("g-0")
    said = {"PodName": "g-0", "PodNamespace": "ml", "PodUID": pod["metadata"]["uid"]}
    node = pod["status"]["nominatedNodeName"]
    assert asked(successor.verbs, "bind", **said, Node=node) == (200, {"Error": ""})
    plans = [read_plan(world.read(n).metadata.annotations[names.PLAN]) for n in ("g-0", "g-1")]
    assert [plan.leader for plan in plans] == [2, 1]
    assert plans[0].id == plans[1].id


# The core


def test_what_was_watched_is_what_is_led_with() -> None:
    """As after a start from the same objects."""
    at = Cluster()
    at.add_node("n1")
    at.add_pod("p", 8)
    at.core.lead(3, at.now)
    assert [view.name for view in at.core.nodes(at.now)] == ["n1"]
    assert at.core.explain("ml", "p", at.now) is not None
    assert at.core.latest_term(1000) == 0


OLD = Plan(id="old", node="n1", leader=1, epoch=5)


def write_late(at: Cluster, name: str) -> None:
    """What a leader of the first term had sent arrives."""
    at.write_plan(name, OLD, {"main": at.uuids("n1", *range(8))})


def leading(at: Cluster) -> Cluster:
    at.add_node("n1")
    at.add_node("n2")
    at.core.lead(2, at.now)
    return at


def test_a_plan_of_an_older_leader_that_comes_late_holds_nothing_and_is_taken_away() -> None:
    at = leading(Cluster())
    at.add_pod("g-0", 8, said={"gang": "g", "gang_size": "2"})
    at.settle()
    write_late(at, "g-0")
    assert at.free("n1") == 8
    assert [type(action) for action in at.settle()] == [WithdrawPlan]
    assert at.plan("g-0") is None
    assert at.sound()


def test_a_plan_of_an_older_leader_that_was_there_at_the_switch_counts() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")
    at.add_gang("g", 2)
    at.settle()
    before = [at.plan(name) for name in ("g-0", "g-1")]
    at.core.lead(2, at.now)
    assert (at.free("n1"), at.free("n2")) == (0, 0)
    assert not [a for a in at.settle() if isinstance(a, WritePlan | WithdrawPlan)]
    assert [at.plan(name) for name in ("g-0", "g-1")] == before
    assert at.sound()


def test_a_plan_of_ours_that_one_of_an_older_leader_wrote_over_is_written_again() -> None:
    at = leading(Cluster())
    at.add_gang("g", 2)
    at.settle()
    ours = at.plan("g-0")
    assert ours is not None
    assert ours.leader == 2
    write_late(at, "g-0")
    again = at.settle()
    assert [type(action) for action in again] == [WritePlan]
    assert at.plan("g-0") == ours
    assert at.sound()


def test_of_plans_of_two_leaders_the_later_one_s_counts_whatever_their_clocks_said() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")
    at.add_gang("g", 2)
    at.settle()
    plan = at.plan("g-1")
    assert plan is not None
    newer = msgspec.structs.replace(plan, id="newer", leader=3, made=plan.made - 60)
    at.write_plan("g-1", newer, at.gpus("g-1"))
    at.core.lead(4, at.now)
    at.settle()
    plans = [at.plan(name) for name in ("g-0", "g-1")]
    assert {plan.id for plan in plans if plan} == {"newer"}
    assert at.sound()


# Where kube-scheduler's calls go


def test_the_leader_leads_the_service_to_itself(world: ApiObjects) -> None:
    world.client.post(SERVICE, {"metadata": {"name": "linkwise-extender"}})
    calling(world, "10.0.0.1").take(10.0)
    made = world.client.get(SLICE, dict[str, Any])
    assert made["addressType"] == "IPv4"
    assert made["ports"] == [
        {"name": "https", "port": 9402, "protocol": "TCP"},
        {"name": "http", "port": 9404, "protocol": "TCP"},
    ]
    service = world.client.get(f"{SERVICE}/linkwise-extender", dict[str, Any])["metadata"]
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "linkwise-extender"
    assert made["metadata"]["ownerReferences"][0]["uid"] == service["uid"]

    calling(world, "10.0.0.1").take(10.0)
    same = world.client.get(SLICE, dict[str, Any])
    assert same == made, "nothing to write"

    calling(world, "10.0.0.2").take(10.0)
    moved = world.client.get(SLICE, dict[str, Any])
    pod = {"kind": "Pod", "namespace": "kube-system", "name": "pod-10.0.0.2"}
    here = {"addresses": ["10.0.0.2"], "conditions": {"ready": True}, "targetRef": pod}
    assert moved["endpoints"] == [here]

    (subset,) = world.client.get(ENDPOINTS, dict[str, Any])["subsets"]
    assert subset["addresses"] == [{"ip": "10.0.0.2", "targetRef": pod}]
    assert subset["ports"] == made["ports"]

    with pytest.raises(ApiError):
        calling(world, "10.0.0.1").take(0.0)


def test_what_an_older_version_wrote_gets_both_ports_and_keeps_its_order(world: ApiObjects) -> None:
    """The API server sorts the ports of Endpoints as it likes."""
    world.client.post(SERVICE, {"metadata": {"name": "linkwise-extender"}})
    calling(world, "10.0.0.1").take(10.0)
    made = world.client.get(SLICE, dict[str, Any])
    world.client.put(SLICE, {**made, "ports": [{"name": "http", "port": 9402}]})
    calling(world, "10.0.0.1").take(10.0)
    assert world.client.get(SLICE, dict[str, Any])["ports"] == made["ports"]

    turned = {**world.client.get(SLICE, dict[str, Any]), "ports": made["ports"][::-1]}
    world.client.put(SLICE, turned)
    before = world.client.get(SLICE, dict[str, Any])
    calling(world, "10.0.0.1").take(10.0)
    assert world.client.get(SLICE, dict[str, Any]) == before


def test_a_leader_that_is_not_heard_loses_the_calls_and_takes_them_again(world: ApiObjects) -> None:
    world.client.post(SERVICE, {"metadata": {"name": "linkwise-extender"}})
    leader, standby = calling(world, "10.0.0.1"), calling(world, "10.0.0.2")
    leader.take(10.0)
    made = world.client.get(SLICE, dict[str, Any])
    for _ in range(2):
        standby.withdraw()
        assert world.client.get(SLICE, dict[str, Any])["endpoints"] == []
        assert world.client.get(ENDPOINTS, dict[str, Any])["subsets"] == []
    leader.take(10.0)
    again = world.client.get(SLICE, dict[str, Any])
    assert (again["endpoints"], again["ports"]) == (made["endpoints"], made["ports"])


def calling(world: ApiObjects, address: str) -> LeaderEndpoints:
    return LeaderEndpoints(
        world.client,
        namespace="kube-system",
        service="linkwise-extender",
        pod=f"pod-{address}",
        address=address,
        ports={CALLS: 9402, STATUS: 9404},
    )
