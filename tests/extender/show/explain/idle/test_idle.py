"""Which pods hold GPUs and do nothing, and which gangs and pods would start if they went."""

import pytest

from linkwise.extender.show.explain.idle.idle_pods import view_idle
from linkwise.extender.state.views import IdlePod, IdleView, WouldStartView
from linkwise.kube.objects import Taint
from linkwise.topology import names
from linkwise.topology.annotations.activity import STALE_SECONDS, PodActivity
from tests.extender import claimed
from tests.extender.cluster import START, Cluster
from tests.extender.show.explain.idle.activities import BEGAN, HOUR, idle, quiet, run, say


def works() -> PodActivity:
    return PodActivity(since=BEGAN, whole=True, day=100)


def full_of_notebooks() -> Cluster:
    """A DGX-1 with 8 GPUs: three pods of 2 GPUs and two of one; three hours later."""
    at = Cluster()
    at.add_node("n1", "dgx1-v100")
    for name, gpus in (("a", 2), ("b", 2), ("c", 2), ("d", 1), ("e", 1)):
        at.add_pod(name, gpus)
        run(at, name)
    at.pass_time(3 * HOUR)
    return at


def test_an_idle_pod_is_shown_with_what_it_holds_and_since_when() -> None:
    at = full_of_notebooks()
    say(at, "n1", a=quiet(1, day=5, memory=12), b=works(), c=works(), d=quiet())
    assert idle(at) == IdleView(
        at=at.now,
        pods=(
            IdlePod("ml/d", "", False, "n1", 1, START, False, None, None),
            IdlePod("ml/a", "", False, "n1", 2, START + HOUR, False, 5, 12),
        ),
        not_idle=2,
        unknown=1,
        waiting=0,
        untried=0,
        would_start=(),
    )


def test_a_pod_with_gpus_from_a_claim_is_shown_too() -> None:
    at = Cluster()
    claimed.add_node(at, "n1")
    claimed.add_pod(at, "a", "n1", 2, 3)
    at.pass_time(HOUR)
    say(at, "n1", a=quiet())
    (pod,) = idle(at).pods
    assert (pod.pod, pod.gpus, pod.reclaim_from) == ("ml/a", 2, None)


def test_what_was_missed_makes_the_time_a_lower_bound() -> None:
    """A plugin that started again knows nothing of the time before."""
    at = full_of_notebooks()
    missed = PodActivity(since=BEGAN + HOUR, idle=BEGAN + HOUR)
    worked_since = PodActivity(since=BEGAN + HOUR, idle=BEGAN + 2 * HOUR)
    say(at, "n1", a=missed, b=worked_since, c=quiet())
    found = {pod.pod: (pod.since - START, pod.at_least) for pod in idle(at).pods}
    assert found == {
        "ml/a": (HOUR, True),
        "ml/b": (2 * HOUR, False),
        "ml/c": (0, False),
    }


def test_a_pod_that_was_created_again_is_not_idle_for_longer_than_it_exists() -> None:
    at = full_of_notebooks()
    say(at, "n1", a=quiet())
    at.delete("a")
    at.add_pod("a", 2, node="n1")
    (pod,) = idle(at).pods
    assert pod.since == at.now


@pytest.mark.parametrize("text", [None, "", "{}", '{"v":2}', '{"at":1,"pods":[]}'])
def test_without_a_readable_annotation_nothing_is_known_and_the_node_is_used_as_before(
    text: str | None,
) -> None:
    at = full_of_notebooks()
    at.annotate_node("n1", names.ACTIVITY, text)
    found = idle(at)
    assert (found.pods, found.not_idle, found.unknown) == ((), 0, 5)
    at.delete("a")
    at.stop("a", "n1")
    at.add_pod("next", 2)
    assert at.schedule("next") == "n1"


def test_an_annotation_that_is_not_renewed_makes_no_pod_idle() -> None:
    """Its plugin may be gone. Of pods that are not idle it renews nothing."""
    at = full_of_notebooks()
    say(at, "n1", a=quiet(), b=works())
    at.pass_time(STALE_SECONDS)
    assert [pod.pod for pod in idle(at).pods] == ["ml/a"]
    at.pass_time(1)
    found = idle(at)
    assert (found.pods, found.not_idle, found.unknown) == ((), 1, 4)


def test_a_node_that_is_gone_takes_its_idle_pods_along() -> None:
    at = full_of_notebooks()
    say(at, "n1", a=quiet())
    at.remove_node("n1")
    assert idle(at).pods == ()


