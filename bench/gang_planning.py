"""How long the planning of a gang takes, and how long it holds the lock:
`python -m bench.gang_planning`.

This runs the core alone, as the extender's shell drives it, without HTTP and without an API server.
The clock runs from the event that shows the last member to the writes. The core answers no other
call while its lock is held, so the longest time that it is held without a break counts too. The
search works on a copy, without the lock.
"""

from dataclasses import dataclass

import click

from bench.support.figures import milliseconds, percentile, print_table, ratio, this_machine
from bench.support.large_cluster import STATES, LargeCluster, Spent

HOLD_BAR_MS = 20.0
BARS_MS = {(5000, 512): 100.0, (15000, 512): 200.0}  # by nodes and pods


@dataclass(frozen=True, slots=True)
class Timing:
    spent: list[Spent]
    holds: list[Spent]  # the longest time in each round that the lock was held
    span: str


def measure(cluster: LargeCluster, size: int, gpus: int, rounds: int) -> Timing | None:
    spent, holds, span = [], [], ""
    for _ in range(rounds):
        found = cluster.plan(size, gpus)
        if found is None:
            return None
        spent.append(found[0])
        holds.append(found[1])
        span = found[2]
    return Timing(spent, holds, span)


@click.command(context_settings={"show_default": True})
@click.option("--nodes", multiple=True, type=int, default=(1000, 5000), help="Cluster sizes.")
@click.option("--pods", multiple=True, type=int, default=(64, 128, 512), help="Gang sizes.")
@click.option("--gpus", multiple=True, type=int, default=(1, 4, 8), help="GPUs of a member.")
@click.option("--rounds", type=click.IntRange(1), default=7, help="Gangs planned for each row.")
@click.option("--seed", default=0, help="Which GPUs are in use.")
def main(
    nodes: tuple[int, ...], pods: tuple[int, ...], gpus: tuple[int, ...], rounds: int, seed: int
) -> None:
    """Plan gangs, and measure how long it takes and how long it holds the lock."""
    click.echo(f"Planning of a gang, {rounds} each, times in ms: {this_machine()}\n")
    rows, missed, base = [], [], 0.0
    for count in nodes:
        for state in STATES:
            cluster = LargeCluster(count, state, seed)
            for size in pods:
                for each in gpus:
                    timing = measure(cluster, size, each, rounds)
                    title = f"{count:,}, {state}, {size} × {each}"
                    if timing is None:
                        rows.append([title, *["-"] * 6, "no room"])
                        continue
                    p50 = percentile([spent.wall for spent in timing.spent], 50)
                    base = base or p50
                    longest = max(spent.wall for spent in timing.spent) * 1000
                    hold = max(spent.wall for spent in timing.holds) * 1000
                    own = [max(s.cpu for s in each) * 1000 for each in (timing.spent, timing.holds)]
                    span = timing.span.rpartition("/")[2] or "-"
                    figures = map(milliseconds, (p50, longest, own[0], hold, own[1]))
                    rows.append([title, *figures, ratio(p50, base), span])
                    bar = BARS_MS.get((count, size))
                    if bar is not None and (longest > bar or hold > HOLD_BAR_MS):
                        missed.append(title)
    header = ["nodes, state, pods × GPUs", "p50", "longest", "its CPU", "hold", "its CPU"]
    print_table([*header, "p50, of smallest", "span"], rows)
    bars = [
        f"{size} pods on {count:,} nodes in {bar:.0f} ms"
        for (count, size), bar in BARS_MS.items()
        if count in nodes and size in pods
    ]
    if bars:
        verdict = f"missed by {'; '.join(missed)}" if missed else "kept"
        bars.append(f"the lock never held for more than {HOLD_BAR_MS:.0f} ms")
        click.echo(f"\nBar: {', '.join(bars)}: {verdict}")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
