"""Replay of openb on a made-up trace: common rules of all policies, FGD by its definition, and the
check against published curves."""

import math
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bench.replay.errors import TraceError
from bench.replay.openb.policies import Fgd, typical_pods
from bench.replay.openb.run import POLICIES, PUBLISHED, allocated_curve
from bench.replay.openb.state import State
from bench.replay.traces.openb import (
    ARRIVALS,
    MILLI,
    OpenbTrace,
    Request,
    read_openb,
    read_published,
)
from tests.replay.openb_files import write, write_published


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve nodes of three models, and 35 pods that request about as much as they have."""
    folder = tmp_path_factory.mktemp("openb")
    random = Random(1)
    kinds = [("T4", 2, 64_000), ("V100", 8, 96_000), ("", 1, 32_000)] * 4
    nodes = [f"n{i},{cpu},262144,{gpus},{model}" for i, (model, gpus, cpu) in enumerate(kinds)]
    pods = []
    for number in range(35):
        gpus, milli = random.choice(((1, 300), (1, 500), (1, 1000), (2, 1000), (4, 1000), (0, 0)))
        spec = random.choice(("", "", "", "T4", "T4|V100"))
        cpu = random.choice((1000, 4000, 8000))
        pods.append(f"p{number:03},{cpu},8192,{gpus},{milli},{spec}")
    write(folder, "\n".join(nodes), "\n".join(pods))
    return folder


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_gives_more_than_there_is_and_all_grow(data: Path, name: str) -> None:
    trace = read_openb(data, "default", 7)
    curve = allocated_curve(trace, POLICIES[name](trace, 7))
    shares = [share for _, share in sorted(curve.items())]
    assert all(before <= after + 1e-9 for before, after in pairwise(shares))
    assert all(share <= min(percent + 0.51, 100) for percent, share in curve.items())
    assert 118 <= max(curve) <= 130
    assert curve == allocated_curve(trace, POLICIES[name](trace, 7))


def test_the_order_that_is_drawn_has_every_pod_and_then_some_again(data: Path) -> None:
    trace = read_openb(data, "default", 7)
    first = trace.arrivals[: len(trace.pods)]
    assert sorted(first.tolist()) == list(range(len(trace.pods)))
    asked = sum(trace.pods[pod].milli for pod in trace.arrivals)
    assert 1.18 < asked / (trace.gpus * MILLI) <= ARRIVALS


def fragments(
    state: State, cpu: int, gpu: list[int], node: int, shares: dict[Request, float]
) -> float:
    """Return the GPUs that a typical pod cannot use, by the definition: in loops, not in arrays."""
    total = 0.0
    for kind, share in shares.items():
        fitting = [left for left in gpu if kind.gpus and left >= kind.gpu_milli]
        usable = (
            kind.gpus > 0
            and bool(state.takes(kind)[node])
            and len(fitting) >= kind.gpus
            and cpu >= kind.milli_cpu
        )
        total += share * (sum(gpu) - (sum(fitting) if usable else 0))
    return total


def test_fgd_takes_what_leaves_least_fragments(data: Path) -> None:
    trace = read_openb(data, "default", 3)
    policy, shares = Fgd(trace.pods), dict(typical_pods(trace.pods))
    state = State(trace)
    nodes = np.arange(len(trace.nodes))
    for pod in trace.arrivals[:120].tolist():
        request = trace.pods[pod]
        fitting = nodes[state.fits(request, nodes)]
        if not len(fitting):
            continue
        scores = policy.scores(state, request, fitting)
        for node, score in zip(fitting.tolist(), scores.tolist(), strict=True):
            cpu, gpu = int(state.cpu[node]), state.gpu[node].tolist()
            before = fragments(state, cpu, gpu, node, shares)
            after = []
            for gpus in ways(request, gpu):
                then = [left - request.gpu_milli * (i in gpus) for i, left in enumerate(gpu)]
                after.append(fragments(state, cpu - request.milli_cpu, then, node, shares))
            gain = (before - min(after)) / 1000
            assert score == pytest.approx(100 / (1 + math.exp(-gain)), abs=1.0)
        node = int(fitting[scores.argmax()])
        state.give(request, node, policy.gpus(state, request, node))


def ways(request: Request, gpu: list[int]) -> list[tuple[int, ...]]:
    fitting = [i for i, left in enumerate(gpu) if left >= request.gpu_milli]
    if request.shares:
        return [(i,) for i in fitting]
    return [tuple(fitting[: request.gpus])]


def test_typical_pods_are_the_most_frequent_and_their_shares_make_one() -> None:
    common, rare, rarest = (Request(cpu, MILLI, 1, "") for cpu in (1, 2, 3))
    pods = [common] * 80 + [rare] * 16 + [rarest] * 4
    assert typical_pods(pods) == {common: pytest.approx(80 / 96), rare: pytest.approx(16 / 96)}


def test_the_published_order_is_used_where_it_is_there(data: Path, tmp_path: Path) -> None:
    trace = with_order(data, tmp_path)
    assert trace.arrivals.tolist() == [2, 0, 1]
    assert trace.node_order.tolist() == list(range(11, -1, -1))


def with_order(data: Path, folder: Path) -> OpenbTrace:
    for file in data.glob("*.csv"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "replay").mkdir()
    np.savez(
        folder / "replay" / "default.npz",
        order_42=np.array([2, 0, 1]),
        nodes_42=np.arange(11, -1, -1),
        order_43=np.array([2, 35]),
        nodes_43=np.arange(12),
    )
    return read_openb(folder, "default", 42)


def test_an_order_that_does_not_fit_the_trace_is_refused(data: Path, tmp_path: Path) -> None:
    with_order(data, tmp_path)
    with pytest.raises(TraceError, match="order_43: expected positions of 35 pods"):
        read_openb(tmp_path, "default", 43)
    with pytest.raises(TraceError, match="no seed 44: expected one of 42, 43"):
        read_openb(tmp_path, "default", 44)
    (tmp_path / "replay" / "default.npz").write_bytes(b"no arrays")
    with pytest.raises(TraceError, match=r"default.npz: .*expected arrays that numpy wrote"):
        read_openb(tmp_path, "default", 42)


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        ("n,1,1,9,T4", "p,1,1,1,1000,", "node.csv, line 2: gpu 9: expected at most 8"),
        ("n,1,1,-1,T4", "p,1,1,1,1000,", "line 2: gpu '-1': expected a whole number, 0 or more"),
        ("n,1,1,8,T4", "p,1,1,2,500,", "line 2: num_gpu 2 with gpu_milli 500: expected 1000"),
        ("n,1,1,4,T4", "p,1,1,8,1000,", "default.csv, line 2: num_gpu 8: expected at most 4"),
        ("n,1,1,8,T4", "p,1,x,0,0,", "line 2: memory_mib 'x': expected a whole number"),
        ("n,1,1,8,T4", "p,1,1,0,0,", "no pod with GPUs: expected at least one"),
        ("", "p,1,1,0,0,", "no nodes: expected at least one"),
    ],
)
def test_what_is_wrong_in_the_files_is_named(
    tmp_path: Path, nodes: str, pods: str, said: str
) -> None:
    write(tmp_path, nodes, pods)
    with pytest.raises(TraceError, match=said):
        read_openb(tmp_path, "default", 42)


def test_published_curves_are_read_by_policy(tmp_path: Path) -> None:
    write_published(tmp_path, {"FGD": {10: 9.87, 100: 95.2}})
    assert read_published(tmp_path, "default", 7) == {"FGD": {10: 9.87, 100: 95.2}}
    with pytest.raises(TraceError, match="nothing of trace default, seed 8"):
        read_published(tmp_path, "default", 8)


def test_all_policies_with_published_curves_are_there() -> None:
    assert set(PUBLISHED) <= set(POLICIES)
