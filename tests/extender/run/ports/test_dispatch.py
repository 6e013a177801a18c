"""kube-scheduler's calls as bytes in and bytes out: the answers, and what the metrics count."""

import json
from typing import TypeVar, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from linkwise.extender.run.loop import Loop, NotReadyError
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.dispatch import DEFECT, Verbs
from linkwise.extender.state.extender_calls import (
    BindCall,
    FilterAnswer,
    PreemptAnswer,
    PriorityAnswer,
    Victims,
)
from linkwise.serving.gone import GoneError

CONTAINER = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "0"}}}
POD = {
    "metadata": {"name": "w", "namespace": "ml", "uid": "u"},
    "spec": {"containers": [CONTAINER]},
}
CALLS: dict[str, dict[str, object]] = {
    "filter": {"Pod": POD, "NodeNames": ["n1"]},
    "prioritize": {"Pod": POD, "NodeNames": ["n1"]},
    "bind": {"PodName": "w", "PodNamespace": "ml", "PodUID": "u", "Node": "n1"},
    "preempt": {"Pod": POD, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v"}]}}},
}
T = TypeVar("T")
HAS_ERROR_FIELD = ("filter", "bind")


class Asked:
    """A loop that says yes, or no, or trips."""

    def __init__(self, *, yes: bool = True, error: Exception | None = None) -> None:
        self.yes, self.error = yes, error
        self.bound: list[BindCall] = []

    def filter(self, _call: object, _waits: object) -> FilterAnswer:
        return self._say(FilterAnswer(("n1",)), FilterAnswer(failed={"n1": "full"}))

    def prioritize(self, _: object) -> PriorityAnswer:
        return self._say(PriorityAnswer(["n1"], [100]), PriorityAnswer(["n1"], [0]))

    def bind(self, call: BindCall, _waits: object) -> str:
        self.bound.append(call)
        return self._say("", "linkwise: taken")

    def preempt(self, _: object) -> PreemptAnswer:
        return self._say(PreemptAnswer({"n1": Victims(("v",))}), PreemptAnswer())

    def _say(self, yes: T, no: T) -> T:
        if self.error is not None:
            raise self.error
        return yes if self.yes else no


def ask(verb: str, loop: Asked) -> tuple[int, object, ExtenderMetrics]:
    metrics = ExtenderMetrics()
    verbs = Verbs(cast("Loop", loop), metrics)
    reply = verbs.answer(verb, json.dumps(CALLS[verb]).encode())
    assert reply is not None
    return reply.status, json.loads(reply.body), metrics


def counted(metrics: ExtenderMetrics) -> dict[tuple[str, ...], float]:
    """The calls by verb and result, and all other extender samples that are not 0, by verb."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            kind = sample.name.removeprefix("linkwise_extender_")
            if sample.value and kind in ("requests_total", "errors_total", "request_seconds_count"):
                labels = sample.labels
                told = ("verb", "where", "result")
                found[kind, *(labels[name] for name in told if name in labels)] = sample.value
    return found


@pytest.mark.parametrize("verb", sorted(CALLS))
def test_a_yes_is_counted_once_with_its_time(verb: str) -> None:
    status, _, metrics = ask(verb, Asked())
    assert status == 200
    assert counted(metrics) == {
        ("requests_total", verb, "ok"): 1,
        ("request_seconds_count", verb): 1,
    }


@pytest.mark.parametrize("verb", ["filter", "bind", "preempt"])
def test_a_no_is_counted_as_refused(verb: str) -> None:
    status, _, metrics = ask(verb, Asked(yes=False))
    assert status == 200
    assert counted(metrics)["requests_total", verb, "refused"] == 1
    assert ("requests_total", verb, "ok") not in counted(metrics)


@pytest.mark.parametrize("verb", sorted(CALLS))
def test_before_the_books_are_complete_every_call_is_refused(verb: str) -> None:
    status, body, metrics = ask(verb, Asked(error=NotReadyError("pods are awaited")))
    assert status == (200 if verb in HAS_ERROR_FIELD else 503)
    assert isinstance(body, dict)
    assert body["Error"] == "pods are awaited"
    assert counted(metrics)["requests_total", verb, "refused"] == 1


@pytest.mark.parametrize("verb", sorted(CALLS))
def test_only_an_answer_of_one_that_cannot_answer_ends_the_connection(verb: str) -> None:
    """The next call goes to the leader then, and else over the same connection."""
    for error, parting in ((NotReadyError("standby"), True), (KeyError("n1"), False)):
        verbs = Verbs(cast("Loop", Asked(error=error)), ExtenderMetrics())
        reply = verbs.answer(verb, json.dumps(CALLS[verb]).encode())
        assert reply is not None
        assert reply.parting is parting


@pytest.mark.parametrize("verb", sorted(CALLS))
def test_a_mistake_of_ours_is_answered_logged_and_counted(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    status, body, metrics = ask(verb, Asked(error=KeyError("n1")))
    assert status == (200 if verb in HAS_ERROR_FIELD else 500)
    assert isinstance(body, dict)
    assert body["Error"] == DEFECT
    assert counted(metrics)["requests_total", verb, "failed"] == 1
    assert counted(metrics)["errors_total", verb] == 1
    assert "KeyError: 'n1'" in caplog.text


def test_a_body_that_is_too_large_is_counted_as_malformed() -> None:
    metrics = ExtenderMetrics()
    verbs = Verbs(cast("Loop", Asked()), metrics)
    assert verbs.too_large("prioritize").status == 413
    assert counted(metrics) == {("requests_total", "prioritize", "malformed"): 1}


@pytest.mark.parametrize("verb", sorted(CALLS))
def test_a_call_whose_caller_has_gone_is_answered_by_nothing_and_counted(verb: str) -> None:
    metrics, loop = ExtenderMetrics(), Asked(error=GoneError())
    if verb in ("prioritize", "preempt"):  # so short that the loop does not look in between
        loop.error = None
    verbs = Verbs(cast("Loop", loop), metrics)
    assert verbs.answer(verb, json.dumps(CALLS[verb]).encode(), lambda: False) is None
    assert counted(metrics)["requests_total", verb, "gone"] == 1


def test_a_bind_tells_whose_pod_filter_let_through_to_that_node() -> None:
    loop = Asked()
    verbs = Verbs(cast("Loop", loop), ExtenderMetrics())

    def ask(verb: str, **other: object) -> None:
        assert verbs.answer(verb, json.dumps({**CALLS[verb], **other}).encode())

    ask("bind")
    ask("filter")
    loop.yes = False
    ask("bind", Node="n2")
    ask("bind", PodUID="another")
    loop.yes = True
    ask("bind")
    ask("bind")  # it is bound: once more would be another pod
    assert [call.let_through for call in loop.bound] == ["", "", "", "default-scheduler", ""]


def test_a_bind_that_was_refused_may_be_asked_for_again() -> None:
    loop = Asked()
    verbs = Verbs(cast("Loop", loop), ExtenderMetrics())
    assert verbs.answer("filter", json.dumps(CALLS["filter"]).encode())
    loop.yes = False
    for _ in range(2):
        assert verbs.answer("bind", json.dumps(CALLS["bind"]).encode())
    assert [call.let_through for call in loop.bound] == ["default-scheduler"] * 2


@pytest.mark.parametrize(
    ("container", "asked"),
    [
        ({"limits": {"nvidia.com/gpu": "1"}}, True),
        ({"requests": {"nvidia.com/gpu": "0"}}, True),
        ({"limits": {"cpu": "1", "nvidia.com/mig-1g.5gb": "1"}}, True),
        ({"limits": {"nvidia.com/gpu.shared": "1"}}, True),
        ({"limits": {"cpu": "1", "amd.com/gpu": "1"}}, False),
        ({}, False),
    ],
)
def test_only_pods_that_name_the_resource_are_asked_about(
    container: dict[str, object], asked: bool
) -> None:
    loop = Asked()
    verbs = Verbs(cast("Loop", loop), ExtenderMetrics())
    for kind in ("containers", "initContainers"):
        pod = {**POD, "spec": {kind: [{"name": "c", "resources": container}]}}
        reply = verbs.answer("filter", json.dumps({**CALLS["filter"], "Pod": pod}).encode())
        assert reply is not None
        assert ("names no nvidia.com/gpu" not in json.loads(reply.body)["Error"]) is asked
