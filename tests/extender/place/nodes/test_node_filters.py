from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import patch

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from linkwise.extender.place.nodes import node_filters
from linkwise.extender.place.nodes.node_filters import NodeFilters, may_run, why_not
from linkwise.extender.state.cache import node_table
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.membership.membership import _evidence
from linkwise.extender.state.records import PodRecord, ResourceList, Template, natural
from linkwise.extender.state.timers import Agenda
from linkwise.kube.objects import (
    LARGEST,
    Affinity,
    Condition,
    Container,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodClaim,
    PodSpec,
    Requirement,
    Resources,
    Taint,
    Toleration,
)
from linkwise.pods.claims import ClaimAsk, write_claims
from linkwise.pods.spans import CLIQUE
from linkwise.topology import names
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.cached import cached
from tests.extender.cluster import GPU, Cluster, container

READER = Ingest((GPU,), Agenda())
GPU_TAINT = Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule")


def node(*taints: Taint, ready: str = "True", cordoned: bool = False, **labels: str) -> Node:
    return Node(
        metadata=ObjectMeta(name="n1", labels=labels),
        spec=NodeSpec(unschedulable=cordoned, taints=taints),
        status=NodeStatus(conditions=(Condition(type="Ready", status=ready),)),
    )


def template(
    *tolerations: Toleration,
    selector: dict[str, str] | None = None,
    terms: tuple[NodeSelectorTerm, ...] | None = None,
) -> Template:
    affinity = None
    if terms is not None:
        required = NodeSelector(node_selector_terms=terms)
        affinity = Affinity(
            node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required)
        )
    spec = PodSpec(
        containers=(container("main", 1),),
        tolerations=tolerations,
        node_selector=selector or {},
        affinity=affinity,
    )
    found = READER.pod(Pod(metadata=ObjectMeta(name="p", uid="u"), spec=spec)).template
    assert found is not None
    return found


def runs(made: Template, on: Node) -> bool:
    return may_run(made, READER.node(on))


def test_a_node_must_be_ready_and_not_cordoned() -> None:
    assert runs(template(), node())
    assert not runs(template(), node(ready="Unknown"))
    assert not runs(template(), node(cordoned=True))
    cordon = Toleration(key="node.kubernetes.io/unschedulable", operator="Exists")
    assert runs(template(cordon), node(cordoned=True))


def test_a_taint_that_only_prefers_keeps_nobody_out() -> None:
    assert runs(template(), node(Taint(key="slow", effect="PreferNoSchedule")))
    assert why_not(template(), READER.node(node(GPU_TAINT))) == "taint nvidia.com/gpu not tolerated"


def test_one_term_is_enough_and_all_of_it_must_hold() -> None:
    zone = Requirement(key="zone", operator="In", values=("a",))
    rack = Requirement(key="rack", operator="Exists")
    both = NodeSelectorTerm(match_expressions=(zone, rack))
    by_name = NodeSelectorTerm(
        match_fields=(Requirement(key="metadata.name", operator="In", values=("n1",)),)
    )
    assert not runs(template(terms=(both,)), node(zone="a"))
    assert runs(template(terms=(both, by_name)), node(zone="a"))
    assert not runs(template(terms=(NodeSelectorTerm(),)), node(zone="a"))  # matches nothing


def record(pod: Pod) -> PodRecord:
    return READER.pod(pod)


@pytest.mark.parametrize(
    ("whole", "needs"),
    [
        (Resources(), (3250, 3 * 2**30)),
        (Resources(requests={"cpu": "2"}), (2250, 3 * 2**30)),
        (Resources(requests={"cpu": "8", "memory": "1Gi"}), (8250, 2**30)),
        (Resources(limits={"memory": "5Gi"}), (3250, 5 * 2**30)),
        (Resources(requests={"memory": "4Gi"}, limits={"memory": "5Gi"}), (3250, 4 * 2**30)),
    ],
)
def test_what_a_pod_asks_for_as_a_whole_goes_before_its_containers(
    whole: Resources, needs: tuple[int, int]
) -> None:
    """As `PodRequests` of k8s.io/component-helpers has it, from Kubernetes 1.34 on."""
    spec = PodSpec(
        containers=tuple(container(name, 1) for name in "abc"),
        overhead={"cpu": "250m"},
        resources=whole,
    )
    found = record(Pod(spec=spec)).needs
    assert (found.milli_cpu, found.memory, found.gpus) == (*needs, 3)


def test_a_pods_needs_are_its_largest_moment() -> None:
    spec = PodSpec(
        init_containers=(
            container("i", 0, cpu="4"),
            container("side", 0, cpu="500m", restart_policy="Always"),
            container("j", 0, cpu="3800m"),
        ),
        containers=(container("a", 0, cpu="1"), container("b", 0, cpu="1")),
        overhead={"cpu": "250m"},
    )
    # i alone: 4; side and j: 4.3; side, a and b: 2.5.
    assert record(Pod(spec=spec)).needs.milli_cpu == 4550


