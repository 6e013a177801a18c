"""Counts that are kept up to date equal those that are made from the start."""

import random

import msgspec

from linkwise.kube.filters.placed_pods import MOST_APART, MOST_COUNTS, PlacedPods
from linkwise.kube.filters.pod_affinity import AffinityTerm
from linkwise.kube.filters.pod_facts import PodFacts, pod_facts
from linkwise.kube.objects import Pod, Requirement
from tests.kube.filters.cases import apart, pod, term

ROWS = 100
WEB = (Requirement("app", "In", ("web",)),)
TERMS = (
    (),
    (AffinityTerm("zone", None, frozenset({"x"})),),
    *(
        (AffinityTerm("zone", (Requirement(key, operator, values),), frozenset({"x", "y"})),)
        for key in ("app", "none")
        for operator, values in (
            ("In", ("web", "db")),
            ("NotIn", ("web",)),
            ("Exists", ()),
            ("DoesNotExist", ()),
            ("Nonsense", ()),
        )
    ),
    (AffinityTerm("zone", WEB, frozenset({"x"}), (Requirement("team", "Exists"),)),),
    (AffinityTerm("zone", WEB, frozenset({"x"})),),
    (AffinityTerm("zone", (), frozenset(), ()),),
    (
        AffinityTerm("zone", WEB, frozenset({"x", "y"})),
        AffinityTerm("rack", (), frozenset({"y"})),
    ),
)


def drawn(draw: random.Random) -> PodFacts:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": draw.choice("cd")}}]
    made = pod(
        labels={"app": draw.choice(["web", "db"])},
        namespace=draw.choice("xy"),
        affinity=apart(term({"app": "db"})) if draw.random() < 0.3 else {},
        volumes=volumes if draw.random() < 0.3 else [],
        containers=[{"name": "m", "ports": [{"hostPort": 80}] if draw.random() < 0.3 else []}],
    )
    return pod_facts(msgspec.convert(made, Pod))


def test_counts_follow_pods_that_come_move_and_go() -> None:
    draw, placed = random.Random(28), PlacedPods()
    there: dict[str, tuple[PodFacts, int, bool]] = {}
    for _ in range(600):
        uid = str(draw.randint(0, 40))
        if draw.random() < 0.3:
            placed.drop(uid)
            there.pop(uid, None)
        else:
            there[uid] = drawn(draw), draw.randrange(ROWS), draw.random() < 0.2
            facts, row, leaving = there[uid]
            placed.put(uid, facts, row, leaving=leaving)
        fresh = PlacedPods()
        for each, (facts, row, leaving) in there.items():
            fresh.put(each, facts, row, leaving=leaving)
        without = frozenset(draw.sample(sorted(there), min(len(there), 2)))
        for terms in TERMS:
            for live in (False, True):
                kept = placed.selected(terms, ROWS, live=live, without=without)
                made = fresh.selected(terms, ROWS, live=live, without=without)
                assert kept.tolist() == made.tolist()
        assert placed.keeping_apart() == fresh.keeping_apart()
        assert placed.on_ports() == fresh.on_ports()
        assert placed.users("x", "c", without) == fresh.users("x", "c", without)


def test_nothing_is_remembered_of_pods_that_are_gone() -> None:
    draw, placed = random.Random(28), PlacedPods()
    for number in range(50):
        placed.put(str(number), drawn(draw), number)
    for number in range(50):
        placed.drop(str(number))
    kept = (getattr(placed, field) for field in vars(placed))
    assert not any(each for each in kept if isinstance(each, dict))


def test_of_one_namespace_only_so_many_terms_keep_others_out() -> None:
    placed = PlacedPods()

    def with_term(number: int, namespace: str) -> PodFacts:
        made = pod(namespace=namespace, affinity=apart(term({"app": str(number)})))
        return pod_facts(msgspec.convert(made, Pod))

    for number in range(2 * MOST_APART):
        placed.put(f"x{number}", with_term(number, "x"), 0)
    placed.put("y", with_term(0, "y"), 1)
    assert len(placed.keeping_apart()) == MOST_APART + 1
    for number in range(2 * MOST_APART):
        placed.drop(f"x{number}")
    assert [*placed.keeping_apart().values()] == [{"y": 1}]
    assert placed.apart_keys() == {"app"}
    placed.drop("y")
    assert not placed.keeping_apart()
    assert not placed.apart_keys()


def test_a_forgotten_count_is_in_doubt_only_until_all_are_tried_again() -> None:
    draw, placed = random.Random(28), PlacedPods()
    of_each = [AffinityTerm("zone", WEB, frozenset({str(n)})) for n in range(MOST_COUNTS + 1)]
    for number, one in enumerate(of_each):
        assert not placed.may_have_opened
        placed.selected((one,), ROWS, invites=True)
        placed.put(str(number), drawn(draw), 0)
    assert placed.may_have_opened
    placed.forget_openings()
    placed.put("later", drawn(draw), 0)
    assert not placed.may_have_opened
