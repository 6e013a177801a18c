"""Namespaces of their own for a cluster and the tests that talk to it.

Network, mounts and processes are the sandbox's: no port clashes with anything, several may run side
by side, and when its first process ends, however that was, everything in it ends. What the kernel
does not take back by itself, the run's directory and its cgroups, is removed by a sweeper outside,
which waits for nothing but the end of a pipe; so not even a SIGKILL leaves anything behind.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from linkwise.simulator.processes import exec_with_parent
from tests.cluster.support.host.cgroups import remove_cgroups

DIRECTORY = "LINKWISE_SANDBOX"  # set inside, to the run's directory
BRIDGE = "lw0"
GATEWAY = "172.31.0.1/24"


def directory() -> Path | None:
    """The run's directory, when this process is inside a sandbox."""
    here = os.environ.get(DIRECTORY)
    return Path(here) if here else None


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run *command* in a new sandbox and return its exit status; nothing of it is left then."""
    home = Path(tempfile.mkdtemp(prefix="linkwise-cluster-"))
    # Pods of any user look into it through their mounts.
    home.chmod(0o755)
    until_we_end, our_end = os.pipe()
    sweeper = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.support.host.sandbox", "sweep", str(home)],
        stdin=until_we_end,
        start_new_session=True,
    )
    os.close(until_we_end)
    try:
        unshare = shutil.which("unshare") or "/usr/bin/unshare"
        namespaces = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
        ended = subprocess.run(
            # Tied, since unshare takes its child with it but would itself outlive us.
            [
                *(sys.executable, "-I", "-S", exec_with_parent.__file__, str(os.getpid())),
                *(unshare, *namespaces),
                *(sys.executable, "-m", "tests.cluster.support.host.sandbox", "first", *command),
            ],
            env={**_without_proxies(os.environ), DIRECTORY: str(home), **(env or {})},
            check=False,
        )
    finally:
        os.close(our_end)
        sweeper.wait()
    return ended.returncode


def _without_proxies(env: Mapping[str, str]) -> dict[str, str]:
    """A sandbox reaches none: kubectl, kubelets and the clients would wait for it in vain."""
    return {name: text for name, text in env.items() if not name.lower().endswith("_proxy")}


def _first(command: Sequence[str]) -> int:
    """Process 1 of the sandbox: makes the network, runs *command*, and buries orphans meanwhile."""
    for line in (
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {GATEWAY} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        f"route add default dev {BRIDGE}",  # without one kube-proxy and kubelet find no address
    ):
        subprocess.run(["ip", *line.split()], check=True)
    main = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not by `main.send_signal`, which would bury a command that has just ended, unseen by us.
        signal.signal(number, lambda number, _frame: os.kill(main.pid, number))
    while True:
        pid, status = os.wait()
        if pid == main.pid:
            main.returncode = os.waitstatus_to_exitcode(status)
            return main.returncode


def _sweep(home: Path) -> None:
    """Wait for the sandbox's starter to end, then remove what is left of the run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    remove_cgroups(home.name)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb == "first":
        sys.exit(_first(arguments))
    _sweep(Path(arguments[0]))
