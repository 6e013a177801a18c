"""kube-scheduler asks before the watch has shown the object it asks about: no pod pays for that."""

import pytest

from linkwise.extender.next.queue.unschedulable_pods import MOMENT_SECONDS, UNSEEN_SECONDS
from linkwise.extender.place.nodes.scheduler_feedback import FIRST_PAUSE_SECONDS, LEAST_SAMPLE
from linkwise.extender.state.actions import Nominate
from linkwise.extender.state.cache.pending_writes import NOMINATE_SECONDS, SETTLE_SECONDS
from linkwise.extender.state.extender_calls import FilterCall
from linkwise.kube.objects import Condition, PodStatus, Taint
from linkwise.topology import names
from tests.extender.cluster import Cluster, change

NOMINATED = PodStatus(nominated_node_name="n1")
TAINT = Taint(key="other", effect="NoSchedule")


def full_cluster() -> Cluster:
    """Two nodes whose GPUs are all in use."""
    at = Cluster()
    for node, pod in (("n1", "a"), ("n2", "b")):
        at.add_node(node, "hgx-h100")
        at.add_pod(pod, 8)
        assert at.schedule(pod) == node
        at.start(pod)
    at.settle()
    return at


def end(at: Cluster, pod: str, node: str) -> None:
    at.delete(pod)
    at.stop(pod, node)


def after_a_moment(at: Cluster) -> list[Nominate]:
    at.settle()
    actions = at.pass_time(MOMENT_SECONDS)
    return [action for action in actions if isinstance(action, Nominate)]


def nominated(at: Cluster, *pods: str) -> dict[str, str]:
    return {pod: at.pod(pod).status.nominated_node_name for pod in pods}


def test_who_was_turned_away_too_early_is_nominated_where_room_appeared() -> None:
    at = full_cluster()
    at.add_pod("late", 4)
    assert at.schedule("late") == ""
    end(at, "b", "n2")
    assert at.settle() == []  # kube-scheduler mostly comes by itself
    assert len(after_a_moment(at)) == 1
    assert nominated(at, "late") == {"late": "n2"}
    assert at.schedule("late") == "n2"
    assert at.pass_time(10 * SETTLE_SECONDS) == []


def test_who_was_turned_away_before_our_watch_showed_him_is_nominated_too() -> None:
    at = full_cluster()
    end(at, "b", "n2")
    at.settle()
    pod = at.add_pod("late", 8)
    at.core.pod_event("DELETED", pod, at.now)  # as if it had not come yet
    at.add_pod("faster", 8)
    assert at.schedule("faster") == "n2"
    assert not at.core.filter(FilterCall(pod, ("n1", "n2")), at.now).node_names
    end(at, "faster", "n2")
    assert after_a_moment(at) == []

    at.core.pod_event("ADDED", pod, at.now)
    assert [action.node for action in after_a_moment(at)] == ["n2"]


def test_who_never_shows_up_is_forgotten() -> None:
    at = full_cluster()
    pod = at.add_pod("gone", 8)
    at.core.pod_event("DELETED", pod, at.now)
    assert not at.core.filter(FilterCall(pod, ("n1", "n2")), at.now).node_names
    end(at, "b", "n2")
    after_a_moment(at)
    assert at.core.next_due() is not None
    at.pass_time(UNSEEN_SECONDS)
    assert at.core.next_due() is None


def test_who_came_by_himself_is_left_alone() -> None:
    at = full_cluster()
    at.add_pod("late", 4)
    assert at.schedule("late") == ""
    end(at, "b", "n2")
    assert at.schedule("late") == "n2"
    assert after_a_moment(at) == []


def test_without_new_room_nobody_is_disturbed() -> None:
    at = full_cluster()
    at.add_pod("late", 4)
    assert at.schedule("late") == ""
    assert at.pass_time(10 * SETTLE_SECONDS) == []


def test_only_those_that_have_room_now_and_may_go_there_are_nominated() -> None:
    at = full_cluster()
    at.add_pod("small", 1)
    at.add_pod("large", 16)
    at.add_pod("gone", 1)
    for pod in ("small", "large", "gone"):
        assert at.schedule(pod) == ""
    at.delete("gone")
    at.cordon("n1", TAINT)
    end(at, "a", "n1")
    after_a_moment(at)
    assert nominated(at, "small", "large") == {"small": "", "large": ""}
    end(at, "b", "n2")
    after_a_moment(at)
    assert nominated(at, "small", "large") == {"small": "n2", "large": ""}


