"""Nodes without a plugin: assumed from labels, named by the operator, or left out."""

from pathlib import Path

import pytest

from linkwise.topology.machine.topo_matrix import write_matrix
from tests.cli.what_if.asking import a_list, answer, manifest, pod, refusal, what_if
from tests.pods.podgrouper.pods import Object, template
from tests.topology.printed import FRONTIER, amd_smi, rccl, rocm_smi

PRODUCT = "nvidia.com/gpu.product"
DGX = {PRODUCT: "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "8"}

DGX4 = {PRODUCT: "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "4"}
TYPE = "node.kubernetes.io/instance-type"
AMD = "amd.com/gpu"
AMD_PRODUCT = "amd.com/gpu.product-name"
BOTH = ("--resource", "nvidia.com/gpu", "--resource", AMD)


def node(
    name: str, gpus: int, labels: Object | None = None, resource: str = "nvidia.com/gpu"
) -> Object:
    counts = {resource: str(gpus), "cpu": "96", "memory": "1Ti", "pods": "110"}
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


def amd_pod(gpus: int) -> Object:
    made = pod("new", 0)
    made["spec"]["containers"][0]["resources"] = {"limits": {AMD: gpus}}
    return made


def test_amds_label_names_the_machine_of_its_nodes(tmp_path: Path) -> None:
    labels = {
        AMD_PRODUCT: "AMD_Instinct_MI300X_OAM",
        "amd.com/compute-memory-partition": "spx_nps1",
    }
    amd = [node("n1", 8, labels, AMD), node("n2", 1, {AMD_PRODUCT: "AMD_Instinct_MI210"}, AMD)]
    given = a_list([*amd, node("n3", 8, DGX)])
    status, found = answer(tmp_path, given, amd_pod(8), *BOTH)
    assert status == 0
    guesses = [(guess["machine"], guess["because"]) for guess in found["guesses"]]
    assert guesses == [
        ("mi300x", f"{AMD_PRODUCT}=AMD_Instinct_MI300X_OAM, 8 GPUs"),
        ("one GPU", f"{AMD_PRODUCT}=AMD_Instinct_MI210, 1 GPUs"),
        ("dgx-a100", f"{PRODUCT}=NVIDIA-A100-SXM4-40GB, 8 GPUs"),
    ]
    (place,) = found["parts"][0]["places"]
    assert (place["node"], place["link"], place["gbytes_per_s"]) == ("n1", "XGMI", 336.0)


@pytest.mark.parametrize(
    ("gpus", "labels", "because"),
    [
        (8, {}, f"no label {AMD_PRODUCT}"),
        (0, {AMD_PRODUCT: "AMD_Instinct_MI210"}, "its kubelet offers no GPUs"),
        (8, {AMD_PRODUCT: "AMD_Instinct_MI9"}, "no recorded machine has 8 x AMD_Instinct_MI9"),
        (
            8,
            {
                AMD_PRODUCT: "AMD_Instinct_MI300X_OAM",
                "amd.com/compute-memory-partition": "cpx_nps4",
            },
            "its GPUs are partitioned (cpx_nps4)",
        ),
    ],
)
def test_an_amd_node_that_cannot_be_guessed_is_left_out(
    gpus: int, labels: Object, because: str, tmp_path: Path
) -> None:
    given = a_list([node("n1", gpus, labels, AMD), node("n2", 8, DGX)])
    (left,) = answer(tmp_path, given, pod("new", 8), *BOTH)[1]["left_out"]
    assert left["nodes"] == ["n1"]
    assert because in left["because"]


def test_a_print_has_the_model_of_amds_label(tmp_path: Path) -> None:
    file = tmp_path / "print.txt"
    file.write_text(write_matrix(FRONTIER))
    labels = {AMD_PRODUCT: "AMD_Instinct_MI250X", "pool": "train"}
    given, said = a_list([node("n1", 8, labels, AMD)]), f"pool=train={file}"
    found = answer(tmp_path, given, amd_pod(2), *BOTH, "--assume", said)[1]
    assert found["guesses"][0]["because"] == f"--assume {said}"
    assert found["parts"][0]["places"][0]["gbytes_per_s"] == 144.0


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
        ({PRODUCT: "NVIDIA-H200-NVL-X"}, "no recorded machine has 8 x NVIDIA-H200-NVL-X"),
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


@pytest.mark.parametrize(
    ("product", "gbytes_per_s"),
    [
        ("NVIDIA-A100-SXM4-80GB", 240.0),
        ("A100-SXM4-40GB", 240.0),
        ("NVIDIA-A800-SXM4-80GB", 160.0),
        ("NVIDIA-H20", 370.8),
        ("NVIDIA-H20-3e", 370.8),
        ("NVIDIA-B200", 676.8),
        ("NVIDIA-B300-SXM6-AC", 676.8),
    ],
)
def test_eight_gpus_of_a_board_with_nvswitches_need_no_record(
    product: str, gbytes_per_s: float, tmp_path: Path
) -> None:
    given = a_list([node("n1", 8, {PRODUCT: product, "nvidia.com/gpu.count": "8"})])
    for gpus in (2, 5, 8):
        status, found = answer(tmp_path, given, pod("new", gpus))
        assert (status, found["guesses"][0]["machine"]) == (0, "a board with NVSwitches")
        (place,) = found["parts"][0]["places"]
        assert place["link"] == "NVLINK"
        # From four GPUs on, the switches add numbers up on their way.
        assert place["gbytes_per_s"] >= gbytes_per_s
        assert gpus > 2 or place["gbytes_per_s"] == gbytes_per_s


def test_a_tray_of_four_is_a_board_too(tmp_path: Path) -> None:
    given = a_list([node("n1", 4, {PRODUCT: "NVIDIA-GB300"})])
    found = answer(tmp_path, given, pod("new", 3))[1]
    assert found["guesses"][0]["machine"] == "a board with NVSwitches"
    assert found["parts"][0]["places"][0]["gbytes_per_s"] == 676.8


@pytest.mark.parametrize(
    "product",
    ["NVIDIA-A100-80GB-PCIe", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL", "NVIDIA-GH200-480GB"],
)
def test_cards_in_slots_are_on_no_board(product: str, tmp_path: Path) -> None:
    given = a_list([node("n1", 8, {PRODUCT: product}), node("n2", 8, DGX)])
    found = answer(tmp_path, given, pod("new", 8))[1]
    assert [left["nodes"] for left in found["left_out"]] == [["n1"]]


@pytest.mark.parametrize(
    ("labels", "machine"),
    [
        ({TYPE: "p5.48xlarge"}, "p5.48xlarge"),
        ({TYPE: "Standard_ND96asr_v4"}, "azure-ndv4"),
        ({TYPE: "Standard_ND40rs_v2", PRODUCT: "Tesla-V100-SXM2-32GB"}, "azure-ndv2"),
        ({TYPE: "a3-ultragpu-8g", PRODUCT: "NVIDIA-H200"}, "a3-ultra-h200"),
    ],
)
def test_a_clouds_instance_type_names_the_machine(
    labels: Object, machine: str, tmp_path: Path
) -> None:
    found = answer(tmp_path, a_list([node("n1", 8, labels)]), pod("new", 8))[1]
    assert found["guesses"][0]["machine"] == machine


@pytest.mark.parametrize(
    "labels", [{TYPE: "p5.48xlarge", PRODUCT: "NVIDIA-L40S"}, {TYPE: "m5.large"}]
)
def test_an_instance_type_of_other_gpus_says_nothing(labels: Object, tmp_path: Path) -> None:
    given = a_list([node("n1", 8, labels), node("n2", 8, DGX)])
    found = answer(tmp_path, given, pod("new", 8))[1]
    assert [left["nodes"] for left in found["left_out"]] == [["n1"]]


def test_the_scheduler_of_the_job_counts_as_one_that_asks(tmp_path: Path) -> None:
    spec = {"completions": 2, "completionMode": "Indexed", "template": template(2)}
    given = a_list([node("n1", 8)])
    job = manifest("batch/v1 Job", "t", {"parallelism": 2, **spec})
    (left,) = answer(tmp_path, given, job)[1]["left_out"]
    assert left["because"].endswith("--assume SELECTOR=MACHINE (`linkwise machines` lists them)")
    text = what_if(tmp_path, given, job).stdout
    assert "Gang Job.batch/t: no room for the whole gang" in text
    assert "has not asked" not in text


def test_what_is_left_out_makes_no_never(tmp_path: Path) -> None:
    given = a_list([node("n1", 8, {PRODUCT: "NVIDIA-L40S"}), node("n2", 4, DGX4)])
    status, found = answer(tmp_path, given, pod("new", 8))
    assert (status, found["never"], found["room"]) == (1, None, [])
    assert (found["cluster"]["nodes"], found["cluster"]["gpus"]["free"]) == (1, 4)
    text = what_if(tmp_path, given, pod("new", 8)).stdout
    assert "It does not fit on the nodes that are known. The nodes left out may take it." in text
    assert "  when      not known: nodes with GPUs are left out\n" in text
    assert "never" not in text
    several = a_list([pod("a", 8), pod("b", 1)])
    assert "never" not in what_if(tmp_path, given, several).stdout
    assert answer(tmp_path, a_list([node("n2", 4, DGX4)]), pod("new", 8))[1]["never"] is not None


def test_gpus_that_the_kubelet_does_not_offer_are_unhealthy(tmp_path: Path) -> None:
    sick = node("n1", 8, DGX)
    sick["status"]["allocatable"] = {**sick["status"]["allocatable"], "nvidia.com/gpu": "7"}
    gpus = answer(tmp_path, a_list([sick]), pod("new", 1))[1]["cluster"]["gpus"]
    assert (gpus["free"], gpus["unhealthy"]) == (7, 1)


def test_a_table_has_the_model_that_the_label_says(tmp_path: Path) -> None:
    file = tmp_path / "b200.txt"
    table = "GPU0 GPU1\nGPU0 X NV18\nGPU1 NV18 X\n"
    file.write_text(table)
    labels = {PRODUCT: "NVIDIA-B200", "pool": "train"}
    given, said = a_list([node("n1", 2, labels)]), f"pool=train={file}"
    found = answer(tmp_path, given, pod("new", 2), "--assume", said)[1]
    assert found["parts"][0]["places"][0]["gbytes_per_s"] == 676.8
    assert found["guesses"][0]["because"] == f"--assume {said}"
    file.write_text(table.replace("NV18", "SYS"))
    found = answer(tmp_path, given, pod("new", 2), "--assume", said)[1]
    assert "; it rests on a table without NVLinks: " in found["guesses"][0]["because"]


@pytest.mark.parametrize(
    ("text", "caveats"),
    [
        (
            rocm_smi(FRONTIER),
            [
                "it rests on `rocm-smi --showtopo`, which does not show how many xGMI links join "
                "two GPUs, so each pair counts as having one; the bandwidths of `amd-smi topology` "
                "show it",
                "its model is not known, and counts as the slowest",
            ],
        ),
        (
            amd_smi(FRONTIER),
            [
                "it rests on `amd-smi topology`, which shows no NUMA nodes",
                "its model is not known, and counts as the slowest",
            ],
        ),
        (
            rccl(FRONTIER),
            [
                "it rests on a dump of NCCL or RCCL, which shows the GPUs of one job and no host "
                "bridges"
            ],
        ),
        (write_matrix(FRONTIER), ["its model is not known, and counts as the slowest"]),
    ],
    ids=["rocm-smi", "amd-smi", "RCCL", "no caveat of the print"],
)
def test_what_a_print_cannot_tell_is_said_once(
    text: str, caveats: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "print.txt"
    file.write_text(text)
    given = a_list([node(name, 8, {"pool": "train"}) for name in ("n1", "n2")])
    said = f"pool=train={file}"
    (guess,) = answer(tmp_path, given, pod("new", 2), "--assume", said)[1]["guesses"]
    assert guess["nodes"] == ["n1", "n2"]
    assert guess["because"] == "; ".join([f"--assume {said}", *caveats])
    output = what_if(tmp_path, given, pod("new", 2), "--assume", said).stdout
    assert [output.count(caveat) for caveat in caveats] == [1] * len(caveats)


def test_what_a_record_cannot_tell_is_said_too(tmp_path: Path) -> None:
    given = a_list([node("n1", 8, {"pool": "train"})])
    said = "pool=train=l40s-8-mock"
    (guess,) = answer(tmp_path, given, pod("new", 2), "--assume", said)[1]["guesses"]
    assert guess["because"].startswith(f"--assume {said}; it rests on links that a simulator inv")


def tainted(name: str, key: str) -> Object:
    made = node(name, 8, DGX)
    return {**made, "spec": {"taints": [{"key": key, "effect": "NoSchedule", "value": "present"}]}}


def test_a_taint_of_the_resource_is_tolerated_unless_the_operator_says_otherwise(
    tmp_path: Path,
) -> None:
    given = a_list([tainted("n1", "nvidia.com/gpu")])
    status, found = answer(tmp_path, given, pod("new", 2))
    assert (status, len(found["notes"])) == (0, 1)
    assert found["notes"][0].startswith("taints nvidia.com/gpu count as tolerated, as by the adm")
    said = "--no-extended-resource-toleration"
    status, found = answer(tmp_path, given, pod("new", 2), said)
    assert (status, found["notes"]) == (1, [])
    assert answer(tmp_path, a_list([tainted("n1", "team")]), pod("new", 2))[0] == 1
    assert answer(tmp_path, a_list([node("n1", 8, DGX)]), pod("new", 2))[1]["notes"] == []


def test_the_operator_says_what_machine_it_is(tmp_path: Path) -> None:
    given = a_list([node("n1", 8, {"pool": "train"}), node("n2", 8, {"pool": "other"})])
    status, found = answer(tmp_path, given, pod("new", 8), "--assume", "pool=train=hgx-h100")
    assert (status, found["parts"][0]["places"][0]["gbytes_per_s"]) == (0, 490.28)
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
