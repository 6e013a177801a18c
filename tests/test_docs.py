"""The docs name all that a user can set, read or be shown, and nothing that does not exist."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

import click
import pytest
from flask import Flask
from prometheus_client.core import CollectorRegistry

from bench.replay.__main__ import jobs as replay_of_jobs
from bench.replay.openb.command import openb as replay_of_openb
from linkwise.cli.__main__ import main as cli
from linkwise.extender.__main__ import command as extender
from linkwise.extender.calls import bind
from linkwise.extender.calls import filter as filter_verb
from linkwise.extender.next.gangs import lifecycle, scheduling_gates
from linkwise.extender.next.gangs.gang import Phase
from linkwise.extender.next.moves import planned_moves
from linkwise.extender.next.preemption import gang_preemption, reclaim
from linkwise.extender.next.queue import quota_turns, waiting_events
from linkwise.extender.place.nodes import reasons
from linkwise.extender.place.nodes.node_filters import why_not
from linkwise.extender.run.leadership import ALONE
from linkwise.extender.run.loop import Loop
from linkwise.extender.run.metrics import Census, ExtenderMetrics
from linkwise.extender.run.ports.routes import create_app as create_extender_app
from linkwise.extender.show.explain import levels, node_arrays
from linkwise.extender.state.cache import pending_writes
from linkwise.extender.state.views import Counts
from linkwise.kube.lease import Elector
from linkwise.plugin.__main__ import main as plugin
from linkwise.plugin.app import create_app as create_plugin_app
from linkwise.plugin.metrics import Metrics as PluginMetrics
from linkwise.simulator.__main__ import command as simulator
from linkwise.topology import names
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.webhook.__main__ import command as webhook
from linkwise.webhook.answers import Answers as WebhookAnswers
from linkwise.webhook.patch import Rules
from tests.doc_pages import OPERATING, ROOT, headings, quoted, reference

ANNOTATIONS = (ROOT / "docs" / "annotations.md").read_text()
SIMULATOR = (ROOT / "docs" / "simulator.md").read_text()
REPLAY = (ROOT / "docs" / "replay.md").read_text()
REASONS = (OPERATING / "troubleshoot.md").read_text()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def flags(command: click.Command) -> set[str]:
    return {
        flag
        for option in command.params
        if isinstance(option, click.Option)
        for flag in (*option.opts, *option.secondary_opts)
        if flag.startswith("--") and flag not in ("--help", "--version")
    }


@pytest.mark.parametrize(
    ("command", "program"),
    [(plugin, "plugin"), (extender, "extender"), (webhook, "webhook")],
)
def test_every_flag_is_documented_and_every_documented_flag_exists(
    command: click.Command, program: str
) -> None:
    said = {word for word in quoted(reference(program)) if re.fullmatch(r"--[a-z-]+", word)}
    assert said == flags(command)


def test_every_flag_of_the_simulator_is_documented() -> None:
    said = set(re.findall(r"^\| `(--[a-z-]+)", SIMULATOR, flags=re.MULTILINE))
    assert said == flags(simulator)


@pytest.mark.parametrize(
    ("command", "title"), [(replay_of_jobs, "Jobs"), (replay_of_openb, "openb")]
)
def test_every_flag_of_the_replay_is_documented(command: click.Command, title: str) -> None:
    part = next(part for part in REPLAY.split("\n## ") if part.startswith(title))
    said = set(re.findall(r"^\| `(--[a-z-]+)", part, flags=re.MULTILINE))
    assert said == flags(command)


def metric_names(registry: CollectorRegistry, prefix: str) -> set[str]:
    return {
        family.name.removeprefix(prefix) + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
        if family.name.startswith(prefix)
    }


def documented_metrics(program: str) -> set[str]:
    table = reference(program).split("| metric (", 1)[1].split("\n\n", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    return set().union(*(quoted(cell) for cell in rows))


def test_every_metric_is_documented() -> None:
    of_plugin = PluginMetrics().registry
    assert metric_names(of_plugin, "linkwise_plugin_") == documented_metrics("plugin")
    metrics = ExtenderMetrics()
    metrics.watch_lead(ALONE)
    metrics.watch_certificates(lambda: {"server": 0.0})
    metrics.watch_books(lambda: Census(Counts({}, {}, {}, 0, 0), 0, {}))
    of_extender = metric_names(metrics.registry, "linkwise_extender_")
    assert of_extender == documented_metrics("extender")
    of_webhook = metric_names(WebhookAnswers(Rules()).registry, "linkwise_webhook_")
    assert of_webhook == documented_metrics("webhook")


def routes(app: Flask) -> set[str]:
    return {rule.rule for rule in app.url_map.iter_rules() if rule.endpoint != "static"}


def test_every_route_is_documented() -> None:
    plugin_app = create_plugin_app(CollectorRegistry(), lambda: "")
    no_shell = cast("Loop", None)  # the routes are listed, none is called
    extender_app = create_extender_app(no_shell, ExtenderMetrics())
    for app, program in ((plugin_app, "plugin"), (extender_app, "extender")):
        said = reference(program)
        assert len(routes(app)) >= 3
        assert not [rule for rule in routes(app) if rule not in said]
    for _, path in WebhookAnswers(Rules()).routes():
        assert f"`{path}`" in reference("webhook") or f" {path}`" in reference("webhook")


def test_every_annotation_and_label_is_documented() -> None:
    said = quoted(ANNOTATIONS)
    keys = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and value.startswith(names.PREFIX)
    } - {names.PREFIX}
    labels = node_labels(recorded_machine("gb200-tray")) | node_labels(recorded_machine("dgx-a100"))
    missing = {key for key in {*keys, *labels} if not {key, key.removeprefix(names.PREFIX)} & said}
    assert not missing


def test_every_reason_that_kube_scheduler_shows_is_explained() -> None:
    shown = [
        value
        for name, value in (vars(filter_verb) | vars(reasons)).items()
        if name.isupper() and isinstance(value, str) and value.startswith("linkwise: ")
    ]
    shown += [levels.NO_RESOURCES, levels.REFUSED, node_arrays.NOT_READY]
    assert len(shown) >= 14
    assert not [reason for reason in shown if f"`{reason}`" not in REASONS]


def texts_in(source: ModuleType | Callable[..., object] | type) -> set[str]:
    """The literal texts in *source* and around its f-strings' fields, without its docstrings."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(source)))
    said = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    texts = {
        node.value.removeprefix("linkwise: ").strip(" :;()`")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    }
    return {text for text in texts if " " in text}


