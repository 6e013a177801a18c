"""Pods of 30 workloads, as their controllers make them, and the gangs worked out for them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkwise.kube.objects import Pod
from tests.extender.cluster import change
from tests.pods.podgrouper.pods import Object

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "workload_pods.json").read_text()
)["cases"]


@dataclass(frozen=True)
class Group:
    """The pods of one gang in a case that take GPUs."""

    rows: tuple[dict[str, Any], ...]
    objects: tuple[Object, ...]

    @property
    def minimum(self) -> int:
        return max(int(row["expected"]["gpu_minimum"]) for row in self.rows)

    def members(self) -> list[Pod]:
        """As many as it needs. The cases show a few of each; others are alike."""
        shown = [_ours(msgspec.convert(row["pod"], Pod)) for row in self.rows]
        more = [_like(shown[-1], number) for number in range(self.minimum - len(shown))]
        return [*shown, *more]


def _ours(pod: Pod) -> Pod:
    """Operators that know a group for Volcano leave a scheduler's name alone that a user set."""
    return change(pod, spec=change(pod.spec, scheduler_name="default-scheduler"))


def _like(pod: Pod, number: int) -> Pod:
    meta = pod.metadata
    named = change(meta, name=f"{meta.name}-{number}", uid=f"{meta.uid}-{number}")
    return change(pod, metadata=named)


def takes_gpus(row: dict[str, Any]) -> bool:
    return "nvidia.com/gpu" in json.dumps(row["pod"]["spec"]["containers"])


def groups() -> list[Any]:
    found: dict[str, Group] = {}
    for case in CASES:
        for row in case["pods"]:
            if row["expected"]["is_gang"] and takes_gpus(row):
                name = f"{case['id']}: {row['expected']['gang']}"
                rows = found[name].rows if name in found else ()
                found[name] = Group((*rows, row), tuple(case["objects"]))
    return [pytest.param(group, id=name) for name, group in found.items()]
