"""A gang is planned whole before its last members exist, and keeps the places of lost ones."""

from dataclasses import replace

import msgspec
import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.gangs.growing_pauses import GrowingPauses
from linkwise.extender.next.gangs.lifecycle import KEPT_FOR_NOTHING
from linkwise.extender.next.gangs.to_come import LEAVING_SECONDS, WHOLE_SECONDS
from linkwise.extender.state.actions import Action, Evict, NotePlaces, WritePlan, leaving
from linkwise.extender.state.extender_calls import BindOrder, BindWaits, Outcome
from linkwise.extender.state.membership.owner_cache import FRESH_SECONDS
from linkwise.kube.objects import Condition, Pod, SchedulingGate
from linkwise.pods.podgrouper.recreated import COUNTS_AS_FAILURE
from linkwise.pods.podgrouper.workloads.answer import Missing
from linkwise.pods.podgrouper.workloads.essence import essence
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.model import Gpu, Machine
from tests.extender.cluster import Cluster, change
from tests.extender.meanwhile import Meanwhile
from tests.extender.owned import create, job, job_set, member, of_set, there_is
from tests.machines import T4_4
from tests.pods.podgrouper.pods import Object, owner, pod, ref_of, template

INDEX = "batch.kubernetes.io/job-completion-index"
SETTINGS = CoreSettings(gang_timeout_seconds=600, wave_seconds=1800, replacement_seconds=60)
GANG = "JobSet.jobset.x-k8s.io/run"


def world(*nodes: str, settings: CoreSettings = SETTINGS) -> Cluster:
    at = Cluster(settings=settings)
    for node in nodes or ("n0", "n1"):
        at.add_node(node, "dgx-a100")
    return at


def ready(at: Cluster, name: str, node: str = "") -> None:
    if node:
        assert at.schedule(name) == node
    at.start(name)
    made = at.pod(name)
    status = change(made.status, conditions=(Condition("Ready", "True"),))
    at.put_pod(change(made, status=status))
    at.settle()


def begun(at: Cluster) -> str:
    """The control of a set of two runs; returns the node of the place that is kept."""
    there_is(at, job_set())
    create(at, of_set("control"))
    at.pass_time(1)
    at.schedule("run-control")
    ready(at, "run-control")
    (kept,) = {"n0", "n1"} - {at.pod("run-control").spec.node_name}
    return kept


# Waves.


def test_members_to_come_say_nothing_of_a_scheduler_that_has_not_asked() -> None:
    """Found: behind the gate, on a cluster of which no pod had asked yet, such a gang never
    started."""
    at = world()
    there_is(at, job_set())
    gates = (SchedulingGate(names.GATE),)
    made = of_set("control")
    spec = change(made.spec, scheduling_gates=gates, scheduler_name="second")
    create(at, change(made, spec=spec))
    at.pass_time(1)
    assert at.phase(GANG) == "planned"


def test_of_two_gangs_with_room_for_one_the_second_does_not_begin() -> None:
    at = world()
    there_is(at, job_set("a"), job_set("b"))
    create(at, of_set("control", of="a"), of_set("control", of="b"))
    at.pass_time(1)
    assert [bool(at.schedule(f"{name}-control")) for name in "ab"] == [True, False]
    ready(at, "a-control")
    create(at, of_set("worker", of="a"))
    assert at.schedule("a-worker")
    at.settle()
    assert at.phase(GANG.replace("run", "a")) == "running"
    for name in ("a-control", "a-worker"):
        at.set_phase(name, "Succeeded")
        at.stop(name, at.pod(name).spec.node_name)
    at.settle()
    at.pass_time(60)
    assert at.schedule("b-control")
    assert at.sound()


@pytest.mark.parametrize("priority", [0, 1000])
def test_no_other_pod_gets_a_place_that_is_kept(priority: int) -> None:
    at = world()
    kept = begun(at)
    at.add_pod("other", 1, priority=priority)
    at.pass_time(30)
    assert at.schedule("other") == ""
    assert at.free(kept) == 0
    create(at, of_set("worker"))
    assert at.schedule("run-worker") == kept


def test_each_pod_of_a_later_wave_gets_the_place_of_its_rank() -> None:
    at = world("n0", "n1", "n2")
    there_is(at, job_set("run", ("control", 1), ("worker", 2)))
    create(at, of_set("control"))
    at.pass_time(1)
    assert at.schedule("run-control") == "n0"
    ready(at, "run-control")
    create(at, of_set("worker", 1), of_set("worker", 0))
    assert [at.schedule(name) for name in ("run-worker", "run-worker-1")] == ["n1", "n2"]
    assert at.sound()


def test_no_pod_is_evicted_for_a_gang_whose_later_wave_can_never_fit() -> None:
    at = world()
    at.add_pod("consents", 8, said={"preemptible": "true"})
    at.bind("consents", "n0")
    at.start("consents")
    at.add_pod("stays", 8)
    at.bind("stays", "n1")
    at.start("stays")
    there_is(at, job_set())
    create(at, of_set("control", priority=100))
    at.pass_time(60)
    assert at.evicted == []
    assert at.plan("run-control") is None


def test_a_gang_has_room_made_for_all_of_it() -> None:
    at = world()
    for node in ("n0", "n1"):
        at.add_pod(f"on-{node}", 8, said={"preemptible": "true"})
        at.bind(f"on-{node}", node)
        at.start(f"on-{node}")
    there_is(at, job_set())
    create(at, of_set("control", priority=100))
    at.pass_time(60)
    assert sorted(at.evicted) == ["on-n0", "on-n1"]


def test_a_pod_that_asks_for_other_gpus_than_foretold_is_placed_beside_the_others() -> None:
    at = world("n0", "n1", "n2")
    at.add_pod("half", 4)
    at.bind("half", "n2")
    there_is(at, job_set("run", ("control", 1), ("worker", 1), gpus=4))
    create(at, of_set("control", gpus=4))
    at.pass_time(1)
    assert at.schedule("run-control")
    ready(at, "run-control")
    create(at, of_set("worker", gpus=8))
    assert at.schedule("run-worker") in ("n0", "n1")
    at.settle()
    assert at.phase(GANG) == "running"
    assert at.noted_places == {}