@pytest.mark.parametrize(
    ("source", "least"),
    [
        (bind, 10),
        (reasons.why_closed_exactly, 1),
        (scheduling_gates, 5),
        (waiting_events, 8),
        (why_not, 3),
        (Elector.refusal, 3),
        (Loop.waits_for, 1),
        (Loop.reads, 1),
    ],
)
def test_every_reason_that_is_put_together_is_explained(
    source: ModuleType | Callable[..., object], least: int
) -> None:
    texts = texts_in(source) - {"kubectl linkwise explain -n"}
    assert len(texts) >= least
    assert not [text for text in texts if text not in REASONS]


def test_the_page_about_the_life_of_gangs_has_each_phase() -> None:
    page = (OPERATING / "queue-and-gangs.md").read_text()
    assert {*re.findall(r"^\| `(\w+)` \|", page, re.M)} == {phase.value for phase in Phase}


def test_every_event_is_explained() -> None:
    events = [module.REASON for module in (waiting_events, gang_preemption, planned_moves)]
    events += [gang_preemption.RECLAIMED, gang_preemption.WITHDRAWN, reclaim.ANNOUNCED]
    events += [lifecycle.CANNOT_REPAIR, quota_turns.EVENT, pending_writes.OTHERS_EVICTED]
    assert not [reason for reason in events if f"`{reason}`" not in REASONS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(((?:[^)#:]+\.md)?)#([^)]+)\)", page.read_text())
    assert not [
        (target, heading)
        for target, heading in targets
        if heading not in headings(page.parent / target if target else page)
    ]


def test_every_command_of_the_linkwise_program_is_shown_in_the_readme() -> None:
    assert isinstance(cli, click.Group)
    readme = (ROOT / "README.md").read_text()
    assert not [name for name in cli.commands if f"linkwise {name}" not in readme]


def test_the_tour_of_the_readme_leads_to_each_step_of_adoption() -> None:
    tour = (ROOT / "README.md").read_text().split("## A tour", 1)[1].split("\n## ", 1)[0]
    page = (OPERATING / "adopt-step-by-step.md").read_text()
    steps = re.findall(r"^## (\d)\. (\w+)$", page, flags=re.MULTILINE)
    assert [name for _, name in steps] == ["Observe", "Canary", "Enforce"]
    anchors = [f"(docs/operating/adopt-step-by-step.md#{n}-{name.lower()})" for n, name in steps]
    assert not [anchor for anchor in anchors if anchor not in tour]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_file_that_the_maps_name_exists(page: str) -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text()))
    roots = (ROOT, ROOT / "extender" / "linkwise" / "extender")
    assert len(named) > 5
    assert {name for name in named if not any((root / name).is_file() for root in roots)} == set()
