"""Fifty gangs that request much more than there is: each runs whole, and none is forgotten."""

import random
import time
from math import ceil
from pathlib import Path

from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.contention import Overdue, Played, draw_jobs, given_twice
from tests.cluster.support.scheduling.two_extenders import SwitchWorld, switch_world

GANGS = 50
THERE_IS = 0.6  # GPUs, as a share of what the gangs request
DYING = 0.2  # share of the members
_LOOK_SECONDS = 0.2
# The goal is 5 s on an idle machine. A pod must never wait for kube-scheduler's own flush, which
# comes after 5 minutes.
FORGOTTEN_SECONDS = 60.0
ALL_IN_SECONDS = 300.0


def test_gangs_that_contend_run_whole_and_nobody_is_forgotten(run_directory: Path) -> None:
    draw = random.Random(50)
    jobs = draw_jobs(draw, GANGS)
    asked = sum(job.size * job.gpus for job in jobs)
    nodes = [f"n{number:02}" for number in range(ceil(asked * THERE_IS / 8))]
    with switch_world(run_directory / "contention", nodes) as world:
        played = Played(world, jobs, draw, DYING)
        overdue = Overdue(world.client)
        # After this many gangs have finished.
        troubles = {GANGS // 4: restart_scheduler, GANGS // 2: kill_the_leader}

        played.create_all()
        ends = time.monotonic() + ALL_IN_SECONDS
        while len(played.finished) < GANGS:
            assert time.monotonic() < ends, sorted({job.name for job in jobs} - played.finished)
            pods = world.pods()
            assert not given_twice(pods)
            overdue.look(pods, time.time())
            played.step(pods)
            for number in [number for number in troubles if number <= len(played.finished)]:
                troubles.pop(number)(world)
                overdue.start_again()
            time.sleep(_LOOK_SECONDS)

        print(
            f"{GANGS} gangs, {sum(job.size for job in jobs)} pods, {asked} GPUs wanted, "
            f"{len(nodes) * 8} there; {played.died} members died; the longest wait of a pod "
            f"that was due: {overdue.longest:.1f} s ({overdue.whose})"
        )
        assert played.ran_whole == {job.name for job in jobs}
        assert overdue.longest < FORGOTTEN_SECONDS, overdue.whose
        wait_for(lambda: not world.taken(), "all GPUs are free again")


def restart_scheduler(world: SwitchWorld) -> None:
    assert world.scheduler is not None
    world.scheduler.kill()
    world.scheduler.start()


def kill_the_leader(world: SwitchWorld) -> None:
    before = world.pair.leader
    before.kill()
    wait_for(lambda: world.pair.other(before).status() == 200, "the other leads")
