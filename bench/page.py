"""The live page of a large cluster: `python -m bench.page`. Needs Chromium and chromedriver.

| figure | how |
|---|---|
| first paint | Chromium's own first contentful paint of the first page, from the click on |
| script time | of the page's script for one message, in Chromium: one node has changed |
| lock | of the core alone: each hold of the lock for a look after a change, the first included |
| speed | filter and prioritize of one pod, by the server's own time, with viewers and without |

For the first two and the last, the extender runs in a process of its own, as in a cluster, with the
API server's stand-in. Viewers are connections in another process that read all they get. Rounds
with and without viewers take turns, so a machine that becomes busy slows both.
"""

import gc
import http.client
import random
import re
import selectors
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median

import click
import urllib3
from msgspec.structs import replace
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from bench.explain import cluster, gpu_node
from bench.filter import JOBS, PLAIN, Scheduler, one_round
from bench.support.cluster import NAMESPACE, api_server, fill, waiting_pod
from bench.support.figures import milliseconds, percentile, print_table, this_machine
from bench.support.gpu_objects import START
from bench.support.large_cluster import freeze
from bench.support.programs import ready_extender
from linkwise.extender.core import Core
from linkwise.kube.client import KubeClient

PAINT_MS, SCRIPT_MS, LOCK_MS, SPEED = 1000.0, 50.0, 20.0, 0.97
KEPT_PODS = 40
_BLOCK_SECONDS = 8.0  # before viewers come or go: time for several looks
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    values: tuple[float, ...]  # milliseconds
    bar: float

    @property
    def worst(self) -> float:
        return max(self.values)


# The lock


def locks(nodes: int, waiting: int, rounds: int) -> Figure:
    """CPU milliseconds of a snapshot after one node's change; a busy machine hardly changes
    them."""
    core = cluster(nodes, waiting)
    freeze()
    spent: list[float] = []
    for number in range(rounds):  # the first one, which knows no node yet, takes longest
        node = gpu_node(number % nodes)
        core.node_event(
            "MODIFIED", replace(node, status=replace(node.status, conditions=())), START
        )
        spent += _held(core)
    return Figure("lock, CPU of a snapshot", tuple(spent), LOCK_MS)


def _held(core: Core) -> Iterator[float]:
    """For how long each part of a look holds the lock, as `Loop.snapshot` does it."""
    ready = False
    while not ready:
        began = time.thread_time()
        ready = core.begin_snapshot(START) is not None
        yield (time.thread_time() - began) * 1000


# In Chromium


@contextmanager
def chromium() -> Iterator[Chrome]:
    options = Options()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    driver = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_window_size(1280, 900)
        yield driver
    finally:
        driver.quit()


