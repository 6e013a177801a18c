"""The loop with the real core, over real HTTP to the API server's stand-in."""

import inspect
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event, Lock, get_ident
from typing import Any, NoReturn

import msgspec
import pytest

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.place.gang_placement import place
from linkwise.extender.run.writer import Writer
from linkwise.extender.state.actions import Action, Emit, EventType, PodRef, WritePlan
from linkwise.extender.state.extender_calls import (
    AlreadyBound,
    BindCall,
    BindOrder,
    BindRefusal,
    BindWaits,
    Outcome,
)
from linkwise.kube.clock import steady_clock
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from tests.extender.claimed import claim_of, slice_of
from tests.extender.run.extender import Extender
from tests.extender.world import ApiObjects, asked, body, wait_for


@pytest.fixture
def world() -> Iterator[ApiObjects]:
    with ApiServer() as server:
        yield ApiObjects(server)


@pytest.fixture
def make_extender(world: ApiObjects) -> Iterator[Callable[..., Extender]]:
    """What it makes is stopped after the test."""
    with ExitStack() as made:

        def make(core: Core | None = None) -> Extender:
            extender = Extender(world, core)
            made.callback(extender.loop.stop)
            return extender

        yield make


@pytest.fixture
def started(world: ApiObjects, make_extender: Callable[..., Extender]) -> Iterator[Extender]:
    for name in ("n1", "n2", "n3"):
        world.add_node(name)
    extender = make_extender().start()
    # Nothing else waits for them, and no test is to meet the first connection half made.
    budgets = {"kind": "poddisruptionbudgets", "type": "LISTED"}
    wait_for(lambda: extender.count("watch_events_total", **budgets))
    yield extender
    extender.loop.stop()
    assert extender.count("errors_total") == 0


def sound(extender: Extender) -> bool:
    return extender.loop.audit() == []


