"""Nodes without a plugin: assumed from labels, named by the operator, or left out."""

from pathlib import Path

import pytest

from tests.cli.what_if.asking import a_list, answer, pod, refusal, what_if
from tests.extender.podgrouper.pods import Object

PRODUCT = "nvidia.com/gpu.product"
DGX = {PRODUCT: "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "8"}


def node(name: str, gpus: int, labels: Object | None = None) -> Object:
    counts = {"nvidia.com/gpu": str(gpus), "cpu": "96", "memory": "1Ti", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "status": {
            "capacity": counts,
            "allocatable": counts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def test_a_machine_is_guessed_by_its_labels_and_its_gpus_have_no_uuids(tmp_path: Path) -> None:
    status, found = answer(tmp_path, a_list([node("n1", 8, DGX)]), pod("new", 2))
    assert status == 0
    assert found["guesses"] == [
        {
            "machine": "dgx-a100",
            "because": f"{PRODUCT}=NVIDIA-A100-SXM4-40GB, 8 GPUs",
            "nodes": ["n1"],
        }
    ]
    (place,) = found["parts"][0]["places"]
    assert (place["node"], place["uuids"], place["link"]) == ("n1", None, "NVLINK")


def test_pods_that_run_on_guessed_nodes_are_presumed(tmp_path: Path) -> None:
    old = pod("old", 6, nodeName="n1")
    given = a_list([node("n1", 8, DGX), old])
    assert answer(tmp_path, given, pod("new", 2))[0] == 0
    status, found = answer(tmp_path, given, pod("new", 3))
    assert (status, found["presumed"]) == (1, ["ml/old"])


def test_one_gpu_needs_no_record(tmp_path: Path) -> None:
    labels = {PRODUCT: "NVIDIA-L4", "nvidia.com/gpu.count": "1"}
    status, found = answer(tmp_path, a_list([node("n1", 1, labels)]), pod("new", 1))
    assert (status, found["guesses"][0]["machine"]) == (0, "one GPU")


@pytest.mark.parametrize(
    ("labels", "because"),
    [
        ({}, "no label nvidia.com/gpu.product"),
        ({PRODUCT: "NVIDIA-B200"}, "no recorded machine has 8 x NVIDIA-B200"),
        ({PRODUCT: "NVIDIA-GeForce-RTX-4090"}, "may be rtx4090-8-phb, rtx4090-8-sys"),
        ({PRODUCT: "NVIDIA-A100-SXM4-40GB-SHARED"}, "shared"),
        ({**DGX, "nvidia.com/gpu.replicas": "4"}, "shared"),
        ({**DGX, "nvidia.com/gpu.count": "2"}, "it offers 8 GPUs and nvidia.com/gpu.count says 2"),
    ],
)
def test_what_cannot_be_guessed_is_left_out(labels: Object, because: str, tmp_path: Path) -> None:
    given = a_list([node("n1", 8, labels), node("n2", 8, DGX), node("cpu", 0)])
    status, found = answer(tmp_path, given, pod("new", 8))
    assert status == 0
    (left,) = found["left_out"]
    assert left["nodes"] == ["n1"]
    assert because in left["because"]
    assert "left out  n1: " in what_if(tmp_path, given, pod("new", 8)).stdout


def test_the_operator_says_what_machine_it_is(tmp_path: Path) -> None:
    given = a_list([node("n1", 8, {"pool": "train"}), node("n2", 8, {"pool": "other"})])
    status, found = answer(tmp_path, given, pod("new", 8), "--assume", "pool=train=hgx-h100")
    assert (status, found["parts"][0]["places"][0]["gbytes_per_s"]) == (0, 459.6375)
    assert [guess["nodes"] for guess in found["guesses"]] == [["n1"]]
    assert [left["nodes"] for left in found["left_out"]] == [["n2"]]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("hgx-h100", "expected SELECTOR=MACHINE"),
        ("=hgx-h100", "expected SELECTOR=MACHINE"),
        ("pool=train=", "expected SELECTOR=MACHINE"),
        ("pool=train=hgx-h10", "did you mean hgx-h100 or "),
        ("pool=none=hgx-h100", "no node without a topology annotation has such labels"),
        ("pool=train=dgx2-v100", "node n1 has 8 GPUs, dgx2-v100 has 16"),
    ],
)
def test_an_assumption_that_cannot_be_is_refused(said: str, expected: str, tmp_path: Path) -> None:
    given = a_list([node("n1", 8, {"pool": "train"})])
    text = refusal(tmp_path, given, pod("new", 8), "--assume", said)
    assert expected in text
    assert text.startswith("linkwise: --assume ")


def test_a_time_and_levels_that_cannot_be_are_refused(tmp_path: Path) -> None:
    given = a_list([node("n1", 8, DGX)])
    for option, value in (("--at", "noon"), ("--span-levels", "a b"), ("--resource", "gpus!")):
        assert f"{option} {value}: expected" in refusal(tmp_path, given, pod("p", 1), option, value)
