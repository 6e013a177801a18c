"""`linkwise choose` answers an operator: which GPUs, how fast, and why not others."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from linkwise.cli.__main__ import main
from linkwise.topology.machine.topo_matrix import write_matrix
from tests.machines import BRIDGED_8, PCIE_8


def choose(*words: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["choose", *words], input=stdin)


def test_the_answer_names_gpus_link_bandwidth_and_the_runner_up() -> None:
    answer = choose("--machine", "dgx1-v100", "--free", "0,2,5-7", "--size", "3")
    assert answer.exit_code == 0
    assert answer.stdout == (
        "machine  dgx1-v100: 8 x Tesla V100-SXM2\n"
        "asked    3 of the free GPUs 0,2,5-7\n"
        "\n"
        "           GPUs   link    GB/s   left\n"
        "chosen     5-7    NVLINK  40.0  0.042\n"
        "runner-up  0,2,5  SYS      6.0  0.083\n"
        "\n"
        "Why not the runner-up: it does not keep to the preferred link.\n"
        "\n"
        "GB/s: estimated all-reduce bus bandwidth, as nccl-tests measures it.\n"
        "left: what the GPUs that stay free are worth to later jobs, 0 to 1 of the idle machine.\n"
    )


def as_json(*words: str, stdin: str | bytes | None = None) -> dict[str, object]:
    answer = choose(*words, "-o", "json", stdin=stdin)
    assert answer.exit_code in (0, 1), answer.output
    read: dict[str, object] = json.loads(answer.stdout)
    return read


def test_the_same_for_programs() -> None:
    assert as_json("--machine", "a100-pcie-8-bridged", "--free", "0-2", "--size", "2") == {
        "machine": "a100-pcie-8-bridged",
        "policy": "ring",
        "free": [0, 1, 2],
        "size": 2,
        "chosen": {"gpus": [0, 2], "link": "NVLINK", "gbytes_per_s": 210.0, "future": 0.0},
        "runner_up": {"gpus": [0, 1], "link": "SYS", "gbytes_per_s": 13.889, "future": 0.0},
        "why": "it does not keep to the preferred link",
    }


def test_one_gpu_has_no_link() -> None:
    """Found: NVLINK, on a machine that has none."""
    words = ("--machine", "a100-pcie-8-bridged", "--size", "1")
    assert "chosen     0     -        -  " in choose(*words).stdout
    chosen = as_json(*words)["chosen"]
    assert isinstance(chosen, dict)
    assert (chosen["link"], chosen["gbytes_per_s"]) == (None, None)


def gpus_of(answer: dict[str, object], which: str) -> object:
    chosen = answer[which]
    assert isinstance(chosen, dict)
    return chosen["gpus"]


def test_the_members_of_a_gang_share_the_best_ring() -> None:
    answer = choose("--machine", "dgx1-v100", "--free", "1-7", "--gang", "4x1")
    assert answer.exit_code == 0
    assert answer.stdout.startswith(
        "machine  dgx1-v100: 8 x Tesla V100-SXM2\n"
        "asked    4, for 4 members of 1, of the free GPUs 1-7\n"
        "\n"
        "           GPUs     link    GB/s   left\n"
        "chosen     4-7      NVLINK  80.0  0.083\n"
        "  rank 0   4\n"
        "  rank 1   7\n"
        "  rank 2   6\n"
        "  rank 3   5\n"
        "runner-up  1,2,5,6  NVLINK  40.0  0.083\n"
        "\n"
        "Why not the runner-up: it is slower: 40.0 GB/s against 80.0.\n"
    )
    written = as_json("--machine", "dgx1-v100", "--free", "1-7", "--gang", "4x1")
    assert written["members"] == [[4], [7], [6], [5]]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--gang 5x2", "10 GPUs wanted, 8 free"),
        (
            "--gang 2x2 --free 2,3,6,7 --require-link nvlink",
            "no 2 sets of 2 of the 4 free GPUs keep to NVLINK or closer",
        ),
    ],
)
def test_a_gang_that_does_not_fit_is_told_why(words: str, why: str) -> None:
    answer = choose("--machine", "a100-pcie-8-bridged", *words.split())
    assert answer.exit_code == 1
    assert answer.stdout.endswith(f"Nothing fits: {why}.\n")


def test_without_free_all_gpus_are_free() -> None:
    answer = as_json("--machine", "h200-nvl-2x4", "--size", "4")
    assert answer["free"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert gpus_of(answer, "chosen") == [0, 1, 2, 3]
    assert gpus_of(answer, "runner_up") == [4, 5, 6, 7]


def test_must_is_part_of_the_set() -> None:
    answer = as_json("--machine", "a100-pcie-8-bridged", "--size", "2", "--must", "3")
    assert gpus_of(answer, "chosen") == [1, 3]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--machine dgx1-v100 --size 2 --free 0,1,3", "it is slower: 20.0 GB/s against 40.0"),
        ("--machine dgx-a100 --size 2 --free 0,2,3", "as good, but spread over 2 NUMA nodes"),
        ("--machine dgx-a100 --size 2", "as good in everything; the lower indices win"),
        (
            "--machine plx-8-pxb --size 2 --free 0,2,3",
            "as fast, but linked less closely: PXB against PIX",
        ),
        (
            "--machine h200-nvl-2x4 --size 1 --free 0-4",
            "as good, but what it leaves free is worth less to later jobs",
        ),
        (
            "--machine h200-nvl-2x4 --size 2 --free 0-5 --prefer-link node",
            "as good, but what it leaves free is worth less to later jobs",
        ),
        (
            "--machine p4d.24xlarge --size 2 --free 0-2",
            "as good, but its closest common NIC is NODE",
        ),
        ("--machine dgx-a100 --size 8", "no other set would do"),
    ],
)
def test_the_runner_up_lost_at_the_first_step_where_the_two_differ(words: str, why: str) -> None:
    answer = as_json(*words.split())
    assert str(answer["why"]).startswith(why)


def test_partition_answers_as_gpuallocator_and_shows_where_ring_differs() -> None:
    answer = choose("--machine", "rtx8000-4", "--size", "2", "--policy", "partition")
    assert answer.exit_code == 0
    assert "chosen  0,3   NVLINK  40.0" in answer.stdout
    assert "The ring policy would take the same." in answer.stdout
    assert "ring  " not in answer.stdout


def test_must_holds_for_what_the_ring_policy_would_take_too() -> None:
    words = "--machine dgx1-v100 --free 0,2,4,5 --size 2 --must 2 --policy partition"
    answer = as_json(*words.split())
    assert gpus_of(answer, "chosen") == [0, 2]
    assert answer["why"] == "the ring policy would take the same"


def test_where_ring_differs_from_partition_both_are_shown() -> None:
    """Partition prefers (0,2) beside (4,5) to (0,4) beside (2,5), which has no NVLink."""
    words = ("--machine", "dgx1-v100", "--free", "0,2,4,5", "--size", "2", "--policy", "partition")
    assert choose(*words).stdout.splitlines()[3:8] == [
        "        GPUs  link    GB/s   left",
        "chosen  4,5   NVLINK  20.0  0.042",
        "ring    0,4   NVLINK  40.0  0.013",
        "",
        "What the ring policy would take; partition weighs all pairs of all sets, not rings.",
    ]


@pytest.mark.parametrize(
    ("words", "why", "nearest"),
    [
        (
            "--machine a100-pcie-8-bridged --size 3 --require-link nvlink --must 1",
            "no 3 of the 8 free GPUs with 1 keep to NVLINK or closer",
            "SYS",
        ),
        (
            "--machine rtx4090-8-phb --size 4 --require-link host-bridge",
            "no 4 of the 8 free GPUs keep to PHB or closer",
            "NODE",
        ),
        (
            "--machine p100-pcie-8 --free 0-4 --size 4 --require-link nvlink --must 4",
            "no 4 of the 5 free GPUs with 4 keep to NVLINK or closer",
            "PHB",
        ),
        ("--machine dgx-a100 --free 0,1 --size 3", "3 GPUs wanted, 2 free", None),
        ("--machine dgx-a100 --size 9 --policy partition", "9 GPUs wanted, 8 free", None),
    ],
)
def test_when_nothing_fits_it_says_what_came_nearest(
    words: str, why: str, nearest: str | None
) -> None:
    answer = choose(*words.split())
    assert answer.exit_code == 1
    assert f"Nothing fits: {why}.\n" in answer.stdout
    told = as_json(*words.split())
    assert told["chosen"] is None
    assert told["why"] == why
    runner_up = told["runner_up"]
    assert (runner_up["link"] if isinstance(runner_up, dict) else None) == nearest


def test_the_way_out_of_a_refusal_is_named() -> None:
    words = ("--machine", "rtx4090-8-phb", "--size", "4", "--require-link")
    assert "With --require-link numa it would be taken." in choose(*words, "host-bridge").stdout
    assert choose(*words, "numa").exit_code == 0


TABLE = write_matrix(BRIDGED_8)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_printed_table_is_read_from_a_file(tmp_path: Path, encoding: str) -> None:
    """PowerShell writes UTF-16, and editors on Windows a byte-order mark."""
    file = tmp_path / "topo.txt"
    file.write_text(TABLE, encoding=encoding)
    answer = as_json("--machine", str(file), "--size", "2", "--model", "NVIDIA A100-PCIE-40GB")
    assert gpus_of(answer, "chosen") == [0, 2]


def test_a_printed_table_is_read_from_standard_input() -> None:
    assert gpus_of(as_json("--machine", "-", "--size", "2", stdin=TABLE), "chosen") == [0, 2]


def test_what_the_speeds_rest_on_is_said_where_the_model_is_not_known() -> None:
    note = "note     a model is not known: it counts as the slowest; see --model\n"
    assert note in choose("--machine", "-", "--size", "2", stdin=TABLE).stdout
    assert note in choose("--machine", "-", "--size", "9", stdin=TABLE).stdout
    known = choose("--machine", "-", "--size", "2", "--model", "NVIDIA A100", stdin=TABLE)
    assert "note" not in known.stdout


@pytest.mark.parametrize("model", ["", "NVIDIA H100 80GB HBM3", "NVIDIA A100-PCIE-40GB"])
def test_a_table_without_nvlinks_says_so_unless_its_gpus_have_none(model: str) -> None:
    table = write_matrix(PCIE_8)
    said = ("--model", model) if model else ()
    words = ("--machine", "-", "--size", "2")
    answer = choose(*words, *said, stdin=table)
    assert (
        "For - it\nrests on a table without NVLinks: `nvidia-smi topo -mp` leaves" in answer.stdout
    )
    assert "without NVLinks" in str(as_json(*words, *said, stdin=table)["caveat"])
    assert "without NVLinks" not in choose(*words, "--model", "NVIDIA L4", stdin=table).stdout
    assert "without NVLinks" not in choose(*words, *said, stdin=TABLE).stdout


def test_a_machines_file_without_nvlinks_says_what_it_means(tmp_path: Path) -> None:
    file = tmp_path / "machines.json"
    listed = CliRunner().invoke(main, ["machines", "a100-pcie-2", "-o", "json"])
    file.write_text(listed.stdout)
    assert "without NVLinks" not in choose("--machine", str(file), "--size", "2").stdout


def test_a_machine_is_picked_out_of_a_file_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "mine#1.json"
    file.write_text(CliRunner().invoke(main, ["machines", "-o", "json"]).stdout)
    answer = as_json("--machine", f"{file}#a100-pcie-8-bridged", "--size", "2")
    assert gpus_of(answer, "chosen") == [0, 2]


def test_a_file_may_have_a_number_sign_in_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "rack#7"
    file.write_text(TABLE)
    assert gpus_of(as_json("--machine", str(file), "--size", "2"), "chosen") == [0, 2]


BAD = [
    ("--size 2", "Missing option '--machine'"),
    ("--machine dgx-a100 --size 0", "0 is not in the range x>=1"),
    ("--machine dgx-a100 --size two", "'two' is not a valid integer"),
    ("--machine dgx-a199 --size 2", "did you mean dgx-a100 or hgx-a100?; see `linkwise machines`"),
    ("--machine . --size 2", "--machine .: Is a directory"),
    ("--machine= --size 2", "--machine '': expected a recorded machine, a file, or -"),
    ("--machine #dgx-a100 --size 2", "--machine '#dgx-a100': expected a recorded machine"),
    ("--machine - --size 2 --model=", '--model: expected a name like "NVIDIA L40S"'),
    ("--machine - --size 2", "--machine -: table: no text: expected what `nvidia-smi"),
    ("--machine dgx-a100 --size 2 --free ,", "expected GPU indices like 0,2,5-7"),
    ("--machine dgx-a100 --size 2 --free 7-5", "--free 7-5: 7-5: expected 5-7"),
    ("--machine dgx-a100 --size 2 --free 1-", "'1-': expected GPU indices"),
    ("--machine dgx-a100 --size 2 --free 0,9", "--free 0,9: no GPU 9: the machine has 0-7"),
    ("--machine dgx-a100 --size 2 --free 0,1,0-3", "GPU 0 is named twice"),
    ("--machine dgx-a100 --size 2 --free 0,1 --must 2", "--must 2: GPUs 2 are not free"),
    ("--machine dgx-a100 --size 1 --must 1,2", "--must 1,2: 2 GPUs, but --size 1"),
    ("--machine dgx-a100 --size 2 --require-link wifi", "'wifi' is not one of 'nvlink'"),
    ("--machine dgx-a100 --size 2 --policy best", "'best' is not one of 'ring', 'partition'"),
    ("--machine dgx-a100 --size 2 --policy partition --require-link numa", "no link classes"),
    ("--machine dgx-a100 --size 2 --require-link numa --prefer-link node", "farther than"),
    ("--machine dgx-a100 --size 2 --model T4", "the recorded machine dgx-a100 says its own"),
    ("--machine dgx-a100 --size 2 --colour red", "No such option"),
    ("--machine dgx-a100", "--size or --gang: expected one of the two"),
    ("--machine dgx-a100 --size 2 --gang 2x1", "--size or --gang: expected one of the two"),
    ("--machine dgx-a100 --gang 4", "--gang 4: expected members x GPUs of each, like 4x1"),
    ("--machine dgx-a100 --gang 0x4", "--gang 0x4: expected members x GPUs of each"),
    ("--machine dgx-a100 --gang 2x2 --must 1", "--gang: expected neither --must nor another"),
    ("--machine dgx-a100 --gang 2x2 --policy partition", "nor another --policy than ring"),
]


@pytest.mark.parametrize(("words", "error"), BAD)
def test_a_bad_question_ends_with_one_clear_line_and_status_2(words: str, error: str) -> None:
    answer = choose(*words.split(), stdin="")
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert answer.stderr.startswith("linkwise: ")
    assert error in answer.stderr


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "topo.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    answer = choose("--machine", str(file), "--size", "2")
    assert answer.exit_code == 2
    assert "not text" in answer.stderr


@pytest.mark.parametrize("word", ["NVLINK", "NVLink", "nvlink"])
def test_a_link_may_be_written_in_any_case(word: str) -> None:
    answer = choose("--machine", "dgx1-v100", "--size", "2", "--require-link", word)
    assert answer.exit_code == 0


@pytest.mark.parametrize(
    ("wrong", "near"), [("H200", "a3-ultra-h200"), ("DGX-A100", "dgx-a100"), ("p5", "p5.48xlarge")]
)
def test_the_machine_that_was_meant_is_named(wrong: str, near: str) -> None:
    answer = choose("--machine", wrong, "--size", "2")
    assert answer.exit_code == 2
    assert f"did you mean {near}" in answer.stderr


@pytest.mark.parametrize(
    ("name", "caveat"),
    [
        ("p5.48xlarge", "a vendor's file or specification declares: no such machine was read"),
        ("dgx2-v100", "such a machine printed some, and the others are inferred"),
        ("l40s-8-mock", "a simulator invented: there is no such machine"),
        ("rtx8000-4", "from another program's test: no such machine was read"),
    ],
)
def test_a_number_of_a_machine_that_nobody_read_says_so(name: str, caveat: str) -> None:
    answer = choose("--machine", name, "--size", "2")
    assert f"as nccl-tests measures it. For {name} it\nrests on links " in answer.stdout
    assert f"{caveat}.\n" in answer.stdout
    assert str(as_json("--machine", name, "--size", "2")["caveat"]).endswith(caveat)


def test_a_nearest_miss_of_such_a_machine_says_so_too() -> None:
    words = ("--machine", "h200-nvl-2x4", "--size", "5", "--require-link", "nvlink")
    assert "no such machine was read." in choose(*words).stdout


def test_a_print_of_rocm_smi_says_that_it_counts_no_links() -> None:
    tables = (("Weight", "15"), ("Link Type", "XGMI"))
    text = "".join(
        f"== {title} between two GPUs ==\n     GPU0 GPU1\nGPU0 0 {cell}\nGPU1 {cell} 0\n"
        for title, cell in tables
    )
    words = ("--machine", "-", "--size", "2", "--model", "MI250X")
    caveat = str(as_json(*words, stdin=text)["caveat"])
    assert "how many xGMI links join two GPUs" in caveat
    assert caveat.endswith("and shows no NUMA nodes")


def test_a_machine_that_was_read_needs_no_caveat() -> None:
    assert "rests on" not in choose("--machine", "hgx-h100", "--size", "2").stdout
    assert "caveat" not in as_json("--machine", "hgx-h100", "--size", "2")


WITHOUT_NVLINKS = """
      GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  CPU Affinity  NUMA Affinity
