"""A shell with kubectl and helm on a real cluster, with Linkwise or without, for people.

`python -m tests.cluster shell` runs it inside the sandbox: everything done there ends with it.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

import click
import yaml

from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host import relay, sandbox
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.cluster import RealCluster
from tests.cluster.support.nodes.deployment import MACHINE, SYSTEM, DeployedLinkwise
from tests.cluster.support.nodes.installation import ADDRESS, start_ready
from tests.cluster.support.programs import binaries, busybox
from tests.cluster.support.programs.images import CHECKOUT, VERSION

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
  kubectl linkwise ui --no-browser --port $PAGE_PORT
                                    the live page: a browser of this machine opens its address
  kubectl get --raw $EXTENDER/nodes          the same as JSON; also /gangs, /metrics
  linkwise choose --help            what a set of GPUs is worth
"""
INSTALL = f"""\
helm install linkwise daemonset/chart -n {SYSTEM} --wait \\
    --set plugin.mode=replace --set plugin.simulatedMachines=true \\
    --set image.pullPolicy=Never --set extender.service.clusterIP={ADDRESS}"""
_EMPTY_WELCOME = f"""
Two nodes of a real Kubernetes, each labelled to play a {MACHINE}, without Linkwise. The image
linkwise:{VERSION} of this checkout is on both, and you are in the checkout. To try:

  {INSTALL}
                                    a fixed address, because this cluster has no DNS; the
                                    image is on the nodes, and no other plugin
  kubectl linkwise doctor           what is missing
  kubectl apply -f examples/04-four-gpu-workers.yaml
                                    a gang of two pods of four GPUs; then: kubectl linkwise gangs
  kubectl apply -f examples/07-too-large-gang.yaml
                                    for which there is no room; why: kubectl linkwise explain
  kubectl linkwise ui --no-browser --port $PAGE_PORT
                                    the live page: a browser of this machine opens its address
  helm uninstall linkwise -n {SYSTEM} --wait

The images of examples/ are here, too.
"""
_END = f"""\
Images come from nowhere here: pods say {busybox.WORKLOAD}, a busybox.
Logs of everything are in $LOGS. Leave with `exit`: the cluster goes with the shell.
"""


def run_shell(control: ControlPlane, home: Path, port: int, stdin: IO[str] | None = None) -> int:
    """Run the shell in *home* and return its exit status. *port* is for the live page. With *stdin*
    it runs those commands without a prompt."""
    settings = control.directory / "shell.bashrc"
    settings.write_text("[ -f ~/.bashrc ] && . ~/.bashrc\nPS1='linkwise \\W\\$ '\n")
    programs = (control.programs, binaries.helm(), Path(sys.executable).parent)
    env = {
        **os.environ,
        "KUBECONFIG": str(control.kubeconfig()),
        "EXTENDER": _EXTENDER,
        "PAGE_PORT": str(port),
        "LOGS": str(control.logs),
        "PATH": ":".join((*map(str, programs), os.environ["PATH"])),
    }
    command = ["bash", "--rcfile", str(settings)]
    return subprocess.run(command, cwd=home, env=env, stdin=stdin, check=False).returncode


def write_jobs(directory: Path) -> Path:
    """Write the Jobs that the greeting names, and return their directory."""
    home = directory / "shell"
    home.mkdir(exist_ok=True)
    for name, job in _JOBS.items():
        (home / name).write_text(yaml.safe_dump(job))
    return home


def import_examples(cluster: RealCluster) -> None:
    """Give the nodes the images that `examples/` name: each prints its GPUs and runs on."""
    archive = cluster.control.directory / "examples.tar"
    says = ["/bin/sh", "-c", workloads.RUN]
    busybox.write_images(archive, dict.fromkeys(_example_images(), says))
    for node in cluster.nodes.values():
        node.import_image(archive)
    archive.unlink()


def _example_images() -> set[str]:
    return {
        container["image"]
        for path in (CHECKOUT / "examples").glob("*.yaml")
        for job in yaml.safe_load_all(path.read_text())
        for container in job["spec"]["template"]["spec"]["containers"]
    }


@click.command()
@click.argument("page", type=int)
@click.option("--empty", is_flag=True)
def main(page: int, *, empty: bool) -> None:
    """PAGE is the number of an inherited socket that listens in the network outside."""
    listener = socket.socket(fileno=page)
    port = int(listener.getsockname()[1])
    relay.start(listener)
    directory = sandbox.directory()
    assert directory, "run it as `python -m tests.cluster shell`"
    click.echo("Starting a cluster: about a minute.")
    deployed = None if empty else DeployedLinkwise(directory / "deployed")
    cluster = deployed.cluster if deployed else RealCluster(directory / "empty")
    try:
        if deployed:
            deployed.start()
            home = write_jobs(deployed.directory)
        else:
            start_ready(cluster)
            import_examples(cluster)
            home = CHECKOUT
        click.echo(f"{_EMPTY_WELCOME if empty else _WELCOME}\n{_END}")
        status = run_shell(cluster.control, home, port)
        click.echo("Ending the cluster.")
    finally:
        cluster.stop()
    sys.exit(status)


if __name__ == "__main__":
    main()