def test_no_member_is_bound_before_the_places_are_noted() -> None:
    class Forgetful(Cluster):
        def carry_out(self, action: Action) -> Outcome:
            forgets = isinstance(action, NotePlaces) and self.now < 1_000_060
            return Outcome.UNKNOWN if forgets else super().carry_out(action)

    at = Forgetful(settings=SETTINGS)
    for node in ("n0", "n1"):
        at.add_node(node, "dgx-a100")
    there_is(at, job_set())
    create(at, of_set("control"))
    at.pass_time(1)
    node = at.places("run-control")[0]
    assert isinstance(at.come_to_bind("run-control", node), BindWaits)
    for _ in range(30):
        at.pass_time(5)
    assert at.schedule("run-control") == node


def test_no_member_is_bound_in_a_pause_before_its_plans_are_published() -> None:
    """Found: a gang that wants no note yet counted as one whose note is written."""
    at = world()
    there_is(at, job_set("a"), job_set("b"))
    answers: list[object] = []

    def come() -> None:
        planned = at.core._cache.plans.get(at.pod("a-control").metadata.uid)
        if planned is not None:
            answers.append(at.come_to_bind("a-control", planned.plan.node))

    at.put_pod(of_set("control", of="a"))
    at.put_pod(of_set("control", of="b"))
    at.decide()  # reads the owners
    Meanwhile(at, *[come] * 9)  # b has no room, and its reservation is looked for
    at.decide()
    assert answers
    assert not any(isinstance(answer, BindOrder) for answer in answers)


def test_a_new_leader_keeps_the_places() -> None:
    at = world()
    kept = begun(at)
    at.restart()
    at.add_pod("other", 8)
    at.settle()
    assert at.schedule("other") == ""
    create(at, of_set("worker"))
    assert at.schedule("run-worker") == kept
    at.settle()
    assert at.noted_places == {}


def test_a_new_leader_keeps_a_place_whose_pod_has_come_and_has_no_plan_yet() -> None:
    """Found: the note was removed before the plan was on the pod."""

    class Dying(Cluster):
        def carry_out(self, action: Action) -> Outcome:
            is_lost = isinstance(action, WritePlan) and action.pod.name == "run-worker"
            return (
                Outcome.UNKNOWN if is_lost and self.now < 1_000_060 else super().carry_out(action)
            )

    at = Dying(settings=SETTINGS)
    for node in ("n0", "n1"):
        at.add_node(node, "dgx-a100")
    kept = begun(at)
    at.add_pod("other", 8)
    at.settle()
    create(at, of_set("worker"))
    owners, at.owners = at.owners, None
    at.now = 1_000_060
    at.restart()
    assert at.schedule("other") == ""
    at.owners = owners
    at.pass_time(60)
    assert at.schedule("run-worker") == kept
    at.settle()
    assert at.noted_places == {}
    assert at.sound()


def test_a_note_is_no_more_than_a_wish() -> None:
    """It was written by another leader, and another pod has the GPUs by now."""
    at = world("n0", "n1", "n2")
    there_is(at, job_set())
    create(at, of_set("control"))
    at.pass_time(1)
    ready(at, "run-control", "n0")
    text = next(iter(at.noted_places.values()))
    assert '"n1"' in text
    at.noted_places = {key: each.replace('"n1"', '"n0"') for key, each in at.noted_places.items()}
    at.restart()
    at.pass_time(1)
    create(at, of_set("worker"))
    assert at.schedule("run-worker") in ("n1", "n2")
    assert at.sound()


@pytest.mark.parametrize("text", ["", "{}", '{"v":1}', '{"v":9,"namespace":"ml"}', "\x00"])
def test_a_note_that_cannot_be_read_costs_nothing(text: str) -> None:
    at = world()
    at.noted_places = {"0" * 32: text}
    at.restart()
    kept = begun(at)
    create(at, of_set("worker"))
    assert at.schedule("run-worker") == kept


def test_a_gang_whose_later_wave_never_comes_gives_all_back_once() -> None:
    at = world()
    begun(at)
    at.pass_time(SETTINGS.wave_seconds - 10)
    assert at.evicted == []
    at.pass_time(20)
    assert at.evicted == ["run-control"]
    told = [event.message for event in at.events if event.reason == "GangExpired"]
    why = "its owner did not create 1 worker in time"
    assert told == [f"gang ml/{GANG}: {why}; {COUNTS_AS_FAILURE}"]
    node = at.pod("run-control").spec.node_name
    at.delete("run-control")
    at.stop("run-control", node)
    at.settle()
    at.pass_time(1)
    assert [at.free(node) for node in ("n0", "n1")] == [8, 8]
    assert at.noted_places == {}
    assert at.sound()


def test_a_namespace_that_keeps_places_for_nothing_keeps_none_for_as_long() -> None:
    """Members to come need no pod, so no quota bounds them."""
    at = world()
    words = {"gang-size": "17", "gang-to-come": "nvidia.com/gpu=1"}
    for name in ("a", "b"):
        at.add_pod(f"driver-{name}", 0, said={"gang": name, **words})
        at.pass_time(1)
    assert at.free("n0") == at.free("n1") == 0
    at.pass_time(SETTINGS.gang_timeout_seconds)
    assert at.free("n0") == at.free("n1") == 8
    (waits,) = (gang for gang in at.core.gangs(at.now) if gang.name == "b")
    assert waits.reason == KEPT_FOR_NOTHING
    at.pass_time(2)
    assert any(KEPT_FOR_NOTHING in event.message for event in at.events)
    at.add_pod("other", 8)
    at.settle()
    assert at.schedule("other")
    at.start("other")
    at.set_phase("other", "Succeeded")
    at.stop("other", at.pod("other").spec.node_name)
    at.settle()
    at.pass_time(SETTINGS.gang_timeout_seconds + 60)
    assert at.free("n0") == at.free("n1") == 0  # one of the two has another try
    assert at.sound()


