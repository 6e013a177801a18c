"""Viewers get every change, none holds another up, and who does not read is dropped."""

import socket
from collections.abc import Iterator

import pytest

from linkwise.extender.run.page.viewers import Viewers


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def viewers(clock: Clock) -> Iterator[Viewers]:
    found = Viewers(2, clock=clock)
    yield found
    found.close()


def joined(viewers: Viewers, page: str = "") -> socket.socket:
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    viewers.add(page, ours, b"first ")
    return theirs


def test_a_viewer_gets_the_changes_of_its_page(viewers: Viewers) -> None:
    with joined(viewers) as one, joined(viewers, "rack") as other:
        viewers.push("rack", b"second")
        assert other.recv(100) == b"first second"
        assert one.recv(100) == b"first "
        assert viewers.pages() == {"", "rack"}


def test_more_than_the_limit_find_it_closed(viewers: Viewers) -> None:
    with joined(viewers), joined(viewers):
        assert viewers.full
        with joined(viewers) as third:
            assert third.recv(100) == b""
        assert len(viewers) == 2


def test_who_has_gone_is_forgotten(viewers: Viewers) -> None:
    joined(viewers).close()
    with joined(viewers):
        viewers.look_after()
        assert len(viewers) == 1
    viewers.push("", b"x")
    viewers.look_after()
    assert len(viewers) == 0


def test_who_does_not_read_is_dropped_and_delays_no_other(viewers: Viewers, clock: Clock) -> None:
    with joined(viewers) as silent, joined(viewers) as reading:
        large = bytes(1 << 19)
        for number in range(8):
            viewers.push("", large)
            left = len(large) + (6 if number == 0 else 0)
            while left:
                viewers.look_after()
                left -= len(reading.recv(left))
            if len(viewers) == 1:
                break
        assert len(viewers) == 1
        assert silent.fileno() > 0
        clock.now += 5
        viewers.push("", b"last")
        assert reading.recv(10) == b"last"


def test_who_stops_reading_with_little_unsent_is_dropped_after_a_while(
    viewers: Viewers, clock: Clock
) -> None:
    with joined(viewers):
        viewers.push("", bytes(1 << 19))  # more than a socket keeps, less than the limit
        viewers.look_after()
        assert len(viewers) == 1
        clock.now += 11
        viewers.look_after()
        assert len(viewers) == 0


def test_a_quiet_stream_has_a_heartbeat(viewers: Viewers, clock: Clock) -> None:
    with joined(viewers) as viewer:
        assert viewer.recv(100) == b"first "
        clock.now += 16
        viewers.look_after()
        assert viewer.recv(100) == b":\n\n"
        viewers.look_after()
        viewer.setblocking(False)
        with pytest.raises(BlockingIOError):
            viewer.recv(100)
