"""A canary by namespace: pods of all other namespaces stay as kube-scheduler has them."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.run.settings import Settings, SettingsError
from linkwise.extender.state.actions import Action, LiftGate, NoteQueue, WithdrawPlan
from linkwise.extender.state.extender_calls import BindOrder, Outcome, PreemptCall, Victims
from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster, change

CANARY = CoreSettings(namespaces=("canary",))


def in_canary(pod: Pod) -> Pod:
    return change(pod, metadata=change(pod.metadata, namespace="canary"))


def canary(**settings: object) -> Cluster:
    at = Cluster(settings=change_settings(**settings))
    at.add_node("n1")
    at.add_node("n2")
    return at


def change_settings(**settings: object) -> CoreSettings:
    return CoreSettings(namespaces=("canary",), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"gang": "g", "gang_size": "4"},
        {"require_link": "fast"},
        {"gpu_model": "none of these"},
    ],
    ids=["single", "gang", "wrong", "impossible"],
)
def test_every_call_is_answered_as_if_the_extender_were_not_there(said: dict[str, str]) -> None:
    at = canary()
    at.add_pod("busy", 8, node="n1")
    at.add_pod("a", 4, said=said, priority=5)
    assert at.filter("a").node_names == ("n1", "n2")
    assert at.filter("a", ["n2", "unknown"]).node_names == ("n2", "unknown")
    assert at.prioritize("a").scores == {"n1": 0, "n2": 0}
    asked = {"n1": Victims((at.pod("busy").metadata.uid,), 1), "n2": Victims(("x",), 0)}
    assert at.core.preempt(PreemptCall(at.pod("a"), asked), at.now).victims == asked
    order = at.begin_bind("a", "n2")
    assert isinstance(order, BindOrder)
    assert order.annotations == {}
    assert at.settle() == []
    assert at.pass_time(3600.0) == []


def test_a_binding_without_a_response_nominates_none_of_the_others() -> None:
    at = canary()
    at.add_pod("a", 4)
    at.filter("a")
    order = at.begin_bind("a", "n2")
    assert isinstance(order, BindOrder)
    at.core.end_bind(order, Outcome.UNKNOWN, at.now)
    assert at.settle() == []


def test_a_pod_of_the_namespace_is_placed() -> None:
    at = canary()
    at.add_pod("a", 4, alter=in_canary)
    assert len(at.filter("a").node_names) == 1
    at.add_pod("g", 4, said={"gang": "g", "gang_size": "1"}, alter=in_canary)
    at.settle()
    assert at.plan("g") is not None


def test_gpus_of_the_others_count_as_in_use() -> None:
    at = canary()
    at.add_pod("theirs", 6)
    at.bind("theirs", "n1")
    assert at.free("n1") == 2
    at.start("theirs", {"main": at.uuids("n1", 0, 1, 2, 5, 6, 7)})
    at.add_pod("ours", 2, alter=in_canary)
    at.filter("ours", ["n1"])
    at.add_pod("big", 3, alter=in_canary)
    assert at.filter("big", ["n1"]).node_names == ()
    assert at.free("n1") == 2
    assert at.sound()


def test_what_an_earlier_configuration_wrote_is_taken_back() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_gang("g", 2, 4, gates=[names.GATE])
    at.add_gang("waits", 2, 8, gates=[names.GATE, "theirs.dev/quota"])
    at.add_pod("wrong", 1, gates=[names.GATE], require_link="fast")
    at.settle()
    assert at.plan("g-0") is not None
    at.settings = CANARY
    at.events.clear()
    at.restart()
    actions = at.settle()
    assert {type(action) for action in actions} == {LiftGate, WithdrawPlan}
    for name in ("g-0", "g-1", "wrong"):
        assert at.gates(name) == []
        assert at.plan(name) is None
        assert not at.pod(name).status.nominated_node_name
    assert at.gates("waits-0") == ["theirs.dev/quota"]
    assert at.pass_time(3600.0) == []
    assert at.events == []


def test_a_running_pod_keeps_its_plan_and_its_gpus() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 2)
    assert at.schedule("a") == "n1"
    at.start("a", {"main": at.uuids("n1", 6, 7)})  # other than planned, maybe
    at.settle()
    plan = at.plan("a")
    at.settings = CANARY
    at.restart()
    assert at.settle() == []
    assert at.plan("a") == plan
    assert at.free("n1") == 6


def test_a_more_important_gang_evicts_none_of_the_others() -> None:
    at = Cluster(settings=CANARY)
    at.add_node("n1")
    at.add_pod("theirs", 8, node="n1", preemptible="true")
    at.start("theirs", {"main": at.uuids("n1", *range(8))})
    said = {"gang": "g", "gang_size": "1"}
    at.add_pod("g", 8, said=said, priority=10, alter=in_canary)
    at.settle()
    at.pass_time(60.0)
    assert at.evicted == []


def test_no_pod_after_the_other_is_evicted_for_gpus_that_the_others_take() -> None:
    """kube-scheduler gives the GPUs of a victim to a pod of another namespace at once."""
    at = Cluster(settings=CANARY)
    for number in range(4):
        at.add_node(f"n{number}")
        at.add_pod(f"low{number}", 8, alter=in_canary, node=f"n{number}", preemptible="true")
    at.add_pod("g", 8, priority=10, alter=in_canary, gang="g", gang_size="1")
    taken = 0
    for _ in range(58):
        at.pass_time(5.0)
        for victim in at.evicted[taken:]:
            node = at.pod(victim).spec.node_name
            at.delete(victim)
            at.add_pod(f"theirs{taken}", 8, node=node)
            taken += 1
    assert len(at.evicted) == 1
    at.pass_time(60.0)
    assert len(at.evicted) == 2  # it is tried again, more and more seldom
    at.delete(at.evicted[1])
    at.settle()
    assert at.plan("g") is not None
    assert at.sound()


def test_it_is_explained() -> None:
    at = canary()
    at.add_pod("a", 4)
    explained = at.core.explain("ml", "a", at.now)
    assert explained is not None
    assert explained.state == "left-alone"
    assert "kube-scheduler alone places it" in explained.summary
    assert at.core.gangs(at.now) == ()


def test_back_to_all_namespaces_places_them_again() -> None:
    at = canary()
    at.add_gang("g", 2, 8)
    assert [action for action in at.settle() if not is_note(action)] == []
    at.settings = CoreSettings()
    at.restart()
    at.settle()
    assert at.plan("g-0") is not None


def is_note(action: Action) -> bool:
    return isinstance(action, NoteQueue)


def test_a_namespace_has_a_name() -> None:
    with pytest.raises(SettingsError, match="--namespace Team_A: expected the name"):
        Settings(namespaces=("Team_A",))
