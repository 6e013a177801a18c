"""`kubectl linkwise`: why pods and gangs wait, which pods hold which GPUs, and what is missing.

A kubectl plugin: kubectl runs the program `kubectl-linkwise` from the PATH. It asks the extender
through the API server, with kubectl's kubeconfig.
"""

import sys
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import TypeVar

import click
import msgspec
from click.shell_completion import ShellComplete

from linkwise.cli import history_table, kubectl_tables
from linkwise.cli.__main__ import OneLineGroup
from linkwise.cli.doctor.diagnosis import PASSING_SECONDS, all_is_well, findings
from linkwise.cli.doctor.finding import Level, in_words, still_there
from linkwise.cli.doctor.read import read_facts
from linkwise.cli.errors import AskError, BadInputError
from linkwise.cli.printed import in_json, output_option, say
from linkwise.cli.proxied import Access, Extender, annotate_node
from linkwise.cli.ui import show_page
from linkwise.extender.show.explain.texts.tables import why_no_moves
from linkwise.extender.state.views import (
    ClusterUse,
    EmptyingView,
    GangView,
    HistoryView,
    IdleView,
    MovesView,
    NodeView,
)
from linkwise.topology.names import EMPTY

EXTENDER = "kube-system/linkwise-extender:http"
_NO_FILES = ":4"  # cobra's ShellCompDirectiveNoFileComp
T = TypeVar("T")
Command = Callable[..., None]

_OF_CLUSTER = (
    click.option("--kubeconfig", metavar="FILE", help="A kubeconfig file.  [default: KUBECONFIG]"),
    click.option("--context", metavar="NAME", help="A context of the kubeconfig."),
    click.option(
        "--extender",
        metavar="NAMESPACE/SERVICE:PORT",
        default=EXTENDER,
        show_default=True,
        envvar="KUBECTL_LINKWISE_EXTENDER",
        show_envvar=True,
        help="The extender's Service.",
    ),
)
_OF_NAMESPACE = (
    click.option(
        "-n", "--namespace", metavar="NAME", help="A namespace.  [default: the context's]"
    ),
    click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces."),
)


def _of_namespace(command: Command) -> Command:
    for option in reversed(_OF_NAMESPACE):
        command = option(command)
    return command


def _example(command: str) -> str:
    return f"\b\nExample:\n  kubectl linkwise {command}"


def _asks(function: Command) -> Command:
    """Call *function* with the extender that the options of the cluster name."""

    @wraps(function)
    def command(
        kubeconfig: str | None, context: str | None, extender: str, **others: object
    ) -> None:
        function(Extender(Access(kubeconfig, context, extender)), **others)

    for option in reversed(_OF_CLUSTER):
        command = option(command)
    return command


