"""From the command line's arguments to the answer."""

import re
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import click
import msgspec

from linkwise.cli.errors import BadInputError
from linkwise.cli.what_if.answer import WhatIfAnswer, WholeNodesAnswer
from linkwise.cli.what_if.ask import WhatIfQuestion, ask
from linkwise.cli.what_if.given.job import read_job
from linkwise.cli.what_if.given.listing import known_classes, read_listing
from linkwise.cli.what_if.given.machines import know_machines, read_assumption
from linkwise.cli.what_if.moves_text import write_whole_nodes
from linkwise.cli.what_if.past.answer import PastAnswer
from linkwise.cli.what_if.past.ask import PastQuestion, ask_past
from linkwise.cli.what_if.past.history import read_all
from linkwise.cli.what_if.past.text import write_past
from linkwise.cli.what_if.text import write_text
from linkwise.cli.what_if.whole_nodes import WholeNodesQuestion, ask_whole_nodes
from linkwise.extender.core_settings import CoreSettings
from linkwise.extender.moves.policy import MovePolicy, Moves
from linkwise.extender.preemption.policy import Preempt
from linkwise.extender.queue.queue_order import QueueOrder
from linkwise.pods.durations import seconds_of
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs
from linkwise.pods.spans import DEFAULT_LEVELS, LABEL_KEY, levels_of
from linkwise.topology.names import RESOURCE_NAME

_COUNT = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Asked:
    paths: tuple[str, ...]
    jobs: tuple[str, ...]
    replay: bool
    moves: str | None
    histories: tuple[str, ...]
    namespace: str
    assumed: tuple[str, ...]
    at: str | None
    resource: str
    indexed_jobs: str
    preempt: str
    movable_namespaces: tuple[str, ...]
    move_cost: str
    queue_order: str
    span_levels: str | None
    extended_resource_toleration: bool


def answer(asked: Asked) -> WhatIfAnswer:
    """Say where the job would go. Raises BadInputError."""
    now = _begin(asked)
    assumed = [read_assumption(said) for said in asked.assumed]
    listing = read_listing(asked.paths)
    taints = {taint.key for node in listing.nodes.values() for taint in node.spec.taints}
    tolerated = taints if asked.extended_resource_toleration else ()
    job = read_job(asked.jobs, asked.namespace, known_classes(listing), now, tolerated)
    known = know_machines([*listing.nodes.values()], assumed, asked.resource)
    return ask(WhatIfQuestion(listing, known, job, _settings(asked), now))


def past_answer(asked: Asked) -> PastAnswer:
    """Say what the last weeks would have been. Raises BadInputError."""
    now = _begin(asked)
    assumed = [read_assumption(said) for said in asked.assumed]
    history = read_all(asked.paths, asked.histories, asked.resource, now)
    known = know_machines(history.nodes, assumed, asked.resource)
    try:
        return ask_past(PastQuestion(history, known, _settings(asked), now), _progress)
    finally:
        _progress("", 0, 0)


def whole_nodes_answer(asked: Asked) -> WholeNodesAnswer:
    """Say which moves would give so many whole nodes. Raises BadInputError."""
    now = _begin(asked)
    wanted = _count(asked.moves or "")
    assumed = [read_assumption(said) for said in asked.assumed]
    listing = read_listing(asked.paths)
    known = know_machines([*listing.nodes.values()], assumed, asked.resource)
    return ask_whole_nodes(WholeNodesQuestion(listing, known, wanted, _settings(asked), now))


def _begin(asked: Asked) -> float:
    """Return the time of the listing. Raises BadInputError."""
    if [bool(asked.jobs), asked.replay, asked.moves is not None].count(True) != 1:
        raise BadInputError("--submit FILE, --replay or --moves N: expected one of them")
    if asked.histories and not asked.replay:
        raise BadInputError("--history: expected --replay with it")
    machines = (said.rpartition("=")[2] for said in asked.assumed)
    sources = (*asked.paths, *asked.jobs, *asked.histories, *machines)
    if sources.count("-") > 1:
        raise BadInputError(
            "-f, --submit, --history, --assume: standard input can be one of them: name files for "
            "the others"
        )
    if "-" in asked.paths and sys.stdin.isatty():
        raise BadInputError("-f -: nothing is piped in: `kubectl get nodes,pods -A -o json |`")
    if not RESOURCE_NAME.fullmatch(asked.resource):
        raise BadInputError(f"--resource {asked.resource}: expected a name like nvidia.com/gpu")
    return time.time() if asked.at is None else _time(asked.at)


def _settings(asked: Asked) -> CoreSettings:
    return CoreSettings(
        resource_name=asked.resource,
        indexed_jobs=IndexedJobs(asked.indexed_jobs),
        preempt=Preempt(asked.preempt),
        moves=_move_policy(asked),
        queue_order=QueueOrder(asked.queue_order),
        span_levels=_levels(asked.span_levels),
    )


def _progress(scheduler: str, ended: int, of: int) -> None:
    """Rewrite one line on a terminal, and remove it at the end."""
    if sys.stderr.isatty():
        text = f"replay, {scheduler}: {ended} of {of} jobs" if scheduler else ""
        click.echo(f"\r{text}\x1b[K", err=True, nl=False)


def written(answer: WhatIfAnswer | WholeNodesAnswer | PastAnswer, output: str) -> str:
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n"
    if isinstance(answer, WholeNodesAnswer):
        return write_whole_nodes(answer)
    return write_past(answer) if isinstance(answer, PastAnswer) else write_text(answer)


def _move_policy(asked: Asked) -> MovePolicy:
    """What the extender has, but that the core moves nothing by itself here."""
    try:
        cost = seconds_of(asked.move_cost)
    except ValueError as error:
        raise BadInputError(f"--move-cost {error}") from None
    return MovePolicy(Moves.NEVER, frozenset(asked.movable_namespaces), cost)


def _count(said: str) -> int:
    if not _COUNT.fullmatch(said):
        raise BadInputError(f"--moves {said}: expected a number of nodes, like 4")
    return int(said)


def _levels(said: str | None) -> tuple[str, ...]:
    if said is None:
        return DEFAULT_LEVELS
    levels = levels_of(part.strip() for part in said.split(",") if part.strip())
    for level in levels:
        if not LABEL_KEY.fullmatch(level):
            raise BadInputError(f"--span-levels {level}: expected the key of a node label")
    return levels


def _time(said: str) -> float:
    try:
        found = datetime.fromisoformat(said)
    except ValueError:
        raise BadInputError(f"--at {said}: expected a time like 2026-03-01T08:00:00Z") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
