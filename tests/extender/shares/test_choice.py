"""Which shares of a node a pod gets, beside a search that tries every way."""

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linkwise.extender.place.shares.choice import ShareChoice, ShareRequest, choose_shares
from linkwise.extender.state.cache.machine_kind import ENOUGH, MachineKind
from linkwise.extender.state.cache.shares.book import ShareBook, places_of
from linkwise.pods.annotations import MOST_CONTAINERS, Sharing
from linkwise.pods.requirement import HardwareRequirement, TopologyRequirement
from linkwise.topology.annotations.plan import PlannedShares
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.machine.parts import MigProfile, Part
from linkwise.topology.sets.tables import table_of
from tests.divided import GPU, MIG_1G, MIG_3G, SHARED, all_three, cut, divided, replicas
from tests.extender.shares.brute_force import Want, fits_shares, opened, parts_of, ways
from tests.machines import DGX_1V, TWO_ISLANDS

LAW = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
SMALL = all_three(DGX_1V)
CPX = "amd.com/cpx_nps4"
MACHINES = st.sampled_from(
    [SMALL, replicas(DGX_1V, {0: 3, 3: 3, 5: 2}), cut(replicas(DGX_1V, {1: 2}), 2, MIG_1G, MIG_1G)]
)
SHARES = st.sampled_from(["", "spread", "pack"])
WANTS = st.lists(
    st.tuples(st.sampled_from([SHARED, MIG_1G, MIG_3G, GPU]), st.integers(1, 4)),
    min_size=1,
    max_size=3,
)


def request(
    wants: list[Want],
    share: str = "",
    require: LinkClass = LinkClass.SYS,
    memory_mib: int = 0,
) -> ShareRequest:
    """A pod with one container for each of *wants*."""
    names = sorted({resource for resource, _ in wants})
    demands = tuple(
        (
            name,
            PodDemand(
                tuple(
                    ContainerDemand(f"c{place}", Role.MAIN, count)
                    for place, (resource, count) in enumerate(wants)
                    if resource == name
                )
            ),
        )
        for name in names
    )
    requirement = TopologyRequirement(
        require=require, hardware=HardwareRequirement(memory_mib=memory_mib)
    )
    return ShareRequest(demands, Sharing(share), requirement)


def choose(machine: Machine, taken: frozenset[str], asked: ShareRequest) -> ShareChoice | None:
    holders = {each: "other" for part in parts_of(machine) for each in part.ids if each in taken}
    blocked = machine.mask_of(taken)
    book = ShareBook(places_of(machine), holders, frozenset(), blocked)
    return choose_shares(MachineKind(machine, 0), book, asked)


def ids_of(choice: ShareChoice) -> list[str]:
    return list(chain.from_iterable(planned.ids for planned in choice.shares))


@st.composite
def taken_of(draw: st.DrawFn, machine: Machine) -> frozenset[str]:
    ids = [each for part in parts_of(machine) for each in part.ids]
    taken = draw(st.sets(st.sampled_from(ids), max_size=len(ids)))
    blocked = draw(st.sets(st.sampled_from([gpu.uuid for gpu in machine.gpus]), max_size=1))
    return frozenset(taken | blocked)


@LAW
@given(st.data())
def test_a_pod_gets_shares_exactly_if_there_is_a_way(data: st.DataObject) -> None:
    machine, share = data.draw(MACHINES), data.draw(SHARES)
    taken, wants = data.draw(taken_of(machine)), data.draw(WANTS)
    choice = choose(machine, taken, request(wants, share))
    assert (choice is not None) == fits_shares(machine, taken, wants, share)
    if choice is not None:
        given_to = {(p.container, p.resource): p.ids for p in choice.shares}
        wanted = {(f"c{place}", name): count for place, (name, count) in enumerate(wants)}
        assert {key: len(ids) for key, ids in given_to.items()} == wanted
        ids = ids_of(choice)
        assert len(ids) == len(set(ids))
        assert not set(ids) & taken
        in_order = [given_to[key] for key in wanted]
        assert any(set(way) == set(ids) for way in ways(machine, taken, wants, share)), in_order


