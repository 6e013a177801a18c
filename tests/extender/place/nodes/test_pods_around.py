"""What ports, volumes and the pods around allow, as pods and volumes come and go."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from linkwise.extender.place.nodes.node_filters import NodeFilters
from linkwise.extender.run.informers import SURROUNDINGS
from linkwise.extender.state.cache.cache import Cache, Surroundings
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.records import PodRecord, WrittenPlan
from linkwise.extender.state.timers import Agenda
from linkwise.kube.objects import (
    CSINode,
    Namespace,
    Node,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)
from linkwise.topology.annotations.plan import Plan
from tests.extender.cluster import Cluster
from tests.kube.filters.cases import (
    WEB,
    ZONE,
    Object,
    apart,
    claim,
    near,
    node,
    pod,
    term,
    using,
    volume,
)

READER = Ingest(("nvidia.com/gpu",), Agenda())


class Around:
    """A cache of nodes a and b, each in its own zone."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.filters = NodeFilters(self.cache)
        for name in "ab":
            made = node(name, {ZONE: name})
            made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            self.cache.put_node(READER.node(msgspec.convert(made, Node)))

    def put(self, one: Object) -> PodRecord:
        record = read(one)
        self.cache.put_pod(record)
        return record

    def allows(self, one: Object, **more: Any) -> str:
        """The nodes that let the pod in."""
        found = self.filters.beside(read(one), **more)
        names = self.cache.rows.names
        return "".join(n for row, n in enumerate(names) if n and (found is None or found[row]))

    def list_all(self, *objects: object) -> None:
        kinds = (CSINode, Namespace, PersistentVolume, PersistentVolumeClaim, StorageClass)
        for kind in kinds:
            listed = [each for each in objects if isinstance(each, kind)]
            self.cache.surroundings.replace(kind, listed)


def read(one: Object) -> PodRecord:
    return READER.pod(msgspec.convert(one, Pod))


def planned(on: str) -> WrittenPlan:
    return WrittenPlan(Plan(node=on, id="1", made=0.0, leader=1), {})


@pytest.fixture
def around() -> Around:
    return Around()


def test_bound_assumed_and_planned_pods_keep_others_out_until_they_go(around: Around) -> None:
    alone = pod("alone", WEB, affinity=apart(term(WEB)))
    assert around.filters.beside(read(pod("plain"))) is None
    around.put(pod("bound", WEB, on="a"))
    assert around.allows(alone) == "b"
    waiting = around.put(pod("waiting", WEB))
    around.cache.plan(waiting.uid, planned("b"))
    assert around.allows(alone) == ""
    around.cache.plan(waiting.uid, None)
    around.cache.assume(waiting.uid, planned("b"))
    assert around.allows(alone) == ""
    around.cache.forget_assumed(waiting.uid, "b")
    around.cache.drop_pod("bound")
    assert around.allows(alone) == "ab"


def test_a_pod_is_not_kept_out_by_itself_nor_by_the_members_placed_with_it(around: Around) -> None:
    first = around.put(pod("first", WEB, on="a", affinity=apart(term(WEB))))
    second = pod("second", WEB, affinity=apart(term(WEB)))
    assert around.allows(pod("first", WEB, affinity=apart(term(WEB)))) == "ab"
    assert around.allows(second) == "b"
    assert around.allows(second, without=frozenset({first.uid})) == "ab"
    assert around.allows(second, members=[first]) == "ab"


def test_a_pod_with_terms_keeps_out_pods_without_any(around: Around) -> None:
    around.put(pod("alone", on="a", affinity=apart(term(WEB, ZONE))))
    assert around.allows(pod("web", WEB)) == "b"
    assert around.allows(pod("db", {"app": "db"})) == "ab"
    ended = pod("alone", on="a", affinity=apart(term(WEB, ZONE)))
    around.put(ended | {"status": {"phase": "Succeeded"}})
    assert around.filters.beside(read(pod("web", WEB))) is None


def test_labels_that_change_count_at_once(around: Around) -> None:
    around.put(pod("there", {"app": "db"}, on="a"))
    follows = pod(affinity=near(term(WEB, ZONE)))
    assert around.allows(follows) == ""
    around.put(pod("there", WEB, on="a"))
    assert around.allows(follows) == "a"


def test_ports_in_use_keep_a_pod_out(around: Around) -> None:
    ports = [{"name": "main", "ports": [{"hostPort": 80}]}]
    around.put(pod("there", on="b", containers=ports))
    assert around.allows(pod(containers=ports)) == "a"