def test_other_namespaces_and_gangs_that_are_there_do_not_rest() -> None:
    rests = GrowingPauses()
    rests.pause("red", 600, 1000)
    assert rests.until("blue", 1000) is None
    assert rests.until("red", 1000) == 1600
    rests.pause("red", 600, 1600)
    assert rests.until("red", 1600) == 2800
    rests.reset("red")
    assert rests.until("red", 1600) == 2800
    rests.pause("red", 600, 2800)
    assert rests.until("red", 2800) == 3400
    assert rests.until("red", 3400) is None


def test_a_pod_of_a_later_wave_that_kube_scheduler_does_not_try_costs_no_eviction() -> None:
    at = world()
    kept = begun(at)
    at.pass_time(SETTINGS.wave_seconds - 60)
    create(at, of_set("worker"))
    at.pass_time(SETTINGS.wave_seconds - 60)
    assert at.evicted == []
    assert at.schedule("run-worker") == kept


def test_a_new_term_and_a_new_list_of_pods_change_nothing() -> None:
    at = world()
    kept = begun(at)
    at.core.replace_pods(at.pods.values(), at.now)
    at.settle()
    at.core.lead(1, at.now)
    at.core.restore_places(at.noted_places, at.now)
    at.settle()
    assert at.free(kept) == 0
    create(at, of_set("worker"))
    at.settle()
    (view,) = at.core.gangs(at.now)
    assert [each.state for each in view.members] == ["bound", "planned"]
    assert at.schedule("run-worker") == kept
    assert at.sound()


def test_the_note_of_a_gang_that_is_gone_is_removed() -> None:
    at = world()
    begun(at)
    node = at.pod("run-control").spec.node_name
    noted = dict(at.noted_places)
    at.delete("run-control")
    at.stop("run-control", node)
    at.pass_time(60)
    at.noted_places = noted  # the leader ended before it had removed it
    at.restart()
    at.pass_time(30)
    assert at.noted_places == noted  # the owners of pods may not be read yet
    at.pass_time(31)
    at.add_pod("other", 1)
    at.settle()
    assert at.noted_places == {}


def test_nobody_gets_noted_places_before_the_owner_is_read() -> None:
    at = world()
    kept = begun(at)
    owners, at.owners = at.owners, None
    at.restart()
    at.add_pod("other", 1)
    at.pass_time(120)
    assert at.schedule("other") == ""
    at.owners = owners
    at.pass_time(60)
    create(at, of_set("worker"))
    assert at.schedule("other") == ""
    assert at.schedule("run-worker") == kept
    assert at.sound()


def test_noted_places_are_not_kept_for_ever_for_an_owner_that_cannot_be_read() -> None:
    at = world()
    begun(at)
    at.owners = None
    at.restart()
    at.add_pod("other", 1)
    for _ in range(12):
        at.pass_time(60)
    assert at.schedule("other")


def test_a_place_is_noted_until_the_plan_of_the_pod_that_came_is_written() -> None:
    at = world()
    begun(at)
    assert at.noted_places
    create(at, of_set("worker"))
    at.pass_time(2)
    assert at.places("run-worker")
    assert at.noted_places == {}


def test_noted_places_of_a_gang_that_is_gone_are_given_back() -> None:
    at = world()
    kept = begun(at)
    node, noted = at.pod("run-control").spec.node_name, dict(at.noted_places)
    at.delete("run-control")
    at.stop("run-control", node)
    at.pass_time(60)
    at.noted_places = noted
    at.restart()
    at.add_pod("first", 8)
    at.add_pod("second", 8)
    at.pass_time(1)
    assert [at.schedule("first"), at.schedule("second")] == [node, ""]
    at.pass_time(60)
    assert at.schedule("second") == kept
    assert at.noted_places == {}


def test_a_note_takes_no_gpu_that_another_pod_is_planned_on() -> None:
    at = world("n0", "n1", "n2")
    begun_on_three = job_set()
    there_is(at, begun_on_three)
    create(at, of_set("control"))
    at.pass_time(1)
    ready(at, "run-control", "n0")
    at.add_pod("planned", 8, gates=["linkwise.dev/plan"])
    at.settle()
    assert at.places("planned") == ["n2"]
    at.noted_places = {
        key: text.replace('"n1"', '"n2"').replace('"made":1', '"made":9')
        for key, text in at.noted_places.items()
    }
    at.restart()
    at.pass_time(1)
    assert at.places("planned") == ["n2"]
    create(at, of_set("worker"))
    assert at.schedule("run-worker") == "n1"


@pytest.mark.parametrize(("share", "ends"), [(0.3, True), (0.55, False)])
def test_what_a_namespace_keeps_counts_where_its_reservations_idle_too_many(
    *, share: float, ends: bool
) -> None:
    names = ("n0", "n1", "n2", "n3")
    settings = replace(SETTINGS, reserve_share=share, reserve_limit_seconds=300.0)
    at = world(*names, settings=settings)
    there_is(at, job_set())
    create(at, of_set("control"))
    at.pass_time(1)
    assert at.schedule("run-control")
    at.start("run-control")  # and is not ready, so its place is kept for long
    at.settle()
    free = [name for name in names if at.free(name) == 8]
    at.add_pod("long", 8)
    assert at.schedule("long") in free
    at.start("long")
    at.add_gang("large", 2)
    at.settle()
    assert [hold.key.name for hold in at.core.reservations.all()] == ["large"]
    at.pass_time(301)
    assert bool(at.core.reservations.all()) is not ends


def test_a_wave_that_is_not_ready_has_longer() -> None:
    at = world()
    there_is(at, job_set())
    create(at, of_set("control"))
    at.pass_time(1)
    assert at.schedule("run-control")
    at.start("run-control")  # its image is pulled
    at.pass_time(SETTINGS.wave_seconds + 600)
    assert at.evicted == []


