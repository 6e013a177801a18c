"""Reads Alibaba's openb trace as a directory of the published files.

    openb_node_list_gpu_node.csv    sn, cpu_milli, memory_mib, gpu, model
    openb_pod_list_<trace>.csv      name, cpu_milli, memory_mib, num_gpu, gpu_milli, and gpu_spec
    replay/<trace>.npz              order_<seed>: pods by name, in order of arrival;
                                    nodes_<seed>: nodes in the order in which equals go
    replay/expected_alloc_pct.csv   trace, policy, seed, a<percent>: the published curves

Without the third file the order is drawn here, from the seed.
"""

import csv
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.replay.errors import TraceError

MILLI = 1000
MOST_GPUS = 8  # of a node; the trace has none with more
ARRIVALS = 1.3  # GPUs requested in all, as a multiple of the cluster's
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_NUMBER = "a whole number, 0 or more"
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OpenbNode:
    name: str
    milli_cpu: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """A pod's request; equal for very many pods.

    `gpu_milli` is of each GPU, below 1000 for a pod that shares one. `models` are the acceptable
    ones with | between them; "": any.
    """

    milli_cpu: int
    gpu_milli: int
    gpus: int
    models: str
    memory_mib: int = 0

    @property
    def milli(self) -> int:
        """Thousandths over all GPUs."""
        return self.gpu_milli * self.gpus

    @property
    def shares(self) -> bool:
        return self.gpus == 1 and self.gpu_milli < MILLI

    def takes(self, model: str) -> bool:
        wanted = [name for name in self.models.split("|") if name]
        return not wanted or model in wanted


@dataclass(frozen=True, slots=True)
class OpenbTrace:
    """`pods` are sorted by name; `arrivals` holds positions in `pods`, `node_order` in `nodes`."""

    nodes: tuple[OpenbNode, ...]
    pods: tuple[Request, ...]
    arrivals: Ints
    node_order: Ints

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)


def read_openb(data: Path, trace: str, seed: int) -> OpenbTrace:
    """Read the files of *data*. Raises TraceError."""
    nodes = tuple(_nodes(data / "openb_node_list_gpu_node.csv"))
    pods = _pods(data / f"openb_pod_list_{trace}.csv", max(node.gpus for node in nodes))
    order_file = data / "replay" / f"{trace}.npz"
    if order_file.exists():
        arrivals, node_order = _order(order_file, seed, len(pods), len(nodes))
    else:
        arrivals, node_order = _draw(pods, sum(node.gpus for node in nodes), len(nodes), seed)
    return OpenbTrace(nodes, pods, arrivals, node_order)


def read_published(data: Path, trace: str, seed: int) -> Mapping[str, Mapping[int, float]]:
    """Return by policy the allocated GPU % at each % of arrivals. Raises TraceError."""
    file = data / "replay" / "expected_alloc_pct.csv"
    found = {}
    for line, row in _rows(file, ("trace", "policy", "seed")):
        if row["trace"] == trace and row["seed"] == str(seed):
            try:
                curve = {int(k[1:]): float(v) for k, v in row.items() if k[1:].isdigit()}
            except ValueError as error:
                raise TraceError(file, line, str(error), "percentages") from error
            found[row["policy"]] = curve
    if not found:
        raise TraceError(file, None, f"nothing of trace {trace}, seed {seed}", "its curves")
    return found


def _rows(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.DictReader(lines, strict=True)
            there = rows.fieldnames or ()
            for column in columns:
                if column not in there:
                    expected = f"the columns {', '.join(columns)}"
                    raise TraceError(file, 1, f"no column {column}", expected)
            for row in rows:
                yield rows.line_num, {k: (v or "") for k, v in row.items() if isinstance(k, str)}
    except OSError as error:
        raise TraceError(file, None, error.strerror or str(error), "a readable file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(file, None, str(error), "comma-separated values") from error


def _whole(file: Path, line: int, row: Mapping[str, str], column: str, most: int) -> int:
    text = row[column]
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise TraceError(file, line, f"{column} {text!r}", _NUMBER)
    if int(text) > most:
        raise TraceError(file, line, f"{column} {text}", f"at most {most}")
    return int(text)


def _nodes(file: Path) -> Iterator[OpenbNode]:
    count = 0
    for line, row in _rows(file, _NODE_COLUMNS):
        count += 1
        yield OpenbNode(
            name=row["sn"],
            milli_cpu=_whole(file, line, row, "cpu_milli", 10**9),
            memory_mib=_whole(file, line, row, "memory_mib", 10**12),
            gpus=_whole(file, line, row, "gpu", MOST_GPUS),
            model=row["model"],
        )
    if not count:
        raise TraceError(file, None, "no nodes", "at least one")


def _pods(file: Path, most_gpus: int) -> tuple[Request, ...]:
    pods = []
    for line, row in _rows(file, _POD_COLUMNS):
        gpus = _whole(file, line, row, "num_gpu", most_gpus)
        milli = _whole(file, line, row, "gpu_milli", MILLI)
        if (gpus > 1 and milli != MILLI) or (gpus > 0) != (milli > 0):
            problem = f"num_gpu {gpus} with gpu_milli {milli}"
            raise TraceError(file, line, problem, "1000 of several GPUs, 1 to 1000 of one, or 0, 0")
        request = Request(
            milli_cpu=_whole(file, line, row, "cpu_milli", 10**9),
            memory_mib=_whole(file, line, row, "memory_mib", 10**12),
            gpus=gpus,
            gpu_milli=milli,
            models=row.get("gpu_spec", ""),
        )
        pods.append((row["name"], request))
    if not any(request.gpus for _, request in pods):
        raise TraceError(file, None, "no pod with GPUs", "at least one")
    return tuple(request for _, request in sorted(pods, key=lambda pod: pod[0]))


def _order(file: Path, seed: int, pods: int, nodes: int) -> tuple[Ints, Ints]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            if f"order_{seed}" not in arrays or f"nodes_{seed}" not in arrays:
                seeds = ", ".join(sorted(n.split("_")[1] for n in arrays if "order_" in n))
                raise TraceError(file, None, f"no seed {seed}", f"one of {seeds}")
            arrivals: Ints = arrays[f"order_{seed}"].astype(np.int64)
            node_order: Ints = arrays[f"nodes_{seed}"].astype(np.int64)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise TraceError(file, None, str(error), "arrays that numpy wrote") from error
    if arrivals.ndim != 1 or not arrivals.size or arrivals.min() < 0 or arrivals.max() >= pods:
        raise TraceError(file, None, f"order_{seed}", f"positions of {pods} pods")
    if sorted(node_order.ravel().tolist()) != list(range(nodes)):
        raise TraceError(file, None, f"nodes_{seed}", f"each of {nodes} nodes once")
    return arrivals, node_order


def _draw(pods: tuple[Request, ...], gpus: int, nodes: int, seed: int) -> tuple[Ints, Ints]:
    """Draw all pods once, and then any of them again, until ARRIVALS is reached."""
    random = np.random.default_rng(seed)
    arrivals = random.permutation(len(pods)).tolist()
    asked, most = sum(pod.milli for pod in pods), ARRIVALS * gpus * MILLI
    while True:
        again = int(random.integers(len(pods)))
        asked += pods[again].milli
        if asked > most:
            break
        arrivals.append(again)
    return np.array(arrivals), random.permutation(nodes)
