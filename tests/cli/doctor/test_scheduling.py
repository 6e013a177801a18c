"""What the doctor finds around the extender."""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from linkwise.cli.doctor.diagnosis import findings
from linkwise.cli.doctor.facts import Certificate, Facts, SeenPod
from linkwise.cli.doctor.finding import Finding, Level, in_words, page_of, still_there
from linkwise.extender.state.views import KeptIdle, KeptWaitingView, UnplannedPod
from linkwise.topology import names
from tests.cli.doctor.cluster_facts import (
    NOW,
    STATE,
    WELL,
    lease,
    node,
    only,
    plugin,
    pod,
    problems,
    vendor,
    with_pods,
)

DAY = 86400.0
HOUR = 3600.0


def test_an_extender_that_does_not_answer() -> None:
    silent = replace(WELL, state=None, silence="the extender at x is not ready: still reading")
    assert only(silent).what == "the extender at x is not ready: still reading"
    none = replace(silent, pods=WELL.pods[:2])
    assert only(none).what.startswith("no pod of the extender runs: ")


@pytest.mark.parametrize("held", [lease(None), lease("gone", ago=120)])
def test_no_leader(held: object) -> None:
    assert only(replace(WELL, lease=held)).what == "no extender leads"  # type: ignore[arg-type]


def test_a_lease_that_was_renewed_by_a_clock_that_is_a_little_off() -> None:
    assert findings(replace(WELL, lease=lease(ago=-30))) == ()
    assert findings(replace(WELL, lease=lease(ago=60))) == ()
    assert findings(replace(WELL, lease=None)) == ()  # one extender needs none


def called(ago: float | None, *pods: object, **state: object) -> Facts:
    calls = {} if ago is None else {"default-scheduler": NOW - ago}
    changed = replace(STATE, calls=calls, **state)  # type: ignore[arg-type]
    return with_pods(*pods, facts=replace(WELL, state=changed))  # type: ignore[arg-type]


WAITS = pod("waits", gpus=8)


def test_kube_scheduler_is_silent_although_pods_wait() -> None:
    for facts in (called(700, WAITS), called(None, WAITS)):
        found = only(facts)
        assert found.where == ("default-scheduler",)
        assert found.what == "no call for 10 minutes, and 1 pod waits"


@pytest.mark.parametrize(
    "facts",
    [
        called(500, WAITS),
        called(700),
        called(700, pod("new", gpus=8, ago=60)),
        called(700, pod("cpu")),
        called(700, pod("gated", gpus=8, gates=[names.GATE])),
        called(700, pod("full", gpus=8, message="0/4 nodes: 4 Insufficient nvidia.com/gpu.")),
        called(
            700, pod("elsewhere", gpus=8, message="0/4 nodes are available: 4 Insufficient cpu.")
        ),
        called(700, pod("asked", gpus=8, message="linkwise: fewer free GPUs than wanted")),
        called(700, pod("volcanos", gpus=8, scheduler="volcano")),
        called(None, WAITS, began=NOW - 60),
    ],
    ids=["called", "none", "new", "cpu", "gated", "full", "elsewhere", "asked", "others", "began"],
)
def test_silence_that_means_nothing(facts: Facts) -> None:
    assert findings(facts) == ()


NO_DNS = (
    'Post "https://linkwise-extender.kube-system.svc:9402/filter": dial tcp: lookup '
    "linkwise-extender.kube-system.svc on 127.0.0.1:53: read udp 127.0.0.1:{}->127.0.0.1:53: "
    "read: connection refused"
)


def cannot_call(name: str, port: int, ago: float) -> SeenPod:
    error = {"reason": "SchedulerError", "message": NO_DNS.format(port)}
    return pod(name, gpus=8, ago=ago, scheduler="linkwise-scheduler", **error)


@pytest.mark.parametrize("ago", [5, 3600])
def test_what_kube_scheduler_says_on_the_pods_is_told_at_once_and_alone(ago: float) -> None:
    state = replace(STATE, calls={})
    pods = cannot_call("a", 34907, ago), cannot_call("b", 41554, ago)
    found = only(with_pods(*pods, facts=replace(WELL, state=state)))
    assert found.where == ("linkwise-scheduler",)
    assert found.what == f"it cannot try 2 pods, such as ml/a: {NO_DNS.replace(':{}', '')}"
    assert found.page == "troubleshoot.md#when-kube-scheduler-cannot-call-the-extender"


