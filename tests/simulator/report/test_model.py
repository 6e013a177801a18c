"""What a run's report calls a fault, and how it counts: on handmade pods."""

from dataclasses import replace
from itertools import islice

import pytest

from linkwise.simulator.report.build_report import report_of
from linkwise.simulator.report.model import (
    SeenPod,
    WaitingMember,
    faults,
    letters,
    stock_tenants,
    tenants,
)
from linkwise.simulator.report.text import gain_figures
from tests.simulator.report.small_report import NODES, OURS, off, on, small_report

TRAIN = OURS[:2]


def test_a_run_as_planned_has_no_fault() -> None:
    assert faults(OURS) == ()


def test_no_pods_have_no_fault() -> None:
    assert faults(()) == ()


def test_other_gpus_than_planned_are_a_fault_that_names_both() -> None:
    pod = SeenPod("ml/a", "a", 0, node="n", planned={"c": ("G1", "G0")}, held={"c": ("G0", "G2")})

    assert faults([pod]) == ("ml/a, container c: planned G0, G1, holds G0, G2",)


def test_the_order_of_the_gpus_is_no_fault() -> None:
    assert not faults([SeenPod("a", "a", 0, planned={"c": ("G1", "G0")}, held={"c": ("G0", "G1")})])


def test_fewer_or_more_gpus_than_planned_are_a_fault() -> None:
    fewer = SeenPod("a", "a", 0, planned={"c": ("G0", "G1")}, held={"c": ("G0",)})
    more = SeenPod("b", "b", 0, planned={"c": ("G2",)}, held={"c": ("G2", "G3")})

    assert faults([fewer, more]) == (
        "a, container c: planned G0, G1, holds G0",
        "b, container c: planned G2, holds G2, G3",
    )


def test_gpus_without_a_plan_are_a_fault() -> None:
    assert faults([SeenPod("a", "a", 0, held={"c": ("G1", "G0")})]) == (
        "a, container c: holds G0, G1 without a plan",
    )


def test_two_containers_with_each_others_gpus_are_two_faults() -> None:
    pod = SeenPod(
        "a", "a", 0, planned={"c": ("G0",), "d": ("G1",)}, held={"c": ("G1",), "d": ("G0",)}
    )

    assert faults([pod]) == (
        "a, container c: planned G0, holds G1",
        "a, container d: planned G1, holds G0",
    )


def test_an_init_container_that_has_ended_is_no_fault() -> None:
    assert not faults(
        [SeenPod("a", "a", 0, planned={"init": ("G0",), "c": ("G0",)}, held={"c": ("G0",)})]
    )


@pytest.mark.parametrize(
    ("held", "is_fault"),
    [
        ({"c": ("G2", "G3")}, False),  # of those of the init container, whichever
        ({"c": ("G2", "G4")}, True),
        ({"c": ("G2",)}, True),
        ({"c": ("G0", "G1", "G2", "G3")}, True),
    ],
)
def test_a_larger_init_container_hands_its_gpus_on_in_the_kubelets_order(
    held: dict[str, tuple[str, ...]], is_fault: bool
) -> None:
    gpus = ("G0", "G1", "G2", "G3")
    pod = SeenPod(
        "a", "a", 0, planned={"init": gpus, "c": gpus}, wanted={"init": 4, "c": 2}, held=held
    )
    assert bool(faults([pod])) is is_fault


def test_a_gpu_held_twice_is_a_fault_that_names_both_pods() -> None:
    first = SeenPod("a", "a", 0, node="n", planned={"c": ("G0", "G1")}, held={"c": ("G0", "G1")})
    second = SeenPod("b", "b", 0, node="n", planned={"c": ("G1",)}, held={"c": ("G1",)})

    assert faults([first, second]) == ("G1 on n: held by a and by b",)


@pytest.mark.parametrize("running", [0, 4, 5])
def test_a_gang_that_is_whole_or_waits_whole_is_no_fault(running: int) -> None:
    assert not faults(_gang(running))


@pytest.mark.parametrize("running", [1, 3])
def test_half_a_gang_is_a_fault(running: int) -> None:
    assert faults(_gang(running)) == (f"gang g: {running} of 4 members run",)


def test_members_that_have_ended_well_count_as_members_that_run() -> None:
    ended = [replace(seen, held={}, ended=True) for seen in _gang(4)[:2]]

    assert not faults([*ended, *_gang(4)[2:]])


def test_a_job_without_gang_may_run_in_part() -> None:
    assert not faults([replace(seen, needed=0) for seen in _gang(3)])


def _gang(running: int) -> list[SeenPod]:
    """Return five pods of a gang of four, of which this many run."""
    return [
        SeenPod(
            f"ml/g-{number}",
            "g",
            4,
            str(number),
            node="n" if number < running else "",
            planned={"c": (f"G{number}",)} if number < running else {},
            held={"c": (f"G{number}",)} if number < running else {},
        )
        for number in range(5)
    ]


# What the GPUs are worth


