"""Which GPUs the plugin asks the kubelet to prefer: the plan of the pod that asks, else the best
that spoils no other plan; always exactly as many as asked for."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.plugin.device_plugin.allocate import (
    POLICIES,
    ContainerPlan,
    Question,
    Source,
    WaitingPod,
    lowest,
    pick_partition,
    pick_ring,
    preferred,
)
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.sets.choose import choose
from tests.machines import BRIDGED_8, DGX_1V, TWO_ISLANDS

ALL = frozenset(gpu.uuid for gpu in DGX_1V.gpus)


def gpus(*indices: int) -> tuple[str, ...]:
    return tuple(DGX_1V.gpus[index].uuid for index in indices)


def pod(name: str, *containers: tuple[str, int, tuple[str, ...]]) -> WaitingPod:
    return WaitingPod(f"uid-{name}", f"ml/{name}", tuple(ContainerPlan(*c) for c in containers))


def ask(size: int, *, available: frozenset[str] = ALL, must: tuple[str, ...] = ()) -> Question:
    return Question(available, frozenset(must), size)


def indices(uuids: tuple[str, ...]) -> list[int]:
    return [gpu.index for gpu in DGX_1V.gpus if gpu.uuid in uuids]


def test_the_plan_of_the_waiting_pod_is_the_answer() -> None:
    worker = pod("w", ("main", 2, gpus(1, 6)))  # no free choice would take these two
    answer = preferred(DGX_1V, ask(2), [worker], pick_ring)
    assert (answer.gpus, answer.source, answer.pod) == (gpus(1, 6), Source.PLAN, worker)


def test_of_two_plans_of_one_size_the_first_seen_is_met() -> None:
    first, second = pod("a", ("main", 2, gpus(1, 6))), pod("b", ("main", 2, gpus(0, 3)))
    assert preferred(DGX_1V, ask(2), [first, second], pick_ring).gpus == gpus(1, 6)
    served = replace(first, served={"main": gpus(1, 6)})
    assert preferred(DGX_1V, ask(2), [served, second], pick_ring).gpus == gpus(0, 3)


def test_a_plan_whose_gpus_are_not_all_free_is_passed_over() -> None:
    first, second = pod("a", ("main", 2, gpus(1, 6))), pod("b", ("main", 2, gpus(0, 3)))
    free = ALL - set(gpus(6))
    assert preferred(DGX_1V, ask(2, available=free), [first, second], pick_ring).pod is second


def test_a_pod_that_is_half_served_comes_before_one_that_came_earlier() -> None:
    """The kubelet admits one pod at a time."""
    earlier = pod("a", ("main", 2, gpus(4, 5)))
    half = replace(
        pod("b", ("one", 2, gpus(0, 3)), ("two", 2, gpus(1, 2))), served={"one": gpus(0, 3)}
    )
    assert preferred(DGX_1V, ask(2), [earlier, half], pick_ring).gpus == gpus(1, 2)


def test_without_a_plan_the_best_set_that_spoils_no_plan_is_taken() -> None:
    planned = pod("p", ("main", 4, gpus(0, 1, 2, 3)))
    answer = preferred(DGX_1V, ask(2), [planned], pick_ring)
    best = choose(DGX_1V, 0b11110000, 2)
    assert best is not None
    assert (answer.gpus, answer.source) == (DGX_1V.uuids_of(best.gpus), Source.FREE_CHOICE)


def test_where_too_few_are_unplanned_as_few_planned_ones_as_possible_are_taken() -> None:
    planned = pod("p", ("main", 6, gpus(0, 1, 2, 3, 4, 5)))
    answer = preferred(DGX_1V, ask(3), [planned], pick_ring)
    assert answer.source is Source.SPOILS
    assert {6, 7} <= set(indices(answer.gpus))


def test_an_unplanned_pod_does_not_take_a_later_pods_plan() -> None:
    plain, planned = pod("plain", ("main", 2, ())), pod("p", ("main", 2, gpus(0, 3)))
    answer = preferred(DGX_1V, ask(2), [plain, planned], pick_ring)
    assert answer.pod is plain
    assert not set(answer.gpus) & set(gpus(0, 3))


def test_a_pod_that_does_not_mind_gets_just_enough() -> None:
    """On two NVLink islands of four, asked for "node" only, good pairs are not given away first."""
    careless = replace(pod("c", ("main", 1, ())), prefer=LinkClass.SYS)
    machine = BRIDGED_8
    free = frozenset(machine.uuids_of(0b00000111))  # (0,2) is a bridged pair, 1 is alone
    answer = preferred(machine, Question(free, frozenset(), 1), [careless], pick_ring)
    assert answer.gpus == machine.uuids_of(0b010)


def test_init_sidecar_and_main_get_their_own_shares_also_when_the_kubelet_reuses_others() -> None:
    """As recorded of kubelet v1.36.3: i1 (2), sidecar (1, out of i1's), c1 (2), c2 (1)."""
    job = pod(
        "job",
        ("i1", 2, gpus(0, 3)),
        ("side", 1, gpus(0)),
        ("c1", 2, gpus(3, 2)),
        ("c2", 1, gpus(1)),
    )
    assert preferred(DGX_1V, ask(2), [job], pick_ring).gpus == gpus(0, 3)
    # The kubelet hands GPU 3 on to the sidecar, planned was 0; so c1 must hold 0.
    job = replace(job, served={"i1": gpus(0, 3), "side": gpus(3)})
    left = ALL - set(gpus(3))
    answer = preferred(DGX_1V, ask(2, available=left, must=gpus(0)), [job], pick_ring)
    assert (answer.gpus, answer.source) == (gpus(0, 2), Source.PLAN)
    job = replace(job, served={**job.served, "c1": answer.gpus})
    left -= set(answer.gpus)
    assert preferred(DGX_1V, ask(1, available=left), [job], pick_ring).gpus == gpus(1)


def test_a_container_that_gets_some_gpus_of_an_init_container_gets_the_others_of_its_own() -> None:
    """The plan names all GPUs that the kubelet may hand on to c1, and the one that it lacks."""
    job = pod(
        "job",
        ("i1", 2, gpus(0, 3)),
        ("side", 1, gpus(0, 3)),
        ("c1", 2, gpus(0, 3, 5)),
        ("c2", 1, gpus(1)),
    )
    for handed_on, kept in ((0, 3), (3, 0)):
        served = replace(job, served={"i1": gpus(0, 3), "side": gpus(kept)})
        left = ALL - set(gpus(kept))
        question = ask(2, available=left, must=gpus(handed_on))
        answer = preferred(DGX_1V, question, [served], pick_ring)
        assert (answer.gpus, answer.source) == (gpus(handed_on, 5), Source.PLAN)


def test_what_a_later_container_is_to_get_goes_last() -> None:
    """The kubelet gave GPU 5 instead of one of the plan's, which is so free for the next."""
    later, spared = sorted(gpus(0, 1))
    job = pod("job", ("i1", 2, (spared, *gpus(3))), ("c1", 2, gpus(3, 6)), ("c2", 1, (later,)))
    job = replace(job, served={"i1": gpus(3, 5)})
    left = frozenset((later, spared, *gpus(5)))
    answer = preferred(DGX_1V, ask(2, available=left, must=gpus(5)), [job], pick_ring)
    assert set(answer.gpus) == {spared, *gpus(5)}


def test_a_plan_of_the_wrong_size_or_of_another_machine_is_no_plan() -> None:
    short = pod("short", ("main", 2, gpus(0)))
    foreign = pod("foreign", ("main", 2, ("GPU-x", "GPU-y")))
    for broken in (short, foreign):
        answer = preferred(DGX_1V, ask(2), [broken], pick_ring)
        assert answer.source is Source.FREE_CHOICE
        assert answer.pod is broken


def test_ids_of_no_gpu_here_are_the_last_resort() -> None:
    question = Question(frozenset({"b", "a", *gpus(5)}), frozenset(), 2)
    answer = preferred(DGX_1V, question, [], pick_ring)
    assert (answer.gpus, answer.source) == ((*gpus(5), "a"), Source.FALLBACK)


def test_a_pod_whose_plan_cannot_be_met_may_still_have_what_is_left_of_it() -> None:
    """GPU 3 has become unhealthy since the plan was made."""
    planned = pod("p", ("main", 2, gpus(0, 3)))
    answer = preferred(DGX_1V, ask(2, available=frozenset(gpus(0, 5))), [planned], pick_ring)
    assert (answer.gpus, answer.source) == (gpus(0, 5), Source.FREE_CHOICE)
    assert (answer.pod, answer.container) == (planned, "main")


def test_what_must_be_is_taken_though_it_is_planned_for_another() -> None:
    other = pod("other", ("main", 4, gpus(0, 1, 2, 3)))
    answer = preferred(DGX_1V, ask(2, must=gpus(0)), [other], pick_ring)
    assert (answer.gpus, answer.source) == (gpus(0, 4), Source.FREE_CHOICE)


def test_the_partition_policy_leaves_good_sets_for_the_next_job() -> None:
    """go-gpuallocator's own example: {4,5}, and {0,2} left, beat {0,4} alone."""
    free = frozenset(gpus(0, 2, 4, 5))
    answer = preferred(DGX_1V, Question(free, frozenset(), 2), [], pick_partition)
    assert indices(answer.gpus) == [4, 5]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(deadline=None)
@given(data=st.data())
def test_any_question_gets_exactly_as_many_as_asked_with_all_that_must_be(
    policy: str, data: st.DataObject
) -> None:
    machine = TWO_ISLANDS
    ids = [gpu.uuid for gpu in machine.gpus] + ["GPU-not-here"]
    available = data.draw(st.frozensets(st.sampled_from(ids), min_size=1))
    size = data.draw(st.integers(1, len(available)))
    must = data.draw(st.frozensets(st.sampled_from(sorted(available)), max_size=size))
    plans = st.lists(st.sampled_from(ids), max_size=4, unique=True).map(tuple)
    container = st.builds(ContainerPlan, st.sampled_from("abc"), st.integers(1, 4), plans)
    waiting = st.lists(
        st.builds(
            WaitingPod,
            uid=st.text(min_size=1, max_size=3),
            key=st.just("ml/x"),
            containers=st.lists(container, max_size=3, unique_by=lambda c: c.name).map(tuple),
            served=st.dictionaries(st.sampled_from("abc"), plans, max_size=2),
        ),
        max_size=3,
    )
    question = Question(available, must, size)
    answer = preferred(machine, question, data.draw(waiting), POLICIES[policy])
    assert len(set(answer.gpus)) == len(answer.gpus) == size
    assert must <= set(answer.gpus) <= available


def test_the_fallback_holds_what_must_be_then_the_lowest() -> None:
    assert indices(lowest(DGX_1V, ask(3, must=gpus(7)))) == [0, 1, 7]