def paints(driver: Chrome, page: str, times: int) -> Figure:
    found = []
    for _ in range(times):
        driver.get("about:blank")
        driver.execute_cdp_cmd("Network.clearBrowserCache", {})
        driver.get(page)
        found.append(
            _when(driver, "performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        )
    return Figure("first paint", tuple(found), PAINT_MS)


def scripts(driver: Chrome, page: str, client: KubeClient, node: str, times: int) -> Figure:
    """The first message may have what changed while the page was loaded; it counts too."""
    driver.get(page)
    WebDriverWait(driver, _SECONDS).until(lambda _: driver.execute_script(_IS_LIVE))
    for number in range(times):
        status = "False" if number % 2 == 0 else "True"
        body = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        client.patch(f"/api/v1/nodes/{node}/status", body)
        _wait_measures(driver, number + 1)
    return Figure("script time of one node's change", tuple(_measures(driver)), SCRIPT_MS)


_IS_LIVE = "return document.getElementById('live').textContent === 'live'"


def _measures(driver: Chrome) -> list[float]:
    entries = "performance.getEntriesByName('linkwise-change').map(each => each.duration)"
    found = driver.execute_script(f"return {entries}")
    assert isinstance(found, list)
    return [float(each) for each in found]


def _wait_measures(driver: Chrome, count: int) -> None:
    WebDriverWait(driver, _SECONDS).until(lambda _: len(_measures(driver)) >= count)


def _when(driver: Chrome, script: str) -> float:
    return float(
        WebDriverWait(driver, _SECONDS).until(lambda _: driver.execute_script(f"return {script}"))
    )


# With viewers


def _watch(orders: Connection, host: str, count: int) -> None:
    """In a process of its own: opens streams, and reads them until it is stopped."""
    chosen = selectors.DefaultSelector()
    page = urllib3.request("GET", f"http://{host}/ui/", timeout=_SECONDS).data.decode()
    found = re.search(r'data-events="([^"]+)"', page)
    assert found, "the page names its stream"
    for _ in range(count):
        connection = http.client.HTTPConnection(host, timeout=_SECONDS)
        connection.request("GET", f"/ui/{unescape(found[1])}")
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"a viewer was refused: {answer.status} {answer.read().decode()}")
        chosen.register(answer.fileno(), selectors.EVENT_READ, answer)
    orders.send("watching")
    read = 0
    while not orders.poll():
        for key, _ in chosen.select(0.1):
            read += key.data.read1(1 << 16).count(b"event: change")
    orders.send(read)


@contextmanager
def viewers(host: str, count: int) -> Iterator[list[int]]:
    """*count* viewers; at the end the list has the number of messages that they got."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_watch, args=(theirs, host, count), daemon=True)
    process.start()
    got: list[int] = []
    try:
        assert ours.recv() == "watching"
        yield got
        ours.send("stop")
        got.append(ours.recv())
    finally:
        process.join(10)
        process.kill()


def speeds(
    client: KubeClient, calls: str, status: str, names: list[str], blocks: int, count: int
) -> tuple[list[float], list[float], int]:
    """Milliseconds of filter and prioritize, one a round: without viewers, and with; and the
    messages that all viewers got."""
    scheduler, draw = Scheduler(calls), random.Random(1)
    bound: deque[str] = deque()
    numbers = iter(range(10**6))

    def block() -> list[float]:
        found = []
        ends = time.monotonic() + _BLOCK_SECONDS
        while time.monotonic() < ends:
            name = f"bench-{next(numbers)}"
            measured = one_round(
                scheduler, waiting_pod(client, name, draw.choice(JOBS[PLAIN])), names
            )
            found.append((measured["filter"].server + measured["prioritize"].server) * 1000)
            bound.append(name)
            if len(bound) > KEPT_PODS:
                path = f"/api/v1/namespaces/{NAMESPACE}/pods/{bound.popleft()}"
                client.delete(path, grace_seconds=0)
        return found

    block()  # warm
    without, beside, read = [], [], 0
    for _ in range(blocks):
        without += block()
        with viewers(status.removeprefix("http://"), count) as got:
            beside += block()
        if not got[0]:
            raise RuntimeError("no viewer got a change, so this measures nothing")
        read += got[0]
    return without, beside, read


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(32), default=5000, show_default=True)
@click.option("--waiting", default=4000, show_default=True, help="Pods in the lock's cluster.")
@click.option("--viewers", "count", default=50, show_default=True)
@click.option("--blocks", type=click.IntRange(2), default=6, show_default=True)
def main(nodes: int, waiting: int, count: int, blocks: int) -> None:
    click.echo(f"{this_machine()}\n")
    figures = [locks(nodes, waiting, 60)]
    gc.unfreeze()
    with api_server() as url:
        node_names = fill(url, nodes, 1)
        client = KubeClient.load(kubeconfig=None, server=url)
        with ready_extender(url) as (_, status, calls, _):
            page = f"{status}/ui/"
            size = len(urllib3.request("GET", page, timeout=_SECONDS).data)
            with chromium() as driver:
                figures.append(paints(driver, page, 7))
                figures.append(scripts(driver, page, client, node_names[0], 6))
            without, beside, read = speeds(client, calls, status, node_names, blocks, count)
    rows = [
        (
            each.what,
            *(milliseconds(each_) for each_ in (median(each.values), each.worst)),
            f"{each.bar:g}",
        )
        for each in figures
    ]
    print_table(("ms", "median", "worst", "bar"), rows)
    ratio = median(without) / median(beside)
    click.echo(f"\nThe first page has {size / 2**20:.2f} MiB.")
    click.echo(
        f"filter and prioritize, median of {len(without)} and {len(beside)} pods, ms: "
        f"{median(without):.2f} "
        f"without, {median(beside):.2f} with {count} viewers, which got {read:,} messages\n"
        f"p99: {percentile([each / 1000 for each in without], 99):.2f} and "
        f"{percentile([each / 1000 for each in beside], 99):.2f}\n"
        f"speed with viewers, as a share of that without: {ratio:.3f}, bar {SPEED:g}"
    )
    kept = all(each.worst <= each.bar for each in figures) and ratio >= SPEED
    click.echo("kept" if kept else "MISSED")
    raise SystemExit(not kept)


if __name__ == "__main__":
    main()
