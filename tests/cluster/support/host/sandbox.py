"""Separate namespaces for a cluster and the tests that talk to it.

Network, mounts and processes belong to the sandbox. Ports cannot clash, several sandboxes may run
side by side, and when the first process ends in any way, everything inside ends. The kernel does
not remove the run's directory and cgroups. A sweeper outside does; it waits only for the end of a
pipe, so even a SIGKILL leaves nothing behind.
"""

import os
import shutil
import signal
import socket
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
    """Return the run's directory. Only inside a sandbox."""
    here = os.environ.get(DIRECTORY)
    return Path(here) if here else None


def run(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    sockets: Sequence[socket.socket] = (),
) -> int:
    """Run *command* in a new sandbox, remove the sandbox, and return the exit status. The command
    inherits *sockets* under their numbers; they stay in this machine's network."""
    home = Path(tempfile.mkdtemp(prefix="linkwise-cluster-"))
    # Pods of any user read it through their mounts.
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
            # exec_with_parent, because unshare ends its child with itself but would survive this
            # process.
            [
                *(sys.executable, "-I", "-S", exec_with_parent.__file__, str(os.getpid())),
                *(unshare, *namespaces),
                *(sys.executable, "-m", "tests.cluster.support.host.sandbox", "first", *command),
            ],
            env={**_without_proxies(os.environ), DIRECTORY: str(home), **(env or {})},
            pass_fds=[each.fileno() for each in sockets],
            check=False,
        )
    finally:
        os.close(our_end)
        sweeper.wait()
    return ended.returncode


def _without_proxies(env: Mapping[str, str]) -> dict[str, str]:
    """Remove proxies: a sandbox reaches none, and clients would wait for them in vain."""
    return {name: text for name, text in env.items() if not name.lower().endswith("_proxy")}


def _first(command: Sequence[str]) -> int:
    """Act as process 1 of the sandbox: create the network, run *command*, and reap orphans."""
    for line in (
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {GATEWAY} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        f"route add default dev {BRIDGE}",  # without one, kube-proxy and kubelet find no address
    ):
        subprocess.run(["ip", *line.split()], check=True)
    main = subprocess.Popen(command, close_fds=False)  # `run` has closed all but its sockets
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not `main.send_signal`: it would reap a command that has just ended, and hide that from
        # the loop.
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
