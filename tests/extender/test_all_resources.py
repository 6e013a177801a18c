"""Whatever a node's kubelet offers counts: EFA, hugepages, ephemeral storage, places for pods."""

from collections.abc import Callable, Iterable

import pytest

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.records import GangKey
from linkwise.extender.state.views import Explanation, ReasonCount, SearchView, WouldStartView
from linkwise.kube.objects import Condition, ContainerStatus, Pod, Quantity, Resources
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.place.nodes.bare_nodes import lose_topology
from tests.extender.show.explain.idle.activities import HOUR, idle, quiet, run, say

EFA = "vpc.amazonaws.com/efa"
HUGE = "hugepages-2Mi"
DISK = "ephemeral-storage"


def node(at: Cluster, name: str, *, pods: str = "110", **offers: str) -> str:
    """A node of 8 GPUs; *offers*: of EFA, HUGE and DISK."""
    made = at.add_node(name, "hgx-h100", pods=pods)
    allocatable = {**made.status.allocatable, **of(offers)}
    at.put_node(change(made, status=change(made.status, allocatable=allocatable)))
    return name


def asking(**needs: str) -> Callable[[Pod], Pod]:
    """The pod asks for that too."""

    def with_needs(pod: Pod) -> Pod:
        main, *others = pod.spec.containers
        limits, requests = main.resources.limits, main.resources.requests
        own = Resources(limits={**limits, **of(needs)}, requests={**requests, **of(needs)})
        containers = (change(main, resources=own), *others)
        return change(pod, spec=change(pod.spec, containers=containers))

    return with_needs


def of(words: dict[str, str]) -> dict[str, str]:
    by_word = {"efa": EFA, "huge": HUGE, "disk": DISK}
    return {by_word.get(word, word): amount for word, amount in words.items()}


def gang(at: Cluster, size: int, gpus: int, needs: dict[str, str], priority: int = 0) -> list[str]:
    return unequal_gang(at, [(gpus, needs)] * size, priority)


def unequal_gang(
    at: Cluster, members: Iterable[tuple[int, dict[str, str]]], priority: int = 0
) -> list[str]:
    members = list(members)
    for rank, (gpus, needs) in enumerate(members):
        said = {"gang": "g", "gang_size": str(len(members)), "rank": str(rank)}
        at.add_pod(f"g-{rank}", gpus, priority=priority, said=said, alter=asking(**needs))
    at.settle()
    return [f"g-{rank}" for rank in range(len(members))]


@pytest.mark.parametrize(
    ("offers", "needs"),
    [
        ({"efa": "4"}, {"efa": "4"}),
        ({"huge": "8Gi"}, {"huge": "5120Mi"}),
        ({"disk": "100Gi"}, {"disk": "60Gi"}),
        ({"efa": "32", "huge": "8Gi"}, {"efa": "1", "huge": "5120Mi"}),
    ],
)
def test_members_count_against_each_other(offers: dict[str, str], needs: dict[str, str]) -> None:
    at = Cluster()
    node(at, "n1", **offers)
    assert at.places(*gang(at, 2, 2, needs)) == ["", ""]
    node(at, "n2", **offers)
    at.settle()
    assert sorted(at.places("g-0", "g-1")) == ["n1", "n2"]
    assert at.sound()


@pytest.mark.parametrize("needs", [{"efa": "3"}, {"disk": "3"}])
def test_unequal_members_count_against_each_other(needs: dict[str, str]) -> None:
    at = Cluster()
    node(at, "n1", efa="4", disk="4")
    members = [(4, needs), (2, needs)]
    assert at.places(*unequal_gang(at, members)) == ["", ""]
    node(at, "n2", efa="4", disk="4")
    at.settle()
    assert sorted(at.places("g-0", "g-1")) == ["n1", "n2"]