def test_what_pods_do_changes_no_decision() -> None:
    """The extender decides nothing by it, and does not even look again."""
    at = full_of_notebooks()
    at.add_gang("g", 1, 4)
    at.settle()
    settled = at.core.snapshot(at.now).node_named["n1"]
    say(at, "n1", a=quiet(), b=quiet())
    assert at.settle() == []
    assert at.core.snapshot(at.now).node_named["n1"] is settled


def test_a_gang_would_start_without_the_pods_that_were_idle_for_longest() -> None:
    at = full_of_notebooks()
    at.add_gang("train", 2, 2)
    say(at, "n1", a=quiet(1), b=quiet(2), c=quiet(0), d=works())
    found = idle(at)
    assert found.waiting == 1
    assert found.would_start == (WouldStartView("gang ml/train", 4, ("pod ml/c", "pod ml/a")),)


def test_each_waiting_gang_and_pod_is_tried_by_itself_in_the_order_of_the_queue() -> None:
    at = full_of_notebooks()
    at.add_pod("small", 1)
    at.add_pod("urgent", 1, priority=5)
    at.add_pod("nowhere", 9)
    say(at, "n1", a=quiet(), d=quiet(1))
    found = idle(at)
    assert found.waiting == 3
    assert found.would_start == (
        WouldStartView("pod ml/urgent", 1, ("pod ml/a",)),
        WouldStartView("pod ml/small", 1, ("pod ml/a",)),
    )


def test_what_could_start_already_needs_no_idle_pod_to_go() -> None:
    at = full_of_notebooks()
    at.add_node("n2", "dgx1-v100")
    at.add_pod("new", 2)
    say(at, "n1", a=quiet())
    found = view_idle(at.core.snapshot(at.now))
    assert (found.waiting, found.would_start) == (1, ())


def test_a_node_that_the_waiting_pod_may_not_use_gets_no_better_for_it() -> None:
    at = full_of_notebooks()
    say(at, "n1", a=quiet())
    at.cordon("n1", Taint(key="dedicated", value="x", effect="NoSchedule"))
    at.add_pod("new", 2)
    found = idle(at)
    assert (len(found.pods), found.waiting, found.would_start) == (1, 1, ())


def test_cpu_that_the_idle_pod_does_not_give_back_is_missing() -> None:
    at = Cluster()
    at.add_node("n1", "dgx1-v100", cpu="10")
    at.add_pod("nb", 8, cpu="2")
    run(at, "nb")
    at.add_pod("other", 0, cpu="5", node="n1")
    at.add_pod("fits", 8, cpu="5")
    at.add_pod("too-much", 8, cpu="6")
    say(at, "n1", nb=quiet())
    assert [each.who for each in idle(at).would_start] == ["pod ml/fits"]


def test_a_gang_goes_as_a_whole_or_not_at_all() -> None:
    at = Cluster()
    at.add_node("n1", "dgx1-v100")
    at.add_node("n2", "dgx1-v100")
    run_gang = at.add_gang("lazy", 2, 8)
    at.settle()
    run(at, *run_gang)
    at.add_pod("new", 8)
    node = at.pod("lazy-0").spec.node_name
    other = at.pod("lazy-1").spec.node_name
    say(at, node, lazy_0=quiet())
    say(at, other, lazy_1=works())
    found = idle(at)
    assert [(pod.pod, pod.gang, pod.gang_works) for pod in found.pods] == [
        ("ml/lazy-0", "lazy", True)
    ]
    assert found.would_start == ()
    say(at, other, lazy_1=quiet())
    found = idle(at)
    assert [(pod.pod, pod.gang_works) for pod in found.pods] == [
        ("ml/lazy-0", False),
        ("ml/lazy-1", False),
    ]
    assert found.would_start == (WouldStartView("pod ml/new", 8, ("gang ml/lazy",)),)


def test_gpus_that_another_gang_will_get_start_nobody_else() -> None:
    """The GPUs of the idle pod are reserved for the gang, which waits for the other pod too."""
    at = Cluster()
    at.add_node("n1", "dgx1-v100")
    for name in ("nb", "job"):
        at.add_pod(name, 4, expected_duration="4h")
        run(at, name)
    at.add_gang("first", 1, 8)
    at.pass_time(60)
    at.add_pod("behind", 4)
    say(at, "n1", nb=quiet(), job=works())
    found = idle(at)
    assert (found.waiting, found.would_start) == (2, ())


def test_of_a_long_queue_of_different_pods_only_the_first_are_tried() -> None:
    at = full_of_notebooks()
    for number in range(20):
        at.add_pod(f"w{number}", 1, cpu=f"{100 + number}m")
        at.add_pod(f"v{number}", 1, cpu=f"{100 + number}m")
    say(at, "n1", a=quiet())
    found = idle(at)
    assert (found.waiting, len(found.would_start), found.untried) == (40, 16, 24)