def test_a_group_that_kube_scheduler_refuses_has_nothing_to_do_with_calls() -> None:
    refused = {
        "reason": "SchedulerError",
        "message": "all pods in a single pod group should have the same priority as the pod "
        "group's priority, got 100 and 0",
    }
    found = only(with_pods(pod("a", gpus=8, ago=5, **refused)))
    assert found.what == f"it cannot try 1 pod, such as ml/a: {refused['message']}"
    assert found.page == "docs/workloads.md#what-kube-scheduler-refuses"


def test_a_second_scheduler_that_is_silent_has_a_page_of_its_own() -> None:
    waits = pod("waits", gpus=8, scheduler="linkwise-scheduler")
    found = only(with_pods(waits, facts=replace(WELL, state=replace(STATE, calls={}))))
    assert found.page == "troubleshoot.md#when-kube-scheduler-cannot-call-the-extender"


def test_a_second_scheduler_that_does_not_start() -> None:
    def scheduler(name: str, *, ready: bool) -> SeenPod:
        labels = {"app.kubernetes.io/name": "linkwise-scheduler"}
        return pod(name, "n1", namespace="kube-system", labels=labels, ready=ready)

    found = only(with_pods(scheduler("one", ready=False)))
    assert (found.where, found.what) == (("linkwise-scheduler",), "it is not ready")
    assert findings(with_pods(scheduler("one", ready=False), scheduler("two", ready=True))) == ()


def test_pods_that_came_past_the_extender() -> None:
    past = (UnplannedPod("ml/a", "n1", "default-scheduler"),)
    found = only(called(None, unplanned=past))
    assert found.what == "it bound 1 pod past the extender, such as ml/a"
    others = (UnplannedPod("ml/a", "n1", "volcano"), UnplannedPod("ml/b", "n1", "volcano"))
    found = only(called(5, unplanned=others))
    assert found.level is Level.NOTE
    assert found.what == "it bound 2 pods past the extender, such as ml/a"


def test_observing_expects_no_calls() -> None:
    past = (UnplannedPod("ml/a", "n1", "default-scheduler"),)
    facts = called(None, WAITS, unplanned=past)
    pods = (plugin("n1", "--observe"), vendor("n1", told=False), *facts.pods[2:])
    found = only(replace(facts, pods=pods))
    assert (found.level, found.where) == (Level.NOTE, ("cluster",))
    assert "observes" in found.what


def test_where_no_pod_can_be_read_it_is_unknown_whether_calls_are_expected() -> None:
    past = (UnplannedPod("ml/a", "n1", "default-scheduler"),)
    facts = replace(called(None, unplanned=past), pods=(), unread=(("pods", "forbidden"),))
    assert [each.level for each in findings(facts)] == [Level.UNKNOWN]


def test_a_canary_is_a_note_and_expects_calls_for_its_own_pods_only() -> None:
    facts = called(700, WAITS, namespaces=("team-a",))
    found = only(facts)
    assert (found.level, found.what) == (
        Level.NOTE,
        "a canary: only pods of team-a are placed",
    )
    own = called(700, pod("own", namespace="team-a", gpus=1), namespaces=("team-a",))
    assert [where for where, _ in problems(own)] == [("default-scheduler",)]


def test_kube_scheduler_that_asks_about_every_pod() -> None:
    told = (
        "linkwise: the pod names no nvidia.com/gpu: kube-scheduler's configuration must list it in "
        "managedResources of this extender"
    )
    found = only(with_pods(pod("web", message=told)))
    assert "lacks managedResources" in found.what
    assert "ml/web" in found.what


@pytest.mark.parametrize(
    ("certificate", "what"),
    [
        (Certificate("c", NOW - 80 * DAY, NOW + 10 * DAY), "ends in 10 d"),
        (Certificate("c", NOW - 70 * DAY, NOW + 20 * DAY), ""),
        (Certificate("c", NOW - 91 * DAY, NOW - 3600), "has ended 1 h ago"),
        (Certificate("c", None, NOW + 6 * DAY), "ends in 6 d"),
        (Certificate("c", None, NOW + 8 * DAY), ""),
    ],
)
def test_certificates_about_to_end(certificate: Certificate, what: str) -> None:
    expected = [(("c",), what)] if what else []
    assert problems(replace(WELL, certificates=(certificate,))) == expected


