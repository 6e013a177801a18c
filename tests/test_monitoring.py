"""The alerting rules and the dashboard: real metrics, with the labels and values that they have.

promql-parser is Prometheus' grammar, the Grafana SDK is Grafana's own schema of a dashboard.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from typing import Any

import promql_parser as promql
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.core import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from linkwise.extender.run.leadership import ALONE
from linkwise.extender.run.metrics import Census, ExtenderMetrics
from linkwise.extender.state.views import Counts
from linkwise.plugin.metrics import Metrics as PluginMetrics
from linkwise.webhook.answers import Answers as WebhookAnswers
from linkwise.webhook.patch import Rules
from tests.doc_pages import OPERATING, ROOT, quoted, reference
from tests.manifests import DAEMONSET

MONITORING = DAEMONSET / "chart" / "monitoring"
ALERTS = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Prometheus adds the first two to every series, one that has those of several clusters the third.
TARGET = frozenset({"instance", "job", "cluster"})
KUBE_STATE_METRICS = {
    "kube_daemonset_status_desired_number_scheduled": frozenset({"namespace", "daemonset"}),
    "kube_deployment_status_replicas_available": frozenset({"namespace", "deployment"}),
}
OBJECTS = {"daemonset": "plugin/daemonset.yaml", "deployment": "extender/deployment.yaml"}
COLUMNS = 24  # of Grafana's grid
SUFFIXES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "counter": {"_total": frozenset()},
    "gauge": {"": frozenset()},
    "histogram": {"_bucket": frozenset({"le"}), "_sum": frozenset(), "_count": frozenset()},
}


def series_of(registry: CollectorRegistry) -> Iterator[tuple[str, frozenset[str]]]:
    for collector in registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            assert collector._type is not None
            for suffix, more in SUFFIXES[collector._type].items():
                yield collector._name + suffix, frozenset(collector._labelnames) | more
        else:
            for family in collector.collect():
                for sample in family.samples:
                    yield sample.name, frozenset(sample.labels)


@cache
def series() -> Mapping[str, frozenset[str]]:
    """name -> labels, of every series of the three programs and of kube-state-metrics."""
    extender = ExtenderMetrics()
    extender.watch_lead(ALONE)
    extender.watch_certificates(lambda: {"server": 0.0})
    counts = Counts({"running": 1}, {"free": 1}, {"usable": 1}, 0, 0)
    extender.watch_books(lambda: Census(counts, 0, {"pods": 0.0}))
    registries = (PluginMetrics().registry, extender.registry, WebhookAnswers(Rules()).registry)
    own = dict(each for registry in registries for each in series_of(registry))
    return {**own, **KUBE_STATE_METRICS}


def parsed(text: str) -> promql.Expr:
    """*text* with a value for each of Grafana's variables."""
    return promql.parse(text.replace("$__rate_interval", "5m"))


def selectors(text: str) -> list[promql.VectorSelector]:
    """The series that an expression reads."""
    found: list[promql.VectorSelector] = []

    def visit(expr: promql.Expr) -> None:
        if isinstance(expr, promql.MatrixSelector):
            found.append(expr.vector_selector)
        elif isinstance(expr, promql.VectorSelector):
            found.append(expr)

    promql.walk(parsed(text), pre_visit=visit)
    return found