def test_a_gang_whose_last_members_exist_and_have_no_place_has_no_longer() -> None:
    """Found: it kept the GPUs of the first wave for an hour more."""
    at = world()
    kept = begun(at)
    at.cordon(kept)
    create(at, of_set("worker"))
    at.pass_time(SETTINGS.gang_timeout_seconds - 10)
    assert at.evicted == []
    at.pass_time(20)
    assert at.evicted == ["run-control"]


def test_a_gang_with_waves_counts_all_its_pods_in_a_view() -> None:
    at = world()
    kept = begun(at)
    (view,) = at.core.gangs(at.now)
    assert (view.size, view.minimum, view.phase) == (2, 2, "binding")
    assert view.reason == "keeps the place of a member that its owner creates later"
    assert [(each.state, each.node) for each in view.members if each.node == kept] == [
        ("to-come", kept)
    ]


@pytest.mark.parametrize("pods", [-3, 0, 1_000_000])
def test_a_bad_number_of_later_pods_costs_its_own_gang_only(pods: int) -> None:
    at = world()
    there_is(at, job_set("run", ("control", 1), ("worker", pods)))
    create(at, of_set("control"))
    at.pass_time(1)
    at.add_pod("other", 8)
    at.settle()
    assert at.schedule("other")
    assert at.sound()


# Lost members.


def full(at: Cluster, size: int = 2) -> Object:
    """A Job of as many pods of 8 GPUs runs on all nodes."""
    by = job("train", size)
    there_is(at, by)
    create(at, *(member(by, index) for index in range(size)))
    at.pass_time(1)
    for index in range(size):
        assert at.schedule(f"train-{index}-0")
        at.start(f"train-{index}-0")
    at.settle()
    return by


def all_leave(at: Cluster, *, attempt: int = 0) -> None:
    for index in range(2):
        at.terminate(f"train-{index}-{attempt}")


def all_gone(at: Cluster, *, attempt: int = 0) -> None:
    for index in range(2):
        node = at.pod(f"train-{index}-{attempt}").spec.node_name
        at.delete(f"train-{index}-{attempt}")
        at.stop(f"train-{index}-{attempt}", node)
    at.settle()


def fail(at: Cluster, name: str) -> str:
    node = at.pod(name).spec.node_name
    at.set_phase(name, "Failed")
    at.stop(name, node)
    at.settle()
    return node


def test_no_place_is_kept_on_gpus_that_the_machine_has_no_more() -> None:
    at = world()
    full(at)
    node = at.pod("train-1-0").spec.node_name
    at.annotate_node(node, names.TOPOLOGY, write_topology(Machine((Gpu("GPU-0", 0, "", 0),), ())))
    fail(at, "train-1-0")
    assert at.core.take_defects() == []
    assert at.sound()


@pytest.mark.parametrize("priority", [0, 1000])
def test_a_gang_that_runs_keeps_the_place_of_a_lost_pod_for_its_jobs_back_off(
    priority: int,
) -> None:
    at = world()
    by = full(at)
    at.add_pod("waits", 8, priority=priority)
    at.pass_time(60)
    node = fail(at, "train-1-0")
    before = at.gpus("train-1-0")
    for _ in range(10):
        at.pass_time(1)
        assert at.schedule("waits") == ""
    (view,) = at.core.gangs(at.now)
    assert view.phase == "repairing"
    assert view.reason == "keeps the place of a member that was lost"
    create(at, member(by, 1, attempt=1))
    assert (at.schedule("train-1-1"), at.gpus("train-1-1")) == (node, before)
    at.settle()
    assert at.phase("Job.batch/train") == "running"
    assert at.sound()


def around(at: Cluster, scheduler: str) -> Object:
    """A Job of two pods runs on all nodes, which *scheduler* bound without the extender."""
    by = job("train", 2)
    there_is(at, by)
    for index in range(2):
        made = member(by, index)
        create(at, of_scheduler(made, scheduler, node=f"n{index}"))
        at.set_phase(made.metadata.name, "Running")
    at.settle()
    return by


def of_scheduler(made: Pod, scheduler: str, node: str = "") -> Pod:
    return change(made, spec=change(made.spec, scheduler_name=scheduler, node_name=node))


def test_a_gang_of_a_scheduler_that_does_not_call_keeps_no_place_and_gets_no_plan() -> None:
    """Found beside Volcano, which binds no pod that has a plan: of any gang from then on."""
    at = world()
    by = around(at, "volcano")
    at.set_phase("train-1-0", "Failed")
    at.settle()
    assert at.free("n1") == 8
    create(at, of_scheduler(member(by, 1, attempt=1), "volcano"))
    at.pass_time(60)
    assert at.plan("train-1-1") is None


def test_a_gang_that_was_bound_before_there_was_an_extender_keeps_a_lost_place() -> None:
    at = world()
    by = around(at, "default-scheduler")
    at.set_phase("train-1-0", "Failed")
    at.settle()
    create(at, member(by, 1, attempt=1))
    at.pass_time(1)
    written = at.plan("train-1-1")
    assert written is not None
    assert written.node == "n1"
    assert at.schedule("train-1-1") == "n1"
    assert at.sound()


def test_a_reservation_of_another_does_not_take_the_place_of_a_gang_that_is_restarted() -> None:
    at = world()
    by = full(at)
    for index in range(2):  # so that they are expected to end
        at.add_pod(f"short-{index}", 8)
    at.add_gang("waits", 2, 8, gang_size="2", expected_duration="10m")
    at.pass_time(60)
    assert at.core._planner.reservations.all()
    for index in range(2):
        fail(at, f"train-{index}-0")
    for index in range(2):
        at.delete(f"train-{index}-0")
        at.settle()
    at.pass_time(1)
    create(at, member(by, 1, attempt=1))
    create(at, member(by, 0, attempt=1))
    assert all(at.schedule(f"train-{index}-1") for index in range(2))
    assert at.sound()