def test_every_resource_is_summed_by_the_same_rule() -> None:
    def asks(name: str, *, restart_policy: str = "", **amounts: str) -> Container:
        resources = Resources(
            requests={
                "ephemeral-storage": amounts["disk"],
                "vpc.amazonaws.com/efa": amounts["efa"],
            },
            limits={"hugepages-2Mi": "2Mi", "nvidia.com/gpu": "1", "pods": "7"},
        )
        return Container(name=name, restart_policy=restart_policy, resources=resources)

    spec = PodSpec(
        init_containers=(
            asks("i", disk="40", efa="1"),
            asks("side", disk="5", efa="1", restart_policy="Always"),
        ),
        containers=(asks("a", disk="10", efa="1"), asks("b", disk="10", efa="0")),
        overhead={"ephemeral-storage": "3"},
    )
    whole = Resources(requests={"hugepages-2Mi": "8Mi", "vpc.amazonaws.com/efa": "9"})
    mib = 2**20
    for each, hugepages in ((Resources(), 6 * mib), (whole, 8 * mib)):
        found = record(Pod(spec=msgspec.structs.replace(spec, resources=each))).needs
        assert found.others == (
            ("ephemeral-storage", 43),
            ("hugepages-2Mi", hugepages),
            ("vpc.amazonaws.com/efa", 2),
        )


def test_equal_needs_are_one_object_and_huge_ones_are_capped() -> None:
    def needs(amount: str) -> ResourceList:
        asks = Resources(requests={"vpc.amazonaws.com/efa": amount})
        containers = tuple(Container(name=name, resources=asks) for name in "ab")
        return Ingest((GPU,), Agenda()).pod(Pod(spec=PodSpec(containers=containers))).needs

    assert needs("1") is needs("1")
    assert needs("8E").others == (("vpc.amazonaws.com/efa", LARGEST),)


def test_only_a_limit_is_a_request_too() -> None:
    only_limit = Container(name="main", resources=Resources(limits={"cpu": "2", "memory": "1Gi"}))
    needs = record(Pod(spec=PodSpec(containers=(only_limit,)))).needs
    assert (needs.milli_cpu, needs.memory) == (2000, 2**30)


def test_pods_that_the_scheduler_treats_alike_share_a_template() -> None:
    def made(name: str, cpu: str, *claims: str) -> PodRecord:
        meta = ObjectMeta(name=name, uid=name, creation_timestamp=datetime.now(UTC))
        wanted = tuple(PodClaim(name="nic", resource_claim_template_name=claim) for claim in claims)
        containers = (container("m", 1, cpu=cpu),)
        return record(
            Pod(metadata=meta, spec=PodSpec(containers=containers, resource_claims=wanted))
        )

    first, second, other = made("a", "1"), made("b", "1"), made("c", "2")
    assert first.template is second.template
    assert first.template is not other.template
    claims, others = made("d", "1", "rdma"), made("e", "1", "gpus")
    assert claims.template is made("f", "1", "rdma").template
    assert len({id(each.template) for each in (first, claims, others)}) == 3


def claimed(requests: dict[str, int]) -> Pod:
    ask = ClaimAsk("gpus", "linkwise-" + "0" * 20, requests)
    meta = ObjectMeta(name="p", uid="u", annotations={names.CLAIMS: write_claims(ask)})
    entry = PodClaim(name=ask.entry, resource_claim_name=ask.claim)
    return Pod(metadata=meta, spec=PodSpec(resource_claims=(entry,)))


def test_what_a_pod_takes_of_a_claim_is_what_its_own_annotation_says() -> None:
    assert [record(claimed({"main": count})).demand.gpus for count in (1, 4)] == [1, 4]
    assert "`int` >= 1" in record(claimed({"main": 0})).invalid


def test_a_pod_is_not_read_again_for_the_name_of_its_claim() -> None:
    reader = Ingest((GPU,), Agenda())
    evidence = set()
    for count in (1, 2):
        reader.pod(claimed({"main": count}))
        evidence.add(_evidence(claimed({"main": count}), gpus=1))
    assert len(reader._asks) == len(evidence) == 1


def test_a_quantity_that_is_none_makes_the_pod_invalid_and_stops_nobody() -> None:
    broken = Container(name="main", resources=Resources(limits={GPU: "many"}))
    assert "many" in record(Pod(spec=PodSpec(containers=(broken,)))).invalid


def test_names_are_ordered_as_people_do() -> None:
    names = ["worker-10", "worker-2", "worker", "worker-2-a"]
    assert sorted(names, key=natural) == ["worker", "worker-2", "worker-2-a", "worker-10"]


