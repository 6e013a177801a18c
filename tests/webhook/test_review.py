"""Bodies that are no AdmissionReview, and objects that cannot be read."""

import json

import pytest

from linkwise.topology import names
from linkwise.webhook.answers import Answers
from linkwise.webhook.patch import Rules
from tests.pods.podgrouper.pods import pod
from tests.webhook.reviews import ask, post, review

GOOD = review(pod("train-0", annotations={names.GANG: "train", names.GANG_SIZE: "4"}))


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "expected an AdmissionReview: Input data was truncated"),
        (b"{", "expected an AdmissionReview: "),
        (b"\xff\xfe", "expected an AdmissionReview: "),
        (b"[" * 100_000, "expected an AdmissionReview: "),
        (
            json.dumps(GOOD).replace('"object": {', '"object": ' + '{"a":' * 100_000).encode(),
            "expected an AdmissionReview: maximum recursion depth exceeded",
        ),
        (b"null", "Expected `object`, got `null`"),
        (b"{}", "missing required field `apiVersion`"),
        (json.dumps(GOOD | {"kind": "Pod"}).encode(), "Pod of admission.k8s.io/v1: expected an"),
        (
            json.dumps(GOOD | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
            "AdmissionReview of admission.k8s.io/v1beta1: expected an AdmissionReview of",
        ),
        (json.dumps(GOOD | {"request": None}).encode(), "of admission.k8s.io/v1 with a request"),
        (
            json.dumps(GOOD | {"request": {"uid": "u"}}).encode(),
            "missing required field `operation` - at `$.request`",
        ),
        (
            json.dumps(GOOD | {"request": GOOD["request"] | {"kind": "Pod"}}).encode(),
            "Expected `object`, got `str` - at `$.request.kind`",
        ),
    ],
)
def test_what_is_no_review_is_refused_with_what_was_expected(
    path: str, body: bytes, said: str
) -> None:
    status, text = post(path, body)
    assert status == 400
    assert text.startswith("linkwise: ")
    assert said in text


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
@pytest.mark.parametrize(
    "made",
    [
        [],
        "pod",
        {"metadata": {"annotations": {names.GANG_SIZE: 4}}},
        {"spec": {"containers": [{"resources": {"limits": []}}]}},
    ],
)
def test_a_pod_that_cannot_be_read_is_let_in_as_it_is(path: str, made: object) -> None:
    """The API server refuses it, and knows better why."""
    asked = {**GOOD, "request": GOOD["request"] | {"object": made}}
    assert ask(path, asked) == {"uid": GOOD["request"]["uid"], "allowed": True}


def test_a_defect_of_ours_lets_everything_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("not seen")

    monkeypatch.setattr("linkwise.webhook.review.patch_of", break_down)
    answers = Answers(Rules())
    status, _, body = answers.routes()["POST", "/mutate"](json.dumps(GOOD).encode())
    assert (status, json.loads(body)["response"]["allowed"]) == (200, True)
    counted = answers.routes()["GET", "/metrics"](b"")[2].decode()
    assert 'linkwise_webhook_requests_total{result="failed",verb="mutate"} 1.0' in counted


def test_what_is_asked_is_counted_by_its_result() -> None:
    routes = Answers(Rules(), certificate_ends=lambda: 1800000000.0).routes()
    wrong = review(pod("x", annotations={names.GANG: "train"}))
    for path, body in (("/mutate", GOOD), ("/validate", GOOD), ("/validate", wrong)):
        routes["POST", path](json.dumps(body).encode())
    routes["POST", "/mutate"](json.dumps(review(pod("single"))).encode())
    routes["POST", "/mutate"](b"?")
    counted = routes["GET", "/metrics"](b"")[2].decode()
    for result, verb in (
        ("patched", "mutate"),
        ("untouched", "mutate"),
        ("malformed", "mutate"),
        ("allowed", "validate"),
        ("refused", "validate"),
    ):
        assert f'requests_total{{result="{result}",verb="{verb}"}} 1.0' in counted
    assert "linkwise_webhook_certificate_ends_seconds 1.8e+09" in counted


def test_ready_and_healthy_are_what_they_are_told() -> None:
    ill = Answers(Rules(), waits_for=lambda: "no certificate", trouble=lambda: "a defect").routes()
    well = Answers(Rules()).routes()
    assert ill["GET", "/readyz"](b"")[::2] == (503, b"no certificate\n")
    assert ill["GET", "/healthz"](b"")[::2] == (500, b"a defect\n")
    assert well["GET", "/readyz"](b"")[::2] == (200, b"ok\n")
    assert well["GET", "/healthz"](b"")[::2] == (200, b"ok\n")
