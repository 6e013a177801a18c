"""From the command line's options to the answer as text."""

import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import click

from linkwise.cli.errors import BadInputError
from linkwise.cli.printed import in_json
from linkwise.cli.what_if.ask import ask
from linkwise.cli.what_if.cluster import ListedCluster
from linkwise.cli.what_if.given.job import Job, read_job
from linkwise.cli.what_if.given.listing import Listing, known_classes, read_listing
from linkwise.cli.what_if.given.machines import Assumption, know_machines, read_assumption
from linkwise.cli.what_if.moves_text import write_whole_nodes
from linkwise.cli.what_if.past.answer import PastAnswer
from linkwise.cli.what_if.past.ask import ask_past
from linkwise.cli.what_if.past.history import read_all
from linkwise.cli.what_if.past.text import write_past
from linkwise.cli.what_if.text import write_text
from linkwise.cli.what_if.whole_nodes import ask_whole_nodes
from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves, Preempt
from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.pods.durations import seconds_of
from linkwise.pods.flags import movable_of
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs
from linkwise.pods.spans import DEFAULT_LEVELS, LABEL_KEY, levels_of
from linkwise.topology.names import RESOURCE_NAME

T = TypeVar("T")
_COUNT = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Asked:
    """The options, by their names on the command line or the names that `command` gives them."""

    paths: tuple[str, ...]
    jobs: tuple[str, ...]
    replay: bool
    moves: str | None
    histories: tuple[str, ...]
    namespace: str
    assumed: tuple[str, ...]
    at: str | None
    resources: tuple[str, ...]
    indexed_jobs: str
    preempt: str
    movable_after: str | None
    movable_namespaces: tuple[str, ...]
    move_cost: str
    queue_order: str
    span_levels: str | None
    extended_resource_toleration: bool
    output: str  # text or json


def answered(asked: Asked) -> tuple[str, int]:
    """Return the text and the exit status. Raises BadInputError."""
    now = _begin(asked)
    assumed = [read_assumption(said) for said in asked.assumed]
    if asked.replay:
        return _written(_past(asked, assumed, now), write_past, asked.output), 0
    wanted = 0 if asked.moves is None else _count(asked.moves)
    listing = read_listing(asked.paths)
    job = None if wanted else _job(asked, listing, now)
    known = know_machines([*listing.nodes.values()], assumed, asked.resources)
    cluster = ListedCluster(listing, known, _settings(asked), now)
    if job is None:
        nodes = ask_whole_nodes(cluster, wanted)
        return _written(nodes, write_whole_nodes, asked.output), 0 if nodes.given else 1
    answer = ask(cluster, job)
    return _written(answer, write_text, asked.output), 0 if answer.fits else 1


def _job(asked: Asked, listing: Listing, now: float) -> Job:
    taints = {taint.key for node in listing.nodes.values() for taint in node.spec.taints}
    tolerated = taints if asked.extended_resource_toleration else ()
    return read_job(asked.jobs, asked.namespace, known_classes(listing), now, tolerated)


def _past(asked: Asked, assumed: Sequence[Assumption], now: float) -> PastAnswer:
    history = read_all(asked.paths, asked.histories, asked.resources, now)
    known = know_machines(history.nodes, assumed, asked.resources)
    try:
        return ask_past(history, known, _settings(asked), now, _progress)
    finally:
        _progress("", 0, 0)


def _written(answer: T, in_words: Callable[[T], str], output: str) -> str:
    return in_json(answer) if output == "json" else in_words(answer)


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
    for resource in asked.resources:
        if not RESOURCE_NAME.fullmatch(resource):
            raise BadInputError(f"--resource {resource}: expected a name like nvidia.com/gpu")
    return time.time() if asked.at is None else _time(asked.at)


def _settings(asked: Asked) -> CoreSettings:
    return CoreSettings(
        resource_names=tuple(dict.fromkeys(asked.resources)),
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


def _move_policy(asked: Asked) -> MovePolicy:
    """What the extender has, but that the core moves nothing by itself here."""
    try:
        cost = seconds_of(asked.move_cost)
    except ValueError as error:
        raise BadInputError(f"--move-cost {error}") from None
    try:
        after = seconds_of(asked.movable_after) if asked.movable_after else math.inf
    except ValueError as error:
        raise BadInputError(f"--movable-after {error}") from None
    try:
        namespaces = tuple(map(movable_of, asked.movable_namespaces))
    except ValueError as error:
        raise BadInputError(f"--movable-namespace {error}") from None
    return MovePolicy(Moves.NEVER, after, namespaces, cost)


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