def test_the_log_of_changes_begins_again_and_no_answer_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_table, "LONGEST", 10)
    books = Cache()
    feasible = NodeFilters(books)
    here = template()
    for number in range(100):
        books.put_node(READER.node(node(ready="True" if number % 2 else "False")))
        books.trim()
        assert feasible.rows(here).tolist() == [number % 2 == 1]
        assert len(books.changed_rows) <= 10


def test_the_log_of_changes_is_bounded_where_no_gang_ever_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_table, "LONGEST", 10)
    at = Cluster()
    at.add_node("n1")
    for number in range(30):
        at.set_ready("n1", ready=bool(number % 2))
        at.settle()
    assert len(at.core._cache.changed_rows) <= 10


TEXTS = st.sampled_from(["a", "b", "3", "4", "-1", "", "no label"])
KEYS = st.sampled_from(["zone", "pool", "gpus", "absent"])
VALUES = st.lists(TEXTS, max_size=3).map(tuple)
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like"])
EXPRESSIONS = st.builds(Requirement, key=KEYS, operator=OPERATORS, values=VALUES)
FIELDS = st.builds(
    Requirement,
    key=st.sampled_from(["metadata.name", "metadata.uid"]),
    operator=st.sampled_from(["In", "NotIn", "Exists"]),
    values=st.lists(st.sampled_from(["n0", "n1", "n9"]), max_size=2).map(tuple),
)
TERMS = st.builds(
    NodeSelectorTerm,
    match_expressions=st.lists(EXPRESSIONS, max_size=2).map(tuple),
    match_fields=st.lists(FIELDS, max_size=1).map(tuple),
)
TAINTS = st.sampled_from([(), (GPU_TAINT,), (Taint(key="slow", effect="PreferNoSchedule"),)])
LABELS = st.dictionaries(st.sampled_from(["zone", "pool", "gpus"]), st.sampled_from("ab34"))
NODES = st.builds(
    lambda taints, ready, cordoned, labels: node(*taints, ready=ready, cordoned=cordoned, **labels),
    TAINTS,
    st.sampled_from(["True", "False"]),
    st.booleans(),
    LABELS,
)
TEMPLATES = st.builds(
    lambda tolerations, selector, terms: template(*tolerations, selector=selector, terms=terms),
    st.lists(
        st.sampled_from(
            [
                Toleration(key="nvidia.com/gpu", operator="Exists"),
                Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"),
            ]
        ),
        max_size=2,
    ),
    st.dictionaries(KEYS, st.sampled_from("ab"), max_size=1),
    st.none() | st.lists(TERMS, max_size=2).map(tuple),
)


@given(
    first=st.lists(NODES, max_size=6),
    later=st.lists(st.tuples(st.integers(0, 6), st.none() | NODES), max_size=6),
    templates=st.lists(TEMPLATES, min_size=1, max_size=3),
    few=st.sampled_from([0, 32]),
)
def test_all_nodes_at_once_are_judged_as_each_alone(
    first: list[Node], later: list[tuple[int, Node | None]], templates: list[Template], few: int
) -> None:
    """At first, and after changes that are read one by one, or (*few* is 0) all at once."""
    cache = Cache()
    filters = NodeFilters(cache)

    def check() -> None:
        for each in templates:
            judged = filters.rows(each)
            for name, info in cache.nodes.items():
                assert judged[cache.rows.row_of[name]] == may_run(each, info.record), name

    def put(number: int, found: Node | None) -> None:
        if found is None:
            cache.drop_node(f"n{number}")
        else:
            metadata = msgspec.structs.replace(found.metadata, name=f"n{number}")
            cache.put_node(READER.node(msgspec.structs.replace(found, metadata=metadata)))

    with patch.object(node_filters, "_FEW", few):
        for number, found in enumerate(first):
            put(number, found)
        check()
        for number, one in later:
            put(number, one)
            check()


@pytest.mark.parametrize(
    ("operator", "values"), [("In", ("abc.1",)), ("NotIn", ("abc.1",)), ("DoesNotExist", ())]
)
@pytest.mark.parametrize("label", [None, "abc.1", "other.2"])
def test_a_clique_that_no_label_says_is_no_label(
    operator: str, values: tuple[str, ...], label: str | None
) -> None:
    """kube-scheduler knows labels, and not what a plugin publishes about the machine."""
    at = Cluster()
    machine = replace(recorded_machine("dgx1-v100", node="n0"), clique="abc.1")
    at.add_node("n0", machine, labels={} if label is None else {CLIQUE: label})
    wanted = template(terms=(NodeSelectorTerm((Requirement(CLIQUE, operator, values),)),))
    cache = cached(at)
    record = cache.nodes["n0"].record
    assert NodeFilters(cache).rows(wanted).tolist() == [may_run(wanted, record)]
    holds = {"In": label == "abc.1", "NotIn": label != "abc.1", "DoesNotExist": label is None}
    assert may_run(wanted, record) is holds[operator]