@LAW
@given(st.data())
def test_one_share_opens_a_gpu_only_if_it_must_and_then_the_one_missed_least(
    data: st.DataObject,
) -> None:
    machine = data.draw(MACHINES)
    taken, resource = data.draw(taken_of(machine)), data.draw(st.sampled_from([SHARED, MIG_1G]))
    choice = choose(machine, taken, request([(resource, 1)]))
    if choice is None:
        return
    used = opened(machine, taken)
    all_ways = [opened(machine, way) for way in ways(machine, taken, [(resource, 1)], "")]
    mine = opened(machine, set(ids_of(choice)))
    fewest = min(len(way - used) for way in all_ways)
    assert len(mine - used) == choice.opened == fewest
    idle = sum(1 << p for p, gpu in enumerate(machine.gpus) if gpu.parts and p not in used)
    kind = MachineKind(machine, 0)
    if fewest:
        lost = [kind.damage(idle, sum(1 << gpu for gpu in way)) for way in all_ways]
        assert choice.damage == min(lost)


@LAW
@given(st.data())
def test_shares_of_one_container_are_on_the_gpus_with_the_best_links(data: st.DataObject) -> None:
    machine = replicas(
        data.draw(st.sampled_from([DGX_1V, TWO_ISLANDS])), dict.fromkeys(range(8), 2)
    )
    taken = data.draw(taken_of(machine))
    choice = choose(machine, taken, request([(SHARED, 2)], "spread"))
    ways_there = list(ways(machine, taken, [(SHARED, 2)], "spread"))
    assert (choice is None) == (not ways_there)
    if choice is not None:
        values = table_of(machine).values
        best = max(float(values[mask(opened(machine, way))]) for way in ways_there)
        assert float(values[mask(opened(machine, set(ids_of(choice))))]) == best == choice.quality


AMD = replace(
    divided(
        DGX_1V,
        {
            place: tuple(
                Part(f"xcp-{place}-{number}", CPX, mig=MigProfile("cpx_nps4", 1, 8192))
                for number in range(4)
            )
            for place in range(3)
        },
    ),
    vendor="amd",
)


@pytest.mark.parametrize(
    ("share", "count", "taken", "gpus"),
    [
        ("", 2, (), 1),
        ("", 4, (), 1),
        ("", 5, (), 2),
        ("", 3, ("xcp-0-0", "xcp-1-0", "xcp-1-1", "xcp-2-0", "xcp-2-1"), 1),
        ("", 4, ("xcp-0-0", "xcp-1-0", "xcp-2-0"), 2),
        ("spread", 2, (), 2),
        ("pack", 5, (), 0),
    ],
)
def test_partitions_of_amds_gpus_are_on_as_few_as_possible(
    share: str, count: int, taken: tuple[str, ...], gpus: int
) -> None:
    """Replicas and MIG devices are on as many as possible."""
    choice = choose(AMD, frozenset(taken), request([(CPX, count)], share))
    assert (choice is None) == (not gpus)
    if choice is not None:
        assert len(opened(AMD, set(ids_of(choice)))) == gpus
        assert (choice.quality == ENOUGH) == (gpus == 1)


def test_partitions_have_the_links_of_their_gpus() -> None:
    """MIG devices have none."""
    asked = request([(CPX, 5)], require=LinkClass.NVLINK)
    found = choose(AMD, frozenset(), asked)
    assert found is not None
    assert choose(replace(AMD, vendor="nvidia"), frozenset(), asked) is None


def mask(gpus: set[int]) -> int:
    return sum(1 << gpu for gpu in gpus)


@LAW
@given(st.data())
def test_a_required_link_is_kept_or_the_pod_waits(data: st.DataObject) -> None:
    machine = replicas(DGX_1V, {0: 2, 1: 1, 3: 1, 5: 2, 6: 1})
    taken, share = data.draw(taken_of(machine)), data.draw(SHARES)
    count = data.draw(st.integers(1, 3))
    classes = table_of(machine).ring_classes

    def joined(ids: frozenset[str]) -> bool:
        gpus = opened(machine, ids)
        return len(gpus) == 1 or classes[mask(gpus)] >= LinkClass.NVLINK

    asked = request([(SHARED, count)], share, LinkClass.NVLINK)
    choice = choose(machine, taken, asked)
    possible = any(map(joined, ways(machine, taken, [(SHARED, count)], share)))
    assert (choice is not None) == possible
    assert choice is None or joined(frozenset(ids_of(choice)))


