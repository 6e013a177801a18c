"""What members of one gang demand of each other and of the pods around is part of their plan."""

from collections.abc import Callable

import pytest

from linkwise.kube.objects import (
    Affinity,
    Container,
    ContainerPort,
    LabelSelector,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
    TopologySpreadConstraint,
)
from linkwise.topology import names
from tests.extender.cluster import Cluster, change

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
RACK = "example.com/rack"  # no level that Linkwise keeps gangs together at
OURS = LabelSelector(match_labels={"app": "train"})


def world(nodes: int = 4, zones: int = 2) -> Cluster:
    at = Cluster()
    for number in range(nodes):
        at.add_node(f"n{number}", labels={ZONE: f"z{number % zones}"})
    return at


def apart(key: str) -> Affinity:
    term = PodAffinityTerm(topology_key=key, label_selector=OURS)
    required = PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    return Affinity(pod_anti_affinity=required)


def together(key: str) -> Affinity:
    term = PodAffinityTerm(topology_key=key, label_selector=OURS)
    return Affinity(
        pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    )


def with_affinity(affinity: Affinity | None) -> Callable[[Pod], Pod]:
    return lambda pod: change(pod, spec=change(pod.spec, affinity=affinity))


def with_port(pod: Pod) -> Pod:
    port = ContainerPort(host_port=29500)
    containers = tuple(change(each, ports=(port,)) for each in pod.spec.containers)
    return change(pod, spec=change(pod.spec, containers=containers))


def with_spread(key: str) -> Callable[[Pod], Pod]:
    constraint = TopologySpreadConstraint(
        max_skew=1, topology_key=key, when_unsatisfiable="DoNotSchedule", label_selector=OURS
    )
    return lambda pod: change(pod, spec=change(pod.spec, topology_spread_constraints=(constraint,)))


def add_gang(at: Cluster, size: int, gpus: int, alter: Callable[[Pod], Pod]) -> list[str]:
    """Each pod has a label of its own too, as those of an Indexed Job have."""
    members = [f"g-{rank}" for rank in range(size)]
    for rank, name in enumerate(members):

        def labelled(pod: Pod, index: str = str(rank)) -> Pod:
            labels = {"app": "train", "batch.kubernetes.io/job-completion-index": index}
            return alter(change(pod, metadata=change(pod.metadata, labels=labels)))

        said = {"gang": "g", "gang_size": str(size), "rank": str(rank)}
        at.add_pod(name, gpus, said=said, alter=labelled)
    at.settle()
    return members


@pytest.mark.parametrize("alter", [with_affinity(apart(HOST)), with_port])
def test_members_that_exclude_each_other_get_nodes_of_their_own(
    alter: Callable[[Pod], Pod],
) -> None:
    at = world()
    assert len(set(at.places(*add_gang(at, 4, 1, alter)))) == 4


@pytest.mark.parametrize("alter", [with_affinity(apart(HOST)), with_port])
def test_with_fewer_nodes_than_members_nothing_is_planned(alter: Callable[[Pod], Pod]) -> None:
    at = world(nodes=2)
    at.add_pod("full", 8, node="n0")
    members = add_gang(at, 2, 2, alter)
    assert at.places(*members) == ["", ""]
    at.delete("full")
    at.settle()
    assert sorted(at.places(*members)) == ["n0", "n1"]


def test_at_most_one_in_a_zone() -> None:
    at = world(nodes=6, zones=3)
    chosen = at.places(*add_gang(at, 3, 2, with_affinity(apart(ZONE))))
    assert len({int(node[1:]) % 3 for node in chosen}) == 3


def test_more_members_than_zones_do_not_fit() -> None:
    at = world(nodes=6, zones=2)
    assert at.places(*add_gang(at, 3, 2, with_affinity(apart(ZONE)))) == [""] * 3


@pytest.mark.parametrize(
    ("alter", "chosen"),
    [(lambda pod: pod, ["n1", "n2"]), (with_affinity(together(RACK)), ["n1", "n3"])],
    ids=["free", "together"],
)
def test_members_that_follow_each_other_share_a_rack(
    alter: Callable[[Pod], Pod], chosen: list[str]
) -> None:
    at = Cluster()
    for number in range(4):
        at.add_node(f"n{number}", labels={RACK: f"r{number % 2}"})
    at.add_pod("other", 4, node="n0")
    at.settle()
    assert sorted(at.places(*add_gang(at, 2, 8, alter))) == chosen


