"""`linkwise what-if`: where a job would go, when it would start, and what would make room for it.

It runs the extender's own core on a listing of the cluster, so its answer is the extender's. It
writes nothing. Exit status: 0 all of the job starts now, 1 it does not, 2 bad input. With --replay
the core runs the cluster's past instead; then 0, or 2. With --moves: 0 there are as many whole
nodes of one size, now or after moves, 1 there are not, 2 bad input.
"""

import sys
from typing import Any

import click

from linkwise.cli.printed import output_option, say
from linkwise.topology import names


@click.command(
    name="what-if",
    short_help="Where a job would go if it was submitted, and when.",
    epilog="The cluster is what `kubectl get nodes,pods -A -o json` prints; also jobs, podgroups, "
    "priorityclasses, poddisruptionbudgets, resourceslices, resourceclaims where they matter. FILE "
    "is JSON or YAML, and - is standard input. *: give the extender's value.\n\n"
    "\b\nExample:\n  kubectl get nodes,pods -A -o json | linkwise what-if --submit job.yaml",
)
@click.option(
    "-f",
    "--filename",
    "paths",
    metavar="FILE",
    multiple=True,
    default=("-",),
    help="A listing of the cluster.  [default: -]",
)
@click.option(
    "--submit",
    "jobs",
    metavar="FILE",
    multiple=True,
    help="The job: a Pod, Job, JobSet, PyTorchJob, …",
)
@click.option(
    "--replay",
    is_flag=True,
    help="What would jobs of the past have got?",
)
@click.option(
    "--moves",
    metavar="N",
    help="Which moves would give N whole nodes?",
)
@click.option(
    "--history",
    "histories",
    metavar="FILE",
    multiple=True,
    help="For --replay: more pods of the past, as CSV.",
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    default="default",
    show_default=True,
    help="For objects that name none.",
)
@click.option(
    "--assume",
    "assumed",
    metavar="SELECTOR=MACHINE",
    multiple=True,
    help="Machine of the nodes with these labels, unless a plugin published one.",
)
@click.option(
    "--at", metavar="TIME", help="When the cluster was listed, like 2026-03-01T08:00:00Z."
)
@click.option(
    "--resource",
    "resources",
    multiple=True,
    default=names.DEFAULT_RESOURCES,
    show_default=True,
    help="The extended resource that is a GPU; once for each.",
)
@click.option(
    "--indexed-jobs",
    type=click.Choice(["all", "with-subdomain", "none"]),
    default="all",
    show_default=True,
    help="* Which Indexed Jobs are gangs.",
)
@click.option(
    "--preempt",
    type=click.Choice(["consenting", "lower-priority", "never"]),
    default="consenting",
    show_default=True,
    help="* Which pods may be evicted for gangs.",
)
@click.option(
    "--movable-after",
    metavar="DURATION",
    help="* After which run time pods may move.",
)
@click.option(
    "--movable-namespace",
    "movable_namespaces",
    metavar="NAMESPACE[=DURATION]",
    multiple=True,
    help="* The same of a namespace, or at once.",
)
@click.option(
    "--move-cost",
    metavar="DURATION",
    default="10m",
    show_default=True,
    help="* What a move costs a pod by default.",
)
@click.option(
    "--queue-order",
    type=click.Choice(["age", "multifactor"]),
    default="age",
    show_default=True,
    help="* Order of pods of equal priority.",
)
@click.option(
    "--span-levels",
    metavar="KEYS",
    help="* Node labels of racks, nearest first.",
)
@click.option(
    "--extended-resource-toleration/--no-extended-resource-toleration",
    default=True,
    show_default=True,
    help="Whether the API server has this admission plugin, as on EKS and GKE.",
)
@output_option
def what_if_command(**given: Any) -> None:
    """Say where a job would go if it was submitted now, when it would start, and what would make
    room for it; or (--moves) which moves would give whole nodes; or (--replay) what the cluster's
    last weeks would have been."""
    # The core takes a while to import, and other commands do not need it.
    from linkwise.cli.what_if.run import Asked, answered

    text, status = answered(Asked(**given))
    say(text)
    sys.exit(status)
