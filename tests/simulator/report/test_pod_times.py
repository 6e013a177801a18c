"""What the recorder keeps of the moments at which its watch saw a pod."""

from linkwise.drawing.times import PodTimes
from linkwise.kube.objects import Pod, PodSpec, PodStatus
from linkwise.simulator.report.pod_recorder import times_of


def pod(phase: str, node: str = "n1") -> Pod:
    return Pod(spec=PodSpec(node_name=node), status=PodStatus(phase=phase))


def test_each_change_has_the_moment_at_which_it_was_first_seen() -> None:
    times = None
    for at, seen in (
        (1.0, pod("Pending", "")),
        (2.0, pod("Pending", "")),
        (3.0, pod("Pending")),
        (4.0, pod("Running")),
        (5.0, pod("Running")),
        (6.0, pod("Succeeded")),
        (7.0, pod("Succeeded")),
    ):
        times = times_of(seen, times, at)

    assert times == PodTimes(created=1.0, bound=3.0, running=4.0, ended=6.0)


def test_a_pod_that_failed_before_it_ran_has_no_moment_of_running() -> None:
    assert times_of(pod("Failed"), PodTimes(1.0, 2.0), 3.0) == (1.0, 2.0, None, 3.0)


def test_a_pod_seen_late_has_one_moment_for_all_that_was_missed() -> None:
    """A watch that was broken lists what is there; what was in between is not made up."""
    assert times_of(pod("Running"), None, 9.0) == (9.0, 9.0, 9.0, None)
    assert times_of(pod("Succeeded"), None, 9.0) == (9.0, 9.0, None, 9.0)


def test_a_pod_that_never_had_a_node_was_never_bound() -> None:
    assert times_of(pod("Failed", ""), PodTimes(1.0), 3.0) == (1.0, None, None, 3.0)