def test_a_replacement_that_goes_with_the_others_hands_its_place_on() -> None:
    """LeaderWorkerSet deletes the leader of a lost worker, whose replacement exists by then."""
    at = world()
    by = full(at)
    at.add_pod("waits", 8)
    fail(at, "train-1-0")
    create(at, member(by, 1, attempt=1))
    at.terminate("train-0-0")
    at.settle()
    at.terminate("train-1-1")
    at.settle()
    at.delete("train-1-1")
    at.settle()
    node = at.pod("train-0-0").spec.node_name
    at.delete("train-0-0")
    at.stop("train-0-0", node)
    at.pass_time(5)
    assert at.schedule("waits") == ""
    create(at, member(by, 0, attempt=2))
    create(at, member(by, 1, attempt=2))
    assert all(at.schedule(f"train-{index}-2") for index in range(2))


@pytest.mark.parametrize("leaves_first", [True, False])
def test_a_group_keeps_its_places_while_its_leader_and_a_replacement_go(
    *, leaves_first: bool
) -> None:
    """The StatefulSet of the workers replaces a lost one, and is deleted with the leader then."""
    at = world()
    there_is(at, leader_worker_set())
    create(at, of_group(0))
    at.pass_time(1)
    ready(at, "one-0", "n0")
    create(at, of_group(1))
    ready(at, "one-0-1", "n1")
    at.add_pod("waits", 8)
    at.pass_time(5)
    gone(at, "one-0-1")
    if leaves_first:
        at.terminate("one-0")
    create(at, of_group(1, attempt=1))
    at.terminate("one-0")
    at.settle()
    at.set_phase("one-0", "Succeeded")  # it ends well, which is no success of the group
    at.terminate("one-0-1")
    at.settle()
    at.delete("one-0-1")
    at.settle()
    gone(at, "one-0")
    at.pass_time(1)
    assert at.schedule("waits") == ""
    create(at, of_group(0, attempt=1))
    ready(at, "one-0", "n0")
    create(at, of_group(1, attempt=2))
    assert at.schedule("one-0-1") == "n1"
    assert at.sound()


def test_a_replacement_leaves_after_the_leader_has_come_again() -> None:
    """Found beside the real operator: the new leader counted as one that repairs the earlier run,
    of which the worker was still terminating, so the place of the next worker was not kept."""
    at = world()
    there_is(at, leader_worker_set())
    create(at, of_group(0))
    at.pass_time(1)
    ready(at, "one-0", "n0")
    create(at, of_group(1))
    ready(at, "one-0-1", "n1")
    at.add_pod("waits", 8)
    gone(at, "one-0-1")
    create(at, of_group(1, attempt=1))
    assert at.schedule("one-0-1") == "n1"
    gone(at, "one-0")
    create(at, of_group(0, attempt=1))
    at.terminate("one-0-1")
    at.settle()
    assert at.schedule("one-0") == "n0"
    at.settle()
    gone(at, "one-0-1")
    at.pass_time(1)
    assert at.schedule("waits") == ""
    create(at, of_group(1, attempt=2))
    assert at.schedule("one-0-1") == "n1"
    assert at.sound()


def leader_worker_set() -> Object:
    spec = {
        "startupPolicy": "LeaderReady",
        "leaderWorkerTemplate": {"size": 2, "workerTemplate": template(8)},
    }
    return owner("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", "one", spec)


def of_group(index: int, *, attempt: int = 0) -> Pod:
    prefix = "leaderworkerset.sigs.k8s.io/"
    labels = {"name": "one", "group-index": "0", "worker-index": str(index)}
    named = f"one-0-{index}" if index else "one-0"
    made = pod(
        named,
        owner("apps/v1 StatefulSet", "one-0" if index else "one"),
        {prefix + key: said for key, said in labels.items()},
        {prefix + "size": "2"},
        gpus=8,
    )
    made["metadata"]["uid"] = f"{named}-{attempt}"
    return msgspec.convert(made, Pod)


def gone(at: Cluster, name: str) -> None:
    at.terminate(name)
    at.settle()
    node = at.pod(name).spec.node_name
    at.delete(name)
    at.stop(name, node)
    at.settle()


def test_a_pod_that_fails_as_soon_as_it_is_bound_keeps_its_place_too() -> None:
    at = world()
    by = job("train", 2)
    there_is(at, by)
    create(at, *(member(by, index) for index in range(2)))
    at.pass_time(1)
    assert all(at.schedule(f"train-{index}-0") for index in range(2))
    node = at.pod("train-1-0").spec.node_name
    at.set_phase("train-1-0", "Failed")
    at.add_pod("waits", 8)
    at.pass_time(1)
    assert at.schedule("waits") == ""
    create(at, member(by, 1, attempt=1))
    assert at.schedule("train-1-1") == node


def test_a_place_whose_pod_never_comes_is_given_to_who_waits() -> None:
    at = world()
    full(at)
    at.add_pod("waits", 8)
    node = fail(at, "train-1-0")
    at.pass_time(10 + SETTINGS.replacement_seconds)
    assert at.schedule("waits") == node
    assert at.noted_places == {}


@pytest.mark.parametrize("seconds", [60, 600])
def test_the_time_counts_from_when_the_pod_is_gone(seconds: int) -> None:
    """It writes a checkpoint, or hangs for longer than its grace period."""
    at = world()
    full(at)
    at.add_pod("waits", 8)
    at.terminate("train-1-0")
    at.pass_time(seconds)
    node = at.pod("train-1-0").spec.node_name
    at.delete("train-1-0")
    at.stop("train-1-0", node)
    at.settle()
    at.pass_time(60)
    assert at.schedule("waits") == ""
    at.pass_time(10)
    assert at.schedule("waits") == node