def labels_of(expr: promql.Expr) -> frozenset[str] | None:
    """The labels that the result has; None: it is a scalar. Fails for a label that is grouped by,
    or matched on, and does not exist."""
    if isinstance(expr, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        return labels_of(expr.expr)
    if isinstance(expr, promql.MatrixSelector):
        return labels_of(expr.vector_selector)
    if isinstance(expr, promql.VectorSelector):
        assert expr.name is not None
        return series()[expr.name] | TARGET
    if isinstance(expr, promql.AggregateExpr):
        return of_aggregate(expr)
    if isinstance(expr, promql.Call):
        if expr.func.name in ("time", "vector", "absent"):
            return None if expr.func.name == "time" else frozenset()
        (found,) = (each for arg in expr.args if (each := labels_of(arg)) is not None)
        return found - {"le"} if expr.func.name == "histogram_quantile" else found
    if isinstance(expr, promql.BinaryExpr):
        return of_binary(expr)
    assert isinstance(expr, promql.NumberLiteral), type(expr)
    return None


def of_aggregate(expr: promql.AggregateExpr) -> frozenset[str]:
    inside = labels_of(expr.expr)
    assert inside is not None
    by = frozenset(expr.modifier.labels) if expr.modifier is not None else frozenset()
    if expr.modifier is not None:
        assert expr.modifier.type == promql.AggModifierType.By
    assert by <= inside, f"{sorted(by - inside)} in {expr.prettify()}"
    return inside if str(expr.op) == "topk" and not by else by


def of_binary(expr: promql.BinaryExpr) -> frozenset[str] | None:
    left, right = labels_of(expr.lhs), labels_of(expr.rhs)
    if left is None or right is None:
        return left if right is None else right
    matching = expr.modifier.matching if expr.modifier is not None else None
    on = None if matching is None else frozenset(matching.labels)
    assert on is None or on <= left & right, expr.prettify()
    operator = str(expr.op)
    if operator == "or":
        return left | right
    if operator in ("and", "unless"):
        assert on is not None or left == right, f"nothing matches in {expr.prettify()}"
        return left
    assert left == right or on is not None, f"nothing matches in {expr.prettify()}"
    return left if on is None else on


def expressions() -> list[tuple[str, str]]:
    found = [(rule["alert"], rule["expr"]) for rule in ALERTS]
    found += [(panel["title"], t["expr"]) for panel in PANELS for t in panel["targets"]]
    found += [
        (page.name, text)
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for text in re.findall(r"^```\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        if "linkwise_" in text
    ]
    return found


def test_there_is_something_to_check() -> None:
    assert len(ALERTS) >= 17
    assert len(expressions()) >= len(ALERTS) + 30


@pytest.mark.parametrize(("where", "text"), expressions())
def test_every_series_exists_with_the_labels_that_are_used(where: str, text: str) -> None:
    del where
    found = selectors(text)
    assert found
    for selector in found:
        assert selector.name is not None
        assert selector.name in series()
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= series()[selector.name]
    labels_of(parsed(text))


def documented_values(metric: str) -> set[str]:
    """The words that the metric's row in the reference quotes; the names of our objects, for a
    metric of kube-state-metrics."""
    if metric in KUBE_STATE_METRICS:
        kind = metric.split("_")[1]
        bodies = yaml.safe_load_all((DAEMONSET / "base" / OBJECTS[kind]).read_text())
        return {body["metadata"]["name"] for body in bodies if body["kind"].lower() == kind}
    _, program, name = metric.split("_", 2)
    name = re.sub(r"_(bucket|sum|count)$", "", name)
    rows = [line for line in reference(program).splitlines() if line.startswith("| `")]
    (row,) = [row for row in rows if name in quoted(row.split("|")[1])]
    return quoted(row)


@pytest.mark.parametrize(("where", "text"), expressions())
def test_every_value_of_a_label_is_documented_with_its_metric(where: str, text: str) -> None:
    del where
    for selector in selectors(text):
        assert selector.name is not None
        for matcher in selector.matchers.matchers:
            free = matcher.name in ("verb", "note") or matcher.value == "$namespace"
            values = set() if free else set(matcher.value.split("|"))
            assert values <= documented_values(selector.name)


def test_a_verb_of_kube_scheduler_is_one_that_is_counted() -> None:
    (slow,) = [rule["expr"] for rule in ALERTS if rule["alert"] == "LinkwiseFilterSlow"]
    assert 'verb="filter"' in slow
    assert "`filter`" in (OPERATING.parent / "architecture.md").read_text()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_names_only_labels_that_it_has(
    rule: Mapping[str, Any],
) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    said = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    found = labels_of(parsed(rule["expr"]))
    assert found is not None
    assert said <= found


def test_every_alert_is_listed_with_its_severity_and_nothing_else_is() -> None:
    page = (OPERATING / "monitor.md").read_text()
    rows = re.findall(r"^\| \[`(Linkwise\w+)`\]\((\S+)\) \| (\w+) \|", page, re.MULTILINE)
    assert rows == [
        (name := rule["alert"], f"runbooks.md#{name.lower()}", rule["labels"]["severity"])
        for rule in ALERTS
    ]


def test_every_alert_leads_to_its_own_runbook() -> None:
    page = (OPERATING / "runbooks.md").read_text()
    _, *parts = re.split(r"^## ", page, flags=re.MULTILINE)
    runbooks = dict(part.split("\n", 1) for part in parts)
    assert list(runbooks) == [rule["alert"] for rule in ALERTS]
    path = (OPERATING / "runbooks.md").relative_to(ROOT)
    for rule in ALERTS:
        assert rule["annotations"]["runbook_url"] == f"{path}#{rule['alert'].lower()}"
        told = re.findall(r"^- \*\*(.*?)\*\*", runbooks[rule["alert"]], re.MULTILINE)
        assert told == ["How bad:", "First:", "Then:", "Stop when"]


def test_the_dashboard_is_one_by_grafanas_own_schema() -> None:
    """A field that Grafana does not know does not come back."""
    register_default_plugins()
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert not [*lost(DASHBOARD, back)]


def lost(there: object, back: object, path: str = "") -> Iterator[str]:
    if isinstance(there, dict):
        for key, value in there.items():
            if not isinstance(back, dict) or key not in back:
                yield f"{path}/{key}"
            else:
                yield from lost(value, back[key], f"{path}/{key}")
    elif isinstance(there, list):
        assert isinstance(back, list)
        for number, (one, other) in enumerate(zip(there, back, strict=True)):
            yield from lost(one, other, f"{path}/{number}")
    elif there != back:
        yield path


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    register_default_plugins()
    wrong = json.loads(json.dumps(DASHBOARD))
    wrong["panels"][1]["gridPos"]["width"] = 3
    wrong["panels"][1]["targets"][0]["expression"] = "up"
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(wrong)))
    assert [*lost(wrong, back)] == ["/panels/1/gridPos/width", "/panels/1/targets/0/expression"]


def test_panels_have_their_own_number_and_place() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= COLUMNS for at in places)
    for one, other in combinations(places, 2):
        apart = [
            one[axis] + one[size] <= other[axis] or other[axis] + other[size] <= one[axis]
            for axis, size in (("x", "w"), ("y", "h"))
        ]
        assert any(apart), (one, other)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel['id']}-{panel['title']}")
def test_a_panel_names_only_labels_that_its_series_have(panel: Mapping[str, Any]) -> None:
    assert panel["description"]
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
        said = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
        found = labels_of(parsed(target["expr"]))
        assert said <= (found or frozenset())
        assert said == (found or frozenset()) or panel["type"] == "table" or not found
    for each in panel.get("transformations", ()):
        columns = each["options"]["renameByName"].keys() - {"Value"}
        assert columns == labels_of(parsed(panel["targets"][0]["expr"]))
