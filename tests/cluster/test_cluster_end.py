"""Nothing of a cluster is left behind, after a stop and after a kill of its starter."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.support.host import cgroups, sandbox
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes.cluster import RealCluster

# Where the programs create directories by default.
USUAL_PLACES = (
    "/etc/cni",
    "/etc/kubernetes",
    "/opt/cni",
    "/opt/containerd",
    "/run/containerd",
    "/run/mount",
    "/run/netns",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/pods",
)
# A pod with a mount, so that there is something of every kind to leave behind.
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  nodeName: node-1
  containers:
  - name: main
    image: localhost/workload:test
    imagePullPolicy: Never
    volumeMounts: [{name: memory, mountPath: /memory}]
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
"""
START = """
from tests.cluster.support.host import sandbox
from tests.cluster.test_cluster_end import run_pod
from tests.cluster.support.nodes.cluster import RealCluster
import time

cluster = RealCluster(sandbox.directory() / "killed", nodes=1)
cluster.start()
run_pod(cluster)
print(sandbox.directory(), flush=True)
time.sleep(600)
"""


def test_a_stopped_cluster_leaves_its_logs_and_nothing_else(run_directory: Path) -> None:
    before, places = traces(), used_places()
    cluster = RealCluster(run_directory / "stopped", nodes=1)
    cluster.start()
    run_pod(cluster)
    during = traces()
    assert all(during[kind] > before[kind] for kind in before), "each kind is there to be missed"
    cluster.stop()
    assert traces() == before
    assert used_places() == places
    kept = {path.name for path in cluster.control.directory.iterdir()}
    assert {"nodes", "etcd"}.isdisjoint(kept)
    assert (cluster.control.logs / "node-1.kubelet.log").stat().st_size


def test_a_killed_cluster_leaves_nothing() -> None:
    with another_sandbox() as (starter, home):
        assert home.is_dir()
        assert cgroups.processes(home.name)
        starter.kill()
        wait_for(lambda: not home.exists(), "its directory is gone")
    assert not [root for root in cgroups.HIERARCHIES.rglob(home.name) if root.is_dir()]
    # The sweeper ends last, as it removes the rest.
    wait_for(lambda: not [line for line in command_lines() if home.name in line], "all have ended")


def run_pod(cluster: RealCluster) -> None:
    cluster.control.kubectl("apply", "-f", "-", stdin=POD)
    cluster.control.kubectl("wait", "--for=condition=Ready", "--timeout=90s", "pod/one")


@contextmanager
def another_sandbox() -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """Start a sandbox inside this one, with a cluster that runs a pod. Return its starter, and the
    run's directory."""
    command = [sys.executable, "-m", "tests.cluster", "run", "--", sys.executable, "-c", START]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        try:
            assert starter.stdout is not None
            yield starter, Path(starter.stdout.readline().strip())
        finally:
            starter.kill()


def traces() -> dict[str, set[str]]:
    """Return what a cluster could leave on the machine, by kind."""
    run = sandbox.directory()
    assert run
    links = subprocess.check_output(["ip", "-oneline", "addr"], text=True)
    rules = subprocess.check_output(["nft", "list", "tables"], text=True)
    return {
        "processes": set(command_lines()),
        "addresses": {line.split()[3] for line in links.splitlines()},
        "links": {line.split()[1] for line in links.splitlines()},
        "rules": set(rules.splitlines()),
        "cgroups": {
            str(root)
            for path in cgroups.HIERARCHIES.glob(f"*/{run.name}")
            for root in (path, *path.rglob("*"))
            if root.is_dir()
        },
    }


def used_places() -> list[str]:
    return [place for place in USUAL_PLACES if Path(place).exists()]


def command_lines() -> Iterator[str]:
    """Return the command lines of all live processes in this sandbox."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_text().split("\0")
        except OSError:  # ended since the listing
            continue
        if any(words):
            yield " ".join(words)