def test_room_for_a_gang_is_sought_while_others_are_answered(
    world: ApiObjects, started: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching, answered, in_time = Event(), Event(), []

    def slowly(*asked: Any) -> object:
        searching.set()
        in_time.append(answered.wait(10.0))
        return place(*asked)

    monkeypatch.setattr("linkwise.extender.next.gangs.gang_search.place", slowly)
    single = world.add_pod("single", 1)
    world.add_gang("g", 2)
    assert searching.wait(10.0)
    assert started.filter(single, "n1", "n2")["NodeNames"]
    assert started.get("/nodes")
    answered.set()

    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    assert all(in_time)
    assert sound(started)


def test_the_first_call_about_a_gang_is_answered_with_its_plan(
    world: ApiObjects, started: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linkwise.extender.calls.filter.GATHERING_SECONDS", 10.0)
    monkeypatch.setattr("linkwise.extender.place.nodes.scheduler_feedback.LEAST_SAMPLE", 0)
    first = world.add_pod("g-0", 8, gang="g", gang_size="2")
    with ThreadPoolExecutor(1) as kube_scheduler:
        answer = kube_scheduler.submit(started.filter, first, "n1", "n2", "n3")
        wait_for(answer.running)
        world.add_pod("g-1", 8, gang="g", gang_size="2")
        (node,) = answer.result(10.0)["NodeNames"]
    assert all(world.is_planned(name) for name in ("g-0", "g-1"))
    assert world.pod("g-0")["status"]["nominatedNodeName"] == node


def test_a_call_that_the_planner_could_answer_better_does_not_wait_out_the_breath(
    world: ApiObjects, started: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = started.count("decide_seconds_count")
    monkeypatch.setattr("linkwise.extender.calls.filter.GATHERING_SECONDS", 600.0)
    monkeypatch.setattr("linkwise.extender.run.loop._BREATH_SECONDS", 600.0)
    first = world.add_pod("g-0", 8, gang="g", gang_size="2")
    wait_for(lambda: started.count("decide_seconds_count") > rounds)
    with ThreadPoolExecutor(1) as kube_scheduler:
        answer = kube_scheduler.submit(started.filter, first, "n1", "n2", "n3")
        try:
            world.add_pod("g-1", 8, gang="g", gang_size="2")
            assert answer.result(10.0)["NodeNames"]
        finally:
            started.loop._stopping.set()
            started.loop._hurry.set()


def test_a_round_waits_for_an_urgent_change_and_one_that_is_not_urgent_waits_for_others(
    world: ApiObjects, started: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_CALM_SECONDS", "_LONGEST_SLEEP_SECONDS"):
        monkeypatch.setattr(f"linkwise.extender.run.loop.{pause}", 600.0)

    def is_calm(name: str) -> bool:
        single = world.add_pod(name, 1)
        wait_for(lambda: started.state(name) != "unknown")
        rounds = started.count("decide_seconds_count")
        assert started.bind(single, "n1") == ""
        wait_for(lambda: started.state(name) == "bound")
        return started.count("decide_seconds_count") == rounds

    # A round may follow a time that came meanwhile, but not each change.
    assert any(is_calm(f"single-{number}") for number in range(5))
    world.add_gang("g", 2)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))


def test_gpus_from_claims_are_followed(world: ApiObjects, started: Extender) -> None:
    """Each is as the API server has it, and one that cannot be read costs itself alone."""
    root = "/apis/resource.k8s.io/v1"
    view = next(node for node in started.get("/nodes") if node["name"] == "n1")
    uuids = [gpu["uuid"] for gpu in view["gpus"]]
    wrong = {"metadata": {"name": "wrong"}, "spec": {"driver": 1, "nodeName": "n1"}}
    world.client.post(f"{root}/resourceslices", wrong)
    world.client.post(f"{root}/resourceslices", slice_of("n1", uuids))
    wait_for(lambda: "n1" in started.closed("claims"))
    claim = msgspec.to_builtins(claim_of("c", "n1", 1))
    world.client.post(f"{root}/namespaces/ml/resourceclaims", claim | {"status": {}})
    world.client.patch(f"{root}/namespaces/ml/resourceclaims/c/status", {"status": claim["status"]})
    wait_for(lambda: started.free()["n1"] == 7)
    world.client.delete(f"{root}/namespaces/ml/resourceclaims/c")
    wait_for(lambda: started.free()["n1"] == 8)
    assert started.count("unreadable_objects_total", kind="resourceslices") == 1
    assert sound(started)


def node_of(world: ApiObjects, name: str) -> str:
    return str(world.pod(name)["status"]["nominatedNodeName"])


def test_binds_that_wait_for_others_are_refused_once_the_loop_ends(
    world: ApiObjects, started: Extender
) -> None:
    world.add_gang("g", 2)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    with ThreadPoolExecutor() as callers:
        first = callers.submit(started.bind, world.pod("g-0"), node_of(world, "g-0"))
        time.sleep(0.2)
        assert not first.done()
        started.loop.end_waits()
        assert "has not let all members through" in first.result(2)
    assert not world.read("g-0").spec.node_name


def test_a_planned_member_passes_on_its_node_alone_and_is_bound_with_its_gpus(
    world: ApiObjects, started: Extender
) -> None:
    world.add_gang("g", 2)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))

    for name in ("g-0", "g-1"):
        pod, node = world.pod(name), node_of(world, name)
        answer = started.filter(pod, "n1", "n2", "n3")
        assert answer["NodeNames"] == [node]
        assert len(answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]) == 2
    nodes = {name: node_of(world, name) for name in ("g-0", "g-1")}
    with ThreadPoolExecutor() as callers:
        first = callers.submit(started.bind, world.pod("g-0"), nodes["g-0"])
        time.sleep(0.2)
        assert not first.done(), "it waits for the other one"
        assert not world.read("g-0").spec.node_name
        assert started.bind(world.pod("g-1"), nodes["g-1"]) == ""
        assert first.result(5) == ""
    for name, node in nodes.items():
        bound = world.read(name)
        assert bound.spec.node_name == node
        assert len(read_gpus(bound.metadata.annotations[names.GPUS])["main"]) == 8
    wait_for(lambda: any(names.STARTED in world.read(n).metadata.annotations for n in nodes))
    assert sound(started)


def test_a_single_pod_gets_its_gpus_in_the_binding(world: ApiObjects, started: Extender) -> None:
    pod = world.add_pod("single", gpus=4)

    wait_for(lambda: started.state("single") == "waiting")
    (best,) = started.filter(pod, "n1", "n2", "n3")["NodeNames"]
    assert sorted(started.filter(pod, "n1", "n2", "n3")["NodeNames"]) == ["n1", "n2", "n3"]
    scores = started.ask("prioritize", Pod=pod, Nodes=None, NodeNames=["n1", "n2", "n3"])
    assert max(scores, key=lambda found: found["Score"])["Host"] == best
    assert started.bind(pod, best) == ""

    bound = world.read("single")
    assert bound.spec.node_name == best
    assert read_plan(bound.metadata.annotations[names.PLAN]).node == best
    assert started.free()[best] == 4
    assert sound(started)