def test_members_are_spread_as_evenly_as_they_must() -> None:
    at = world(nodes=4, zones=2)
    chosen = at.places(*add_gang(at, 4, 2, with_spread(ZONE)))
    assert sorted(int(node[1:]) % 2 for node in chosen) == [0, 0, 1, 1]


def test_a_node_whose_port_is_taken_is_none_for_a_gang_nor_for_a_pod_behind_the_gate() -> None:
    at = world(nodes=2)
    at.add_pod("there", 0, containers=[Container(name="x")], node="n0", alter=with_port)
    assert at.places(*add_gang(at, 1, 2, with_port)) == ["n1"]
    at.add_pod("p", 2, gates=(names.GATE,), alter=with_port)
    at.settle()
    assert at.places("p") == [""]
    at.delete("there")
    at.pass_time(1)
    assert at.places("p") == ["n0"]


def test_pods_that_are_there_keep_a_gang_out_too() -> None:
    at = world(nodes=2)
    affinity = with_affinity(apart(HOST))
    at.add_pod("there", 0, containers=[Container(name="x")], node="n0", alter=affinity)
    assert set(at.places(*add_gang(at, 2, 2, lambda pod: pod))) == {"n1"}


def test_a_leader_and_workers_of_unequal_size_exclude_each_other() -> None:
    at = world(nodes=3)
    for rank, gpus in enumerate((1, 4, 4)):

        def labelled(pod: Pod) -> Pod:
            metadata = change(pod.metadata, labels={"app": "train"})
            return with_affinity(apart(HOST))(change(pod, metadata=metadata))

        said = {"gang": "g", "gang_size": "3", "rank": str(rank)}
        at.add_pod(f"g-{rank}", gpus, said=said, alter=labelled)
    at.settle()
    assert len(set(at.places("g-0", "g-1", "g-2"))) == 3


def bystander(at: Cluster, name: str, node: str, **labels: str) -> None:
    """A pod without GPUs."""
    at.add_pod(name, 0, containers=[Container(name="x")], node=node, alter=with_labels(**labels))


def with_labels(**labels: str) -> Callable[[Pod], Pod]:
    return lambda pod: change(pod, metadata=change(pod.metadata, labels=labels))


def selecting(affinity: Affinity, **labels: str) -> Affinity:
    """The same affinity, to pods with these labels."""
    found = {}
    for side in ("pod_affinity", "pod_anti_affinity"):
        if (had := getattr(affinity, side)) is not None:
            terms = had.required_during_scheduling_ignored_during_execution
            selector = LabelSelector(match_labels=labels)
            changed = tuple(change(term, label_selector=selector) for term in terms)
            found[side] = change(had, required_during_scheduling_ignored_during_execution=changed)
    return change(affinity, **found)


def test_a_pod_that_is_relabelled_keeps_a_gang_out_no_more() -> None:
    at = world(nodes=2)
    bystander(at, "noisy", "n0", app="noisy")
    members = add_gang(at, 2, 8, with_affinity(selecting(apart(HOST), app="noisy")))
    assert at.places(*members) == ["", ""]
    at.put_pod(with_labels(app="quiet")(at.pod("noisy")))
    at.pass_time(1)
    assert sorted(at.places(*members)) == ["n0", "n1"]


@pytest.mark.parametrize("how", ["relabelled", "created"])
def test_a_pod_that_a_gang_follows_may_come_later(how: str) -> None:
    at = world(nodes=4)
    bystander(at, "cache", "n0", app="something")
    members = add_gang(at, 2, 8, with_affinity(selecting(together(ZONE), app="cache")))
    assert at.places(*members) == ["", ""]
    told = at.core.explain("ml", members[0], at.now)
    assert told is not None
    assert "without other pods" not in told.summary
    if how == "relabelled":
        at.put_pod(with_labels(app="cache")(at.pod("cache")))
    else:
        bystander(at, "cache-2", "n0", app="cache")
    at.pass_time(1)
    assert sorted(at.places(*members)) == ["n0", "n2"]


def test_a_zone_that_fills_up_lets_a_gang_into_the_others() -> None:
    at = world(nodes=2, zones=2)
    at.add_pod("full", 8, node="n0")
    bystander(at, "there", "n1", app="train")
    (member,) = add_gang(at, 1, 8, with_spread(ZONE))
    assert at.places(member) == [""]
    bystander(at, "here", "n0", app="train")
    at.pass_time(1)
    assert at.places(member) == ["n1"]