def test_a_kept_place_takes_no_room_beside_the_pod_that_leaves_it() -> None:
    """Found: both counted, so others waited beside free GPUs."""
    at = world("n0")
    by = job("train", 2)
    there_is(at, by)
    for index in range(2):
        made = member(by, index)
        made.spec.containers[0].resources.limits["nvidia.com/gpu"] = "2"
        made.spec.containers[0].resources.requests["nvidia.com/gpu"] = "2"
        create(at, made)
    at.pass_time(1)
    for index in range(2):
        assert at.schedule(f"train-{index}-0")
        at.start(f"train-{index}-0")
    at.terminate("train-1-0")
    at.settle()
    waits = at.add_gang("waits", 2, 2)
    at.pass_time(1)
    assert [at.schedule(name) for name in waits] == ["n0", "n0"]
    at.delete("train-1-0")
    at.stop("train-1-0", "n0")
    at.settle()
    (another,) = at.add_gang("another", 1, 1)
    assert at.schedule(another) == ""
    assert at.sound()


def test_a_replacement_that_waits_for_a_pod_of_its_gang_that_hangs_costs_no_eviction() -> None:
    at = world()
    by = full(at)
    at.pass_time(2000)
    at.terminate("train-0-0")
    at.terminate("train-1-0")  # and writes a checkpoint
    gone(at, "train-0-0")
    create(at, member(by, 0, attempt=1))
    assert at.schedule("train-0-1")
    at.start("train-0-1")
    create(at, member(by, 1, attempt=1))
    for _ in range(150):
        at.pass_time(10)
        at.schedule("train-1-1")
    assert at.evicted == []
    for _ in range(300):  # but not for ever
        at.pass_time(10)
        at.schedule("train-1-1")
    assert at.evicted == ["train-0-1"]


def test_a_replacement_in_flight_that_is_deleted_is_counted_once() -> None:
    at = world("n0", "n1", "n2")
    by = full(at)
    fail(at, "train-1-0")
    create(at, member(by, 1, attempt=1))
    order = at.begin_bind("train-1-1", at.filter("train-1-1").node_names[0])
    assert isinstance(order, BindOrder)
    at.terminate("train-1-1")  # its finalizer holds it
    at.settle()
    assert at.sound()


def test_gpus_that_a_leaving_pod_has_are_none_that_are_kept_idle() -> None:
    settings = replace(SETTINGS, reserve_share=0.3, reserve_limit_seconds=300.0)
    at = world("n0", "n1", "n2", "n3", settings=settings)
    full(at)
    at.add_pod("long", 8)
    assert at.schedule("long")
    at.start("long")
    at.terminate("train-1-0")
    at.settle()
    at.add_gang("large", 2)
    at.settle()
    at.pass_time(301)
    assert [hold.key.name for hold in at.core.reservations.all()] == ["large"]


def test_a_note_whose_write_got_no_answer_is_removed_too() -> None:
    """Found: the extender did not know that the API server had it."""

    class Silent(Cluster):
        silent = True

        def carry_out(self, action: Action) -> Outcome:
            outcome = super().carry_out(action)
            is_note = isinstance(action, NotePlaces)
            return Outcome.UNKNOWN if is_note and self.silent else outcome

    at = Silent(settings=SETTINGS)
    for name in ("n0", "n1"):
        at.add_node(name, "dgx-a100")
    there_is(at, job_set())
    create(at, of_set("control"))
    at.pass_time(1)
    assert at.noted_places
    at.delete("run-control")
    at.silent = False
    at.settle()
    for _ in range(10):
        at.pass_time(30)
    assert at.noted_places == {}


def test_each_failure_doubles_the_back_off() -> None:
    at = world()
    by = full(at)
    at.add_pod("waits", 8)
    fail(at, "train-1-0")
    create(at, member(by, 1, attempt=1))
    assert at.schedule("train-1-1")
    at.start("train-1-1")
    at.settle()
    node = fail(at, "train-1-1")
    at.pass_time(SETTINGS.replacement_seconds + 19)
    assert at.schedule("waits") == ""
    at.pass_time(1)
    assert at.schedule("waits") == node


def test_a_new_pod_does_not_wait_for_long_for_gpus_that_are_not_left() -> None:
    at = world("n0", "n1")
    by = full(at)
    at.add_node("n2", "dgx-a100")
    at.terminate("train-1-0")  # and its process hangs
    create(at, member(by, 1, attempt=1))
    assert at.plan("train-1-1") is None
    at.pass_time(LEAVING_SECONDS)
    assert at.schedule("train-1-1") == "n2"


def test_a_member_behind_another_gate_does_not_get_the_place_of_a_lost_one() -> None:
    at = world()
    by = job("train", 2)
    there_is(at, by)
    said = {"linkwise.dev/gang": "g", "linkwise.dev/gang-size": "3", "linkwise.dev/gang-min": "2"}
    create(at, *(member(by, index, said=said) for index in range(2)))
    at.pass_time(10)
    for index in range(2):
        assert at.schedule(f"train-{index}-0")
        at.start(f"train-{index}-0")
    third = member(by, 2, said=said)
    gates = (SchedulingGate("example.com/hold"),)
    create(at, change(third, spec=change(third.spec, scheduling_gates=gates)))
    node = fail(at, "train-1-0")
    at.pass_time(LEAVING_SECONDS + 1)
    create(at, member(by, 1, attempt=1, said=said))
    assert at.schedule("train-1-1") == node


def test_a_new_leader_keeps_a_lost_place_too() -> None:
    at = world()
    by = full(at)
    node = fail(at, "train-1-0")
    at.pass_time(1)
    at.restart()
    at.add_pod("waits", 8)
    at.settle()
    assert at.schedule("waits") == ""
    create(at, member(by, 1, attempt=1))
    assert at.schedule("train-1-1") == node


