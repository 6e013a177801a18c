"""How long kube-scheduler waits for the extender, by nodes: `python -m bench.filter`.

The extender runs as in a cluster: in its own process, with its own HTTP server, and a cache read
from an API server (the stand-in, a third process). Each round plays kube-scheduler for a new pod:
filter with the names of all nodes, prioritize with those that passed, bind to the best. Each round
also deletes a pod of an earlier one. So the cache changes twice between any two filter calls. Each
call has all nodes, as with percentageOfNodesToScore 100: by default kube-scheduler would send 500
of 5,000. They come in another order each time, as kube-scheduler's threads find them.

The cluster has 8 kinds of machines, with a third of their GPUs in use. Nine kinds of pods take
turns, half of them with annotations. Half of the pods of either sort are a ReplicaSet's, to which
filter answers all nodes that will do; the others are bare, and get one node.

Server: the program's own measurement (the header Server-Timing): reading the body, waiting for the
lock, deciding, writing the reply. CPU: the answering thread's CPU time of that, which a busy
machine hardly changes. Round trip: from the request to the whole reply, in this process.
"""

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import isqrt
from typing import NamedTuple

import click
import msgspec
import urllib3

from bench.support.cluster import NAMESPACE, Job, api_server, fill, waiting_pod
from bench.support.figures import milliseconds, percentile, print_table, ratio, this_machine
from bench.support.programs import ready_extender
from linkwise.kube.client import KubeClient
from linkwise.topology import names

# Nodes -> at most so many ms for filter and prioritize of one pod together, p99 of the CPU time: of
# bare pods, and of a ReplicaSet's.
BARS_MS = {5000: (2.0, 4.0), 15_000: (5.0, 8.0)}
THREADS = 16  # kube-scheduler's `parallelism`
WARM_UP = 30  # rounds that are not counted
KEPT_PODS = 40  # of this benchmark, bound at the same time
PLAIN, ANNOTATED = "plain", "annotated"
BARE, OWNED = "bare", "of a ReplicaSet"
JOBS = {
    PLAIN: [Job(gpus, {}) for gpus in (1, 2, 4, 8)],
    ANNOTATED: [
        Job(2, {names.REQUIRE_LINK: "nvlink"}),
        Job(4, {names.PREFER_LINK: "switch"}),
        Job(2, {names.GPU_MODEL: "H100,H200,A100"}),
        Job(1, {names.GPU_MEMORY: "40Gi"}),
        Job(4, {names.REQUIRE_LINK: "nvlink", names.GPU_MEMORY: "60Gi"}),
    ],
}


@dataclass(slots=True)
class Timing:
    server: list[float] = field(default_factory=list)  # seconds, one a round
    cpu: list[float] = field(default_factory=list)
    round_trip: list[float] = field(default_factory=list)


Kind = tuple[str, str]  # of pods: what it asks for, whose it is
ALL: tuple[Kind, ...] = tuple(product(JOBS, (BARE, OWNED)))
Timings = dict[tuple[Kind, str], Timing]  # and verb


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    timings: Timings
    ready_seconds: float
    resident_mib: float

    def of(self, verb: str, kinds: Sequence[Kind]) -> Timing:
        """The rounds of these kinds; the verb `both` is filter and prioritize of one round."""
        verbs = ("filter", "prioritize") if verb == "both" else (verb,)
        timing = Timing()
        for kind in kinds:
            parts = [self.timings[kind, verb] for verb in verbs]
            timing.server += added(part.server for part in parts)
            timing.cpu += added(part.cpu for part in parts)
            timing.round_trip += added(part.round_trip for part in parts)
        return timing


def added(series: Iterable[Sequence[float]]) -> Iterator[float]:
    return map(sum, zip(*series, strict=True))


class Seconds(NamedTuple):
    server: float
    cpu: float
    round_trip: float


class Scheduler:
    """kube-scheduler's side of the wire: one connection, one call at a time."""

    def __init__(self, url: str) -> None:
        self._http = urllib3.HTTPConnectionPool(url.removeprefix("http://"), maxsize=1)

    def ask(self, verb: str, body: Mapping[str, object]) -> tuple[bytes, Seconds]:
        """Post *body*; return the reply and its times."""
        sent = msgspec.json.encode(body)
        began = time.perf_counter()
        reply = self._http.request("POST", f"/{verb}", body=sent, timeout=30)
        took = time.perf_counter() - began
        if reply.status != 200:
            raise RuntimeError(f"{verb}: {reply.status}: {reply.data.decode()}")
        told = (part.partition("dur=")[2] for part in reply.headers["Server-Timing"].split(","))
        server, cpu = (float(number) / 1000 for number in told)
        return reply.data, Seconds(server, cpu, took)


def measure(nodes: int, rounds: int, seed: int) -> Size:
    with api_server() as url:
        node_names = fill(url, nodes, seed)
        with ready_extender(url) as (program, _, calls, ready):
            timings = play(url, calls, node_names, rounds, seed)
            return Size(nodes, timings, ready, program.resident_mib())