def test_what_cannot_be_read_is_unknown_and_nothing_is_concluded_from_it() -> None:
    facts = replace(
        WELL, nodes=(), pods=(), daemonsets=(), unread=(("nodes", "no"), ("pods", "no"))
    )
    found = findings(facts)
    assert {each.level for each in found} == {Level.UNKNOWN}
    assert [each.where for each in found] == [("nodes", "pods")]


def finding(*where: str, passing: bool) -> Finding:
    return Finding(Level.PROBLEM, where, "what", "todo", "plugin.md", passing)


def test_what_may_pass_has_to_be_there_twice() -> None:
    first = (finding("a", "b", passing=True),)
    assert still_there(first, (finding("b", "c", passing=True),)) == (finding("b", passing=True),)
    assert still_there(first, (finding("c", passing=True),)) == ()
    assert still_there((), (finding("c", passing=False),)) == (finding("c", passing=False),)


def test_findings_are_two_lines_each_with_a_page() -> None:
    told = in_words([finding("a", "b", "c", "d", passing=False)])
    assert told == ("problem  a, b, c and 1 more: what\n         todo (docs/operating/plugin.md)\n")
    assert page_of(Finding(Level.NOTE, (), "", "", "docs/kubectl.md")) == "docs/kubectl.md"


def test_a_pod_whose_eviction_fails_its_job_is_noted() -> None:
    found = only(replace(WELL, state=replace(STATE, failing=("ml/a", "ml/b"))))
    assert (found.level, found.where) == (Level.NOTE, ("ml/a", "ml/b"))
    assert found.what.startswith("it may be evicted, and its Job counts an eviction as a failure")


def test_who_refuses_the_pods_of_a_gang_that_lacks_some() -> None:
    why = "Job a cannot create its pods: exceeded quota: gpus"
    found = only(replace(WELL, state=replace(STATE, uncreated={"ml/a": why})))
    assert (found.level, found.where) == (Level.NOTE, ("ml/a",))
    assert found.what == f"it has too few pods: {why}"


@pytest.mark.parametrize(
    ("waits", "newest", "is_told"), [(HOUR, HOUR, True), (60, HOUR, False), (HOUR, 60, False)]
)
def test_nodes_that_are_idle_for_a_gang_that_the_cluster_cannot_hold(
    waits: float, newest: float, is_told: bool
) -> None:
    """While nodes still come, or the gang is new, that may change."""
    made = node("n1")
    at = datetime.fromtimestamp(NOW - newest, UTC)
    made = msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=at)
    )
    kept = KeptIdle("ml/g", "even without other pods", NOW - waits, ("n1",))
    state = replace(STATE, kept_idle=(kept,))
    expected = "idle beside gang ml/g, which has no room here, even without other pods"
    facts = replace(WELL, state=state, nodes=(made, *WELL.nodes[1:]))
    told = [found.what for found in findings(facts) if found.where == ("n1",)]
    assert [what.startswith(expected) for what in told] == ([True] if is_told else [])
    assert problems(facts) == []


def test_no_node_group_is_too_small_for_members_that_no_autoscaler_sees() -> None:
    kept = KeptIdle("ml/g", "even without other pods", NOW - 10_000, ("n1",), coming=2)
    found = only(replace(WELL, state=replace(STATE, kept_idle=(kept,))))
    later = "its owner creates 2 pods only after others run"
    assert found.todo == f"have nodes for the whole gang: {later}"


def test_pods_that_do_not_consent_to_moves_kept_a_large_job_waiting() -> None:
    web = KeptWaitingView(
        "team-a", "Deployment", "web", 2, ("n4",), "gang ml/train", 32, 41 * HOUR, now=True
    )
    found = only(replace(WELL, state=replace(STATE, kept_waiting=(web,))))
    assert (found.level, found.where) == (Level.NOTE, ("team-a/web",))
    assert found.what == (
        "it does not consent to moves (Deployment, 2 GPUs on n4), and kept gang ml/train (32 GPUs)"
        " waiting: 41 GPU hours"
    )
    short = replace(web, gpu_seconds=HOUR / 2)
    assert findings(replace(WELL, state=replace(STATE, kept_waiting=(short,)))) == ()
    many = tuple(replace(web, name=f"web-{number}") for number in range(20))
    assert len(only(replace(WELL, state=replace(STATE, kept_waiting=many))).where) == 8
