"""A node's GPUs are open to new claims exactly if kube-scheduler's own allocator gives them out
there, whatever the slices of other nodes say."""

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec

from linkwise.extender.state.cache.claims.book import ClaimBook
from linkwise.extender.state.cache.claims.records import slice_record
from linkwise.kube.device_claims import ResourceSlice
from tests.cluster.support.programs import binaries

NODES = ("n1", "n2", "evil")
POOLS = ("n1", "n2")
DRIVERS = ("gpu.nvidia.com", "gpu.example.com")
DEVICES = ("gpu-0", "gpu-1", "gpu-2")
UUIDS = tuple(f"{pool}/{device}" for pool in POOLS for device in DEVICES)
NOWHERE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "none", "operator": "Exists"}]}]}
CASES = 2_000

Json = dict[str, Any]
Given = dict[str, set[str]]  # the UUIDs that a new claim gets, by node


def slice_of(
    name: str,
    node: str | None,
    *devices: str,
    pool: str = "n1",
    generation: int = 1,
    size: int = 1,
    driver: str = DRIVERS[0],
    tainted: bool = False,
) -> Json:
    taint = {"key": "xid", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    spec = {
        "driver": driver,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": size},
        "devices": [
            {
                "name": device,
                "attributes": {"uuid": {"string": f"{pool}/{device}"}},
                "taints": [taint] if tainted else [],
            }
            for device in devices
        ],
    }
    where = {"nodeSelector": NOWHERE} if node is None else {"nodeName": node}
    return {"metadata": {"name": name}, "spec": {**spec, **where}}


def drawn(seed: int) -> list[Json]:
    random = Random(seed)
    # Slices of one node that differ in this are taken in any order.
    sizes = {
        (pool, generation, node): random.choice((1, 1, 2, 3))
        for pool in POOLS
        for generation in (1, 2, 3)
        for node in (*NODES, None)
    }
    driver = random.choice(DRIVERS)
    slices = []
    for number in range(random.randint(1, 6)):
        pool, generation = random.choice(POOLS), random.choice((1, 1, 2, 3))
        node = random.choice((*NODES, *NODES, None))
        devices = random.sample(DEVICES, random.randint(0, len(DEVICES)))
        slices.append(
            slice_of(
                f"s{number}",
                node,
                *devices,
                pool=pool,
                generation=generation,
                size=sizes[pool, generation, node],
                driver=driver,
                tainted=random.random() < 0.1,
            )
        )
    return slices


def kube_scheduler(cases: Iterable[Sequence[Json]]) -> Iterator[Given]:
    program = binaries.devices() / "devices"
    lines = [json.dumps({"slices": each, "nodes": NODES, "uuids": UUIDS}) for each in cases]
    ended = subprocess.run(
        [program], input="\n".join([*lines, ""]), capture_output=True, text=True, check=True
    )
    for line in ended.stdout.splitlines():
        yield {node: set(uuids) for node, uuids in json.loads(line).items()}


def ours(slices: Iterable[Json]) -> Given:
    book = ClaimBook()
    book.replace_slices(slice_record(msgspec.convert(each, ResourceSlice)) for each in slices)
    return {node: {*book.of_node(node).open} for node in NODES}


def test_a_newer_slice_of_another_node_takes_nothing_from_a_pool() -> None:
    own = slice_of("own", "n1", "gpu-0", "gpu-1")
    forged = slice_of("forged", "evil", "gpu-2", generation=999_999)
    (theirs,) = kube_scheduler([[own, forged]])
    expected: Given = {"n1": {"n1/gpu-0", "n1/gpu-1"}, "n2": set(), "evil": {"n1/gpu-2"}}
    assert theirs == expected
    assert ours([own, forged]) == expected


def test_drawn_slices_give_out_the_same_gpus() -> None:
    cases = [drawn(seed) for seed in range(CASES)]
    both = [*zip(cases, map(ours, cases), kube_scheduler(cases), strict=True)]
    assert [(case, us, them) for case, us, them in both if us != them][:1] == []
    some = sum(1 for _, us, _ in both if any(us.values()))
    assert CASES / 4 < some < CASES * 3 / 4
