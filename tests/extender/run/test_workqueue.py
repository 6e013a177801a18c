"""Writes of one pod keep their order; those of others do not wait for them, nor do namespaces."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock

from linkwise.extender.run.workqueue import Lanes


class Recorder:
    """Jobs are (pod, number); the ones in `held` wait until they are let go."""

    def __init__(self, *held: tuple[str, int]) -> None:
        self.done: list[tuple[str, int]] = []
        self._held = {job: Event() for job in held}
        self.waits = Event()  # one of them has begun
        self._lock = Lock()

    def __call__(self, job: tuple[str, int]) -> None:
        if job in self._held:
            self.waits.set()
            assert self._held[job].wait(60)
        with self._lock:
            self.done.append(job)

    def let_go(self, job: tuple[str, int]) -> None:
        self._held[job].set()

    def let_all_go(self) -> None:
        for job in self._held:
            self.let_go(job)


@contextmanager
def lanes_of(run: Recorder, *, threads: int) -> Iterator[Lanes[tuple[str, int]]]:
    """The pods `ml/a` and `a` are in the namespaces `ml` and none."""
    lanes = Lanes(run, namespace=lambda job: job[0].rpartition("/")[0], threads=threads)
    try:
        yield lanes
    finally:
        run.let_all_go()
        lanes.stop(1)


def test_one_pods_writes_keep_their_order_with_many_threads() -> None:
    run = Recorder()
    with lanes_of(run, threads=8) as lanes:
        for number in range(50):
            for pod in "ab":
                lanes.add(pod, (pod, number))

        assert lanes.wait_until_idle(5)

        assert [job for job in run.done if job[0] == "a"] == [("a", n) for n in range(50)]
        assert [job for job in run.done if job[0] == "b"] == [("b", n) for n in range(50)]


def test_a_write_that_hangs_stops_only_its_own_pod() -> None:
    run = Recorder(("a", 0))
    with lanes_of(run, threads=2) as lanes:
        lanes.add("a", ("a", 0))
        lanes.add("a", ("a", 1))
        lanes.add("b", ("b", 0))

        assert not lanes.wait_until_idle(0.2)
        assert run.done == [("b", 0)]

        run.let_go(("a", 0))
        assert lanes.wait_until_idle(5)
        assert run.done == [("b", 0), ("a", 0), ("a", 1)]


def test_a_write_that_is_under_way_is_not_begun_again() -> None:
    run = Recorder(("a", 0))
    with lanes_of(run, threads=2) as lanes:
        assert lanes.add("a", ("a", 0))
        assert not lanes.add("a", ("a", 0))

        run.let_go(("a", 0))
        assert lanes.wait_until_idle(5)
        assert run.done == [("a", 0)]
        assert lanes.add("a", ("a", 0)), "once done, the same may be needed again"


def test_a_namespace_with_thousands_of_writes_delays_that_of_another_by_one() -> None:
    run = Recorder(("many/0", 0))
    with lanes_of(run, threads=1) as lanes:
        for number in range(3000):
            lanes.add(f"many/{number}", (f"many/{number}", 0))
            assert run.waits.wait(60)
        for number in range(2):
            lanes.add("few/a", ("few/a", number))

        run.let_go(("many/0", 0))
        assert lanes.wait_until_idle(60)

        assert [run.done.index(("few/a", number)) for number in range(2)] == [2, 4]
        assert len(run.done) == 3002
