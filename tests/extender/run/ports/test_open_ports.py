"""Which ends of callers' certificates the metrics tell."""

from linkwise.extender.run.ports.open_ports import CallerCertificates
from linkwise.serving.greeting import Caller, Welcome

DAY = 86400.0


def test_of_each_known_caller_the_first_end_of_the_last_day_is_told() -> None:
    now = [0.0]
    seen = CallerCertificates(lambda: now[0])
    for welcome, name, ends in (
        (Welcome.KNOWN, "a", 200.0),
        (Welcome.KNOWN, "a", 100.0),
        (Welcome.KNOWN, "b", 300.0),
        (Welcome.REFUSED, "x", 50.0),
        (Welcome.STRANGER, "", 0.0),
    ):
        seen.note(Caller(welcome, name, ends))
    assert seen.soonest() == {"a": 100.0, "b": 300.0}

    now[0] = 0.9 * DAY
    seen.note(Caller(Welcome.KNOWN, "a", 200.0))
    now[0] = DAY
    assert seen.soonest() == {"a": 200.0}, "its older certificate and b have not called for a day"
    seen.note(Caller(Welcome.KNOWN, "c", 400.0))
    assert len(seen._seen) == 2, "what is not told is not kept"
