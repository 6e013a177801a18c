"""When a GPU is out, for how long, and what the plugin reports of it: values in, values out."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.plugin.errors import SettingError
from linkwise.plugin.gpus.inventory import Finding, Probe, Xid
from linkwise.plugin.health.conditions import (
    DEFAULTS,
    Treatment,
    Treatments,
    read_treatments,
    xid_text,
)
from linkwise.plugin.health.faults import (
    FORGIVEN_SECONDS,
    LONGEST_SECONDS,
    RESET_TIMES,
    Change,
    Health,
    Policy,
    after_probe,
    after_xids,
    changes,
    new_notes,
)
from linkwise.plugin.health.xids import XIDS

POLICY = Policy(clean_probes=3, probe_seconds=10, probation_seconds=300)
LOST = Finding("lost", "NVML: GPU is lost")
PENDING = Finding("memory-repair-pending", "its memory is repaired at the next reset of the GPU")


class Gpus:
    """Lived through in time, a probe every 10 s."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.policy, self.now = policy, 1000.0
        self.healths: Mapping[str, Health] = {}

    def probe(self, *findings: Finding, told: bool = False, unanswered: bool = False) -> bool:
        """Of GPU-a; whether it may be given out."""
        self.now += self.policy.probe_seconds
        probe = Probe(
            {"GPU-a": findings} if findings else {},
            frozenset({"GPU-a"} if unanswered else ()),
            frozenset({"GPU-a"} if told else ()),
        )
        self.healths = after_probe(self.healths, probe, self.policy, now=self.now)
        return self.well

    def xid(self, number: int) -> bool:
        xids = [Xid("GPU-a", number)]
        self.healths = after_xids(self.healths, xids, self.policy, now=self.now)
        return self.well

    @property
    def well(self) -> bool:
        return not self.healths.get("GPU-a", Health()).reason

    def out_for(self, *, told: bool = False) -> float:
        """Seconds of clean probes until it is back."""
        began = self.now
        while not self.probe(told=told):
            assert self.now - began < 10 * LONGEST_SECONDS
        return self.now - began


def test_what_a_probe_finds_counts_at_once_and_ends_after_clean_probes() -> None:
    gpus = Gpus()
    assert not gpus.probe(LOST)
    assert not gpus.probe(LOST)
    assert gpus.out_for() == 30  # three probes


def test_a_probe_without_an_answer_is_neither_clean_nor_bad() -> None:
    gpus = Gpus()
    gpus.probe(LOST)
    gpus.probe()
    gpus.probe()
    for _ in range(50):
        assert not gpus.probe(unanswered=True)
    assert gpus.probe()  # the third clean one
    for _ in range(50):
        assert gpus.probe(unanswered=True)


@pytest.mark.parametrize(
    ("xid", "seconds", "told_seconds"),
    [
        (48, 300, 300),  # a workflow: out for the probation
        (79, 300 * RESET_TIMES, 300),  # a reset, unless the driver says that nothing is needed
        (999, 300, 300),  # not in the catalogue
        (109, 300, 300),
    ],
)
def test_after_an_xid_a_gpu_is_out_for_a_probation_of_clean_probes(
    xid: int, seconds: float, told_seconds: float
) -> None:
    for told in (False, True):
        gpus = Gpus()
        assert not gpus.xid(xid)
        assert gpus.out_for(told=told) == (told_seconds if told else seconds)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 94, 154])
def test_an_applications_error_is_not_its_gpus(xid: int) -> None:
    assert Gpus().xid(xid)


def test_a_probation_does_not_end_while_probes_are_not_clean() -> None:
    gpus = Gpus()
    gpus.xid(48)
    for _ in range(60):  # ten minutes
        assert not gpus.probe(LOST)
    assert gpus.out_for() == 30


def test_one_that_comes_back_and_fails_again_waits_twice_as_long_each_time() -> None:
    gpus, waited = Gpus(), []
    for _ in range(5):
        gpus.xid(48)
        waited.append(gpus.out_for())
    assert waited == [300, 600, 1200, 2400, 4800]
    for _ in range(20):
        gpus.xid(48)
        waited.append(gpus.out_for())
    assert max(waited) <= LONGEST_SECONDS + POLICY.probe_seconds


def test_after_what_a_probe_finds_it_never_waits_longer_than_after_a_first_reset() -> None:
    """A driver may be reloaded many times in a day of maintenance."""
    gpus, waited = Gpus(), []
    for _ in range(12):
        gpus.probe(LOST)
        waited.append(gpus.out_for())
    assert waited[:4] == [30, 60, 120, 240]
    assert waited[-1] == 300 * RESET_TIMES


def test_a_gpu_that_comes_and_goes_is_given_out_ever_more_seldom() -> None:
    gpus, turns = Gpus(), 0
    for minute in range(24 * 60):  # seen every other minute
        for _ in range(6):
            before = gpus.well
            gpus.probe(*([LOST] if minute % 2 else []))
            turns += before != gpus.well
    assert turns <= 6  # it never stays away long enough for a longer probation


