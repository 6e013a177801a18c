"""Members of one gang as resources that are counted, held to the filters pod by pod."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from linkwise.kube.filters.gang import UNLIMITED, Kind, Limit, between, spread_caps, trimmed
from linkwise.kube.filters.nodes import Ints
from linkwise.kube.filters.plugins import PodFilters, World, candidate
from linkwise.kube.filters.topology_spread import Spread, SpreadConstraint
from linkwise.kube.objects import Pod
from tests.kube.filters.cases import (
    DELAYED,
    HOST,
    WEB,
    ZONE,
    Object,
    apart,
    case,
    claim,
    near,
    node,
    pod,
    spread,
    term,
    using,
    volume,
    world,
)
from tests.kube.filters.verdicts import world_of

DB = {"app": "db"}
NODES = [
    node("a1", {ZONE: "a"}),
    node("a2", {ZONE: "a"}),
    node("b1", {ZONE: "b"}),
    node("lost"),
]
PLENTY = np.full(len(NODES), 8)


def kinds_of(*members: tuple[Object, int], rooms: Ints = PLENTY) -> list[Kind]:
    return [Kind(candidate(msgspec.convert(each, Pod)), count, rooms) for each, count in members]


def limits(
    *members: tuple[Object, int], there: Sequence[Object] = (), rooms: Ints = PLENTY, **more: Any
) -> list[tuple[str, tuple[int, ...], list[int]]]:
    """Each limit as its name, needs, and what is left on each node."""
    known = world_of(case(pod(), NODES, list(there), **more))
    found = between(kinds_of(*members, rooms=rooms), known).limits
    return [(each.name, each.needs, trimmed(each, rooms).tolist()) for each in found]


def test_members_that_keep_apart_take_one_node_each() -> None:
    member = pod(labels=WEB, affinity=apart(term(WEB)))
    ((name, needs, left),) = limits((member, 3))
    assert (name, needs, left) == (f"InterPodAffinity {HOST} 1", (1,), [1, 1, 1, 1])


def test_of_a_zone_the_node_with_the_most_room_is_left() -> None:
    member = pod(labels=WEB, affinity=apart(term(WEB, ZONE)))
    rooms = np.array([2, 4, 1, 1])
    ((_, _, left),) = limits((member, 3), rooms=rooms)
    assert left == [0, 1, 1, UNLIMITED]


def test_members_that_select_no_other_are_free() -> None:
    assert limits((pod(labels=WEB, affinity=apart(term(DB))), 3)) == []
    assert limits((pod(labels=WEB, affinity=apart(term(WEB))), 1)) == []
    assert limits((pod(labels=WEB), 512)) == []


def test_one_kind_keeps_apart_from_another_and_not_from_itself() -> None:
    launcher = pod(labels=WEB, affinity=apart(term(DB)))
    workers = pod(labels=DB)
    ((_, needs, left),) = limits((launcher, 1), (workers, 6))
    assert needs == (6, 1)
    assert left == [6, 6, 6, 6]


def ports(*wanted: Object) -> Object:
    return pod(containers=[{"name": "main", "ports": list(wanted)}])


def test_members_share_no_port_of_a_node() -> None:
    ((_, needs, left),) = limits((ports({"hostPort": 80}), 2))
    assert (needs, left) == ((1,), [1, 1, 1, 1])
    one, two = {"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}
    assert limits((ports(one), 1), (ports(two), 1)) == []
    ((_, needs, _),) = limits((ports(one), 1), (ports({"hostPort": 80}), 1))
    assert needs == (1, 1)


def test_a_claim_for_one_pod_is_for_one_member() -> None:
    objects = world(claim(volume="pv", accessModes=["ReadWriteOncePod"]), volumes=(volume(),))
    ((name, needs, left),) = limits((using("data"), 2), **objects)
    assert (name, needs, sum(left)) == ("VolumeRestrictions data 1", (1,), 1)


def test_members_with_volumes_of_their_own_fill_a_node() -> None:
    objects = world(
        *(claim(name, storageClassName="delayed") for name in ("x", "y", "old", "both")),
        classes=(DELAYED,),
    )
    driver = {"name": "ebs.csi.aws.com", "nodeID": "x", "allocatable": {"count": 3}}
    objects["csiNodes"] = [{"metadata": {"name": "a1"}, "spec": {"drivers": [driver]}}]
    there = [using("old", name="old", on="a1")]
    members = (using("x", "both"), 1), (using("y", "both"), 1)
    ((_, needs, left),) = limits(*members, there=there, **objects)
    assert needs == (1, 1)
    assert left[0] == 1
    assert min(left[1:]) >= 8


def test_members_that_follow_each_other_need_one_domain() -> None:
    member = pod(labels=WEB, affinity=near(term(WEB, ZONE)))
    known = world_of(case(pod(), NODES))
    assert between(kinds_of((member, 3)), known).together == (ZONE,)
    follows, led = pod(labels=WEB, affinity=near(term(DB, ZONE))), pod(labels=DB)
    assert between(kinds_of((follows, 3), (led, 1)), known).together == (ZONE,)
    # Alone no node fits; beside the member that it follows every node with the label does.
    alone = candidate(msgspec.convert(follows, Pod))
    beside = kinds_of((led, 1))[0].pod.facts
    assert PodFilters(alone, known).allowed.tolist() == [False] * 4
    gang = PodFilters(alone, known, members=[beside])
    assert gang.allowed.tolist() == [True, True, True, False]


JOBS = [pod(labels={"job": name}, affinity=near(term({"job": name}, ZONE))) for name in "pq"]
IN_A, IN_B = [True, True, False, False], [False, False, True, False]


def homes(*members: tuple[Object, int], rooms: Ints = PLENTY) -> list[list[bool] | None]:
    found = between(kinds_of(*members, rooms=rooms), world_of(case(pod(), NODES))).homes
    return [None if home is None else home.tolist() for home in found]


@pytest.mark.parametrize(
    ("rooms", "counts", "expected"),
    [
        ([1, 1, 2, 8], (2, 2), [IN_A, IN_B]),
        ([1, 2, 2, 8], (2, 3), [IN_B, IN_A]),
        ([4, 4, 2, 8], (2, 2), [IN_B, IN_A]),
        ([4, 4, 0, 8], (3, 5), [IN_A, IN_A]),
        ([8, 8, 0, 8], (1, 9), [IN_A, IN_A]),
    ],
)
def test_several_groups_that_follow_their_own_get_a_domain_each(
    rooms: list[int], counts: tuple[int, int], expected: list[list[bool]]
) -> None:
    members = list(zip(JOBS, counts, strict=True))
    assert homes(*members, rooms=np.array(rooms)) == expected
    assert homes(*members, (pod(), 1), rooms=np.array(rooms)) == [*expected, None]


def test_members_that_follow_each_other_leave_the_others_free() -> None:
    assert homes((JOBS[0], 2), (pod(), 2), rooms=np.array([1, 1, 2, 2])) == [IN_A, None]
    led = pod(labels={"job": "p"})
    assert homes((led, 1), (JOBS[0], 1), (pod(), 1)) == [IN_B, IN_B, None]


def test_groups_that_share_a_member_are_one() -> None:
    follows_two = pod(labels={"job": "p", "team": "t"}, affinity=near(term({"team": "t"}, ZONE)))
    members = (JOBS[0], 2), (follows_two, 1), (pod(), 1)
    assert homes(*members, rooms=np.array([1, 1, 3, 8])) == [IN_B, IN_B, None]


def test_a_domain_is_chosen_by_the_room_for_the_members_of_the_group() -> None:
    large, small = np.array([2, 2, 1, 8]), PLENTY
    kinds = [*kinds_of((JOBS[0], 3), rooms=large), *kinds_of((pod(), 1), rooms=small)]
    found = between(kinds, world_of(case(pod(), NODES))).homes[0]
    assert found is not None
    assert found.tolist() == IN_A


def exclusive(name: str) -> Object:
    """As JobSet makes the pods of a Job that has a zone for itself."""
    others = {
        "topologyKey": ZONE,
        "namespaceSelector": {},
        "labelSelector": {
            "matchExpressions": [
                {"key": "job", "operator": "Exists"},
                {"key": "job", "operator": "NotIn", "values": [name]},
            ]
        },
    }
    affinity = near(term({"job": name}, ZONE)) | apart(others)
    return pod(labels={"job": name}, affinity=affinity)


def test_jobs_that_have_a_domain_each_for_themselves_are_no_limit_to_each_other() -> None:
    kinds = kinds_of((exclusive("p"), 2), (exclusive("q"), 1), rooms=np.array([4, 4, 2, 8]))
    found = between(kinds, world_of(case(pod(), NODES)))
    assert found.limits == ()
    assert [home.tolist() for home in found.homes if home is not None] == [IN_B, IN_A]


def test_where_a_pod_is_that_they_follow_the_filters_say_it() -> None:
    member = pod(labels=WEB, affinity=near(term(WEB, ZONE)))
    known = world_of(case(pod(), NODES, [pod("old", WEB, on="b1")]))
    assert not between(kinds_of((member, 3)), known).together
    gang = kinds_of((member, 3))[0].pod
    assert PodFilters(gang, known, members=[gang.facts]).allowed.tolist() == [
        False,
        False,
        True,
        False,
    ]


def test_members_fill_the_emptiest_domains() -> None:
    member = pod(labels=WEB, topologySpreadConstraints=[spread()])
    ((_, needs, left),) = limits((member, 4))
    assert needs == (1,)
    assert left == [2, 0, 2, UNLIMITED]
    ((_, _, left),) = limits((member, 4), there=[pod("old", WEB, on="a1")])
    assert left == [2, 0, 2, UNLIMITED]  # 1 + 2 and 2


@pytest.mark.parametrize(
    ("counts", "skew", "members", "rooms", "caps"),
    [
        ([0, 0], 1, 1, [8, 8], [1, 1]),  # either is allowed
        ([0, 0], 5, 4, [8, 8], [5, 5]),
        ([0, 0, 0], 1, 4, [8, 8, 8], [2, 1, 1]),
        ([0, 0, 0], 2, 7, [8, 8, 0], [2, 2, 0]),  # the third stays empty
        ([3, 0], 1, 4, [8, 8], [1, 3]),
        ([3, 0], 1, 5, [8, 8], [1, 4]),
    ],
)
def test_caps_follow_from_what_is_there(
    counts: list[int], skew: int, members: int, rooms: list[int], caps: list[int]
) -> None:
    rows = np.arange(len(counts))
    constraint = SpreadConstraint(ZONE, skew, 1, (), honors_affinity=True, honors_taints=False)
    known = Spread(constraint, rows, np.array(counts))
    assert spread_caps(known, members, np.array(rooms)).tolist() == caps


def test_with_too_few_domains_the_caps_count_from_nothing() -> None:
    constraint = SpreadConstraint(ZONE, 2, 3, (), honors_affinity=True, honors_taints=False)
    known = Spread(constraint, np.arange(2), np.array([1, 0]))
    assert spread_caps(known, 9, np.array([9, 9])).tolist() == [1, 2]


def test_trimming_keeps_each_domain_s_limit() -> None:
    draw = random.Random(28)
    for _ in range(200):
        rows, domains = draw.randint(1, 12), draw.randint(1, 4)
        domain = np.array([draw.randint(-1, domains - 1) for _ in range(rows)])
        most = np.array([draw.randint(0, 9) for _ in range(domains)])
        rooms = np.array([draw.randint(0, 5) for _ in range(rows)])
        left = trimmed(Limit("x", (1,), domain, most), rooms)
        for number, limit in enumerate(most):
            inside = domain == number
            assert left[inside].sum() == min(limit, rooms[inside].sum())
            used, unused = rooms[inside][left[inside] > 0], rooms[inside][left[inside] == 0]
            assert used.min(initial=5) >= unused.max(initial=0)
        assert (left[domain == -1] == UNLIMITED).all()


def drawn_gang(draw: random.Random) -> tuple[list[tuple[Object, int]], list[Object]]:
    def rules(labels: Object) -> Object:
        said: Object = {}
        if draw.random() < 0.5:
            said["affinity"] = apart(term(draw.choice([WEB, DB]), draw.choice([ZONE, HOST])))
        if draw.random() < 0.4:
            follows = near(term(draw.choice([WEB, DB, labels]), draw.choice([ZONE, HOST])))
            said["affinity"] = said.get("affinity", {}) | follows
        if draw.random() < 0.3:
            said["topologySpreadConstraints"] = [spread(draw.randint(1, 2), labels)]
        if draw.random() < 0.3:
            wanted = {"hostPort": draw.choice([80, 81])}
            said["containers"] = [{"name": "main", "ports": [wanted]}]
        return said

    members = [
        (pod(labels=labels, **rules(labels)), draw.randint(1, 3))
        for labels in ([WEB, DB] if draw.random() < 0.5 else [WEB])
    ]
    there = [
        pod(f"old-{n}", draw.choice([WEB, DB]), on=draw.choice(["a1", "a2", "b1"]))
        for n in range(draw.randint(0, 2))
    ]
    return members, there


def placed_within(
    kinds: Sequence[Kind], known: World, rooms: Ints, draw: random.Random
) -> list[tuple[int, int]] | None:
    """A random plan (kind, row) within the masks and all limits; None if there is no place left."""
    facts = [kind.pod.facts for kind in kinds]
    demands = between(kinds, known)
    masks = [PodFilters(kind.pod, known, members=facts).allowed for kind in kinds]
    for number, home in enumerate(demands.homes):
        masks[number] = masks[number] & (True if home is None else home)
    for key in demands.together:
        domain = known.domain(key)
        home = domain == draw.randint(0, int(domain.max()))
        masks = [mask & home for mask in masks]
    columns = [(each.needs, trimmed(each, rooms)) for each in demands.limits]
    left, plan = rooms.copy(), []
    for number in (n for n, kind in enumerate(kinds) for _ in range(kind.count)):
        rows = [
            row
            for row in range(len(rooms))
            if masks[number][row]
            and left[row] > 0
            and all(column[row] >= needs[number] for needs, column in columns)
        ]
        if not rows:
            return None
        row = draw.choice(rows)
        left[row] -= 1
        for needs, column in columns:
            column[row] -= needs[number]
        plan.append((number, row))
    return plan


def can_be_bound(kinds: Sequence[Kind], known: World, plan: list[tuple[int, int]]) -> bool:
    """Whether the filters let the members pass in some order, each beside those before."""
    waiting = list(enumerate(plan))
    while waiting:
        for each in waiting:
            uid, (number, row) = each
            if PodFilters(kinds[number].pod, known).rejection(row) is None:
                known.pods.put(f"member-{uid}", kinds[number].pod.facts, row)
                waiting.remove(each)
                break
        else:
            return False
    return True


def test_a_plan_that_keeps_all_limits_passes_the_filters() -> None:
    draw = random.Random(28)
    planned = 0
    for _ in range(400):
        members, there = drawn_gang(draw)
        rooms = np.full(len(NODES), 3)
        kinds = kinds_of(*members, rooms=rooms)
        known = world_of(case(pod(), NODES, there))
        plan = placed_within(kinds, known, rooms, draw)
        if plan is not None:
            planned += 1
            assert can_be_bound(kinds, known, plan), (members, there, plan)
    assert planned > 100