GPU0   X    NV18  NODE  NV18  NV18  NV18  NV18  NV18  0-55          0
GPU1  NV18   X    NODE  NV18  NV18  NV18  NV18  NV18  0-55          0
GPU2  NODE  NODE   X    NODE  SYS   SYS   SYS   SYS   0-55          0
GPU3  NV18  NV18  NODE   X    NV18  NV18  NV18  NV18  0-55          0
GPU4  NV18  NV18  SYS   NV18   X    NV18  NV18  NV18  56-111        1
GPU5  NV18  NV18  SYS   NV18  NV18   X    NV18  NV18  56-111        1
GPU6  NV18  NV18  SYS   NV18  NV18  NV18   X    NV18  56-111        1
GPU7  NV18  NV18  SYS   NV18  NV18  NV18  NV18   X    56-111        1
"""


@pytest.mark.parametrize("free", ["0-7", "0,2", "0,1,2,4", "2,5-7"])
def test_a_gpu_that_lost_its_nvlinks_is_the_first_for_a_single_gpu(free: str) -> None:
    words = ("--machine", "-", "--model", "NVIDIA B200", "--size", "1", "--free", free)
    answer = as_json(*words, stdin=WITHOUT_NVLINKS)
    assert gpus_of(answer, "chosen") == [2]


def test_what_spares_the_others_is_said() -> None:
    words = ("--machine", "-", "--model", "NVIDIA B200", "--size", "1")
    answer = as_json(*words, stdin=WITHOUT_NVLINKS)
    assert (
        answer["why"] == "as good, but it has more NVLinks, which later jobs may use: 18 against 0"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "a100-pcie-8-bridged --free 0-3,5-7 --gang 3x2",
            "about as fast, but the ring of its slowest member has 13.9 GB/s against 210.0",
        ),
        ("gpu-manager-6 --gang 4x1", "it is slower: 6.0 GB/s against 8.3"),
        ("plx-8-pxb --free 0,2,3 --gang 2x1", "as fast, but linked less closely: PXB against PIX"),
        (
            "p3.16xlarge --free 0-3,5-7 --gang 3x1",
            "as good, but later jobs lose more: 27.9 GB/s against",
        ),
        ("p4d.24xlarge --free 1-7 --gang 4x1", "as good, but spread over 2 NUMA nodes against 1"),
        ("l40s-4 --gang 2x1", "as good, but its closest common NIC is SYS away against NODE"),
        ("dgx-a100 --gang 8x1", "no other set would do"),
    ],
)
def test_the_rule_by_which_a_gang_got_its_gpus_is_said(words: str, why: str) -> None:
    assert str(as_json("--machine", *words.split())["why"]).startswith(why)


def test_the_runner_up_of_a_gang_keeps_to_what_it_requires() -> None:
    words = "a100-pcie-8-bridged --gang 1x2 --free 0,2,3 --require-link nvlink"
    answer = as_json("--machine", *words.split())
    assert (answer["runner_up"], answer["why"]) == (None, "no other set would do")


def test_equal_sets_of_a_gang_are_equal_in_all_that_is_shown() -> None:
    for name in ("dgx1-v100", "a100-pcie-8-bridged", "p100-pcie-8", "hgx-h100"):
        for gang in ("2x1", "2x2", "3x1", "2x3"):
            answer = as_json("--machine", name, "--free", "0-3,5-7", "--gang", gang)
            if answer["why"] == "as good in everything; the lower indices win":
                chosen, other = answer["chosen"], answer["runner_up"]
                assert isinstance(chosen, dict)
                assert isinstance(other, dict)
                assert {**chosen, "gpus": ()} == {**other, "gpus": ()}


def test_the_runner_up_of_amds_gpus_has_more_xgmi_links() -> None:
    answer = choose("--machine", "mi250x-frontier", "--free", "0,3,4,7", "--size", "2")
    assert "it has more xGMI links, which later jobs may use: 13 against 12." in answer.stdout