def test_mig_devices_reach_each_other_by_no_link() -> None:
    machine = cut(DGX_1V, 0, MIG_1G, MIG_1G)
    nothing: frozenset[str] = frozenset()
    assert choose(machine, nothing, request([(MIG_1G, 1)], require=LinkClass.NVLINK))
    assert not choose(machine, nothing, request([(MIG_1G, 2)], require=LinkClass.NVLINK))
    assert choose(machine, nothing, request([(MIG_1G, 2)]))


def test_memory_is_that_of_the_mig_device_and_for_replicas_that_of_the_gpu() -> None:
    machine = cut(replicas(TWO_ISLANDS, {1: 2}), 0, MIG_1G)
    nothing: frozenset[str] = frozenset()
    assert choose(machine, nothing, request([(MIG_1G, 1)], memory_mib=9000))
    assert not choose(machine, nothing, request([(MIG_1G, 1)], memory_mib=10000))
    assert choose(machine, nothing, request([(SHARED, 1)], memory_mib=100_000))


def test_without_a_word_several_shares_are_on_as_many_gpus_as_possible() -> None:
    machine = replicas(DGX_1V, {0: 4, 3: 4})
    nothing: frozenset[str] = frozenset()
    for count, expected in ((1, 1), (2, 2), (3, 2), (8, 2)):
        choice = choose(machine, nothing, request([(SHARED, count)]))
        assert choice is not None
        assert len(opened(machine, set(ids_of(choice)))) == expected
    three = choose(machine, nothing, request([(SHARED, 3)]))
    assert three is not None
    first, second = parts_of(machine)
    assert three.shares[0].ids == (*first.ids[:2], second.ids[0])


@pytest.mark.parametrize(
    ("init", "main", "expected"),
    [((2,), (1,), {"i0": 2, "c0": 1}), ((1,), (2, 1), {"i0": 1, "c0": 2, "c1": 1})],
)
def test_later_containers_get_the_shares_of_ended_init_containers(
    init: tuple[int, ...], main: tuple[int, ...], expected: dict[str, int]
) -> None:
    machine = replicas(DGX_1V, {0: 4})
    demand = PodDemand(
        (
            *(ContainerDemand(f"i{n}", Role.INIT, count) for n, count in enumerate(init)),
            *(ContainerDemand(f"c{n}", Role.MAIN, count) for n, count in enumerate(main)),
        )
    )
    asked = ShareRequest(((SHARED, demand),), Sharing.EITHER, TopologyRequirement())
    choice = choose(machine, frozenset(), asked)
    assert choice is not None
    assert {planned.container: len(planned.ids) for planned in choice.shares} == expected
    assert len(set(ids_of(choice))) == demand.gpus
    of = {planned.container: set(planned.ids) for planned in choice.shares}
    assert of["c0"] <= of["i0"] or of["i0"] <= of["c0"]


def test_what_is_chosen_is_named_by_container_and_resource() -> None:
    machine = cut(replicas(DGX_1V, {1: 1}), 0, MIG_1G)
    choice = choose(machine, frozenset(), request([(SHARED, 1), (MIG_1G, 1)]))
    assert choice is not None
    (mig,) = machine.gpus[0].parts or ()
    assert sorted(choice.shares, key=lambda planned: planned.container) == [
        PlannedShares("c0", SHARED, (f"{machine.gpus[1].uuid}::0",)),
        PlannedShares("c1", MIG_1G, (mig.uuid,)),
    ]


@pytest.mark.parametrize(
    ("replicas_of_each", "sizes"),
    [(10, [4, 3, 3]), (12, [5, 4, 3]), (20, [9, 6, 5]), (20, [8, 7, 5])],
)
def test_containers_that_fill_every_gpu_find_their_places(
    replicas_of_each: int, sizes: list[int]
) -> None:
    """The largest first on the fullest GPU is no way to fill them; others have to be tried."""
    machine = replicas(DGX_1V, dict.fromkeys(range(8), replicas_of_each))
    wants = [(SHARED, size) for size in sizes for _ in range(8)]
    found = choose(machine, frozenset(), request(wants, "pack"))
    assert found is not None
    assert len(set(ids_of(found))) == 8 * replicas_of_each


def test_as_many_containers_as_a_pod_may_have_are_many_steps_and_no_error() -> None:
    machine = replicas(DGX_1V, dict.fromkeys(range(8), 1024))
    found = choose(machine, frozenset(), request([(SHARED, 4)] * MOST_CONTAINERS))
    assert found is not None
    assert len(set(ids_of(found))) == 4 * MOST_CONTAINERS