def test_members_count_against_each_other_by_the_number_of_pods() -> None:
    at = Cluster()
    node(at, "n1", pods="1")
    assert at.places(*gang(at, 2, 2, {})) == ["", ""]
    node(at, "n2", pods="1")
    at.settle()
    assert sorted(at.places("g-0", "g-1")) == ["n1", "n2"]


def test_what_other_pods_have_does_not_come_again() -> None:
    at = Cluster()
    node(at, "n1", efa="8")
    node(at, "n2", efa="8")
    at.add_pod("without-gpus", node="n1", alter=asking(efa="6"))
    at.add_pod("with-gpus", 2, node="n1", alter=asking(efa="1"))  # so gangs prefer this node
    assert at.places(*gang(at, 1, 4, {"efa": "4"})) == ["n2"]
    assert at.sound()


def test_a_node_that_does_not_list_what_another_offers_has_none() -> None:
    at = Cluster()
    node(at, "n1")
    node(at, "n2", efa="0")
    assert at.places(*gang(at, 1, 4, {"efa": "1"})) == [""]
    node(at, "n3", efa="1")
    at.settle()
    assert at.places("g-0") == ["n3"]


def test_a_resize_that_never_fits_keeps_no_gang_off_its_node() -> None:
    at = Cluster()
    node(at, "n1")
    at.add_pod("runs", 1, node="n1", alter=asking(cpu="500"))
    gang(at, 2, 2, {"cpu": "2"})
    assert at.plan("g-0") is None
    pod = at.pod("runs")
    has: dict[str, Quantity] = {"cpu": "1"}
    said = ContainerStatus(name="main", allocated_resources=has, resources=Resources(requests=has))
    never = Condition(type="PodResizePending", status="True", reason="Infeasible")
    status = change(pod.status, container_statuses=(said,), conditions=(never,))
    at.put_pod(change(pod, status=status))
    at.settle()
    assert at.plan("g-0") is not None


def test_what_no_node_lists_is_left_to_kube_scheduler() -> None:
    at = Cluster()
    node(at, "n1")
    assert at.places(*gang(at, 1, 4, {"example.com/from-a-driver": "9"})) == ["n1"]


def test_a_single_pod_behind_the_gate_waits_for_what_it_needs() -> None:
    at = Cluster()
    node(at, "n1", efa="4")
    at.add_pod("busy", 1, node="n1", alter=asking(efa="2"))
    at.add_pod("a", 4, gates=[names.GATE], alter=asking(efa="4"))
    at.settle()
    assert at.plan("a") is None
    at.delete("busy")
    at.settle()
    assert at.places("a") == ["n1"]
    assert not at.gates("a")


def test_preemption_frees_what_is_scarce() -> None:
    at = Cluster(CoreSettings(preempt=Preempt.CONSENTING))
    node(at, "n1", efa="8")
    for name, efa in (("has-it", "8"), ("has-none", "0")):
        at.now += 1
        at.add_pod(name, 2, preemptible="true", alter=asking(efa=efa))
        assert at.schedule(name) == "n1"
    gang(at, 1, 4, {"efa": "4"}, priority=10)  # four GPUs are free
    assert at.evicted == ["has-it"]
    at.delete("has-it")
    at.settle()
    assert at.places("g-0") == ["n1"]


def test_a_reservation_waits_for_what_is_scarce() -> None:
    at = Cluster()
    node(at, "n1", efa="8")
    for name, efa, hours in (("has-it", "8", "2h"), ("has-none", "0", "1h")):
        at.add_pod(name, 2, expected_duration=hours, alter=asking(efa=efa))
        assert at.schedule(name) == "n1"
    gang(at, 1, 4, {"efa": "4"})
    held = at.core.reservations.of(GangKey("ml", "g"))
    assert held is not None
    assert {*held.gpus} == {"n1"}
    at.delete("has-none")
    at.settle()
    assert at.places("g-0") == [""]
    at.delete("has-it")
    at.settle()
    assert at.places("g-0") == ["n1"]


