"""`linkwise what-if`: where a job would go, when it would start, and what would make room for it.

It runs the extender's own core on a listing of the cluster, so its answer is the extender's. It
writes nothing. Exit status: 0 all of the job starts now, 1 it does not, 2 bad input. With --replay
the core runs the cluster's past instead; then 0, or 2. With --moves: 0 there are as many whole
nodes of one size, now or after moves, 1 there are not, 2 bad input.
"""

import sys

import click

from linkwise.cli.printed import say
from linkwise.topology import names


@click.command(
    name="what-if",
    epilog="The cluster is what `kubectl get nodes,pods -A -o json` prints; also jobs, podgroups, "
    "priorityclasses, poddisruptionbudgets, resourceslices, resourceclaims where they matter. FILE "
    "is JSON or YAML, and - is standard input.",
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
    help="Replay the past instead: what would its jobs have got, and when?",
)
@click.option(
    "--moves",
    metavar="N",
    help="Find the moves that would give N whole nodes instead, with all of their GPUs free.",
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
    help="Namespace of the job's objects that name none.",
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
    default=names.DEFAULT_RESOURCE,
    show_default=True,
    help="The extended resource that counts as a GPU.",
)
@click.option(
    "--indexed-jobs",
    type=click.Choice(["all", "with-subdomain", "none"]),
    default="all",
    show_default=True,
    help="Which Indexed Jobs that run all their pods at once are gangs: all, those whose pods have "
    "a subdomain, or none. Give the extender's value.",
)
@click.option(
    "--preempt",
    type=click.Choice(["consenting", "lower-priority", "never"]),
    default="consenting",
    show_default=True,
    help="Pods that the extender may evict for a more important gang: those that say that they are "
    "preemptible, all of lower priority, or none. Give the extender's value.",
)
@click.option(
    "--movable-namespace",
    "movable_namespaces",
    metavar="NAMESPACE",
    multiple=True,
    help="Pods of this namespace consent to moves unless they say no, but for those of Jobs. Give "
    "the extender's values.",
)
@click.option(
    "--move-cost",
    metavar="DURATION",
    default="10m",
    show_default=True,
    help="How much of its run a pod loses by a move, if it does not say. Give the extender's "
    "value.",
)
@click.option(
    "--queue-order",
    type=click.Choice(["age", "multifactor"]),
    default="age",
    show_default=True,
    help="What orders waiting gangs and pods of equal priority. Give the extender's value, or with "
    "--replay compare both.",
)
@click.option(
    "--span-levels",
    metavar="KEYS",
    help="Node labels that name domains above the node, nearest first, separated by commas. Give "
    "the extender's value.",
)
@click.option(
    "--extended-resource-toleration/--no-extended-resource-toleration",
    default=True,
    show_default=True,
    help="Whether the API server's admission plugin of this name lets the job's pods tolerate "
    "taints with the resource as key, as on EKS and GKE.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def what_if_command(
    paths: tuple[str, ...],
    jobs: tuple[str, ...],
    replay: bool,
    moves: str | None,
    histories: tuple[str, ...],
    namespace: str,
    assumed: tuple[str, ...],
    at: str | None,
    resource: str,
    indexed_jobs: str,
    preempt: str,
    movable_namespaces: tuple[str, ...],
    move_cost: str,
    queue_order: str,
    span_levels: str | None,
    extended_resource_toleration: bool,
    output: str,
) -> None:
    """Say where a job would go if it was submitted now, when it would start, and what would make
    room for it; or (--moves) which moves would give whole nodes; or (--replay) what the cluster's
    last weeks would have been."""
    # The core takes a while to import, and other commands do not need it.
    from linkwise.cli.what_if import run

    asked = run.Asked(
        paths=paths,
        jobs=jobs,
        replay=replay,
        moves=moves,
        histories=histories,
        namespace=namespace,
        assumed=assumed,
        at=at,
        resource=resource,
        indexed_jobs=indexed_jobs,
        preempt=preempt,
        movable_namespaces=movable_namespaces,
        move_cost=move_cost,
        queue_order=queue_order,
        span_levels=span_levels,
        extended_resource_toleration=extended_resource_toleration,
    )
    if replay:
        say(run.written(run.past_answer(asked), output))
        return
    if moves is not None:
        nodes = run.whole_nodes_answer(asked)
        say(run.written(nodes, output))
        sys.exit(0 if nodes.given else 1)
    answer = run.answer(asked)
    say(run.written(answer, output))
    sys.exit(0 if answer.fits else 1)