def test_a_gpu_that_many_wait_for_wakes_a_few_of_them_at_a_time() -> None:
    at = full_cluster()
    pods = [f"late-{number}" for number in range(40)]
    for pod in pods:
        at.add_pod(pod, 1)
        assert at.schedule(pod) == ""
    end(at, "b", "n2")
    woken = [len(after_a_moment(at)) for _ in range(3)]
    assert woken == [32, 8, 0]


def test_who_loses_the_race_for_the_gpus_waits_for_the_next_room() -> None:
    at = full_cluster()
    at.add_pod("late", 4)
    assert at.schedule("late") == ""
    end(at, "b", "n2")
    after_a_moment(at)
    at.add_pod("quick", 8)
    assert at.schedule("quick") == "n2"
    at.start("quick")
    assert at.schedule("late") == ""
    at.nominate("late", "")  # as kube-scheduler does when it finds no node
    at.settle()
    end(at, "quick", "n2")
    # It was nominated just now; that is not done over and over.
    assert after_a_moment(at) == []
    (action,) = at.pass_time(NOMINATE_SECONDS)
    assert isinstance(action, Nominate)
    assert action.node == "n2"


def test_who_was_planned_once_and_lost_his_nomination_is_woken_too() -> None:
    """The plan that is still written on the pod counts for nothing."""
    at = full_cluster()
    end(at, "b", "n2")
    at.add_pod("late", 4, gates=[names.GATE])
    at.settle()
    assert at.gates("late") == []
    at.nominate("late", "")
    at.settle()
    at.add_pod("quick", 8)
    assert at.schedule("quick") == "n2"
    at.start("quick")
    assert at.plan("late") is not None
    assert at.schedule("late") == ""
    at.settle()
    end(at, "quick", "n2")
    assert after_a_moment(at) == []
    assert at.plan("late") is None
    assert len(after_a_moment(at)) == 1
    assert nominated(at, "late") == {"late": "n2"}
    assert at.schedule("late") == "n2"
    assert at.sound()


def test_a_plan_that_kube_scheduler_refused_does_not_come_back_with_a_nomination() -> None:
    """It would reserve GPUs for a pod that waits for something else than GPUs."""
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("p", 8, gates=[names.GATE])
    at.settle()
    assert at.plan("p") is not None
    told = Condition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available: closed.")
    at.put_pod(change(at.pod("p"), status=PodStatus(conditions=(told,))))
    assert after_a_moment(at) == []
    assert len(after_a_moment(at)) == 1
    at.settle()
    assert nominated(at, "p") == {"p": "n1"}
    assert at.plan("p") is None
    at.add_pod("other", 8)
    assert at.schedule("other") == "n1"


def test_a_node_that_kube_scheduler_makes_room_on_stays_the_pods_own() -> None:
    at = full_cluster()
    at.add_pod("important", 8, priority=10)
    assert at.schedule("important") == ""
    at.nominate("important", "n1")  # what it preempts there is still ending
    end(at, "b", "n2")
    assert after_a_moment(at) == []
    assert nominated(at, "important") == {"important": "n1"}
    at.nominate("important", "")  # it failed there for another reason
    assert at.filter("important", ["n1"]).node_names == ()
    at.add_pod("short", 1)
    at.schedule("short")
    end(at, "short", "n2")
    assert len(after_a_moment(at)) == 1
    assert nominated(at, "important") == {"important": "n2"}


@pytest.mark.parametrize("gpus", [1, 8])
def test_who_waits_beside_a_stuck_victim_is_nominated_where_there_is_room(gpus: int) -> None:
    """kube-scheduler evicted for it on one node, and the victim never goes; then another node has
    room, and the call about that was lost."""
    at = Cluster()
    for node in ("n1", "n2"):
        at.add_node(node)
        at.add_pod(f"first-{node}", 8)
        at.bind(f"first-{node}", node)
        at.start(f"first-{node}")
    pod = at.add_pod("urgent", gpus, priority=1)
    why = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    told = Condition("PodScheduled", "False", "Unschedulable", why)
    at.put_pod(change(pod, status=change(pod.status, conditions=(told,))))
    at.nominate("urgent", "n1")
    at.terminate("first-n1")
    at.settle()
    at.pass_time(600)
    at.delete("first-n2")
    at.stop("first-n2", "n2")
    for _ in range(10):
        at.pass_time(6)
    assert at.pod("urgent").status.nominated_node_name == "n2"