def test_a_gang_that_is_deleted_as_a_whole_keeps_its_places_for_a_moment() -> None:
    at = world()
    by = full(at)
    at.add_pod("waits", 8)
    for index in range(2):
        node = at.pod(f"train-{index}-0").spec.node_name
        at.delete(f"train-{index}-0")
        at.stop(f"train-{index}-0", node)
        at.settle()
    at.pass_time(WHOLE_SECONDS - 1)
    assert at.schedule("waits") == ""
    create(at, *(member(by, index, attempt=1) for index in range(2)))
    assert all(at.schedule(f"train-{index}-1") for index in range(2))
    assert at.sound()


@pytest.mark.parametrize(
    ("now", "keeps"),
    [
        (None, False),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False),
        ({"metadata": {"uid": "another"}}, False),
        ({"spec": {"suspend": True}}, False),
        ({"spec": {"runPolicy": {"suspend": True}}}, False),
        ({}, True),
    ],
)
def test_a_gang_whose_owner_creates_no_pods_now_keeps_no_place(
    now: Object | None, keeps: bool
) -> None:
    """Found: the GPUs of a Job that was deleted, or suspended by Kueue, idled for 20 s."""
    at = world()
    by = full(at)
    at.add_pod("waits", 8)
    if now is None:
        assert at.owners is not None
        del at.owners[ref_of(by)]
    else:
        changed = {key: {**by[key], **of} for key, of in now.items()}
        there_is(at, dict(essence({**by, **changed})))
    all_leave(at)
    at.pass_time(FRESH_SECONDS)
    all_gone(at)
    assert (at.schedule("waits") == "") is keeps
    at.delete("waits")
    there_is(at, by)
    create(at, *(member(by, index, attempt=1) for index in range(2)))
    for index in range(2):
        assert at.schedule(f"train-{index}-1")
        at.start(f"train-{index}-1")
    at.pass_time(FRESH_SECONDS)
    at.add_pod("waits", 8)
    all_leave(at, attempt=1)
    all_gone(at, attempt=1)
    assert at.schedule("waits") == "", "it creates pods again"
    assert at.sound()


def test_the_owner_is_read_once_more_though_no_pod_is_left_by_then() -> None:
    at = world()
    by = full(at)
    at.pass_time(60)
    at.add_pod("waits", 8)
    assert at.owners is not None
    del at.owners[ref_of(by)]
    before = len(at.reads)
    all_leave(at)
    all_gone(at)
    assert at.schedule("waits")
    at.pass_time(60)
    assert len(at.reads) == before + 1
    assert not len(at.core._reader._membership._owners)
    assert at.sound()


def test_what_is_read_of_the_owner_after_the_last_pod_is_gone_counts() -> None:
    at = world()
    by = full(at)
    at.pass_time(60)
    at.add_pod("waits", 8)
    at.terminate("train-0-0")
    (early,) = at.core.owners_to_read(at.now)
    at.terminate("train-1-0")
    all_gone(at)
    at.core.owner_read(early, by, at.now)
    at.settle()
    assert at.schedule("waits") == "", "that read began before"
    at.now += FRESH_SECONDS
    (late,) = at.core.owners_to_read(at.now)
    at.settle()
    assert at.schedule("waits") == ""
    at.core.owner_read(late, Missing.NOT_FOUND, at.now)
    at.settle()
    assert at.schedule("waits")


def test_an_owner_that_never_existed_is_not_that_of_gangs_that_pods_name() -> None:
    at = world()
    by = job("train", 2)
    there_is(at, by)
    said = {names.GANG: "named", names.GANG_SIZE: "2"}
    create(at, *(member(by, index, said=said) for index in range(2)))
    at.pass_time(1)
    for index in range(2):
        assert at.schedule(f"train-{index}-0")
        at.start(f"train-{index}-0")
    at.settle()
    at.add_pod("waits", 8)
    all_gone(at)
    create(at, member(job("never", 2), 0))
    at.pass_time(FRESH_SECONDS)
    assert at.schedule("waits") == ""


def test_a_place_that_is_handed_over_is_no_room_for_a_reservation() -> None:
    """Found: for a moment its GPUs had come free, so they were kept for who waits longest."""
    at = world()
    by = full(at)
    for number in range(2):
        at.add_pod(f"big-{number}", 8, priority=1, said={"gang": "big", "gang-size": "2"})
    at.settle()
    for index in range(2):
        node = at.pod(f"train-{index}-0").spec.node_name
        at.delete(f"train-{index}-0")
        at.stop(f"train-{index}-0", node)
        at.settle()
    create(at, *(member(by, index, attempt=1) for index in range(2)))
    assert all(at.schedule(f"train-{index}-1") for index in range(2))


def again(at: Cluster, *names: str) -> None:
    """The owner deletes all pods, and creates the first one again."""
    for name in names:
        node = at.pod(name).spec.node_name
        at.delete(name)
        at.stop(name, node)
        at.settle()
    at.pass_time(5)
    create(at, of_set("control", attempt="-again"))


def test_later_waves_of_a_gang_that_begins_again_keep_their_places_until_they_come() -> None:
    """Found: they were kept as those of lost members are, for a minute."""
    at = world()
    kept = begun(at)
    create(at, of_set("worker"))
    ready(at, "run-worker", kept)
    at.pass_time(2000)
    again(at, "run-worker", "run-control")
    assert at.schedule("run-control-again")
    said = {"gang": "waits", "gang-size": "2"}
    waits = [at.add_pod(f"waits-{number}", 4, priority=1, said=said) for number in range(2)]
    for _ in range(10):
        at.pass_time(30)
    assert not any(at.schedule(pod.metadata.name) for pod in waits)
    create(at, of_set("worker", attempt="-again"))
    assert at.schedule("run-worker-again") == kept


