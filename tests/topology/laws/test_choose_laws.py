"""Laws of every choice, on every machine, however odd."""

from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.sets.choose import choose, nearest_miss, pack, ranked
from linkwise.topology.sets.partition import choose_partition, lowest_indices
from linkwise.topology.sets.tables import table_of
from tests.topology.brute_force import subsets
from tests.topology.laws.strategies import link_classes, questions, renamed, renamed_set

Question = tuple[Machine, int, int]


@given(questions(), link_classes, link_classes, st.data())
def test_a_choice_is_free_holds_what_must_be_and_keeps_to_what_is_required(
    question: Question, require: LinkClass, prefer: LinkClass, data: st.DataObject
) -> None:
    machine, free, size = question
    must = free & data.draw(st.integers(0, machine.all_gpus))
    found = choose(machine, free, size, must=must, require=require, prefer=prefer)
    table = table_of(machine)
    fitting = [
        gpus
        for gpus in subsets(free, size)
        if gpus & must == must and table.ring_classes[gpus] >= require
    ]
    if found is None:
        assert fitting == []
        return
    assert found.gpus in fitting
    assert found.gbytes_per_s == table.values[found.gpus]
    assert found.ring_class == table.ring_classes[found.gpus]
    assert found.remaining_value == table.remaining_value[free & ~found.gpus]
    if prefer is LinkClass.NVLINK and table.ring_classes[found.gpus] < LinkClass.NVLINK:
        assert found.gbytes_per_s == max(table.values[gpus] for gpus in fitting)


@given(questions(), link_classes, link_classes)
def test_the_order_is_total_and_the_choice_is_its_first(
    question: Question, require: LinkClass, prefer: LinkClass
) -> None:
    machine, free, size = question
    order = ranked(machine, free, size, require=require, prefer=prefer, limit=100)
    sets = [choice.gpus for choice in order]
    assert len(sets) == len(set(sets))
    fitting = [g for g in subsets(free, size) if table_of(machine).ring_classes[g] >= require]
    assert sorted(sets) == sorted(fitting)
    assert order[:1] == [
        c for c in [choose(machine, free, size, require=require, prefer=prefer)] if c
    ]
    for fewer in range(1, len(sets)):
        again = ranked(machine, free, size, require=require, prefer=prefer, limit=fewer)
        assert again == order[:fewer]


@given(questions(), st.data())
def test_renaming_gpus_changes_which_are_chosen_but_not_what_they_are_worth(
    question: Question, data: st.DataObject
) -> None:
    machine, free, size = question
    order = data.draw(st.permutations(range(len(machine.gpus))))
    one = choose(machine, free, size)
    other = choose(renamed(machine, order), renamed_set(free, order), size)
    assert (one is None) == (other is None)
    if one and other:
        # Among equally fast sets, the index may choose another class below the preferred one.
        by_nvlink = [choice.ring_class is LinkClass.NVLINK for choice in (one, other)]
        assert by_nvlink[0] == by_nvlink[1]
        assert one.gbytes_per_s == other.gbytes_per_s
        assert one.remaining_value == other.remaining_value


@given(questions(), st.integers(1, 6), link_classes, link_classes)
def test_packed_sets_lie_side_by_side_and_no_more_would_fit(
    question: Question, count: int, require: LinkClass, prefer: LinkClass
) -> None:
    machine, free, size = question
    found = pack(machine, free, size, count, require=require, prefer=prefer)
    left = free
    for choice in found:
        assert choice.gpus.bit_count() == size
        assert not choice.gpus & ~left
        assert choice.ring_class >= require
        left &= ~choice.gpus
    assert len(found) == min(count, most_sets(machine, free, size, require))
    assert all(
        choice.remaining_value == table_of(machine).remaining_value[left] for choice in found
    )


def most_sets(machine: Machine, free: int, size: int, require: LinkClass) -> int:
    return max(
        (
            1 + most_sets(machine, free & ~gpus, size, require)
            for gpus in subsets(free, size)
            if table_of(machine).ring_classes[gpus] >= require
        ),
        default=0,
    )


@given(questions(), link_classes, link_classes)
def test_one_set_packed_is_the_set_chosen(
    question: Question, require: LinkClass, prefer: LinkClass
) -> None:
    machine, free, size = question
    one = choose(machine, free, size, require=require, prefer=prefer)
    assert list(pack(machine, free, size, 1, require=require, prefer=prefer)) == [
        choice for choice in [one] if choice
    ]


@given(questions(), st.integers(1, 3))
def test_packing_is_never_worse_than_choosing_one_after_the_other(
    question: Question, count: int
) -> None:
    machine, free, size = question
    greedy, left = [], free
    for _ in range(count):
        choice = choose(machine, left, size)
        if choice:
            greedy.append(choice)
            left &= ~choice.gpus
    found = pack(machine, free, size, count)

    def worth(choices: object) -> tuple[int, int, float]:
        assert isinstance(choices, list)
        nvlink = sum(choice.ring_class is LinkClass.NVLINK for choice in choices)
        return len(choices), nvlink, round(sum(choice.gbytes_per_s for choice in choices), 3)

    assert worth(list(found)) >= worth(greedy)


@given(questions(), link_classes)
def test_a_miss_is_nearer_than_nothing_and_further_than_what_was_required(
    question: Question, require: LinkClass
) -> None:
    machine, free, size = question
    miss = nearest_miss(machine, free, size, require)
    found = choose(machine, free, size, require=require)
    assert (miss is None) == (size > free.bit_count())
    assert (found is not None) == (miss is require)
    if miss is not None:
        assert choose(machine, free, size, require=miss) is not None


@given(questions(), st.integers(0, 63))
def test_the_other_policies_too_choose_what_is_free_and_hold_what_must_be(
    question: Question, must: int
) -> None:
    machine, free, size = question
    for found in (
        choose_partition(machine, free, size, must=must),
        lowest_indices(free, size, must),
    ):
        sensible = not must & ~free and must.bit_count() <= size <= free.bit_count()
        assert (found is not None) == sensible
        if found is not None:
            assert found.bit_count() == size
            assert not found & ~free
            assert not must & ~found


@given(questions(), link_classes, link_classes, st.data())
def test_what_runs_decides_only_between_sets_of_the_same_bandwidth(
    question: Question, require: LinkClass, prefer: LinkClass, data: st.DataObject
) -> None:
    machine, free, size = question
    first = machine.all_gpus & ~free & data.draw(st.integers(0, machine.all_gpus))
    second = machine.all_gpus & ~free & ~first & data.draw(st.integers(0, machine.all_gpus))
    one = choose(machine, free, size, require=require, prefer=prefer)
    other = choose(machine, free, size, require=require, prefer=prefer, running=[first, second])
    assert (one is None) == (other is None)
    if one and other:
        preferred = other.ring_class >= prefer
        assert preferred == (one.ring_class >= prefer)
        if prefer is LinkClass.NVLINK or not preferred:
            assert other.gbytes_per_s == one.gbytes_per_s
