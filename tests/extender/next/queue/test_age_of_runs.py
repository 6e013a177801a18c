"""A gang that was evicted keeps its age for its next start, and no longer."""

from tests.extender.cluster import Cluster


def test_a_later_run_of_an_evicted_gang_is_as_old_as_its_own_pods() -> None:
    """Found: a gang that was evicted once passed all others for as long as its name came again."""
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    for name, priority, preemptible in (("nightly", 0, "true"), ("urgent", 1000, "false")):
        add_run(at, name, priority=priority, preemptible=preemptible)
        at.pass_time(2)
    assert at.evicted == ["nightly-0", "nightly-1"]
    end_run(at, "nightly")
    run(at, "urgent")
    add_run(at, "nightly", preemptible="true")
    at.pass_time(600)
    end_run(at, "urgent")
    at.pass_time(2)
    run(at, "nightly")
    at.pass_time(600)
    add_run(at, "first")
    at.pass_time(300)
    at.cordon("n1")
    end_run(at, "nightly")
    add_run(at, "nightly", preemptible="true")
    at.uncordon("n1")
    at.settle()
    assert at.places("first-0", "nightly-0") == ["n1", ""]


def add_run(at: Cluster, gang: str, *, priority: int = 0, **said: str) -> None:
    for rank in range(2):
        words = {"gang": gang, "gang-size": "2", "rank": str(rank), **said}
        at.add_pod(f"{gang}-{rank}", 4, priority=priority, said=words)
    at.settle()
    if gang == "nightly" and at.places("nightly-0") == ["n1"]:
        run(at, gang)


def run(at: Cluster, gang: str) -> None:
    for rank in range(2):
        assert at.schedule(f"{gang}-{rank}") == "n1"
        at.settle()
        at.start(f"{gang}-{rank}")
    at.settle()


def end_run(at: Cluster, gang: str) -> None:
    for rank in range(2):
        at.delete(f"{gang}-{rank}")
        at.stop(f"{gang}-{rank}", "n1")
    at.settle()
