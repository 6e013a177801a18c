"""Rounds of ordinary claims and planned pods that want the same GPUs at the same moment.

No taint keeps the ordinary ones off, so plans lose GPUs and are made again. Every pod that is bound
ends at once, a gang once it is whole, so that each pod can be served. No round waits for the end of
what the last one created.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import click

from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, read_gpus, read_plan
from tests.cluster.support.host import sandbox
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.dra import CLAIMS
from tests.cluster.support.scheduling.late_claims import (
    claims_of,
    create,
    create_group,
    first_fit,
    given,
    late_claims_world,
    native_claims_world,
)
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld, maybe_gone

# Members and GPUs of each, on two nodes of eight.
PLANNED = ((1, 8), (1, 8), (1, 4), (1, 2), (2, 4), (2, 8), (4, 4), (3, 4))
ORDINARY = (1, 2, 4, 4, 8)
_APART_SECONDS = 0.03  # at most, between two creations
SERVED_SECONDS = 60.0
PARTIAL_SECONDS = 5.0  # a gang's Bindings are several requests


@dataclass(frozen=True, slots=True)
class Unit:
    """What ends together: a pod, or a gang."""

    pods: tuple[str, ...]
    gpus: int  # of each
    planned: bool


@dataclass(slots=True)
class Raced:
    """What was seen."""

    pods: Counter[bool] = field(default_factory=Counter)  # by whether it was planned
    again: int = 0  # planned pods that are not where their first plan was
    longest: float = 0.0  # seconds from its creation until a unit was bound
    whose: str = ""

    def __str__(self) -> str:
        return (
            f"{self.pods[True]} planned pods, of which {self.again} were planned again, and "
            f"{self.pods[False]} others; the longest wait: {self.longest:.1f} s ({self.whose})"
        )


def race(world: SchedulingWorld, rounds: int, seed: int, *, native: bool = False) -> Raced:
    """Raises AssertionError if a GPU is given twice, a planned pod has others than planned, a pod
    is not served, or a *native* gang is partial: kube-scheduler binds it as a whole."""
    draw, raced = random.Random(seed), Raced()
    for number in range(rounds):
        began = time.monotonic()
        waiting = [*_units(draw, number)]
        draw.shuffle(waiting)
        for unit in waiting:
            for create_one in _creations(world, unit, native=native):
                create_one()
                time.sleep(draw.uniform(0, _APART_SECONDS))
        partial_since: dict[Unit, float] = {}
        while waiting:
            waited = time.monotonic() - began
            assert waited < SERVED_SECONDS, _told(world, waiting, f"round {number} of seed {seed}")
            pods = {pod.metadata.name: pod for pod in world.pods()}
            has = _look(world)
            for unit in [unit for unit in waiting if _is_served(unit, pods, has)]:
                waiting.remove(unit)
                raced.pods[unit.planned] += len(unit.pods)
                raced.again += sum(_plan_of(pods[name]).epoch > 1 for name in unit.pods)
                if waited > raced.longest:
                    raced.longest, raced.whose = waited, f"round {number}, {unit.pods[0]}"
                _end(world, unit)
            for unit in waiting if native else ():
                bound = sum(bool(pods[name].spec.node_name) for name in unit.pods)
                since = partial_since.setdefault(unit, waited) if bound else waited
                assert waited < since + PARTIAL_SECONDS, _told(world, [unit], "a partial gang")
            time.sleep(0.01)
    wait_for(lambda: not claims_of(world), "all claims are gone with their pods")
    wait_for(lambda: not world.taken(), "the extender has seen it")
    return raced


def _told(world: SchedulingWorld, waiting: list[Unit], when: str) -> str:
    """What is known of the pods that wait."""
    said = [world.extender.explain(NAMESPACE, name) for unit in waiting for name in unit.pods]
    allocated = {claim["metadata"]["name"]: given(claim) for claim in claims_of(world)}
    return "\n".join([f"{when} waits: {waiting}", *said, f"claims: {allocated}"])


def _units(draw: random.Random, number: int) -> Iterator[Unit]:
    for each in range(draw.randint(1, 3)):
        yield Unit((f"ordinary-{number}-{each}",), draw.choice(ORDINARY), planned=False)
    for each in range(draw.randint(1, 2)):
        size, gpus = draw.choice(PLANNED)
        name = f"planned-{number}-{each}"
        yield Unit(tuple(f"{name}-{rank}" for rank in range(size)), gpus, planned=True)


def _creations(
    world: SchedulingWorld, unit: Unit, *, native: bool
) -> Iterator[Callable[[], object]]:
    """The creation of each pod."""
    gang, size = unit.pods[0].rpartition("-")[0], len(unit.pods)
    spec = create_group(world, gang, size) if native and size > 1 else None
    said = {"gang": gang, "gang_size": str(size)} if size > 1 and not native else {}
    for name in unit.pods:
        if unit.planned:
            yield partial(create, world, name, unit.gpus, spec=spec, **said)
        else:
            yield partial(first_fit, world, name, unit.gpus)


def _look(world: SchedulingWorld) -> Mapping[str, list[str]]:
    """The GPUs that each pod has, by one list of all claims, which the API server shows as they
    were at one moment."""
    claims = claims_of(world)
    twice = [
        uuid for uuid, n in Counter(u for each in claims for u in given(each)).items() if n > 1
    ]
    assert not twice, f"given twice: {twice}"
    return {
        pod["name"]: given(claim)
        for claim in claims
        for pod in claim.get("status", {}).get("reservedFor", [])
    }


def _is_served(unit: Unit, pods: Mapping[str, Pod], has: Mapping[str, list[str]]) -> bool:
    """Whether all are bound, with the GPUs that their plans say. kube-scheduler may allocate the
    claim while the extender withdraws the plan, which it then writes again."""
    for name in unit.pods:
        if not pods[name].spec.node_name or name not in has:
            return False
        assert len(has[name]) == unit.gpus, (name, has[name])
        said = pods[name].metadata.annotations
        if unit.planned and (
            names.GPUS not in said or sorted(read_gpus(said[names.GPUS])["main"]) != has[name]
        ):
            return False
    return True


def _plan_of(pod: Pod) -> Plan:
    """The pod's plan; that of a pod without one is empty."""
    said = pod.metadata.annotations.get(names.PLAN)
    return Plan(id="", node="") if said is None else read_plan(said)


def _end(world: SchedulingWorld, unit: Unit) -> None:
    for name in unit.pods:
        world.delete(name)
        if not unit.planned:
            with maybe_gone():
                world.client.delete(f"{CLAIMS}/{name}")


@click.command()
@click.option("--rounds", default=1000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--native", is_flag=True, help="Gangs are Kubernetes' own.")
def main(rounds: int, seed: int, *, native: bool) -> None:
    """Race, and print what was seen."""
    directory = sandbox.directory()
    if directory is None:
        raise click.ClickException("needs the sandbox; run it by `python -m tests.cluster run`")
    make_world = native_claims_world if native else late_claims_world
    with make_world(directory / "claim-races") as world:
        began = time.monotonic()
        raced = race(world, rounds, seed, native=native)
        click.echo(f"{rounds} rounds in {time.monotonic() - began:.0f} s: {raced}")


if __name__ == "__main__":
    main()
