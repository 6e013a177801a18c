"""The routes: what malformed bodies, unknown paths and curious people get."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from linkwise.extender.core import Core
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.run.loop import Loop
from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.ports.dispatch import Verbs
from linkwise.extender.run.ports.routes import create_app
from linkwise.simulator.api_server import ApiServer
from tests.extender.world import ApiObjects, asked, body, wait_for


@dataclass(frozen=True)
class Asked:
    """Both ports of one extender, without a socket."""

    http: FlaskClient
    loop: Loop
    verbs: Verbs

    def post(self, verb: str, sent: bytes) -> tuple[int, Any]:
        reply = self.verbs.answer(verb, sent)
        assert reply is not None
        return reply.status, json.loads(reply.body)


@pytest.fixture(scope="module")
def extender() -> Iterator[Asked]:
    with ApiServer() as server:
        world, metrics = ApiObjects(server), ExtenderMetrics()
        world.add_node("n1")
        world.add_node("n2", "dgx1-v100")
        loop = Loop(Core(CoreSettings()), world.client, metrics)
        loop.start()
        wait_for(lambda: not loop.waits_for())
        world.add_pod("single", 4)
        world.add_pod("alone", gang="g", gang_size="2")
        client = create_app(loop, metrics).test_client()
        wait_for(lambda: body(client.get("/explain/ml/alone")).get("gang"))
        yield Asked(client, loop, Verbs(loop, metrics))
        loop.stop()


@pytest.fixture
def http(extender: Asked) -> FlaskClient:
    return extender.http


def test_whole_nodes_are_answered_with_whole_nodes(extender: Asked) -> None:
    pod = {
        "metadata": {"name": "w", "namespace": "ml", "uid": "u"},
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
            "topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}],
        },
    }
    nodes = [{"metadata": {"name": name}, "spec": {"x": name}} for name in ("n1", "n2", "n9")]
    sent = {"Pod": pod, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}

    _, filtered = asked(extender.verbs, "filter", **sent)
    _, scored = asked(extender.verbs, "prioritize", **sent)

    assert filtered["Nodes"]["items"] == nodes[:2]
    assert filtered["NodeNames"] is None
    assert list(filtered["FailedNodes"] | filtered["FailedAndUnresolvableNodes"]) == ["n9"]
    scores = {found["Host"]: found["Score"] for found in scored}
    assert max(scores, key=lambda name: scores[name]) == "n1"
    assert all(type(score) is int for score in scores.values())


def test_a_pod_that_kube_scheduler_should_not_ask_about_is_refused(extender: Asked) -> None:
    """If its file names no resource, it asks about all pods. Even then the extender binds none."""
    containers = [{"name": "main", "resources": {"limits": {"cpu": "1"}}}]
    meta = {"name": "w", "namespace": "ml", "uid": "u"}
    pod = {"metadata": meta, "spec": {"containers": containers}}
    status, answer = asked(extender.verbs, "filter", Pod=pod, NodeNames=["n1"])
    assert (status, answer["NodeNames"]) == (200, None)
    assert "the pod names no nvidia.com/gpu" in answer["Error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/none", 404, "GET /none: Not Found"),
        ("POST", "/scheduler/filter", 404, "POST /scheduler/filter: Not Found"),
        ("GET", "/filter", 404, "GET /filter: Not Found"),
        ("POST", "/filter", 404, "POST /filter: Not Found"),
        ("POST", "/bind", 404, "POST /bind: Not Found"),
        ("POST", "/nodes", 405, "POST /nodes: Method Not Allowed"),
        ("GET", "/explain/ml", 404, "GET /explain/ml: Not Found"),
        ("GET", "/explain/ml/none", 404, "no pod ml/none is known"),
    ],
)
def test_what_is_not_there_is_said_as_json(
    method: str, path: str, status: int, text: str, http: FlaskClient
) -> None:
    reply = http.open(path, method=method)

    assert (reply.status_code, body(reply)) == (status, {"Error": f"linkwise: {text}"})


def test_the_root_leads_to_the_page_wherever_it_is_served(http: FlaskClient) -> None:
    answer = http.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "ui/")
    assert http.get("/", base_url="http://x/proxy").headers["Location"] == "ui/"


def test_an_explanation_is_json_for_programs_and_text_for_people(http: FlaskClient) -> None:
    as_json = http.get("/explain/ml/alone")
    by_header = http.get("/explain/ml/alone", headers={"Accept": "text/plain"})
    by_argument = http.get("/explain/ml/alone?format=text")

    assert body(as_json)["gang"]["gang"]["size"] == 2
    assert body(as_json)["state"] == "waiting"
    ages = re.compile(r"\d+(s|m|h|d)\b")  # a second may pass between the two
    assert ages.sub("", by_header.text) == ages.sub("", by_argument.text)
    assert by_header.text.startswith("ml/alone: has waited ")
    assert by_header.content_type.startswith("text/plain")
    assert http.get("/explain/ml/none?format=text").text == ("linkwise: no pod ml/none is known\n")


def test_the_books_may_be_looked_at(http: FlaskClient) -> None:
    nodes = {node["name"]: node for node in body(http.get("/nodes"))}
    (gang,) = body(http.get("/gangs"))

    assert (nodes["n1"]["free"], len(nodes["n2"]["gpus"])) == (8, 8)
    assert (gang["namespace"], gang["name"], gang["phase"]) == ("ml", "g", "forming")
    assert [member["pod"] for member in gang["members"]] == ["alone"]
    assert body(http.get("/gangs?namespace=ml")) == [gang]
    assert body(http.get("/gangs?namespace=theirs&runner-up=true")) == []


def test_moves_may_be_asked_for(http: FlaskClient) -> None:
    found = body(http.get("/moves"))
    assert (found["allowed"], found["plans"]) == ("never", [])


def test_it_may_be_asked_what_emptying_nodes_moves(http: FlaskClient) -> None:
    found = body(http.get("/empty?nodes=n2,n1,n2"))
    assert [node["node"] for node in found["nodes"]] == ["n2", "n1"]
    assert body(http.get("/empty"))["nodes"] == []
    unknown = http.get("/empty?nodes=n1,n9")
    assert (unknown.status_code, body(unknown)) == (404, {"Error": "linkwise: no node n9 is known"})


def test_the_history_may_be_asked_for(http: FlaskClient) -> None:
    whole = body(http.get("/history"))
    assert sorted(whole) == ["at", "began", "decisions", "dropped"]
    assert body(http.get("/history?pod=ml/alone"))["decisions"] == []
    assert body(http.get("/history?node=n1&namespace=ml"))["decisions"] == []
    unknown = http.get("/history?gang=ml/no")
    assert (unknown.status_code, body(unknown)) == (
        404,
        {"Error": "linkwise: no gang ml/no is known"},
    )


@pytest.mark.parametrize("said", ["pod=alone", "pod=/alone", "gang=ml/"])
def test_a_name_without_its_namespace_is_refused(said: str, http: FlaskClient) -> None:
    reply = http.get(f"/history?{said}")
    text = f"linkwise: {said}: expected NAMESPACE/NAME"
    assert (reply.status_code, body(reply)) == (400, {"Error": text})


def test_the_metrics_parse_and_count_what_was_asked(extender: Asked) -> None:
    extender.post("filter", b"{")

    reply = extender.http.get("/metrics")
    found = {metric.name: metric for metric in text_string_to_metric_families(reply.text)}

    (malformed,) = (
        sample.value
        for sample in found["linkwise_extender_requests"].samples
        if sample.labels == {"verb": "filter", "result": "malformed"}
        and sample.name.endswith("_total")
    )
    assert malformed >= 1
    gpus = {s.labels["state"]: s.value for s in found["linkwise_extender_gpus"].samples}
    assert gpus["free"] == 16
    assert [s.value for s in found["linkwise_extender_broken_invariants"].samples] == [0]
    assert reply.content_type == "text/plain; version=0.0.4; charset=utf-8"


def test_alive_and_ready(http: FlaskClient) -> None:
    assert (http.get("/healthz").text, http.get("/readyz").text) == ("ok\n", "ok\n")


def test_what_else_is_awaited_or_wrong_is_said(extender: Asked) -> None:
    waits, wrong = ["no certificate is published yet"], ["no thread renews the certificates"]
    app = create_app(
        extender.loop,
        ExtenderMetrics(),
        waits_for=lambda: "".join(waits),
        trouble=lambda: "".join(wrong),
    ).test_client()
    for path in ("/readyz", "/readyz?exclude=leader"):
        assert (app.get(path).status_code, app.get(path).text) == (503, f"{waits[0]}\n")
    assert (app.get("/healthz").status_code, app.get("/livez").text) == (500, f"{wrong[0]}\n")
    waits.clear()
    wrong.clear()
    assert (app.get("/readyz").status_code, app.get("/healthz").status_code) == (200, 200)


def test_each_verb_tells_how_long_it_took(extender: Asked) -> None:
    for verb in ("filter", "prioritize", "bind", "preempt"):
        reply = extender.verbs.answer(verb, b"{")
        assert reply is not None
        took, worked = (part.partition(";dur=") for part in reply.timing.split(", "))
        assert (took[0], worked[0]) == ("app", "cpu")
        assert 0 < float(worked[2]) < 10_000
        assert 0 < float(took[2]) < 10_000