def test_places_are_told_from_what_is_held_and_from_the_links_of_its_machine() -> None:
    report = small_report()
    train = report.workloads[0]
    ours, alone = train.pods[0].place, train.pods[0].stock[0]

    assert ours is not None
    assert (ours.node, ours.gpus, ours.link) == ("bridged", (0, 1), "NVLINK")
    assert alone is not None
    assert (alone.node, alone.gpus, alone.link) == ("bridged", (0, 2), "SYS")
    assert train.gbytes_per_s == 13.8889
    assert train.stock_mean == 13.8889


def test_a_pod_on_other_gpus_than_planned_is_shown_on_those_that_it_holds() -> None:
    swapped = replace(TRAIN[0], planned=TRAIN[1].planned, needed=0)
    report = report_of(NODES, [swapped], [], seed=1)

    assert len(report.faults) == 1
    assert tenants(report, "bridged").keys() == {0, 1}


def test_only_pods_that_hold_gpus_are_counted_as_compared() -> None:
    assert small_report().compared == 3


def test_a_gpu_has_the_tenant_that_holds_it_and_none_once_it_has_ended() -> None:
    report = small_report()

    assert {i: t.short for i, t in tenants(report, "bridged").items()} == {
        0: "A0", 1: "A0", 2: "A1", 3: "A1",
    }  # fmt: skip
    assert {i: t.short for i, t in tenants(report, "odd").items()} == {0: "B"}
    assert {i: t.short for i, t in stock_tenants(report, "odd").items()} == {0: "C", 2: "B"}
    assert stock_tenants(report, "odd", draw=1) == {}


def test_half_gangs_of_the_baseline_are_counted_and_their_speed_is_not() -> None:
    alone = on("bridged", 0, 1, pod="train-1", workload="train", member="0", needed=2)
    waits = off(pod="train-2", workload="train", member="1", needed=2)
    train = report_of(NODES, TRAIN, [(alone, waits), (waits, waits)], seed=1).workloads[0]

    assert train.stock_running == (1, 0)
    assert train.stock_wholes == 0
    assert train.stock_mean is None


def test_members_stand_in_the_order_of_their_indices_not_of_their_letters() -> None:
    members = [off(pod=f"p{n}", workload="w", member=str(n)) for n in (10, 9, 0)]

    (workload,) = report_of(NODES, members, [], seed=1).workloads
    assert [pod.member for pod in workload.pods] == ["0", "9", "10"]


def test_a_completion_index_that_is_no_number_is_shown_as_it_is() -> None:
    """A user's own pod may have the annotation, with any text."""
    pod = off(pod="p", workload="p", member="<first>")

    assert report_of(NODES, [pod], [], seed=1).workloads[0].pods[0].member == "<first>"


def test_letters_go_on_after_z() -> None:
    many = list(islice(letters(), 26 * 27 + 1))

    assert (many[0], many[25], many[26], many[52], many[-1]) == ("A", "Z", "AA", "BA", "AAA")
    assert len(set(many)) == len(many)


def test_a_gang_over_nodes_is_as_fast_as_what_is_between_them() -> None:
    members = [
        on("bridged", 0, 1, pod="g-0", workload="g", member="0", needed=2),
        on("odd", 0, pod="g-1", workload="g", member="1", needed=2),
    ]
    alone = replace(members[1], needed=0, workload="alone")
    gang, pod = report_of(NODES, [*members, alone], [], seed=1).workloads
    assert gang.gbytes_per_s == 12.0  # the older machine's slot
    assert pod.gbytes_per_s is None


def test_the_gain_is_of_workloads_that_ran_whole_with_linkwise_and_without() -> None:
    train = small_report().workloads[0]
    slow = replace(train, name="slow", gbytes_per_s=8.0, stock_gbytes_per_s=(16.0,))
    fast = replace(train, name="fast", gbytes_per_s=64.0, stock_gbytes_per_s=(16.0,))
    alone_half = replace(train, name="half", stock_gbytes_per_s=(None,))
    waits = replace(train, name="waits", gbytes_per_s=None)
    report = replace(small_report(), workloads=(slow, fast, alone_half, waits))

    assert report.gain == {"slow": 0.5, "fast": 4.0}
    assert gain_figures(report) == (
        ("1.4×", "the GB/s of the scheduler alone, geometric mean of 2 workloads"),
        ("1 of 2", "workloads have more GB/s than alone"),
        ("0.5× to 4.0×", "from the worst, slow, to the best, fast"),
    )
    assert gain_figures(replace(report, workloads=(waits,))) == ()


def test_a_gang_is_not_whole_while_a_member_without_gpus_has_no_node() -> None:
    head = WaitingMember("ml/head", TRAIN[0].workload, "2 Insufficient cpu.")
    assert report_of(NODES, TRAIN, [], seed=1, without_gpus=[head]).problems == (
        f"{TRAIN[0].workload}: 2 pods have GPUs, and ml/head, which takes none, never ran: "
        "2 Insufficient cpu.",
    )
    other = WaitingMember("ml/head", "another", "2 Insufficient cpu.")
    assert report_of(NODES, TRAIN, [], seed=1, without_gpus=[other]).problems == ()


def test_a_run_of_which_the_pods_with_gpus_never_came_says_so() -> None:
    assert report_of(NODES, [], [], seed=1, to_come=["serve: …"]).problems == (
        "no pod has GPUs: those that take some are not created yet",
    )
