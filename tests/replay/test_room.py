"""The policy that keeps room: its two tables by their definitions, what it spares, and that it
loses less than FGD, which knows the mix in advance."""

from collections import Counter
from functools import cache
from random import Random

import numpy as np
import pytest

from bench.replay.openb.room import Mix, Room, rests
from bench.replay.openb.run import POLICIES, allocated_curve
from bench.replay.openb.state import State
from bench.replay.traces.openb import OpenbTrace, Request
from tests.replay.room_jobs import LARGE, MIX, OLD, SMALL, lost, made_up


def test_it_loses_less_than_fgd_and_best_fit() -> None:
    nodes = (*[LARGE] * 20, *[SMALL] * 14, *[OLD] * 6)
    traces = [made_up(nodes, MIX, seed) for seed in range(6)]
    room, fgd, bestfit = (
        sum(lost(trace, policy) for trace in traces) / len(traces)
        for policy in ("room", "fgd", "bestfit")
    )
    assert room < 5.2  # 5.6 without its first part, 5.9 without the second
    assert room < bestfit - 3.0
    assert room < fgd - 3.0


def test_the_model_that_others_insist_on_is_spared() -> None:
    picky, any_model = Request(1_000, 1000, 1, "T4"), Request(1_000, 1000, 1, "")
    nodes = (SMALL, OLD, OLD)
    pods = (picky, *[any_model] * 4, picky)
    trace = OpenbTrace(nodes, pods, np.arange(len(pods)), np.arange(len(nodes)))
    assert lost(trace, "room") == 0.0
    assert lost(trace, "firstfit") > 0.0


def test_nodes_with_all_gpus_idle_are_spared_for_pods_that_want_them() -> None:
    whole, one = Request(8_000, 1000, 8, ""), Request(1_000, 500, 1, "")
    pods = (whole, *[one] * 4, whole)
    trace = OpenbTrace((LARGE,) * 3, pods, np.arange(len(pods)), np.arange(3))
    curve = allocated_curve(trace, Room())
    assert curve[max(curve)] == pytest.approx(100 * 18 / 24, abs=0.01)


def state_after(arrivals: int, seed: int) -> tuple[OpenbTrace, State]:
    """The nodes after some pods at random places."""
    trace = made_up((LARGE, SMALL, OLD) * 2, MIX, seed)
    state, random = State(trace), Random(seed)
    nodes = np.arange(len(trace.nodes))
    for pod in trace.pods[:arrivals]:
        fitting = nodes[state.fits(pod, nodes)].tolist()
        if fitting:
            node = random.choice(fitting)
            state.give(pod, node, state.tightest(pod, node) if pod.gpus else ())
    return trace, state


@pytest.mark.parametrize("seed", range(5))
def test_room_is_how_many_pods_of_a_kind_fit_one_after_the_other(seed: int) -> None:
    trace, state = state_after(12, seed)
    nodes = np.arange(len(trace.nodes))
    seen = Counter(trace.pods)
    room = Mix(seen, state).room(nodes, state.cpu, state.memory, state.gpu)
    kinds = [kind for kind in seen if kind.gpus]
    for place, kind in enumerate(kinds):
        _, there = state_after(12, seed)
        for node in nodes.tolist():
            count = 0
            while there.fits(kind, np.array([node])).all():
                there.give(kind, node, there.tightest(kind, node))
                count += 1
            assert room[node, place] == count


def test_rests_are_what_stays_unused_by_their_definition() -> None:
    trace, state = state_after(0, 1)
    seen = Counter(trace.pods)
    of_gpus = {kind: count * kind.gpus for kind, count in seen.items() if kind.gpus}

    @cache
    def rest(model: str, left: int, cores: int) -> float:
        """A GPU closes with 0.01 for each arrival of a pod, however seldom one fits."""
        unused, chances = 0.01 * left, 0.01
        for kind, count in of_gpus.items():
            need = -(-kind.milli_cpu // (kind.gpus * 1000))
            if kind.takes(model) and kind.gpu_milli <= left and need <= cores:
                chance = count / sum(of_gpus.values())
                unused += chance * rest(model, left - kind.gpu_milli, cores - need)
                chances += chance
        return unused / chances

    table = rests(Mix(seen, state))
    for node in range(3):
        model = trace.nodes[node].model
        for left in (0, 150, 190, 340, 530, 680, 810, 1000):
            for cores in (0, 3, 7, 12, 40, 64):
                found = table[state.model[node], left // 10, cores]
                assert found == pytest.approx(rest(model, left, cores), abs=1e-6)


def test_it_knows_no_mix_but_what_came() -> None:
    """The first pods get the same places, whatever comes later."""
    nodes = (LARGE, SMALL, OLD) * 3
    common = made_up(nodes, MIX, 5).pods[:20]
    other = {Request(1_000, 230, 1, ""): 1, Request(40_000, 0, 0, ""): 1}
    placed = []
    for later in (MIX, other):
        pods = (*common, *made_up(nodes, later, 6).pods)
        trace = OpenbTrace(nodes, pods, np.arange(20), np.arange(len(nodes)))
        placed.append(allocated_curve(trace, POLICIES["room"](trace, 0)))
    assert placed[0] == placed[1]


def test_pods_without_gpus_may_come_first() -> None:
    plain = Request(16_000, 0, 0, "")
    pods = (*[plain] * 6, Request(1_000, 1000, 1, ""))
    trace = OpenbTrace((OLD, LARGE), pods, np.arange(len(pods)), np.arange(2))
    curve = allocated_curve(trace, Room())
    assert curve[max(curve)] == 10.0


def test_it_learns_as_pods_come_and_when_room_runs_short() -> None:
    trace, state = state_after(0, 1)
    policy, pod = Room(), trace.pods[0]
    assert [policy.sees(state, pod) for _ in range(8)] == [
        *(True, True, True, False, True, False, False, True)
    ]
    state.gpu[0] = 0
    assert policy.sees(state, pod)
    assert not policy.sees(state, pod)