@click.group(
    cls=OneLineGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Example: why each pod and gang waits
  kubectl linkwise explain -A

kubectl's own completion (`kubectl completion --help`) completes `kubectl linkwise`, too.
""",
)
@click.version_option(package_name="linkwise")
def main() -> None:
    """Why pods and gangs wait for GPUs, and which pods hold them."""


@main.command(
    short_help="Why a pod or a gang waits, and what is nearest.",
    epilog=_example("explain -n ml gang/train"),
)
@click.argument("what", required=False, metavar="[POD | gang/NAME | KIND/NAME]")
@_of_namespace
@_asks
@output_option
def explain(
    asked: Extender, what: str | None, namespace: str | None, all_namespaces: bool, output: str
) -> None:
    """Say why a pod or a gang waits or, without a name, why each waiting one does: what it
    requests, what there is, which node came nearest, and which pods hold its GPUs until when."""
    within = "" if all_namespaces else namespace or asked.namespace
    params: dict[str, str] = {}
    path: tuple[str, ...] = ("explain",)
    if what is None:
        params = {"namespace": within} if within else {}
    elif all_namespaces:
        raise BadInputError(f"{what} -A: a name is of one namespace: -n NAME")
    else:
        path = ("explain", within, *_path_of(what))
    if output == "json":
        say(in_json(msgspec.Raw(asked.ask(*path, **params))))
    else:
        say(asked.ask(*path, format="text", **params))


@main.command(
    short_help="Gangs: their progress, and what they wait for.", epilog=_example("gangs -A")
)
@_of_namespace
@_asks
@output_option
def gangs(asked: Extender, namespace: str | None, all_namespaces: bool, output: str) -> None:
    """List gangs: the progress of each, what it waits for, and until when."""
    within = "" if all_namespaces else namespace or asked.namespace
    params = {"namespace": within} if within else {}
    none = f"No gangs{f' in namespace {within}' if within else ''}."
    if output == "json":
        params["runner-up"] = "true"  # it takes searches, and the text does not show it
    _show(
        asked.ask("gangs", **params),
        output,
        list[GangView],
        lambda found: kubectl_tables.gangs(found, namespaces=all_namespaces),
        lambda found: "" if found else none,
    )


@main.command(
    short_help="Nodes with GPUs: used, planned, reserved, free.", epilog=_example("nodes")
)
@_asks
@output_option
def nodes(asked: Extender, output: str) -> None:
    """List nodes with GPUs: how many are in use, planned, reserved and free, and the best free
    set."""
    _show(
        asked.ask("nodes"),
        output,
        list[NodeView],
        kubectl_tables.nodes,
        lambda found: "" if found else "No nodes with GPUs.",
    )


@main.command(short_help="GPUs in use by machine and by namespace.", epilog=_example("top"))
@_asks
@output_option
def top(asked: Extender, output: str) -> None:
    """Show how the cluster's GPUs are used: by kind of machine, with what would still fit, and by
    namespace."""
    _show(asked.ask("use"), output, ClusterUse, kubectl_tables.use)


@main.command(short_help="Pods that hold GPUs and do nothing.", epilog=_example("idle"))
@_asks
@output_option
def idle(asked: Extender, output: str) -> None:
    """List pods that hold GPUs and do nothing, since when, and which waiting gangs and pods would
    start if they went."""
    _show(asked.ask("idle"), output, IdleView, kubectl_tables.idle)


@main.command(short_help="Pods that move, or would, so that others fit.", epilog=_example("moves"))
@_asks
@output_option
def moves(asked: Extender, output: str) -> None:
    """List pods that move, or would move with --moves=consent, so that a waiting gang or pod fits:
    where to, what that loses, and what it saves. Then list which pods do not consent to moves that
    would have made room for a large gang or pod, and how long it waited for that."""
    answer = asked.ask("moves")
    _show(
        answer,
        output,
        MovesView,
        kubectl_tables.moves,
        lambda found: "" if found.kept_waiting else why_no_moves(found),
    )


@main.command(
    short_help="What would move from nodes; with --yes, empty them.", epilog=_example("empty gpu-1")
)
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@click.option("--yes", is_flag=True, help="Empty them: set linkwise.dev/empty on each.")
@click.option("--undo", is_flag=True, help="Empty them no more: remove the annotation.")
@_asks
@output_option
def empty(asked: Extender, nodes: tuple[str, ...], yes: bool, undo: bool, output: str) -> None:
    """Show which pods would move from these nodes and where to, and which stay and why; with --yes,
    empty them. Without a name, show the nodes that are being emptied."""
    if yes and undo:
        raise BadInputError("--yes, --undo: expected one of them")
    if (yes or undo) and not nodes:
        raise BadInputError(f"{'--undo' if undo else '--yes'}: expected NODE")
    if undo:
        for name in nodes:
            annotate_node(asked, name, {EMPTY: None})
        say(f"No longer being emptied: {', '.join(nodes)}.", nl=True)
        return
    answer = asked.ask("empty", **({"nodes": ",".join(nodes)} if nodes else {}))
    for name in nodes if yes else ():
        annotate_node(asked, name, {EMPTY: "true"})
    _show(answer, output, EmptyingView, partial(kubectl_tables.emptying, begins=yes))


@main.command(
    short_help="What the extender has decided, and why.",
    epilog=_example("history -n ml gang/train"),
)
@click.argument("what", required=False, metavar="[POD | gang/NAME | KIND/NAME | node/NAME]")
@_of_namespace
@_asks
@output_option
def history(
    asked: Extender, what: str | None, namespace: str | None, all_namespaces: bool, output: str
) -> None:
    """List what the extender has decided since it began to lead, the newest last: plans,
    reservations, evictions, for whom and why."""
    within = "" if all_namespaces else namespace or asked.namespace
    if what is None:
        params = {"namespace": within} if within else {}
    else:
        kind, name = _kind_of(what)
        if kind == "node":  # nodes are of no namespace
            within = namespace or ""
            params = {"node": name} | ({"namespace": within} if within else {})
        elif all_namespaces:
            raise BadInputError(f"{what} -A: a name is of one namespace: -n NAME")
        else:
            params = {kind: f"{within}/{name}"}
    answer = asked.ask("history", **params)
    _show(answer, output, HistoryView, partial(history_table.history, within=within))


@main.command(short_help="What is missing for Linkwise, and what to do.", epilog=_example("doctor"))
@_asks
@output_option
def doctor(asked: Extender, output: str) -> None:
    """Say what is missing for Linkwise, where, and what to do; status 1 if something is wrong."""
    facts = read_facts(asked)
    found = findings(facts)
    if any(each.passing for each in found):
        time.sleep(PASSING_SECONDS)
        facts = read_facts(asked)
        found = still_there(found, findings(facts))
    if output == "json":
        say(in_json({"findings": found}))
    elif found:
        say(in_words(found))
    else:
        say(all_is_well(facts), nl=True)
    if any(each.level is Level.PROBLEM for each in found):
        sys.exit(1)


@main.command(
    short_help="Open the live page of the cluster in a browser.",
    epilog=_example("ui --no-browser --port 8080"),
)
@click.option("--port", default=0, show_default="any that is free", help="Of 127.0.0.1.")
@click.option("--browser/--no-browser", default=True, help="Whether to open a browser.")
@_asks
def ui(asked: Extender, port: int, browser: bool) -> None:
    """Open the live page of the cluster: racks, nodes and GPUs, who has them, and who waits."""
    show_page(asked, port=port, browser=browser)


def _path_of(what: str) -> tuple[str, ...]:
    kind, name = _kind_of(what)
    return (name,) if kind == "pod" else ("gangs", what if kind == "node" else name)


def _kind_of(what: str) -> tuple[str, str]:
    """`pod`, `gang` or `node`, and the name."""
    kind, slash, name = what.partition("/")
    if what and not slash:
        return "pod", what
    if kind in ("gang", "gangs") and name:
        return "gang", name
    if kind in ("pod", "pods", "po") and name:
        return "pod", name
    if kind in ("node", "nodes", "no") and name:
        return "node", name
    if kind and name:
        return "gang", what  # the owner of a recognised gang, as job/train
    raise BadInputError(
        f"{what}: expected POD, pod/POD, gang/NAME or KIND/NAME of the gang's owner"
    )


def _show(
    answer: bytes,
    output: str,
    kind: type[T],
    text: Callable[[T], str],
    nothing: Callable[[T], str] = lambda _: "",
) -> None:
    """*nothing*: that there is nothing to list; empty: there is something."""
    if output == "json":
        say(in_json(msgspec.Raw(answer)))
        return
    try:
        found = msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise AskError(
            f"the extender's answer is not understood, it may be of another version: {error}"
        ) from None
    if words := nothing(found):
        say(words, err=True, nl=True)
    else:
        say(text(found))


def complete() -> None:
    """kubectl runs this as `kubectl_complete-linkwise` with the words after `kubectl linkwise`, of
    which the last is incomplete. It reads one completion a line, and a directive in the end:
    kubernetes/kubernetes#105867."""
    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(main, {}, "kubectl-linkwise", "").get_completions(words, incomplete)
    for each in found:
        click.echo(f"{each.value}\t{each.help}" if each.help else each.value)
    click.echo(_NO_FILES)


if __name__ == "__main__":
    main()