def test_a_gang_begins_again_while_a_pod_of_the_earlier_run_is_still_terminating() -> None:
    """Found: its first pod was taken for one that repairs the earlier run, so the later waves kept
    no places."""
    at = world()
    kept = begun(at)
    create(at, of_set("worker"))
    ready(at, "run-worker", kept)
    at.pass_time(100)
    at.terminate("run-worker")
    at.terminate("run-control")
    at.pass_time(30)
    node = at.pod("run-control").spec.node_name
    at.delete("run-control")
    at.stop("run-control", node)
    at.settle()
    create(at, of_set("control", attempt="-again"))
    assert at.schedule("run-control-again") == node
    at.settle()
    assert at.phase(GANG) == "binding"
    at.delete("run-worker")
    at.stop("run-worker", kept)
    at.settle()
    at.add_pod("waits", 8)
    at.pass_time(100)
    assert at.schedule("waits") == ""
    create(at, of_set("worker", attempt="-again"))
    assert at.schedule("run-worker-again") == kept


def test_the_timeout_of_a_gang_that_begins_again_counts_from_then() -> None:
    """Found: it gave its places up at once, because the plan was old."""
    at = world()
    by = full(at)
    at.pass_time(2000)
    for index in range(2):
        node = at.pod(f"train-{index}-0").spec.node_name
        at.delete(f"train-{index}-0")
        at.stop(f"train-{index}-0", node)
        at.settle()
    create(at, member(by, 0, attempt=1))
    create(at, member(by, 1, attempt=1))
    assert not any(event.reason == "GangExpired" for event in at.events)
    assert all(at.schedule(f"train-{index}-1") for index in range(2))


def test_and_not_for_longer() -> None:
    at = world()
    full(at)
    at.add_pod("waits", 8)
    for index in range(2):
        node = at.pod(f"train-{index}-0").spec.node_name
        at.delete(f"train-{index}-0")
        at.stop(f"train-{index}-0", node)
        at.settle()
    at.pass_time(WHOLE_SECONDS)
    assert at.schedule("waits")
    at.settle()
    assert at.core.gangs(at.now) == ()
    assert at.sound()


def test_what_was_evicted_for_others_keeps_nothing() -> None:
    at = world(settings=replace(SETTINGS))
    by = job("train", 2)
    there_is(at, by)
    create(at, *(member(by, n, said={"linkwise.dev/preemptible": "true"}) for n in range(2)))
    at.pass_time(1)
    for index in range(2):
        assert at.schedule(f"train-{index}-0")
        at.start(f"train-{index}-0")
    at.add_gang("big", 2, 8)
    for made in [*at.pods.values()]:
        if made.metadata.name.startswith("big"):
            at.put_pod(change(made, spec=change(made.spec, priority=100)))
    actions = at.pass_time(30)
    assert any(isinstance(action, Evict) for action in actions) or at.evicted
    for index in range(2):
        node = at.pod(f"train-{index}-0").spec.node_name
        at.delete(f"train-{index}-0")
        at.stop(f"train-{index}-0", node)
    at.settle()
    assert all(at.schedule(f"big-{rank}") for rank in range(2))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_pod_that_kube_scheduler_preempts_keeps_nothing(*, at_once: bool) -> None:
    """The watch may show the condition and the deletion as one change."""
    at = world()
    full(at)
    made = at.pod("train-1-0")
    told = Condition("DisruptionTarget", "True", "PreemptionByScheduler")
    marked = change(made, status=change(made.status, conditions=(told,)))
    at.put_pod(leaving(marked, at.now) if at_once else marked)
    node = made.spec.node_name
    at.delete("train-1-0")
    at.stop("train-1-0", node)
    at.add_pod("other", 8)
    at.settle()
    assert at.schedule("other") == node


@pytest.mark.parametrize("cordoned", [True, False])
def test_a_pod_that_another_program_evicts_keeps_its_place_unless_the_node_is_closed(
    *, cordoned: bool
) -> None:
    """As the descheduler and `kubectl drain` do."""
    at = world()
    by = full(at)
    made = at.pod("train-1-0")
    node = made.spec.node_name
    if cordoned:
        at.cordon(node)
    told = Condition("DisruptionTarget", "True", "EvictionByEvictionAPI")
    at.put_pod(leaving(change(made, status=change(made.status, conditions=(told,))), at.now))
    at.delete("train-1-0")
    at.stop("train-1-0", node)
    at.settle()
    if not cordoned:
        at.add_pod("other", 8)
        assert at.schedule("other") == ""
    create(at, member(by, 1, attempt=1))
    at.pass_time(1)
    assert at.schedule("train-1-1") == ("" if cordoned else node)


def test_a_pod_that_its_kubelet_refused_keeps_nothing() -> None:
    at = world()
    by = job("train", 2)
    there_is(at, by)
    create(at, *(member(by, index) for index in range(2)))
    at.pass_time(1)
    assert all(at.schedule(f"train-{index}-0") for index in range(2))
    at.start("train-0-0")
    at.settle()
    made = at.pod("train-1-0")
    refused = change(made.status, phase="Failed", reason="UnexpectedAdmissionError")
    at.put_pod(change(made, status=refused))
    at.settle()
    (view,) = at.core.gangs(at.now)
    assert [each.state for each in view.members] == ["bound", "ended"]


def test_a_place_on_what_is_another_machine_by_now_is_not_kept() -> None:
    at = world()
    full(at)
    node = at.pod("train-1-0").spec.node_name
    at.annotate_node(node, names.TOPOLOGY, write_topology(T4_4))
    fail(at, "train-1-0")
    assert at.core.take_defects() == []
    assert {view.name: view.free for view in at.core.nodes(at.now)}[node] == 4
    assert at.sound()


def test_members_beyond_the_minimum_keep_no_place_for_long() -> None:
    at = world()
    by = job("train", 2)
    there_is(at, by)
    said = {"linkwise.dev/gang": "g", "linkwise.dev/gang-size": "2", "linkwise.dev/gang-min": "1"}
    create(at, *(member(by, index, said=said) for index in range(2)))
    at.pass_time(10)
    for index in range(2):
        assert at.schedule(f"train-{index}-0")
        at.start(f"train-{index}-0")
    at.settle()
    node = fail(at, "train-1-0")
    at.pass_time(LEAVING_SECONDS)
    at.add_pod("other", 8)
    at.settle()
    assert at.schedule("other") == node
