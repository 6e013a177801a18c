"""A node's cgroup is ready for its kubelet, in either version of cgroups.

Everything that runs on a node tries this machine's version; the other one is known only from its
files.
"""

from pathlib import Path

import pytest

from tests.cluster.support.host import cgroups


def test_in_version_1_a_cgroup_gets_the_processors_of_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "HIERARCHIES", tmp_path)
    node = tmp_path / "cpuset/run/node-1"
    node.mkdir(parents=True)
    write(tmp_path / "cpuset", {"cgroup.procs": "", "cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"})
    for cgroup in (node.parent, node):
        write(cgroup, {"cpuset.cpus": "\n", "cpuset.mems": "\n"})
    cgroups.create("run/node-1")
    assert (node / "cpuset.cpus").read_text() == "0-1\n"
    assert (node / "cpuset.mems").read_text() == "0\n"


def test_in_version_2_a_cgroup_gets_every_controller_of_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "HIERARCHIES", tmp_path)
    (tmp_path / "run").mkdir()
    for cgroup in (tmp_path, tmp_path / "run"):
        write(cgroup, {"cgroup.controllers": "cpu memory pids\n"})
    cgroups.create("run/node-1")
    for cgroup in (tmp_path, tmp_path / "run"):
        assert (cgroup / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (tmp_path / "run/node-1").is_dir()


def test_a_command_joins_every_hierarchy_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "HIERARCHIES", tmp_path)
    for name in ("cpu", "pids"):
        (tmp_path / name / "run").mkdir(parents=True)
        write(tmp_path / name, {"cgroup.procs": ""})
    script = cgroups.joined("run", ["some", "program"])[2]
    assert script == (
        f"echo $$ > {tmp_path}/cpu/run/cgroup.procs && "
        f'echo $$ > {tmp_path}/pids/run/cgroup.procs && exec "$@"'
    )


def write(cgroup: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (cgroup / name).write_text(content)
