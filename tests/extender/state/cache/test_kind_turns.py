"""A node that publishes another machine again and again costs a few kinds, then one a minute."""

import gc
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeVar
from weakref import ref

from linkwise.extender.state.cache.bounds import AT_ONCE, EVERY_SECONDS
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from linkwise.topology.sets.tables import _table_of_kind
from tests.extender.claimed import slice_of
from tests.extender.cluster import Cluster, change

T = TypeVar("T")


def another(seed: int) -> str:
    """Nine GPUs, one more than an outlook is made for, with links that differ by *seed*."""
    random = Random(seed)
    machine = without_links(9, "NVIDIA H100")
    links = tuple(Link(LinkClass.PIX, random.randint(0, 18)) for _ in range(36))
    return write_topology(replace(machine, links=links))


def without_links(count: int, model: str) -> Machine:
    gpus = tuple(Gpu(f"GPU-{index}", index, model, 81920) for index in range(count))
    return Machine(gpus=gpus, links=(Link(LinkClass.SYS),) * (count * (count - 1) // 2))


def kind_of(at: Cluster, node: str) -> MachineKind:
    kind = at.core._cache.nodes[node].kind
    assert kind is not None
    return kind


def cluster() -> Cluster:
    at = Cluster()
    for name in ("good", "odd"):
        at.add_node(name, "hgx-h100")
    return at


def publish(at: Cluster, seed: int, node: str = "odd") -> None:
    at.annotate_node(node, names.TOPOLOGY, another(seed))
    at.settle()


def tables() -> int:
    """How many were made."""
    return _table_of_kind.cache_info().misses


def gpus_of(at: Cluster, node: str) -> int:
    return len({view.name: view for view in at.core.nodes(at.now)}[node].gpus)


def reason(at: Cluster, node: str) -> str:
    return {view.name: view for view in at.core.nodes(at.now)}[node].reason


def test_after_some_changes_the_next_is_read_a_minute_later() -> None:
    at = cluster()
    for seed in range(int(AT_ONCE)):
        publish(at, seed)
        assert reason(at, "odd") == ""
    publish(at, 10)
    publish(at, 11)
    assert "changed too often" in reason(at, "odd")
    assert reason(at, "good") == ""
    at.add_pod("small", 1)
    assert at.schedule("small") == "good"
    at.pass_time(EVERY_SECONDS)
    assert reason(at, "odd") == "", "the last one is read without another event"
    publish(at, 12)
    assert "changed too often" in reason(at, "odd")
    assert at.sound()


def test_turns_come_back_and_leave_with_the_node() -> None:
    at = cluster()
    for seed in range(int(AT_ONCE)):
        publish(at, seed)
    at.pass_time(2 * EVERY_SECONDS)
    for seed in (10, 11):
        publish(at, seed)
        assert reason(at, "odd") == ""
    publish(at, 12)
    at.remove_node("odd")
    at.add_node("odd", "hgx-h100")
    at.settle()
    assert reason(at, "odd") == ""
    at.pass_time(EVERY_SECONDS)
    assert gpus_of(at, "odd") == 8, "what waited is forgotten"


def test_a_clock_that_is_set_back_takes_no_turn() -> None:
    at = cluster()
    publish(at, 0)
    at.now -= 3600
    for seed in range(1, int(AT_ONCE)):
        publish(at, seed)
        assert reason(at, "odd") == ""


def test_what_is_not_another_kind_costs_no_turn() -> None:
    at = cluster()
    good = at.nodes["good"].metadata.annotations[names.TOPOLOGY]
    for number in range(10):
        at.annotate_node("odd", names.TOPOLOGY, good + " " * number)
        at.settle()
        assert reason(at, "odd") == ""


def test_a_new_leader_reads_what_waits() -> None:
    at = cluster()
    for seed in range(int(AT_ONCE) + 1):
        publish(at, seed)
    at.core.lead(2, at.now)
    at.pass_time(EVERY_SECONDS)
    assert reason(at, "odd") == ""


def test_the_tables_of_a_kind_are_made_before_the_lock_is_held() -> None:
    at = cluster()
    node = at.nodes["odd"]
    said = {**node.metadata.annotations, names.TOPOLOGY: another(1000)}
    changed = change(node, metadata=change(node.metadata, annotations=said))
    known = tables()
    at.core.prepare(changed, at.now)
    assert tables() == known + 1
    at.put_node(changed)
    assert tables() == known + 1


def test_those_of_a_kind_that_waits_are_made_while_others_use_the_core() -> None:
    at = cluster()
    for seed in range(2000, 2006):
        publish(at, seed)
    known, made = tables(), 0

    def aside(work: Callable[[], T], /) -> T:
        nonlocal made
        before = tables()
        done = work()
        made += tables() - before
        return done

    at.core.set_unlocker(aside)
    at.pass_time(EVERY_SECONDS)
    assert (made, tables()) == (1, known + 1)


def test_a_kind_that_no_node_has_is_dropped() -> None:
    at = cluster()
    publish(at, 0)
    kind = kind_of(at, "odd")
    at.add_pod("asks", 2)
    assert at.filter("asks").node_names
    dropped, table = ref(kind), ref(kind.table)
    del kind
    for seed in range(1, 25):  # the last few tables stay for a while
        publish(at, seed)
        at.filter("asks")
        at.pass_time(EVERY_SECONDS)
    gc.collect()
    assert dropped() is None
    assert table() is None


def test_numbers_of_kinds_are_used_again() -> None:
    at = cluster()
    for seed in range(100):
        publish(at, seed)
        at.add_pod("four", 4)
        assert at.schedule("four")
        at.delete("four")
        at.pass_time(EVERY_SECONDS)
    assert len(at.core._cache.kinds) < 40
    assert at.sound()


def test_nothing_that_was_computed_of_a_kind_counts_for_the_next_of_its_number() -> None:
    """Found: pods went to no node at all, as one of another model was said to be the best."""
    at = cluster()
    at.remove_node("good")
    numbers = set[int]()
    for seed in range(35):
        publish(at, seed)
        numbers.add(kind_of(at, "odd").number)
        at.add_pod("asks", 4, gpu_model="H100")
        assert at.filter("asks").node_names == ("odd",)
        at.delete("asks")
        at.pass_time(EVERY_SECONDS)
    at.annotate_node("odd", names.TOPOLOGY, "none")
    at.add_node("other", without_links(9, "NVIDIA A100"))
    at.add_node("right", "hgx-h100")
    assert kind_of(at, "other").number in numbers
    at.add_pod("asks", 4, gpu_model="H100")
    assert at.schedule("asks") == "right"
    at.add_pod("ahead", 4, gpu_model="H100", gates=[names.GATE])
    at.settle()
    assert at.places("ahead") == ["right"]
    assert at.sound()


def test_a_kind_stays_while_one_node_has_it() -> None:
    at = cluster()
    at.remove_node("good")
    at.add_pod("eight", 8)
    assert at.schedule("eight") == "odd"
    at.add_node("good", "hgx-h100")
    publish(at, 0)
    at.add_pod("other", 8)
    assert at.schedule("other") == "good"


def test_partitions_make_it_another_kind_too() -> None:
    at = cluster()
    at.remove_node("good")
    uuids = at.uuids("odd", *range(8))
    for number in range(10):
        pairs = [(0, number % 7 + 1), *((index,) for index in range(8))]
        at.slice_event("MODIFIED", slice_of("odd", uuids, partitions=pairs))
        at.settle()
        assert ("changed too often" in reason(at, "odd")) is (number >= int(AT_ONCE))
    at.pass_time(EVERY_SECONDS)
    assert 0b1001 in kind_of(at, "odd").machine.partitions, "the last ones"
    assert at.sound()