def test_a_member_that_comes_again_gets_its_place_only_with_all_that_it_needs() -> None:
    at = Cluster()
    node(at, "n1", efa="4")
    members = gang(at, 2, 2, {"efa": "2"})
    for member in members:
        assert at.schedule(member) == "n1"
    at.settle()
    at.delete("g-1")
    at.settle()
    at.add_pod("takes-it", node="n1", alter=asking(efa="1"))
    at.add_pod("g-1", 2, gang="g", gang_size="2", rank="1", alter=asking(efa="2"))
    at.settle()
    assert at.places("g-1") == [""]
    at.delete("takes-it")
    at.settle()
    assert at.places("g-1") == ["n1"]


def test_a_node_by_count_lets_through_only_what_it_has_room_for() -> None:
    at = Cluster()
    node(at, "bare", efa="4")
    lose_topology(at, "bare")
    at.add_pod("busy", node="bare", alter=asking(efa="2"))
    at.add_pod("a", 2, gates=[names.GATE], alter=asking(efa="4"))
    at.settle()
    assert at.gates("a") == [names.GATE]
    at.delete("busy")
    at.settle()
    assert not at.gates("a")


def explained(at: Cluster, name: str) -> tuple[Explanation, SearchView]:
    found = at.core.explain("ml", name, at.now)
    assert found is not None
    assert found.search is not None
    return found, found.search


def test_what_is_short_is_named_in_numbers() -> None:
    at = Cluster()
    node(at, "n3", efa="8", huge="8Gi")
    at.add_pod("busy", node="n3", alter=asking(efa="4", huge="4Gi"))
    at.add_pod("a", 4, alter=asking(efa="8", huge="5Gi"))
    found, search = explained(at, "a")
    assert search.nearest is not None
    assert (search.nearest.place, search.nearest.lacks) == (
        "n3",
        f"4 GiB of {HUGE} left, 5 GiB wanted; 4 of 8 {EFA} are free, 4 more are needed",
    )
    level = search.levels[-1]
    assert level.missing == (ReasonCount(f"too little {HUGE} and {EFA} left", 1),)
    wanted = f"1 CPU, 1 GiB of memory, 5 GiB of {HUGE}, 8 {EFA}"
    assert level.wanted == f"have {wanted} and a place for one more pod left"
    assert wanted in explanation_text.pod(found, at.now)


def test_one_more_is_said_as_one_and_what_no_node_lists_is_not_missing() -> None:
    at = Cluster()
    node(at, "n1", efa="3")
    at.add_pod("a", 4, alter=asking(efa="4", **{"example.com/from-a-driver": "9"}))
    found, search = explained(at, "a")
    assert search.nearest is not None
    assert search.nearest.lacks == f"3 of 3 {EFA} are free, 1 more is needed"
    assert "driver" not in search.levels[-1].wanted
    assert found.wanted is not None
    assert found.wanted.others == {EFA: 4, "example.com/from-a-driver": 9}


def test_the_runner_up_has_room_for_all_that_the_pod_has_now() -> None:
    at = Cluster()
    for name, efa in (("n1", "4"), ("n2", "2"), ("n3", "4")):
        node(at, name, efa=efa)
    at.add_pod("a", 8, alter=asking(efa="4"))
    assert at.schedule("a") == "n1"
    found = at.core.explain("ml", "a", at.now)
    assert found is not None
    assert found.runner_up is not None
    assert found.runner_up.nodes == ("n3",)


def test_a_gang_would_start_without_the_idle_pod_that_has_what_is_scarce() -> None:
    at = Cluster()
    node(at, "n1", efa="8")
    for name, efa in (("has-none", "0"), ("has-it", "8")):
        at.add_pod(name, 2, alter=asking(efa=efa))
        run(at, name)
    at.pass_time(3 * HOUR)
    say(at, "n1", has_none=quiet(), has_it=quiet(1))
    gang(at, 1, 4, {"efa": "4"})
    assert idle(at).would_start == (WouldStartView("gang ml/g", 4, ("pod ml/has-it",)),)
