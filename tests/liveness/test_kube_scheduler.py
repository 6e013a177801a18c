"""What the stand-in does with binds that the extender holds until other members have come."""

from dataclasses import dataclass, field

from linkwise.extender.core import Core
from linkwise.extender.state.extender_calls import (
    AlreadyBound,
    BindCall,
    BindOrder,
    BindRefusal,
    BindWaits,
)
from linkwise.extender.state.records import GangKey
from tests.liveness.day import Day
from tests.liveness.kube_scheduler import HELD_SECONDS


class Holding(Core):
    """Holds every bind until a test lets go."""

    holds = True
    gave_up = False

    def begin_bind(
        self, call: BindCall, now: float
    ) -> BindOrder | AlreadyBound | BindRefusal | BindWaits:
        return BindWaits(GangKey("red", "g")) if self.holds else super().begin_bind(call, now)

    def bind_gave_up(self, call: BindCall, now: float) -> BindRefusal | None:
        self.gave_up = True
        return super().bind_gave_up(call, now)


@dataclass
class HoldingDay(Day):
    held_by: Holding = field(init=False)

    def new_core(self) -> Core:
        self.held_by = Holding(self.settings)
        return self.held_by

    def live_for(self, seconds: float) -> None:
        self.live(self.now + seconds, lambda _: None)


def world_of(**gpus: int) -> HoldingDay:
    day = HoldingDay()
    day.add_node("n1", "hgx-h100")
    for name, wanted in gpus.items():
        day.make(name, wanted, namespace="red", said={})
    return day


def bound(day: Day) -> set[str]:
    return {pod.metadata.name for pod in day.pods.values() if pod.spec.node_name}


def test_while_a_bind_waits_its_pod_is_assumed_and_others_are_tried() -> None:
    day = world_of(a=4, b=4, c=4)
    day.live_for(1.0)
    waiting = {bind.call.name for bind in day.scheduler.binds}
    assert waiting == {"a", "b"}
    assert day.scheduler.cluster.is_assumed(day.pod("a").metadata.uid)
    assert "0/" in day.pod("c").status.conditions[0].message
    assert not bound(day)


def test_all_that_are_let_go_are_bound_at_one_moment() -> None:
    day = world_of(a=4, b=4)
    day.live_for(1.0)
    day.held_by.holds = False
    assert day.scheduler.try_next()
    assert bound(day) == {"a", "b"}
    assert not day.scheduler.binds


def test_a_bind_that_waits_too_long_ends_in_an_error_and_its_pod_in_back_off() -> None:
    day = world_of(a=4)
    day.live_for(HELD_SECONDS - 0.1)
    assert not day.held_by.gave_up
    day.live_for(0.2)
    assert day.held_by.gave_up
    assert day.pod("a").status.conditions[0].reason == "SchedulerError"
    assert not day.scheduler.cluster.is_assumed(day.pod("a").metadata.uid)
    day.held_by.holds = False
    day.live_for(1.0)
    assert bound(day) == {"a"}


def test_binds_that_wait_end_with_the_process_that_got_them() -> None:
    for dies in (Day.restart, Day.hand_over):
        day = world_of(a=4)
        day.live_for(1.0)
        dies(day)
        assert not day.scheduler.binds
        assert day.pod("a").status.conditions[0].message == "connection reset"


def test_a_pod_that_is_deleted_while_its_bind_waits_does_not_come_back() -> None:
    day = world_of(a=8, b=8)
    day.live_for(1.0)
    (waits,) = day.scheduler.binds
    day.terminate(waits.call.name)
    day.held_by.holds = False
    day.live_for(12.0)
    assert bound(day) == {"a", "b"} - {waits.call.name}
    assert not day.scheduler.binds
