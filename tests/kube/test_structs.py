"""Threads that decode for the first time at once do not crash the program."""

import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest
from kubernetes.client import Configuration

from linkwise.kube import structs
from linkwise.kube.client import KubeClient
from linkwise.serving.system import Workers

# Threads change places as often as they can. More than half of the runs ended with a crash.
PROGRAM = """
import sys, threading
import msgspec
from linkwise.kube.objects import Node, Pod
from linkwise.kube.structs import build_structs
build_structs()
sys.setswitchinterval(1e-6)
RAW = (
    b'{"metadata": {"name": "a", "ownerReferences": [{"kind": "a", "name": "b", "uid": "c"}]},'
    b' "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]},'
    b' "status": {"conditions": [{"type": "a", "status": "b"}]}}'
)
at_once = threading.Barrier(4)
def decode(kind):
    at_once.wait()
    for _ in range(20):
        msgspec.json.decode(RAW, type=kind)
threads = [threading.Thread(target=decode, args=(kind,)) for kind in (Pod, Node, Pod, Node)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_decode_for_the_first_time_at_once_crash_nothing() -> None:
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("begin", [lambda: KubeClient(Configuration()), Workers])
def test_clients_and_servers_build_all_structs_first(begin: Callable[[], object]) -> None:
    class Later(msgspec.Struct):
        name: str

    begin()
    assert Later in structs._built
