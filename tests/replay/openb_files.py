"""Small files as those of the OpenB trace."""

import csv
from pathlib import Path


def write(folder: Path, nodes: str, pods: str) -> None:
    head = "sn,cpu_milli,memory_mib,gpu,model\n"
    (folder / "openb_node_list_gpu_node.csv").write_text(head + nodes + "\n")
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    (folder / "openb_pod_list_default.csv").write_text(head + pods + "\n")


def write_published(folder: Path, curves: dict[str, dict[int, float]]) -> None:
    percents = sorted(next(iter(curves.values())))
    (folder / "replay").mkdir(exist_ok=True)
    with (folder / "replay" / "expected_alloc_pct.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trace", "policy", "seed", *(f"a{percent}" for percent in percents)])
        for policy, curve in curves.items():
            row = [f"{curve[percent]:.2f}" for percent in percents]
            writer.writerow(["default", policy, "7", *row])