def add_jobs(
    at: Cluster, jobs: str, gpus: int, affinity_of: Callable[[str], Affinity | None]
) -> None:
    """A gang with a member for each letter, which names its Job."""
    for rank, job in enumerate(jobs):
        alter, label = with_affinity(affinity_of(job)), with_labels(job=job)
        said = {"gang": "g", "gang_size": str(len(jobs)), "rank": str(rank)}

        def altered(
            pod: Pod,
            alter: Callable[[Pod], Pod] = alter,
            label: Callable[[Pod], Pod] = label,
        ) -> Pod:
            return alter(label(pod))

        at.add_pod(f"g-{rank}", gpus, said=said, alter=altered)
    at.settle()


def zones_of(at: Cluster, jobs: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for node, job in zip(at.places(*(f"g-{rank}" for rank in range(len(jobs)))), jobs, strict=True):
        assert node
        found.setdefault(job, set()).add(int(node[1:]) % 2)
    return found


def test_each_job_of_a_gang_keeps_to_a_zone_of_its_own() -> None:
    at = world(nodes=4, zones=2)
    add_jobs(at, "ppqq", 8, lambda job: selecting(together(ZONE), job=job))
    assert sorted(map(list, zones_of(at, "ppqq").values())) == [[0], [1]]


def test_a_part_of_a_gang_that_shares_a_node_leaves_the_rest_free() -> None:
    at = world(nodes=2)
    add_jobs(at, "ppqq", 4, lambda job: selecting(together(HOST), job=job) if job == "p" else None)
    assert len(zones_of(at, "ppqq")["p"]) == 1


def exclusive(job: str) -> Affinity:
    """As JobSet makes the pods of a Job that has a zone for itself."""
    one = selecting(together(ZONE), job=job)
    selector = LabelSelector(
        match_expressions=(
            Requirement("job", "Exists"),
            Requirement("job", "NotIn", (job,)),
        )
    )
    term = PodAffinityTerm(
        topology_key=ZONE, label_selector=selector, namespace_selector=LabelSelector()
    )
    required = PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    return change(one, pod_anti_affinity=required)


@pytest.mark.parametrize("jobs", ["pq", "ppqq", "pppq"])
def test_jobs_that_have_a_zone_each_for_themselves_start_as_one_gang(jobs: str) -> None:
    at = world(nodes=6, zones=2)
    add_jobs(at, jobs, 8, exclusive)
    assert sorted(map(list, zones_of(at, jobs).values())) == [[0], [1]]


def test_a_pod_with_very_many_ports_is_left_to_kube_scheduler() -> None:
    def with_ports(pod: Pod) -> Pod:
        many = tuple(ContainerPort(host_port=port) for port in range(1, 1500))
        containers = tuple(change(each, ports=many) for each in pod.spec.containers)
        return change(pod, spec=change(pod.spec, containers=containers))

    at = world(nodes=1)
    assert at.places(*add_gang(at, 2, 2, with_ports)) == ["n0", "n0"]


@pytest.mark.parametrize(("values", "nodes"), [(20, {"n0", "n1"}), (40, {"n0"})])
def test_a_pod_whose_terms_compare_very_much_is_left_to_kube_scheduler(
    values: int, nodes: set[str]
) -> None:
    apps = ("train", *(f"app-{number}" for number in range(1, values)))
    selector = LabelSelector(match_expressions=(Requirement("app", "In", apps),))
    term = PodAffinityTerm(topology_key=HOST, label_selector=selector)
    required = PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    at = world(nodes=2)
    members = add_gang(at, 2, 2, with_affinity(Affinity(pod_anti_affinity=required)))
    assert set(at.places(*members)) == nodes


def test_a_gang_with_very_many_rules_is_left_to_kube_scheduler() -> None:
    at = world(nodes=1)
    for rank in range(3):
        ports = tuple(ContainerPort(host_port=30 * rank + port) for port in range(1, 31))

        def with_ports(pod: Pod, ports: tuple[ContainerPort, ...] = ports) -> Pod:
            same = (*ports[1:], ContainerPort(host_port=29500))
            containers = tuple(change(each, ports=same) for each in pod.spec.containers)
            return change(pod, spec=change(pod.spec, containers=containers))

        said = {"gang": "g", "gang_size": "3", "rank": str(rank)}
        at.add_pod(f"g-{rank}", 2, said=said, alter=with_ports)
    at.settle()
    assert at.places("g-0", "g-1", "g-2") == ["n0"] * 3
