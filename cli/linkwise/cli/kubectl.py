"""`kubectl linkwise`: why pods and gangs wait, which pods hold which GPUs, and what is missing.

A kubectl plugin: kubectl runs the program `kubectl-linkwise` from the PATH. It asks the extender
through the API server, with kubectl's kubeconfig.
"""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import click
import msgspec

from linkwise.cli import history_table, kubectl_tables
from linkwise.cli.__main__ import OneLineGroup
from linkwise.cli.doctor.diagnosis import PASSING_SECONDS, all_is_well, findings
from linkwise.cli.doctor.finding import Level, in_words, still_there
from linkwise.cli.doctor.read import read_facts
from linkwise.cli.errors import AskError, BadInputError
from linkwise.cli.printed import say
from linkwise.cli.proxied import Access, Extender, annotate_node
from linkwise.cli.ui import show_page
from linkwise.extender.api.views import (
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
F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

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
_OF_ALL = (
    *_OF_CLUSTER,
    click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text"),
)
_OF_NAMESPACE = (
    click.option(
        "-n", "--namespace", metavar="NAME", help="A namespace.  [default: the context's]"
    ),
    click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces."),
)


def _with(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorated(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


@click.group(cls=OneLineGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="linkwise")
def main() -> None:
    """Why pods and gangs wait for GPUs, and which pods hold them."""


@main.command()
@click.argument("what", required=False, metavar="[POD | gang/NAME | KIND/NAME]")
@_with(*_OF_NAMESPACE, *_OF_ALL)
def explain(
    what: str | None,
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    extender: str,
    output: str,
) -> None:
    """Say why a pod or a gang waits or, without a name, why each waiting one does: what it
    requests, what there is, which node came nearest, and which pods hold its GPUs until when."""
    asked = Extender(Access(kubeconfig, context, extender))
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
        _json(asked.ask(*path, **params))
    else:
        say(asked.ask(*path, format="text", **params))


@main.command()
@_with(*_OF_NAMESPACE, *_OF_ALL)
def gangs(
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    extender: str,
    output: str,
) -> None:
    """List gangs: the progress of each, what it waits for, and until when."""
    asked = Extender(Access(kubeconfig, context, extender))
    within = "" if all_namespaces else namespace or asked.namespace
    params = {"namespace": within} if within else {}
    if output == "json":
        _json(asked.ask("gangs", **params, **{"runner-up": "true"}))
        return
    shown = _read(asked.ask("gangs", **params), list[GangView])
    if shown:
        say(kubectl_tables.gangs(shown, namespaces=all_namespaces))
    else:
        say(f"No gangs{f' in namespace {within}' if within else ''}.", err=True, nl=True)


@main.command()
@_with(*_OF_ALL)
def nodes(kubeconfig: str | None, context: str | None, extender: str, output: str) -> None:
    """List nodes with GPUs: how many are in use, planned, reserved and free, and the best free
    set."""
    answer = Extender(Access(kubeconfig, context, extender)).ask("nodes")
    if output == "json":
        _json(answer)
        return
    found = _read(answer, list[NodeView])
    if found:
        say(kubectl_tables.nodes(found))
    else:
        say("No nodes with GPUs.", err=True, nl=True)


@main.command()
@_with(*_OF_ALL)
def top(kubeconfig: str | None, context: str | None, extender: str, output: str) -> None:
    """Show how the cluster's GPUs are used: by kind of machine, with what would still fit, and by
    namespace."""
    answer = Extender(Access(kubeconfig, context, extender)).ask("use")
    if output == "json":
        _json(answer)
    else:
        say(kubectl_tables.use(_read(answer, ClusterUse)))


@main.command()
@_with(*_OF_ALL)
def idle(kubeconfig: str | None, context: str | None, extender: str, output: str) -> None:
    """List pods that hold GPUs and do nothing, since when, and which waiting gangs and pods would
    start if they went."""
    answer = Extender(Access(kubeconfig, context, extender)).ask("idle")
    if output == "json":
        _json(answer)
    else:
        say(kubectl_tables.idle(_read(answer, IdleView)))


@main.command()
@_with(*_OF_ALL)
def moves(kubeconfig: str | None, context: str | None, extender: str, output: str) -> None:
    """List pods that move, or would move with --moves=consent, so that a waiting gang or pod fits:
    where to, what that loses, and what it saves."""
    answer = Extender(Access(kubeconfig, context, extender)).ask("moves")
    if output == "json":
        _json(answer)
        return
    found = _read(answer, MovesView)
    if found.plans:
        say(kubectl_tables.moves(found))
    else:
        say(kubectl_tables.no_moves(found), err=True, nl=True)


@main.command()
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@click.option("--yes", is_flag=True, help="Empty them: set linkwise.dev/empty on each.")
@click.option("--undo", is_flag=True, help="Empty them no more: remove the annotation.")
@_with(*_OF_ALL)
def empty(
    nodes: tuple[str, ...],
    yes: bool,
    undo: bool,
    kubeconfig: str | None,
    context: str | None,
    extender: str,
    output: str,
) -> None:
    """Show which pods would move from these nodes and where to, and which stay and why; with --yes,
    empty them. Without a name, show the nodes that are being emptied."""
    asked = Extender(Access(kubeconfig, context, extender))
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
    if output == "json":
        _json(answer)
    else:
        say(kubectl_tables.emptying(_read(answer, EmptyingView), begins=yes))


@main.command()
@click.argument("what", required=False, metavar="[POD | gang/NAME | KIND/NAME | node/NAME]")
@_with(*_OF_NAMESPACE, *_OF_ALL)
def history(
    what: str | None,
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    extender: str,
    output: str,
) -> None:
    """List what the extender has decided since it began to lead, the newest last: plans,
    reservations, evictions, for whom and why."""
    asked = Extender(Access(kubeconfig, context, extender))
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
    if output == "json":
        _json(answer)
    else:
        say(history_table.history(_read(answer, HistoryView), within=within))


@main.command()
@_with(*_OF_ALL)
def doctor(kubeconfig: str | None, context: str | None, extender: str, output: str) -> None:
    """Say what is missing for Linkwise, where, and what to do; status 1 if something is wrong."""
    asked = Extender(Access(kubeconfig, context, extender))
    facts = read_facts(asked)
    found = findings(facts)
    if any(each.passing for each in found):
        time.sleep(PASSING_SECONDS)
        facts = read_facts(asked)
        found = still_there(found, findings(facts))
    if output == "json":
        _json(msgspec.json.encode({"findings": found}))
    elif found:
        say(in_words(found))
    else:
        say(all_is_well(facts), nl=True)
    if any(each.level is Level.PROBLEM for each in found):
        sys.exit(1)


@main.command()
@click.option("--port", default=0, show_default="any that is free", help="Of 127.0.0.1.")
@click.option("--browser/--no-browser", default=True, help="Whether to open a browser.")
@_with(*_OF_CLUSTER)
def ui(
    port: int, browser: bool, kubeconfig: str | None, context: str | None, extender: str
) -> None:
    """Open the live page of the cluster: racks, nodes and GPUs, who has them, and who waits."""
    show_page(Access(kubeconfig, context, extender), port=port, browser=browser)


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


def _read(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise AskError(
            f"the extender's answer is not understood, it may be of another version: {error}"
        ) from None


def _json(answer: bytes) -> None:
    say(msgspec.json.format(answer, indent=2), nl=True)


if __name__ == "__main__":
    main()