def play(url: str, address: str, node_names: Sequence[str], rounds: int, seed: int) -> Timings:
    client = KubeClient.load(kubeconfig=None, server=url)
    scheduler, draw = Scheduler(address), random.Random(seed)
    timings: Timings = {
        (kind, verb): Timing() for kind in ALL for verb in ("filter", "prioritize", "bind")
    }
    bound: deque[str] = deque()
    for number in range(WARM_UP + rounds):
        kind = what, whose = ALL[number % len(ALL)]
        name = f"bench-{number}"
        pod = waiting_pod(client, name, draw.choice(JOBS[what]), owned=whose == OWNED)
        measured = one_round(scheduler, pod, as_found(node_names, draw))
        if number >= WARM_UP:
            for verb, seconds in measured.items():
                timings[kind, verb].server.append(seconds.server)
                timings[kind, verb].cpu.append(seconds.cpu)
                timings[kind, verb].round_trip.append(seconds.round_trip)
        bound.append(name)
        if len(bound) > KEPT_PODS:
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{bound.popleft()}"
            client.delete(path, grace_seconds=0)
    return timings


def as_found(node_names: Sequence[str], draw: random.Random) -> list[str]:
    """The order in which kube-scheduler's threads append nodes that pass its filters: each takes
    the next chunk of them, and the first chunk begins where the last pod's look ended
    (`findNodesThatPassFilters`, `chunkSizeFor`)."""
    count, start = len(node_names), draw.randrange(len(node_names))
    size = min(isqrt(count), count // THREADS + 1)
    left = iter([*node_names[start:], *node_names[:start]])
    chunks = iter(lambda: list(islice(left, size)), [])
    found: list[str] = []
    running = [*map(iter, islice(chunks, THREADS))]
    while running:
        thread = draw.randrange(len(running))
        if (name := next(running[thread], None)) is not None:
            found.append(name)
        elif (chunk := next(chunks, None)) is not None:
            running[thread] = iter(chunk)
        else:
            del running[thread]
    return found


def one_round(
    scheduler: Scheduler, pod: dict[str, object], node_names: Sequence[str]
) -> dict[str, Seconds]:
    """One round; return how long each verb took."""
    asked = {"Pod": pod, "Nodes": None, "NodeNames": list(node_names)}
    reply, filtered = scheduler.ask("filter", asked)
    answer = msgspec.json.decode(reply)
    refused = {**(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
    passed = answer["NodeNames"]
    # An answer with one node may leave out others that would do as well.
    is_whole = {*(passed or ()), *refused} == set(node_names) or len(passed or ()) == 1
    if answer["Error"] or not (passed and is_whole):
        reasons = answer["Error"] or sorted(set(refused.values()))
        raise RuntimeError(f"filter: {len(passed or ())} of {len(node_names)} passed: {reasons}")
    reply, scored = scheduler.ask("prioritize", {**asked, "NodeNames": passed})
    scores = {each["Host"]: each["Score"] for each in msgspec.json.decode(reply)}
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    order = {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": max(scores, key=lambda node: scores[node]),
    }
    reply, placed = scheduler.ask("bind", order)
    if msgspec.json.decode(reply)["Error"]:
        raise RuntimeError(f"bind: {reply.decode()}")
    return {"filter": filtered, "prioritize": scored, "bind": placed}


HEADER = (
    "nodes, verb, pods",
    *(f"server p{percent}" for percent in (50, 90, 99)),
    *(f"CPU p{percent}" for percent in (50, 99)),
    *(f"round trip p{percent}" for percent in (50, 99)),
    "server p50, of smallest",
)


def rows_of(size: Size, smallest: Size) -> list[tuple[str, ...]]:
    rows = []
    for verb, which in (
        ("filter", "all"),
        ("prioritize", "all"),
        ("both", "all"),
        *(("both", which) for which in (PLAIN, ANNOTATED, BARE, OWNED)),
        ("bind", "all"),
    ):
        kinds = [kind for kind in ALL if which in ("all", *kind)]
        timing, base = size.of(verb, kinds), smallest.of(verb, kinds)
        rows.append(
            (
                f"{size.nodes:,}, {verb}, {which}",
                *(milliseconds(percentile(timing.server, p)) for p in (50, 90, 99)),
                *(milliseconds(percentile(timing.cpu, p)) for p in (50, 99)),
                *(milliseconds(percentile(timing.round_trip, p)) for p in (50, 99)),
                ratio(percentile(timing.server, 50), percentile(base.server, 50)),
            )
        )
    return rows


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(1), multiple=True, default=(100, 1000, 5000))
@click.option("--rounds", type=click.IntRange(20), default=400, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(nodes: tuple[int, ...], rounds: int, seed: int) -> None:
    click.echo(f"filter, prioritize, bind; {rounds} pods each, times in ms: {this_machine()}\n")
    sizes = [measure(count, rounds, seed) for count in nodes]
    print_table(HEADER, [row for size in sizes for row in rows_of(size, sizes[0])])
    click.echo()
    for size in sizes:
        click.echo(
            f"{size.nodes:,} nodes: ready {size.ready_seconds:.1f} s after its start, "
            f"{size.resident_mib:.0f} MiB resident at the end"
        )
    kept = True
    for size in sizes:
        for whose, bar in zip((BARE, OWNED), BARS_MS.get(size.nodes, ()), strict=False):
            kinds = [kind for kind in ALL if whose in kind]
            worst = percentile(size.of("both", kinds).cpu, 99)
            kept &= worst <= bar
            click.echo(
                f"Bar: filter and prioritize of one pod, {whose}, together, p99 of the CPU time at "
                f"{size.nodes:,} nodes at most {bar:g} ms: {worst:.2f}, "
                f"{'kept' if worst <= bar else 'MISSED'}"
            )
    raise SystemExit(not kept)


if __name__ == "__main__":
    main()
