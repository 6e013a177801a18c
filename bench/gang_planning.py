"""How long the planning of a gang takes, and how long it holds the lock:
`python -m bench.gang_planning`.

This runs the core alone, as the extender's shell drives it, without HTTP and without an API server.
The clock runs from the event that shows the last member to the writes. The core answers no other
call while its lock is held, so the longest time that it is held without a break counts too.
"""

from dataclasses import dataclass

import click

from bench.support.core_world import STATES, Spent, World
from bench.support.figures import milliseconds, percentile, print_table, ratio, this_machine

BAR_MS, HOLD_BAR_MS = 200.0, 20.0
BAR_CASE = (5000, 512)


@dataclass(frozen=True, slots=True)
class Timing:
    spent: list[Spent]
    holds: list[Spent]  # the longest time in each round that the lock was held
    span: str


def measure(world: World, size: int, gpus: int, rounds: int) -> Timing | None:
    spent, holds, span = [], [], ""
    for _ in range(rounds):
        found = world.plan(size, gpus)
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
            world = World(count, state, seed)
            for size in pods:
                for each in gpus:
                    timing = measure(world, size, each, rounds)
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
                    if (count, size) == BAR_CASE and (longest > BAR_MS or hold > HOLD_BAR_MS):
                        missed.append(title)
    header = ["nodes, state, pods × GPUs", "p50", "longest", "its CPU", "hold", "its CPU"]
    print_table([*header, "p50, of smallest", "span"], rows)
    bar = f"{BAR_CASE[1]} pods on {BAR_CASE[0]:,} nodes in {BAR_MS:.0f} ms"
    measured = BAR_CASE[0] in nodes and BAR_CASE[1] in pods
    kept = "kept" if not missed else f"missed by {'; '.join(missed)}"
    click.echo(
        f"\nBar: {bar}, the lock never held for more than {HOLD_BAR_MS:.0f} ms: "
        f"{kept if measured else 'not measured'}"
    )
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
