"""The configuration file of NVIDIA's plugin: what is followed, and what is named instead."""

import logging
from pathlib import Path

import click
import hypothesis.strategies as st
import pytest
from click.testing import CliRunner
from hypothesis import given

from linkwise.plugin.__main__ import main
from linkwise.plugin.device_plugin.cdi import CdiMode
from linkwise.plugin.errors import SettingError
from linkwise.plugin.nvidia_config import config_of, read_config
from tests.plugin.strange_yaml import STRANGE

FULL = """
version: v1
flags:
  migStrategy: none
  failOnInitError: false
  nvidiaDriverRoot: /run/nvidia/driver
  gdsEnabled: null
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: [cdi-cri]
    deviceIDStrategy: uuid
  gfd:
    sleepInterval: 60s
resources:
  gpus:
  - pattern: "*"
    name: a100
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


def params(*args: str) -> dict[str, object]:
    return dict(main.make_context("p", ["--node-name", "n1", *args]).params)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "config.yaml"
    found.write_text(FULL)
    return found


def test_what_is_followed_and_what_is_named(file: Path) -> None:
    config = read_config(file)
    assert config.settings == {
        "no_driver": "wait",
        "pass_device_specs": False,
        "cdi": CdiMode.ON,
        "resource_name": "nvidia.com/a100",
    }
    assert config.ignored == (
        "flags.nvidiaDriverRoot: /run/nvidia/driver",
        "flags.gfd.sleepInterval: 60s",
        "sharing.timeSlicing.renameByDefault: True",
        "sharing.timeSlicing.resources: [{'name': 'nvidia.com/gpu', 'replicas': 4}]",
    )


def test_the_file_gives_defaults_and_flags_take_precedence(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = params("--config-file", str(file))
    assert (found["resource_name"], found["cdi"]) == ("nvidia.com/a100", CdiMode.ON)
    assert found["pass_device_specs"] is False
    # The order of the flags does not matter.
    found = params("--resource-name=example.com/gpu", "--cdi=off", "--config-file", str(file))
    assert (found["resource_name"], found["cdi"]) == ("example.com/gpu", CdiMode.OFF)
    monkeypatch.setenv("LINKWISE_PLUGIN_CDI", "auto")
    assert params("--config-file", str(file))["cdi"] is CdiMode.AUTO


def test_ignored_keys_are_warned_of(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        # It ends at once: no such machine.
        CliRunner().invoke(
            main, ["--node-name=n1", f"--config-file={file}", "--machine=none", "--no-driver=exit"]
        )
    said = [r.getMessage() for r in caplog.records if "--config-file" in r.getMessage()]
    assert said[0] == (
        "--config-file: Linkwise does not follow flags.nvidiaDriverRoot: /run/nvidia/driver"
    )
    assert len(said) == 4


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [
        ("envvar", CdiMode.OFF),
        (["envvar"], CdiMode.OFF),
        (["envvar", "cdi-cri"], CdiMode.ON),
        ("cdi-annotations", None),
        (["volume-mounts"], None),
        ([["envvar"]], None),
    ],
)
def test_strategies_of_device_lists(strategy: object, mode: CdiMode | None) -> None:
    config = config_of({"flags": {"plugin": {"deviceListStrategy": strategy}}})
    assert config.settings.get("cdi") == mode
    assert bool(config.ignored) == (mode is None)


@pytest.mark.parametrize("text", ["", "[]", "version: v2", "version: [", "\0"])
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(SettingError, match=r"config\.yaml: "):
        read_config(file)
    with pytest.raises(click.BadParameter, match=r"config\.yaml"):
        params("--config-file", str(file))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="No such file"):
        read_config(tmp_path / "none.yaml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(["version", "flags", "plugin", "resources", "gpus", "deviceListStrategy"])


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, JSON) | JSON))
def test_any_content_is_followed_or_named(content: dict[str, object]) -> None:
    config = config_of(content)
    assert set(config.settings) <= {"no_driver", "pass_device_specs", "cdi", "resource_name"}


@pytest.mark.parametrize("text", [*STRANGE, "version: v1\na: &a {b: *a}"])
def test_strange_yaml_is_refused_in_words(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingError, match=r"config\.yaml: "):
        read_config(file)