def test_a_node_that_can_be_read_again_is_room() -> None:
    at = full_cluster()
    end(at, "b", "n2")
    at.settle()
    for key in (names.TOPOLOGY, names.IN_USE):
        was = at.nodes["n2"].metadata.annotations[key]
        pod, gang = f"late-{key[13:]}", f"gang-{key[13:]}"
        at.annotate_node("n2", key, "nonsense")
        at.add_pod(pod, 1)
        assert at.schedule(pod) == ""
        at.add_gang(gang, 1, 1)
        at.settle()
        assert at.plan(f"{gang}-0") is None
        at.annotate_node("n2", key, was)
        after_a_moment(at)
        assert nominated(at, pod, f"{gang}-0") == {pod: "n2", f"{gang}-0": "n2"}


# kube-scheduler asks about a sample of the nodes of a large cluster.


def sampled_cluster() -> tuple[Cluster, list[str]]:
    """An idle H100 node that pod p wants, and a sample without it, on which p was refused."""
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    sample = [f"other-{number}" for number in range(LEAST_SAMPLE)]
    for name in sample:
        at.add_node(name, "p100-pcie-8")
    at.add_pod("p", 4, gpu_model="H100")
    at.settle()
    assert at.filter("p", sample).node_names == ()
    return at, sample


def test_who_was_turned_away_on_a_sample_is_nominated_for_the_node_beside_it() -> None:
    at, _ = sampled_cluster()
    assert at.core.next_due() == at.now + MOMENT_SECONDS
    assert len(after_a_moment(at)) == 1
    assert at.schedule("p") == "n1"


def test_who_was_turned_away_on_a_sample_and_has_no_node_beside_it_is_left_alone() -> None:
    at, sample = sampled_cluster()
    at.cordon("n1")
    at.settle()
    at.filter("p", sample)
    for _ in range(20):
        assert at.pass_time(60) == []
    assert at.core.next_due() is None


def test_a_node_that_kube_scheduler_refuses_for_other_reasons_is_tried_ever_more_seldom() -> None:
    at, sample = sampled_cluster()
    nominations = 0
    for _ in range(1200):
        nominations += len([a for a in at.pass_time(1) if isinstance(a, Nominate)])
        if at.pod("p").status.nominated_node_name:
            at.nominate("p", "")  # as kube-scheduler does when it finds no node
            at.core.filter(FilterCall(change(at.pod("p"), status=NOMINATED), tuple(sample)), at.now)
    assert 4 <= nominations <= 20


def test_the_next_node_is_tried_where_kube_scheduler_refuses_the_best_one() -> None:
    at, sample = sampled_cluster()
    at.add_node("n2", "hgx-h100")
    for _ in range(int(FIRST_PAUSE_SECONDS)):
        at.pass_time(1)
        nominated = at.pod("p").status.nominated_node_name
        if nominated == "n2":
            break
        if nominated:
            at.filter("p", sample)  # n1 refuses, and n2 is beside the sample
            at.nominate("p", "")
    assert at.schedule("p") == "n2"


def test_a_pod_that_is_nominated_and_not_tried_there_is_nominated_again() -> None:
    """The call about that node was lost, and the one about a preemption: kube-scheduler leaves the
    nomination as it is, and nothing wakes the pod."""
    at, _ = sampled_cluster()
    assert len(after_a_moment(at)) == 1
    at.pass_time(NOMINATE_SECONDS)  # removed first: an unchanged one wakes no pod
    assert len([a for a in at.pass_time(MOMENT_SECONDS) if isinstance(a, Nominate)]) == 1
    assert at.schedule("p") == "n1"


def test_while_every_call_is_lost_nominations_come_ever_more_seldom() -> None:
    """kube-scheduler removes each, which wakes all pods that wait: hundreds of calls a minute."""
    at, sample = sampled_cluster()
    assert len(after_a_moment(at)) == 1

    def nominations(seconds: int) -> int:
        made = 0
        for _ in range(seconds):
            at.nominate("p", "")
            made += sum(isinstance(action, Nominate) for action in at.pass_time(1.0))
        return made

    assert 3 <= nominations(120) <= 8
    assert at.filter("p", sample).node_names == ()  # a call that is not lost
    assert nominations(8) == 2
