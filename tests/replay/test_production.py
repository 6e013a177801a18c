"""Linkwise's own choice on openb: it loses less than others under the same kube-scheduler, and is
the extender's."""

import numpy as np

from bench.replay.openb.production import Linkwise, UnderKubeScheduler
from bench.replay.openb.state import State
from bench.replay.traces.openb import OpenbNode, OpenbTrace, Request
from tests.extender.cluster import Cluster
from tests.replay.room_jobs import LARGE, MIX, OLD, SMALL, lost, made_up

ONE = Request(1_000, 1000, 1, "")


def chosen(policy: Linkwise, state: State, request: Request) -> tuple[int, tuple[int, ...]]:
    nodes = np.arange(len(state.cpu))
    policy.sees(state, request)
    fitting = nodes[state.fits(request, nodes)]
    scores = policy.scores(state, request, fitting)
    assert scores.sum() == 1
    node = int(fitting[scores.argmax()])
    return node, policy.gpus(state, request, node)


def test_it_loses_less_than_fgd_and_best_fit_beside_kube_scheduler() -> None:
    nodes = (*[LARGE] * 10, *[SMALL] * 7, *[OLD] * 3)
    traces = [made_up(nodes, MIX, seed) for seed in range(3)]
    ours, fgd, bestfit = (
        sum(lost(trace, policy) for trace in traces) / len(traces)
        for policy in ("linkwise", "fgd-gpus", "bestfit-gpus")
    )
    assert ours < fgd - 1.0
    assert ours < bestfit - 1.0


def test_it_is_the_choice_of_the_extender() -> None:
    """Single pods of whole GPUs, one after the other, through the extender's own calls."""
    machines = {"PCIE-4": "l40s-4", "PCIE-8": "l40s-8-mock"}
    nodes = (
        OpenbNode("n0", 32_000, 1 << 20, 8, "L40S"),
        OpenbNode("n1", 96_000, 1 << 20, 8, "L40S"),
        OpenbNode("n2", 64_000, 1 << 20, 4, "L40S"),
    )
    pods = (Request(8_000, 1000, 1, "", 1024), Request(1_000, 1000, 1, "", 1024)) * 5
    trace = OpenbTrace(nodes, pods, np.arange(len(pods)), np.arange(len(nodes)))
    state, policy, at = State(trace), Linkwise(trace), Cluster()
    for node in nodes:
        cpu = str(node.milli_cpu // 1000)
        at.add_node(node.name, machines[f"PCIE-{node.gpus}"], cpu=cpu)
    for number, pod in enumerate(pods):
        place, gpus = chosen(policy, state, pod)
        state.give(pod, place, gpus)
        at.add_pod(f"p{number}", 1, cpu=str(pod.milli_cpu // 1000))
        assert at.schedule(f"p{number}") == nodes[place].name


def test_a_part_goes_to_the_fullest_gpu_that_is_open() -> None:
    parts = Request(1_000, 500, 1, ""), Request(1_000, 700, 1, "")
    trace = OpenbTrace((SMALL,), parts, np.arange(2), np.arange(1))
    state, policy = State(trace), Linkwise(trace)
    state.gpu[0, :2] = (1000, 600)
    assert chosen(policy, state, parts[0]) == (0, (1,))
    assert chosen(policy, state, parts[1]) == (0, (0,))


def test_kube_scheduler_places_pods_without_gpus_by_cpu_and_memory_alone() -> None:
    trace = OpenbTrace((LARGE, SMALL), (ONE,), np.arange(1), np.arange(2))
    state = State(trace)
    under = UnderKubeScheduler(Linkwise(trace))
    plain = Request(48_000, 0, 0, "", 131_072)
    assert under.scores(state, plain, np.arange(2)).tolist() == [(50 + 66) // 2, (53 + 75) // 2]
    assert under.gpus(state, plain, 0) == ()
