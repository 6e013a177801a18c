"""How long kube-scheduler waits for the extender, by nodes: `python -m bench.filter`.

The extender runs as in a cluster: in its own process, with its own HTTP server, and a cache read
from an API server (the stand-in, a third process). Each round plays kube-scheduler for a new pod:
filter with the names of all nodes, prioritize with those that passed, bind to the best. Each round
also deletes a pod of an earlier one. So the cache changes twice between any two filter calls. Each
call has all nodes, as with percentageOfNodesToScore 100: by default kube-scheduler would send 500
of 5,000. They come in another order each time, as kube-scheduler's threads find them.

Server: the program's own measurement (the header Server-Timing): reading the body, waiting for the
lock, deciding, writing the reply. CPU: the answering thread's CPU time of that, which a busy
machine hardly changes. Round trip: from the request to the whole reply, in this process.
"""

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isqrt
from typing import NamedTuple

import click
import msgspec
import urllib3

from bench.support.cluster import NAMESPACE, Job, api_server, fill, waiting_pod
from bench.support.figures import milliseconds, percentile, print_table, ratio, this_machine
from bench.support.programs import running
from linkwise.kube.client import KubeClient
from linkwise.topology import names

BAR_MS = 10.0
THREADS = 16  # kube-scheduler's `parallelism`
WARM_UP = 30  # rounds that are not counted
KEPT_PODS = 40  # of this benchmark, bound at the same time
PLAIN, ANNOTATED = "plain", "annotated"
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


Timings = dict[tuple[str, str], Timing]  # by kind of pod, verb


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    timings: Timings
    ready_seconds: float
    resident_mib: float

    def of(self, verb: str, *kinds: str) -> Timing:
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
        # The running pods have the plans of an older extender. A leader believes those.
        flags = f"""--api-server {url} --listen-address 127.0.0.1 --plain-http true
            --leader-elect true""".split()
        ports = ["--listen-port", "0", "--status-port", "0"]
        with running("linkwise.extender", *flags, *ports) as program:
            status = program.logged(r"serving probes, metrics and views on (http://\S+)")
            address = program.logged(r"serving kube-scheduler on (http://\S+)")
            ready = program.wait(lambda: is_ready(status), "readiness")
            timings = play(url, address, node_names, rounds, seed)
            return Size(nodes, timings, ready, program.resident_mib())


def is_ready(address: str) -> bool:
    return urllib3.request("GET", f"{address}/readyz", timeout=10).status == 200


def play(url: str, address: str, node_names: Sequence[str], rounds: int, seed: int) -> Timings:
    client = KubeClient.load(kubeconfig=None, server=url)
    scheduler, draw = Scheduler(address), random.Random(seed)
    timings: Timings = {
        (kind, verb): Timing() for kind in JOBS for verb in ("filter", "prioritize", "bind")
    }
    bound: deque[str] = deque()
    for number in range(WARM_UP + rounds):
        kind = (PLAIN, ANNOTATED)[number % 2]
        name = f"bench-{number}"
        pod = waiting_pod(client, name, draw.choice(JOBS[kind]))
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
    if answer["Error"] or not passed or {*passed, *refused} != set(node_names):
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
    for verb, kinds in (
        ("filter", (PLAIN, ANNOTATED)),
        ("prioritize", (PLAIN, ANNOTATED)),
        ("both", (PLAIN, ANNOTATED)),
        ("both", (PLAIN,)),
        ("both", (ANNOTATED,)),
        ("bind", (PLAIN, ANNOTATED)),
    ):
        timing, base = size.of(verb, *kinds), smallest.of(verb, *kinds)
        rows.append(
            (
                f"{size.nodes:,}, {verb}, {kinds[0] if len(kinds) == 1 else 'all'}",
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
    worst = percentile(sizes[-1].of("both", PLAIN, ANNOTATED).server, 99)
    verdict = "kept" if worst <= BAR_MS else "MISSED"
    click.echo(
        f"\nBar: filter and prioritize of one pod together, p99 of the server's time at "
        f"{sizes[-1].nodes:,} nodes at most {BAR_MS:g} ms: {worst:.2f}, {verdict}"
    )
    raise SystemExit(worst > BAR_MS)


if __name__ == "__main__":
    main()
