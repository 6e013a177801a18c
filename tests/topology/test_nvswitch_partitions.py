"""Sets that no pod may have, as NVSwitch has no such partition, count for nothing."""

from dataclasses import replace

from linkwise.topology.machine.model import LinkClass
from linkwise.topology.sets.choose import nearest_miss, pack
from linkwise.topology.sets.outlook import shares_of_idle
from linkwise.topology.sets.tables import table_of
from tests.machines import HGX_H100

PAIRS = replace(HGX_H100, partitions=(0, 0b0101, 0b1010))
ONES = replace(HGX_H100, partitions=(0, 0b01, 0b10))


def test_gpus_of_no_partition_are_worth_nothing_to_later_pods() -> None:
    table = table_of(PAIRS)
    assert table.remaining_value[0b0011] == 0 < table.remaining_value[0b0101]
    idle = shares_of_idle(table)
    assert idle[0b0011] == 0 < idle[0b0101]


def test_where_no_partition_has_two_gpus_nothing_is_worth_anything() -> None:
    assert not table_of(ONES).remaining_value.any()


def test_no_partition_comes_near_if_none_of_so_many_is_free() -> None:
    assert nearest_miss(PAIRS, 0b0011, 2, require=LinkClass.NVLINK) is None
    assert nearest_miss(PAIRS, 0b0111, 2, require=LinkClass.NVLINK) is LinkClass.NVLINK


def test_equal_pods_get_partitions_only() -> None:
    assert {each.gpus for each in pack(PAIRS, 0b1111, 2, 2)} == {0b0101, 0b1010}
    assert [each.gpus for each in pack(PAIRS, 0b0111, 2, 2)] == [0b0101]