def test_binding_twice_is_no_error(world: ApiObjects, started: Extender) -> None:
    pod = world.add_pod("single", gpus=4)
    wait_for(lambda: started.state("single") == "waiting")

    assert started.bind(pod, "n1") == ""
    wait_for(lambda: started.state("single") == "bound")
    assert started.bind(pod, "n1") == ""
    assert started.bind(pod, "n2") == "linkwise: pod is bound to node n1"
    assert started.free()["n1"] == 4


def test_a_pod_that_kube_scheduler_saw_before_us_is_bound_all_the_same(
    world: ApiObjects, started: Extender
) -> None:
    """Its bind call names the pod alone, and arrives before the watch shows the pod."""
    for number in range(20):
        pod = world.add_pod(f"new-{number}", gpus=1)
        assert started.bind(pod, "n1" if number < 8 else "n2" if number < 16 else "n3") == ""


def test_a_pod_that_nobody_knows_is_refused(world: ApiObjects, started: Extender) -> None:
    pod = world.add_pod("short-lived", gpus=1)
    wait_for(lambda: started.state("short-lived") == "waiting")
    world.delete("short-lived")
    wait_for(lambda: started.state("short-lived") == "unknown")

    assert started.bind(pod, "n1") == "linkwise: pod ml/short-lived is not known yet"


def test_a_binding_whose_answer_was_lost_is_found_done(
    world: ApiObjects, started: Extender
) -> None:
    pod = world.add_pod("single", gpus=4)
    wait_for(lambda: started.state("single") == "waiting")
    world.server.fail_next("POST", "/binding", 0, carry_out=True)

    assert "linkwise: binding ml/single to n1" in started.bind(pod, "n1")

    wait_for(lambda: started.bind(pod, "n1") == "")
    assert world.read("single").spec.node_name == "n1"
    assert started.free()["n1"] == 4
    assert sound(started)


def test_a_refused_binding_gives_its_gpus_back(world: ApiObjects, started: Extender) -> None:
    pod = world.add_pod("single", gpus=8)
    wait_for(lambda: started.state("single") == "waiting")
    world.server.fail_next("POST", "/binding", 409)

    assert started.bind(pod, "n1") != ""

    assert started.free()["n1"] == 8
    assert started.bind(pod, "n2") == ""


def test_a_plan_is_written_once_the_api_server_is_back(
    world: ApiObjects, started: Extender
) -> None:
    world.server.fail_next("PATCH", "/status", 503, times=7)

    world.add_gang("g", 2)

    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"), 20)
    assert sound(started)


def test_a_restart_keeps_the_books(
    world: ApiObjects, started: Extender, make_extender: Callable[..., Extender]
) -> None:
    world.add_gang("g", 2, least=1)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    single = world.add_pod("single", gpus=2)
    third = next(name for name, free in started.free().items() if free == 8)
    wait_for(lambda: started.bind(single, third) == "")
    wait_for(lambda: world.read("single").spec.node_name)
    started.loop.stop()
    before = started.get("/nodes")

    successor = make_extender().start()

    assert successor.get("/nodes") == before
    assert successor.bind(world.pod("g-0"), node_of(world, "g-0")) == ""
    assert sound(successor)


def test_nothing_is_lost_when_watches_break_and_history_is_gone(
    world: ApiObjects, started: Extender
) -> None:
    world.server.pause()
    world.server.resume()
    world.server.compact()
    world.server.cut_watches()

    world.add_gang("g", 2)

    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"), 20)
    assert started.count("watch_events_total", kind="pods", type="LISTED") >= 1


def test_the_core_is_told_while_the_watch_of_pods_is_broken(
    world: ApiObjects, started: Extender
) -> None:
    unheard: list[float] = []
    setattr(started.core, "unheard", unheard.append)  # noqa: B010
    world.server.pause()
    world.server.cut_watches()
    wait_for(lambda: unheard)
    world.server.resume()


def test_the_clock_goes_on_evenly_whatever_is_set() -> None:
    wall, steady = iter([1_000_000.0]), iter([50.0, 51.0, 60.0])
    clock = steady_clock(lambda: next(wall), lambda: next(steady))
    assert [clock(), clock()] == [1_000_001.0, 1_000_010.0]


