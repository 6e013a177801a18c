"""Which process holds the Lease, from when and until when, on the stand-in API server.

Each elector has its own clock, which stands still until a test moves it, so nothing depends on the
machine's speed. The tests only wait for things to happen.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
from typing import Any, Protocol

import pytest

from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.kube.lease import Elector, Timing
from linkwise.simulator.api_server import ApiServer

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/extender"
OFTEN = Timing(lease_seconds=15, renew_deadline_seconds=10, retry_seconds=0.01)


def wait_for(predicate: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not predicate():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


class ProcessClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Candidate:
    """One process in the election."""

    def __init__(self, server: ApiServer, name: str, predecessors: str = "") -> None:
        self.clock, self.lost = ProcessClock(), list[str]()
        self.rounds = self.silences = self.failures = 0
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        self.elector = Elector(
            self.client,
            namespace="kube-system",
            name="extender",
            identity=name,
            timing=OFTEN,
            predecessors=predecessors,
            on_lost=self.lost.append,
            on_silence=self._hear_silence,
            clock=self.clock,
        )
        whole_round = self.elector._round

        def counted() -> None:
            try:
                whole_round()
            finally:
                self.rounds += 1

        setattr(self.elector, "_round", counted)  # noqa: B010

    def _hear_silence(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ApiError(0, "Unreachable", "a test says so")
        self.silences += 1

    def start(self) -> "Candidate":
        self.elector.start()
        return self

    @property
    def acts(self) -> bool:
        return self.elector.act_seconds() > 0

    def look(self) -> None:
        """Run one round from its first step to its last."""
        before = self.rounds
        wait_for(lambda: self.rounds >= before + 2)

    def stop(self, *, release: bool = False) -> None:
        if release:  # `stop` waits so long for a round under way
            self.elector.timing = replace(OFTEN, retry_seconds=10)
        self.elector.stop(release=release)


@pytest.fixture(autouse=True)
def deployed(client: KubeClient) -> None:
    """The manifests bring a Lease without content."""
    client.post(LEASE.rpartition("/")[0], {"metadata": {"name": "extender"}})


@pytest.fixture
def join(server: ApiServer) -> Iterator["Join"]:
    joined: list[Candidate] = []

    def one(name: str, predecessors: str = "") -> Candidate:
        joined.append(Candidate(server, name, predecessors))
        return joined[-1]

    yield one
    for each in joined:
        each.stop()


class Join(Protocol):
    def __call__(self, name: str, predecessors: str = "") -> Candidate: ...


def spec(client: KubeClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get(LEASE, dict[str, Any])["spec"]
    return found


def test_a_lease_that_stays_absent_is_created(client: KubeClient, join: Join) -> None:
    """Not at once: `kubectl apply` fails if it is created between its read and its creation."""
    client.delete(LEASE)
    told = Event()
    first = join("a")
    first.elector.on_lead(told.set)
    first.start().look()
    first.clock.now += OFTEN.silence_seconds * 0.9
    first.look()
    assert not told.is_set()
    first.clock.now += OFTEN.silence_seconds * 0.2
    assert told.wait(10)
    assert (first.elector.term, first.elector.refusal()) == (1, "")
    assert spec(client)["holderIdentity"] == "a"
    assert (spec(client)["leaseDurationSeconds"], spec(client)["leaseTransitions"]) == (15, 1)


def test_the_wait_for_an_absent_lease_begins_again_when_it_was_deleted(
    client: KubeClient, join: Join
) -> None:
    client.delete(LEASE)
    second = join("b").start()
    second.look()
    second.clock.now += OFTEN.silence_seconds * 0.9
    first = {"metadata": {"name": "extender"}, "spec": {"holderIdentity": "a"}}
    client.post(LEASE.rpartition("/")[0], first)
    second.look()
    assert second.elector.holder == "a"
    client.delete(LEASE)
    second.look()
    second.clock.now += OFTEN.silence_seconds * 0.9
    second.look()
    assert second.elector.term == 0
    second.clock.now += OFTEN.silence_seconds * 0.2
    wait_for(lambda: second.elector.term)


def test_one_that_was_deployed_empty_is_taken_with_its_labels(
    client: KubeClient, join: Join
) -> None:
    labels = {"app.kubernetes.io/part-of": "linkwise"}
    client.patch(LEASE, {"metadata": {"labels": labels}})
    first = join("a").start()
    wait_for(lambda: first.acts)
    found = client.get(LEASE, dict[str, Any])
    assert found["metadata"]["labels"] == labels
    assert first.elector.term == 1


def test_another_stands_by_and_names_the_leader(join: Join) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    second = join("b").start()
    second.look()
    second.clock.now += 14.9
    second.look()
    assert not second.acts
    assert second.elector.refusal() == "standby: the leader is a"
    assert second.elector.write_seconds() == 0


def test_a_holder_stops_before_another_may_begin(server: ApiServer, join: Join) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    second = join("b").start()
    second.look()
    silence(first)

    first.clock.now += 9.9
    assert first.acts
    assert first.elector.write_seconds() == pytest.approx(5.1, abs=0.01)
    first.clock.now += 0.2
    assert not first.acts
    assert first.elector.refusal() == "the lease could not be renewed in time"
    assert first.elector.write_seconds() == 0

    second.look()
    assert not second.acts  # 15 s of its own clock have not passed
    second.clock.now += 15.1
    wait_for(lambda: second.acts)
    assert (second.elector.term, second.elector.handed_over) == (2, False)
    assert server  # the server has been there all the time


def silence(candidate: Candidate) -> None:
    """Hide the API server from this candidate alone."""

    def unreached(*_: object, **__: object) -> None:
        raise ApiError(0, "Unreachable", "a test says so")

    for verb in ("get", "replace"):
        setattr(candidate.client, verb, unreached)
    candidate.look()


def end_silence(candidate: Candidate) -> None:
    for verb in ("get", "replace"):
        delattr(candidate.client, verb)
    candidate.look()


def test_the_silence_of_a_holder_is_told_once_and_long_before_another_may_begin(
    join: Join,
) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    second = join("b").start()
    for silences in (1, 2):
        silence(first)
        second.look()
        second.clock.now += 0.9 * OFTEN.silence_seconds
        second.look()
        assert second.silences == silences - 1
        second.clock.now += 0.2 * OFTEN.silence_seconds
        second.look()
        second.look()
        assert second.silences == silences
        end_silence(first)
        second.look()
    assert not second.acts
    assert first.silences == 0


def test_silence_that_could_not_be_acted_on_is_told_again(join: Join) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    second = join("b").start()
    silence(first)
    second.look()
    second.failures = 2
    second.clock.now += 2 * OFTEN.silence_seconds
    wait_for(lambda: second.silences)
    second.look()
    assert (second.silences, second.failures) == (1, 0)


def test_one_that_was_cut_off_and_was_not_missed_goes_on_in_its_term(
    client: KubeClient, join: Join
) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    silence(first)
    first.clock.now += 60
    assert not first.acts
    for verb in ("get", "replace"):
        delattr(first.client, verb)
    wait_for(lambda: first.acts)
    assert (first.elector.term, first.lost) == (1, [])
    assert spec(client)["leaseTransitions"] == 1


def test_one_that_finds_another_in_its_place_has_lost_for_good(join: Join) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    second = join("b").start()
    second.look()
    silence(first)
    second.clock.now += 15.1
    wait_for(lambda: second.acts)
    for verb in ("get", "replace"):
        delattr(first.client, verb)
    wait_for(lambda: first.lost)
    assert first.lost == ["lease extender: lost: b has it, term 2"]
    assert not first.acts
    assert first.elector.refusal() == "standby: the leader is b"
    assert first.elector.switches == 1


def test_a_lease_that_is_given_back_is_taken_at_once(join: Join) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    second = join("b").start()
    second.look()
    first.stop(release=True)
    wait_for(lambda: second.acts)  # its clock has not moved
    assert (second.elector.term, second.elector.handed_over) == (2, True)
    assert not first.acts


def test_one_that_died_is_followed_at_once_by_who_runs_in_its_place(
    client: KubeClient, join: Join
) -> None:
    first = join("pod-a_1").start()
    wait_for(lambda: first.acts)
    first.stop(release=False)
    other = join("pod-b_1").start()
    next_one = join("pod-a_2", "pod-a_").start()
    wait_for(lambda: next_one.acts)  # no clock has moved
    assert (next_one.elector.term, next_one.elector.handed_over) == (2, False)
    assert not other.acts
    assert spec(client)["holderIdentity"] == "pod-a_2"


def test_one_that_ends_with_work_under_way_gives_nothing_back(
    client: KubeClient, join: Join
) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    first.stop(release=False)
    assert not first.acts
    assert spec(client)["holderIdentity"] == "a"


def test_a_renewal_whose_answer_was_lost_is_found_done(server: ApiServer, join: Join) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    server.fail_next("PUT", "/leases/extender", 0, carry_out=True)
    first.look()
    first.clock.now += 9
    first.look()
    first.clock.now += 9
    assert first.acts
    assert first.lost == []


def test_of_many_at_once_one_leads(join: Join) -> None:
    many = [join(name).start() for name in "abcdefgh"]
    wait_for(lambda: any(each.acts for each in many))
    for each in many:
        each.look()
    assert sum(each.acts for each in many) == 1


def test_a_deleted_lease_is_lost_and_counts_on_above_what_was_written(
    client: KubeClient, join: Join
) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    client.delete(LEASE)
    wait_for(lambda: first.lost)
    second = join("b").start()
    second.look()
    second.clock.now += OFTEN.silence_seconds
    wait_for(lambda: second.acts)
    assert second.elector.term == 1
    second.elector.outbid(7)
    assert second.elector.term == 8
    second.look()
    assert spec(client)["leaseTransitions"] == 8


def test_one_whose_lease_was_given_to_another_by_hand_says_to_whom(
    client: KubeClient, join: Join
) -> None:
    first = join("a").start()
    wait_for(lambda: first.acts)
    client.patch(LEASE, {"spec": {"holderIdentity": "x", "leaseTransitions": 4}})
    wait_for(lambda: first.lost)
    assert first.lost == ["lease extender: lost: x has it, term 4"]
