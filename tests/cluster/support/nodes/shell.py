"""A shell with kubectl on a real cluster with Linkwise, for people.

`python -m tests.cluster shell` runs it inside the sandbox: everything done there ends with it.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import click
import yaml

from tests.cluster.support.host import sandbox
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import MACHINE, SYSTEM, DeployedLinkwise
from tests.cluster.support.programs.busybox import WORKLOAD

# Through the API server, as on any cluster where only the scheduler reaches the extender directly.
_EXTENDER = f"/api/v1/namespaces/{SYSTEM}/services/linkwise-extender:http/proxy"
_JOBS = {
    "four.yaml": workloads.job("four", 4),
    "gang.yaml": workloads.job("train", 8, pods=2, gang=True),
    "late.yaml": workloads.job("late", 8, pods=2, gang=True),
}
_WELCOME = f"""
Two nodes of a real Kubernetes, each playing a {MACHINE}, and Linkwise. To try:

  kubectl get nodes -L nvidia.com/gpu.product,linkwise.dev/nvlink
  kubectl apply -f four.yaml        a Job of four GPUs; then: kubectl logs job/four
  kubectl apply -f gang.yaml        two pods of eight GPUs, which start together or not at all:
                                    they wait; then: kubectl delete job four
  kubectl apply -f late.yaml        for which there is no room; why: kubectl linkwise explain
  kubectl linkwise nodes            who has how many GPUs; also: gangs, top
  kubectl get --raw $EXTENDER/nodes          the same as JSON; also /gangs, /metrics
  linkwise choose --help            what a set of GPUs is worth

Images come from nowhere here: pods say {WORKLOAD}, a busybox.
Logs of everything are in $LOGS. Leave with `exit`: the cluster goes with the shell.
"""


def run_shell(deployed: DeployedLinkwise, stdin: IO[str] | None = None) -> int:
    """Run the shell and return its exit status. With *stdin* it runs those commands without a
    prompt."""
    home = deployed.directory / "shell"
    home.mkdir(exist_ok=True)
    for name, job in _JOBS.items():
        (home / name).write_text(yaml.safe_dump(job))
    settings = home / ".bashrc"
    settings.write_text("[ -f ~/.bashrc ] && . ~/.bashrc\nPS1='linkwise \\W\\$ '\n")
    programs = (deployed.control.programs, Path(sys.executable).parent)
    env = {
        **os.environ,
        "KUBECONFIG": str(deployed.control.kubeconfig()),
        "EXTENDER": _EXTENDER,
        "LOGS": str(deployed.control.logs),
        "PATH": ":".join((*map(str, programs), os.environ["PATH"])),
    }
    command = ["bash", "--rcfile", str(settings)]
    return subprocess.run(command, cwd=home, env=env, stdin=stdin, check=False).returncode


def main() -> None:
    directory = sandbox.directory()
    assert directory, "run it as `python -m tests.cluster shell`"
    click.echo("Starting a cluster with Linkwise: about a minute.")
    deployed = DeployedLinkwise(directory / "deployed")
    try:
        deployed.start()
        click.echo(_WELCOME)
        status = run_shell(deployed)
        click.echo("Ending the cluster.")
    finally:
        deployed.stop()
    sys.exit(status)


if __name__ == "__main__":
    main()