def test_until_everything_is_read_each_verb_refuses_in_its_own_way(
    world: ApiObjects, make_extender: Callable[..., Extender]
) -> None:
    world.add_node("n1")
    pod = world.add_pod("single")
    world.server.pause()
    extender = make_extender()
    extender.loop.start()

    assert extender.http.get("/readyz").status_code == 503
    assert extender.http.get("/healthz").status_code == 200
    assert extender.filter(pod, "n1")["Error"].startswith("linkwise: not ready: still reading")
    assert extender.bind(pod, "n1").startswith("linkwise: not ready")
    for view in ("explain/ml/single", "gangs", "nodes"):  # empty answers would be lies
        shown = extender.http.get(f"/{view}")
        assert (shown.status_code, body(shown)["Error"][:19]) == (503, "linkwise: not ready")
        assert extender.http.get(f"/{view}?format=text").text.startswith("linkwise: not ready")
    for verb in ("prioritize", "preempt"):
        status, answer = asked(extender.verbs, verb, Pod=pod, NodeNames=["n1"])
        assert (status, answer["Error"][:19]) == (503, "linkwise: not ready")

    world.server.resume()
    wait_for(lambda: extender.http.get("/readyz").status_code == 200)
    assert extender.filter(pod, "n1")["NodeNames"] == ["n1"]


def test_a_stop_does_not_wait_for_an_api_server_that_is_gone(
    world: ApiObjects, started: Extender
) -> None:
    world.server.pause()
    began = time.monotonic()

    started.loop.stop()

    assert time.monotonic() - began < 5


def test_a_stop_after_bindings_that_were_refused_or_done_says_that_none_is_in_flight(
    world: ApiObjects, started: Extender
) -> None:
    """Only then is the Lease given back at once."""
    pod = world.add_pod("single", gpus=8)
    wait_for(lambda: started.state("single") == "waiting")
    world.server.fail_next("POST", "/binding", 409)
    assert started.bind(pod, "n1") != ""
    assert started.bind(pod, "n1") == ""
    assert started.loop.stop()


def test_a_bind_that_waits_for_our_watch_ends_with_the_shell(started: Extender) -> None:
    asked: list[BindCall] = []
    begin_bind = started.core.begin_bind

    def counted(call: BindCall, now: float) -> BindOrder | AlreadyBound | BindRefusal | BindWaits:
        asked.append(call)
        return begin_bind(call, now)

    setattr(started.core, "begin_bind", counted)  # noqa: B010
    call = BindCall("ml", "none", "uid-x", "n1")
    with ThreadPoolExecutor() as pool:
        refusal = pool.submit(started.loop.bind, call)
        wait_for(lambda: asked)
        before = len(asked)
        started.loop.stop()
        assert refusal.result(5) == "linkwise: pod ml/none is not known yet"
    assert len(asked) < before + 20, "it asks every 10 ms, and not at all any more"


