"""Which GPUs a container gets by their CDI names: what the runtime can, and what the specs say."""

import json
import logging
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from linkwise.plugin.device_plugin.cdi import CDI_KIND, Cdi, CdiMode, injects_by_default
from tests.plugin.strange_yaml import STRANGE

ONE, TWO = "GPU-1111", "GPU-2222"
CONTAINERD = "containerd://2.1.4"


def spec(*names: str, kind: str = CDI_KIND) -> str:
    devices = [{"name": name, "containerEdits": {}} for name in names]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "etc", tmp_path / "run"
    for directory in found:
        directory.mkdir()
    return found


def auto(directories: tuple[Path, ...], runtime: str = CONTAINERD) -> Cdi:
    cdi = Cdi(CdiMode.AUTO, directories)
    cdi.runtime_seen(runtime)
    return cdi


@pytest.mark.parametrize(
    ("runtime", "injects"),
    [
        ("containerd://2.0.0", True),
        ("containerd://v2.1.4-k3s1", True),
        ("containerd://1.7.27", False),  # with enable_cdi it would, but no pod can see that
        ("cri-o://1.33.1", True),
        ("docker://27.0.1", False),
        ("", False),
        ("containerd", False),
    ],
)
def test_runtimes_that_inject_without_configuration(runtime: str, *, injects: bool) -> None:
    assert injects_by_default(runtime) is injects


def test_all_gpus_of_the_container_must_be_in_a_spec(directories: tuple[Path, Path]) -> None:
    cdi = auto(directories)
    assert not cdi.injects([ONE])
    (directories[1] / "nvidia.yaml").write_text(
        f"cdiVersion: 0.5.0\nkind: {CDI_KIND}\ndevices:\n- name: 0\n- name: {ONE}\n- name: all\n"
    )
    assert cdi.injects([ONE])
    assert not cdi.injects([ONE, TWO])
    (directories[1] / "nvidia.yaml").write_text(spec(ONE, TWO))  # as after a new GPU; JSON is YAML
    assert cdi.injects([TWO, ONE])
    (directories[1] / "nvidia.yaml").unlink()
    assert not cdi.injects([ONE])


def test_a_runtime_without_cdi_gets_no_names(directories: tuple[Path, Path]) -> None:
    (directories[0] / "nvidia.json").write_text(spec(ONE))
    assert not auto(directories, "containerd://1.7.27").injects([ONE])
    assert not Cdi(CdiMode.AUTO, directories).injects([ONE])  # its Node has not been read yet
    assert Cdi(CdiMode.ON, ()).injects([ONE])
    assert not Cdi(CdiMode.OFF, directories).injects([ONE])


def test_a_name_in_two_specs_of_a_directory_is_no_name(directories: tuple[Path, Path]) -> None:
    """A runtime resolves neither, and the container would not start."""
    (directories[0] / "a.json").write_text(spec(ONE, TWO))
    (directories[0] / "b.json").write_text(spec(ONE))
    cdi = auto(directories)
    assert not cdi.injects([ONE])
    assert cdi.injects([TWO])
    (directories[1] / "c.json").write_text(spec(ONE, TWO))
    assert not cdi.injects([ONE])  # a spec that takes precedence does not end the conflict
    assert cdi.injects([TWO])
    (directories[1] / "d.json").write_text(spec(TWO))
    assert not cdi.injects([TWO])


def test_a_spec_with_a_name_twice_is_refused_as_a_whole(directories: tuple[Path, Path]) -> None:
    (directories[0] / "a.json").write_text(spec(ONE, ONE, TWO))
    assert not auto(directories).injects([TWO])


@pytest.mark.parametrize("text", STRANGE)
def test_strange_yaml_is_a_broken_spec_and_no_end_of_the_plugin(
    directories: tuple[Path, Path], text: str
) -> None:
    (directories[0] / "strange.yaml").write_text(text)
    (directories[0] / "nvidia.json").write_text(spec(ONE))
    assert auto(directories).injects([ONE])


def test_specs_of_others_and_broken_ones_count_for_nothing(
    directories: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    (directories[0] / "mig.json").write_text(spec(ONE, kind="management.nvidia.com/gpu"))
    (directories[0] / "notes.txt").write_text(spec(ONE))
    (directories[0] / "broken.json").write_text("{")
    (directories[0] / "broken.yaml").write_text("kind: [")
    (directories[0] / "gone.json").symlink_to("nowhere")
    cdi = auto(directories)
    with caplog.at_level(logging.WARNING):
        assert not cdi.injects([ONE])
        assert not cdi.injects([ONE])
    broken = [r.getMessage() for r in caplog.records if "broken" in r.getMessage()]
    assert len(broken) == 2, "each broken spec is reported once"


def test_the_log_says_once_what_containers_get(
    directories: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    cdi = auto(directories)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            cdi.injects([ONE])
        (directories[1] / "nvidia.json").write_text(spec(ONE))
        for _ in range(2):
            cdi.injects([ONE])
    said = [record.getMessage() for record in caplog.records]
    places = f"{directories[0]} or {directories[1]}"
    assert said == [
        "GPUs are not passed as CDI devices: "
        f"no spec in {places} names nvidia.com/gpu=GPU-1111 once",
        "GPUs are passed as CDI devices",
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=200), suffix=st.sampled_from([".json", ".yaml"]))
def test_no_file_there_can_end_the_plugin(
    directories: tuple[Path, Path], content: bytes, suffix: str
) -> None:
    file = directories[0] / f"any{suffix}"
    file.write_bytes(content)
    assert not auto(directories).injects([ONE])
    file.unlink()