def test_volumes_count_once_all_their_kinds_are_listed(around: Around) -> None:
    assert around.allows(using("data")) == "ab"  # kube-scheduler decides
    bound = msgspec.convert(claim(volume="pv"), PersistentVolumeClaim)
    around.list_all(bound, msgspec.convert(volume(zones=["b"]), PersistentVolume))
    assert around.allows(using("data")) == "b"
    around.cache.surroundings.drop(bound)
    assert around.allows(using("data")) == ""
    around.cache.surroundings.put(bound)
    assert around.allows(using("data")) == "b"


def test_a_new_leader_knows_the_volumes_and_namespaces_that_were_listed() -> None:
    core = Cluster().core
    for kind in SURROUNDINGS.values():
        core.replace_surroundings(kind, (), 0.0)
    team = msgspec.convert({"metadata": {"name": "team"}}, Namespace)
    core.surrounding_event("ADDED", team, 0.0)
    core.lead(2, 0.0)
    surroundings = core._cache.surroundings
    assert surroundings.storage is not None
    assert surroundings.namespaces == {"team": {}}
    core.surrounding_event("DELETED", team, 0.0)
    assert surroundings.namespaces == {}


def test_a_list_of_one_kind_replaces_that_kind_only() -> None:
    known = Surroundings()
    old, new = (Namespace(metadata=ObjectMeta(name=name)) for name in ("old", "new"))
    known.replace(Namespace, [old])
    known.replace(PersistentVolume, [])
    assert known.namespaces == {"old": {}}
    known.replace(Namespace, [new])
    assert known.namespaces == {"new": {}}


def test_selected_namespaces_count_once_they_are_listed(around: Around) -> None:
    around.put(pod("there", WEB, on="a", namespace="team"))
    selector = {"matchLabels": {"kind": "work"}}
    follows = pod(affinity=near(term(WEB, ZONE, namespaceSelector=selector)))
    assert around.allows(follows) == "ab"
    team = {"metadata": {"name": "team", "labels": {"kind": "work"}}}
    around.list_all(msgspec.convert(team, Namespace))
    assert around.allows(follows) == "a"


def test_a_node_that_only_pods_name_takes_none(around: Around) -> None:
    around.put(pod("lost", WEB, on="gone"))
    assert around.allows(pod(affinity=near(term(WEB, ZONE)))) == ""
    around.cache.drop_node("a")
    around.put(pod("there", WEB, on="b"))
    assert around.allows(pod(affinity=near(term(WEB, ZONE)))) == "b"


def members(count: int, **spec: Any) -> Sequence[PodRecord]:
    return [read(pod(f"member-{n}", WEB | {"index": str(n)}, **spec)) for n in range(count)]


def test_members_demand_nodes_of_their_own_whatever_else_their_labels_say(around: Around) -> None:
    rooms = [np.array([8, 8])]
    assert not around.filters.between(members(3), rooms * 3)[0]
    demands, _ = around.filters.between(members(2, affinity=apart(term(WEB))), rooms * 2)
    (limit,) = demands.limits
    assert set(limit.needs) == {1}
    assert limit.most.tolist() == [1, 1]


def test_members_are_looked_at_once_for_each_difference_that_filters_see() -> None:
    at = Around()

    def kinds(*pods: Object) -> int:
        records = [*map(read, pods)]
        first = records[0].facts
        # Equal facts are one object, as those of pods of one workload.
        records = [replace(r, facts=first) if r.facts == first else r for r in records]
        assert len(at.filters.beside_each(records)) == len(pods)
        return at.filters.count_kinds(records)

    beside: dict[str, Any] = {"affinity": apart(term(WEB))}
    gpu = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    takes = [{"name": "main", "resources": gpu}]
    tolerant: dict[str, Any] = {"containers": takes, "tolerations": [{"operator": "Exists"}]}
    assert kinds(pod("a", {"index": "0"}), pod("b", {"index": "1"})) == 1
    assert kinds(pod("a", WEB, **beside), pod("b", WEB, **beside)) == 1
    assert kinds(pod("a", WEB, **beside), pod("b", {"app": "db"}, **beside)) == 2
    assert kinds(pod("a", WEB, **beside), pod("b", WEB)) == 2
    assert kinds(using("a", name="a"), using("b", name="b")) == 2
    assert (
        kinds(pod("a", WEB, containers=takes, **beside), pod("b", WEB, **tolerant, **beside)) == 2
    )
    assert kinds(pod("a", WEB, namespace="x", **beside), pod("b", WEB, **beside)) == 2