def test_a_bind_that_waits_for_a_plan_to_be_written_is_woken_by_the_end_of_that_write(
    world: ApiObjects, started: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, perform = Event(), Writer.perform

    def slow(kube: Writer, action: Action) -> Outcome:
        if isinstance(action, WritePlan):
            held.wait(10)
        return perform(kube, action)

    monkeypatch.setattr(Writer, "perform", slow)
    monkeypatch.setattr("linkwise.extender.run.loop._BIND_POLL_SECONDS", 60.0)
    world.add_gang("g", 2)
    plans = started.core._cache.plans
    wait_for(lambda: len(plans) == 2)
    with ThreadPoolExecutor() as callers:
        binds = [
            callers.submit(started.bind, world.pod(name), plans[uid].plan.node)
            for name in ("g-0", "g-1")
            if (uid := world.read(name).metadata.uid)
        ]
        wait_for(lambda: len(started.loop._written) == 2)
        held.set()
        assert [bind.result(10) for bind in binds] == ["", ""]


def test_no_plan_waits_for_events(
    world: ApiObjects, monkeypatch: pytest.MonkeyPatch, make_extender: Callable[..., Extender]
) -> None:
    """The extender may report to thousands of pods at once why they wait."""
    hanging, told = Event(), Event()
    perform = Writer.perform

    def slow(kube: Writer, action: Action) -> Outcome:
        if not isinstance(action, Emit):
            return perform(kube, action)
        told.set()
        hanging.wait(30)
        return Outcome.DONE

    monkeypatch.setattr(Writer, "perform", slow)
    core = Core(CoreSettings())
    pods = [PodRef("ml", f"waits-{number}", f"uid-{number}") for number in range(100)]
    events = [Emit(pod, "WaitsForPlan", EventType.WARNING, "full") for pod in pods]
    decide = core.decide

    def with_events(now: float) -> tuple[Action, ...]:
        flood = tuple(events)
        events.clear()
        return flood + decide(now)

    setattr(core, "decide", with_events)  # noqa: B010
    world.add_node("n1")
    make_extender(core).start()
    wait_for(told.is_set)
    world.add_gang("g", 2, 4)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    hanging.set()


def defective_core() -> Core:
    """A core with a bug in almost everything that the loop calls."""

    def fail(*_: object) -> NoReturn:
        raise ZeroDivisionError("a bug")

    core = Core(CoreSettings())
    for name in ("filter", "prioritize", "preempt", "begin_bind", "decide", "pod_event"):
        setattr(core, name, fail)
    return core


def test_a_defect_in_the_core_is_answered_counted_and_survived(
    world: ApiObjects, make_extender: Callable[..., Extender]
) -> None:
    world.add_node("n1")
    extender = make_extender(defective_core()).start()
    pod = world.add_pod("single")
    wait_for(lambda: extender.count("errors_total", where="pods") == 1)
    wait_for(lambda: extender.count("errors_total", where="decide") >= 1)

    assert extender.filter(pod, "n1")["Error"] == "linkwise: internal error, see the extender's log"
    assert extender.bind(pod, "n1").startswith("linkwise: internal error")
    status, answer = asked(extender.verbs, "prioritize", Pod=pod, NodeNames=["n1"])
    assert (status, answer["Error"][:24]) == (500, "linkwise: internal error")

    assert extender.http.get("/healthz").status_code == 200
    assert extender.free() == {"n1": 8}
    assert extender.count("requests_total", verb="filter", result="failed") == 2


class OwnedLock:
    """A lock that knows which thread holds it."""

    def __init__(self) -> None:
        self._lock, self.owner = Lock(), 0

    def acquire(self, blocking: bool = True) -> bool:
        acquired = self._lock.acquire(blocking)
        if acquired:
            self.owner = get_ident()
        return acquired

    def release(self) -> None:
        self.owner = 0
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_each_thread_holds_the_lock_while_it_calls_the_core(
    world: ApiObjects, monkeypatch: pytest.MonkeyPatch, make_extender: Callable[..., Extender]
) -> None:
    lock, calls, without = OwnedLock(), set[str](), set[str]()
    monkeypatch.setattr("linkwise.extender.run.loop.Lock", lambda: lock)
    core = Core(CoreSettings())

    def watched(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def watching(*args: Any) -> object:
            calls.add(name)
            if lock.owner != get_ident():
                without.add(name)
            return call(*args)

        return watching

    for name, call in inspect.getmembers(core, inspect.ismethod):
        # The first of these may do without the lock, the others are called before any thread runs.
        if not name.startswith("_") and name not in ("prepare", "set_unlocker", "set_stopwatch"):
            setattr(core, name, watched(name, call))
    world.add_node("n1")
    extender = make_extender(core).start()
    world.add_gang("g", 2, 3)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    pod = world.add_pod("single", 2)
    wait_for(lambda: extender.state("single") == "waiting")
    extender.ask("prioritize", Pod=pod, NodeNames=["n1"])
    extender.ask("preempt", Pod=pod, NodeNameToMetaVictims={})
    assert extender.bind(pod, "n1") == ""
    world.add_node("n2")
    wait_for(lambda: "n2" in extender.free())
    wait_for(lambda: "is bound to node n1" in extender.bind(world.pod("single"), "n2"))
    extender.loop.audit()
    world.delete("single")
    wait_for(lambda: extender.state("single") == "unknown")
    extender.loop.stop()
    assert without == set()
    verbs = {"filter", "prioritize", "preempt", "begin_bind", "bind_refused", "end_bind"}
    assert calls >= verbs | {"decide", "done", "node_event", "pod_event", "replace_pods", "audit"}


def test_a_defect_that_the_core_lived_through_is_counted(
    world: ApiObjects, make_extender: Callable[..., Extender]
) -> None:
    core = Core(CoreSettings())
    met: list[Exception] = [ZeroDivisionError("a bug")]
    setattr(core, "take_defects", lambda: [met.pop()] if met else [])  # noqa: B010
    extender = make_extender(core).start()

    wait_for(lambda: extender.count("errors_total", where="decide") == 1)
    world.add_node("n1")
    world.add_gang("g", 2, 4)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))


def test_a_bind_that_has_waited_enough_as_the_last_member_comes_is_carried_out(
    world: ApiObjects, started: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the others were bound, and this one was refused: a gang that started by half."""
    world.add_gang("g", 2)
    wait_for(lambda: world.is_planned("g-0") and world.is_planned("g-1"))
    nodes = {name: node_of(world, name) for name in ("g-0", "g-1")}

    def wait_too_long(*_: object) -> bool:
        monkeypatch.undo()
        assert started.bind(world.pod("g-1"), nodes["g-1"]) == ""
        return False

    monkeypatch.setattr(started.loop, "_await", wait_too_long)
    assert started.bind(world.pod("g-0"), nodes["g-0"]) == ""
    assert all(world.read(name).spec.node_name for name in nodes)