def test_a_day_of_health_makes_the_next_fault_a_first_one() -> None:
    gpus = Gpus()
    for _ in range(3):
        gpus.xid(48)
        gpus.out_for()
    gpus.now += FORGIVEN_SECONDS
    gpus.probe()
    assert gpus.healths == {}
    gpus.xid(48)
    assert gpus.out_for() == 300


def test_a_note_keeps_no_gpu_out_and_ends_when_it_is_over() -> None:
    gpus = Gpus()
    assert gpus.probe(PENDING)
    before = gpus.healths
    assert new_notes({}, before) == (("GPU-a", PENDING.text),)
    assert gpus.probe(PENDING)
    assert new_notes(before, gpus.healths) == ()
    for _ in range(3):
        gpus.probe()
    assert gpus.healths == {}


def test_several_causes_are_told_together_and_each_ends_by_itself() -> None:
    gpus = Gpus()
    gpus.xid(48)
    gpus.probe(LOST, PENDING)
    health = gpus.healths["GPU-a"]
    assert health.reason == "XID 48: uncorrectable memory error; NVML: GPU is lost"
    assert health.notes == (PENDING.text,)
    for _ in range(3):
        gpus.probe()
    assert gpus.healths["GPU-a"].reason == "XID 48: uncorrectable memory error"


def test_one_condition_is_told_as_it_is_now() -> None:
    gpus = Gpus()
    gpus.probe(Finding("nvlink-down", "17 of 18 NVLinks are up"))
    gpus.probe(Finding("nvlink-down", "16 of 18 NVLinks are up"))
    assert gpus.healths["GPU-a"].reason == "16 of 18 NVLinks are up"
    gpus = Gpus()
    gpus.probe(Finding("fabric-route", "unhealthy"), Finding("fabric-route", "in recovery"))
    assert gpus.healths["GPU-a"].reason == "unhealthy; in recovery"


def test_a_person_hears_of_changes_only() -> None:
    gpus = Gpus()
    gpus.probe(LOST)
    first = gpus.healths
    assert changes({}, first) == (Change("GPU-a", healthy=False, reason=LOST.text),)
    gpus.probe(LOST)
    assert changes(first, gpus.healths) == ()
    gpus.out_for()
    assert changes(first, gpus.healths) == (
        Change("GPU-a", healthy=True, reason=f"clean again after: {LOST.text}"),
    )


@given(
    st.lists(
        st.one_of(
            st.sampled_from([*DEFAULTS]).map(lambda name: Finding(name, name)),
            st.integers(1, 200),
            st.none(),
        )
    )
)
def test_whatever_befalls_one_gpu_never_touches_another_and_always_ends(
    happenings: list[Finding | int | None],
) -> None:
    gpus = Gpus()
    for happening in happenings:
        if isinstance(happening, int):
            gpus.xid(happening)
        else:
            gpus.probe(*([happening] if happening else []))
        assert set(gpus.healths) <= {"GPU-a"}
    assert gpus.out_for() <= 2 * LONGEST_SECONDS


def test_an_operator_may_treat_each_condition_otherwise() -> None:
    words = ("xid-94=unhealthy", "xid-79=ignore", "lost=note", "mig=ignore", "xid-unknown=reset")
    policy = replace(POLICY, treatments=read_treatments(words))
    assert not Gpus(policy).xid(94)
    assert Gpus(policy).xid(79)
    gpus = Gpus(policy)
    assert gpus.probe(LOST, Finding("mig", "MIG mode is on"))
    assert gpus.healths["GPU-a"].notes == (LOST.text,)
    gpus = Gpus(policy)
    gpus.xid(999)
    assert gpus.out_for() == 300 * RESET_TIMES
    assert read_treatments(["xid-5=note", "xid-5=reset"]).of_xid(5) is Treatment.RESET


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("", "'': expected NAME=TREATMENT with xid-NUMBER or one of ecc, "),
        ("losst=note", "'losst=note': expected NAME=TREATMENT"),
        ("xid-0=note", "'xid-0=note': expected NAME=TREATMENT"),
        ("xid-79", "'xid-79': expected one of ignore, note, unhealthy, reset after the ="),
        ("lost=Unhealthy", "expected one of ignore, note, unhealthy, reset"),
    ],
)
def test_a_word_that_means_nothing_is_refused_by_name(word: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        read_treatments([word])


def test_every_treatment_of_the_tables_is_one() -> None:
    assert {Treatment(row.treatment) for row in XIDS.values()} == {
        Treatment.IGNORE,
        Treatment.UNHEALTHY,
        Treatment.RESET,
    }
    assert Treatments().of_xid(12345) is DEFAULTS["xid-unknown"]
    assert xid_text(12345) == "XID 12345: not in NVIDIA's catalogue"
