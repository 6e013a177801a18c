"""Prometheus' own tool judges the alerting rules: that they parse, and when each of them fires."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster.support.programs import binaries
from tests.manifests import DAEMONSET

ALERTS = DAEMONSET / "chart" / "monitoring" / "alerts.yaml"
CASES = Path(__file__).parent / "alerts_test.yaml"


@pytest.fixture(scope="module")
def promtool() -> Path:
    return binaries.promtool() / "promtool"


def judged(promtool: Path, *arguments: str) -> tuple[int, str]:
    ran = subprocess.run([str(promtool), *arguments], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_prometheus_reads_the_rules(promtool: Path) -> None:
    status, said = judged(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(ALERTS))
    assert status == 0, said
    count = sum(len(group["rules"]) for group in yaml.safe_load(ALERTS.read_text())["groups"])
    assert f"{count} rules found" in said


def test_each_alert_fires_for_its_trouble_and_for_nothing_else(promtool: Path) -> None:
    status, said = judged(promtool, "test", "rules", str(CASES))
    assert status == 0, said
    firing = set(re.findall(r'alertname="(\w+)"', CASES.read_text()))
    rules = re.findall(r"alert: (\w+)", ALERTS.read_text())
    assert firing >= set(rules)


def test_a_rule_that_never_fires_would_be_found(promtool: Path, tmp_path: Path) -> None:
    deaf = re.sub(r"probe_age_seconds > 60", "probe_age_seconds > 600000", ALERTS.read_text())
    (tmp_path / "alerts.yaml").write_text(deaf)
    cases = CASES.read_text().replace("../../daemonset/chart/monitoring/", "")
    (tmp_path / "cases.yaml").write_text(cases)
    status, said = judged(promtool, "test", "rules", str(tmp_path / "cases.yaml"))
    assert status != 0
    assert "LinkwiseDriverSilent" in said
