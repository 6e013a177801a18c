"""`python -m bench.replay`, as users run it."""

import csv
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev

import pytest
from click.testing import CliRunner, Result

from bench.replay.__main__ import command
from bench.replay.openb.run import POLICIES, allocated_curve
from bench.replay.openb.sample import Sample
from bench.replay.traces.openb import OpenbTrace, read_openb
from linkwise.replay.jobs import evenly
from tests.replay.made_up import random_jobs, write_csv
from tests.replay.openb_files import write, write_published


def run(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "trace.csv", random_jobs(1, 30))


def test_one_line_for_each_scheduler_and_the_same_again_byte_for_byte(trace: Path) -> None:
    words = (trace, "--nodes", 3)
    first, second = run(*words), run(*words)
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    names = [line.split("|")[1].strip() for line in first.stdout.splitlines()]
    each = ["linkwise", "fifo", "greedy", "easy"]
    assert names == ["scheduler", "---------", *each, *each]  # of all jobs, and of large ones
    assert "fifo: " in first.stderr  # the wall time


def test_python_m_runs_it(trace: Path) -> None:
    words = [str(trace), "--nodes", "3", "--scheduler", "fifo"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.replay", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == run(*words).stdout


def test_figures_go_to_a_csv_file(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.csv"
    run(trace, "--nodes", 3, "--scheduler", "greedy", "--csv", file)
    row, large = csv.DictReader(file.read_text().splitlines())
    assert (row["scheduler"], row["jobs"], row["locality"]) == ("greedy", "30", "1.0")
    assert (row["gpus_at_least"], large["gpus_at_least"]) == ("1", "8")
    assert int(large["jobs"]) < 30


def test_of_several_seeds_the_table_has_the_mean_and_its_standard_error(
    trace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "figures.csv"
    words = (trace, "--nodes", 3, "--scheduler", "greedy", "--jitter", 500, "--csv", file)
    several = run(*words, "--seed", 1, "--seed", 2, "--seed", 3)
    rows = [
        row for row in csv.DictReader(file.read_text().splitlines()) if row["gpus_at_least"] == "1"
    ]
    assert [row["seed"] for row in rows] == ["1", "2", "3"]
    queues = [float(row["queue_mean_s"]) for row in rows]
    assert len(set(queues)) == 3
    cells = [cell.strip() for cell in several.stdout.splitlines()[2].split("|")]
    assert cells[2:4] == ["≥ 1", "30"]  # the same of all traces
    assert cells[4] == f"{fmean(queues):,.0f} ± {stdev(queues) / 3**0.5:,.0f}"
    alone = run(*words, "--seed", 2)
    assert f" {queues[1]:,.0f} |" in alone.stdout
    again = run(*words, "--seed", 1, "--seed", 2, "--seed", 3)
    assert again.stdout == several.stdout


def test_several_seeds_need_a_jitter(trace: Path) -> None:
    done = run(trace, "--seed", 1, "--seed", 2)
    assert done.exit_code == 2
    assert "several --seed: expected --jitter" in done.stderr


def test_results_that_are_kept_are_taken_up_where_the_question_is_the_same(
    trace: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    words = (trace, "--nodes", 3, "--scheduler", "fifo", "--resume", kept)
    first = run(*words)
    assert "fifo: " in first.stderr
    again = run(*words, "--scheduler", "easy")
    assert "fifo: " not in again.stderr
    assert "easy: " in again.stderr
    assert first.stdout.splitlines()[2] in again.stdout
    another = run(*words, "--longest", 100)
    assert "fifo: " in another.stderr
    write_csv(trace, random_jobs(2, 30))
    assert "fifo: " in run(*words).stderr


def test_the_machines_of_a_mixed_cluster_take_turns(trace: Path) -> None:
    words = ("--scheduler", "fifo", "--nodes", 1, "--machine", "dgx1-v100=2")
    done = run(trace, *words, "--machine", "hgx-h100")
    assert done.exit_code == 0, done.output
    assert evenly([("dgx1-v100", 2), ("hgx-h100", 1)]) == ("dgx1-v100", "hgx-h100", "dgx1-v100")


def test_a_file_that_is_no_checkpoint_is_refused(trace: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("{")
    done = run(trace, "--nodes", 3, "--resume", kept)
    assert done.exit_code == 2
    assert f"{kept}: " in done.stderr
    assert "expected what --resume wrote, or no file" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.csv",), "none.csv: No such file or directory: expected a readable file"),
        (("trace.csv", "--nodes", "1"), "expected a job that fits 1 nodes of 8 GPUs"),
        (("trace.csv", "--from", "1e9"), "no job in the window: expected at least one job"),
        (("trace.csv", "--machine", "x"), "machine 'x': not known: expected one of: dgx1-p100"),
        (("trace.csv", "--machine", "dgx-a100=0"), "dgx-a100=0: expected NAME=NODES, with 1 to"),
        (("trace.csv", "--machine", "dgx-a100=1e9"), "dgx-a100=1e9: expected NAME=NODES"),
        (
            ("trace.csv", "--machine", "dgx-a100", "--machine", "l40s-4=2"),
            "machine l40s-4 has 4 GPUs and dgx-a100 has 8: expected machines with equally many",
        ),
        (("trace.csv", "--pods-of", "9"), "9: expected at most 8, a node's GPUs"),
        (("trace.csv", "--csv", "no/f.csv"), "no/f.csv: No such file or directory: expected a fi"),
        (("openb", "nowhere"), "openb_node_list_gpu_node.csv: No such file or directory: expected"),
    ],
)
def test_what_cannot_be_replayed_ends_with_status_2_and_the_reason(
    trace: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(trace.parent)
    done = run(*words, *(("--scheduler", "fifo") if words[0] != "openb" else ()))
    assert done.exit_code == 2
    assert said in done.stderr


def test_openb_is_compared_with_published_curves(tmp_path: Path) -> None:
    pods = "\n".join(f"p{number},1000,1024,1,{300 + number % 3 * 200}," for number in range(30))
    write(tmp_path, "a,64000,65536,8,T4\nb,64000,65536,8,T4", pods)
    there = read_openb(tmp_path, "default", 7)
    curve = allocated_curve(there, POLICIES["fgd"](there, 7))
    write_published(tmp_path, {"FGD": curve})
    words = ("openb", tmp_path, "--seed", 7, "--policy", "fgd", "--check")
    good = run(*words)
    assert good.exit_code == 0, good.output
    assert "| fgd " in good.stdout
    write_published(tmp_path, {"FGD": {p: share + 0.05 for p, share in curve.items()}})
    off = run(*words)
    assert off.exit_code == 1
    assert "more than 0.01 points off the published curve: fgd with seed 7" in off.stderr
    write_published(tmp_path, {"FGD": {p: share - 0.05 for p, share in curve.items()}})
    above = (*words[:4], "--policy", "room", "--check")
    assert run(*above).exit_code == 0
    write_published(tmp_path, {"FGD": {p: share + 0.05 for p, share in curve.items()}})
    assert "off the published curve: room with seed 7" in run(*above).stderr
    none = run(*words, "--policy", "random")
    assert none.exit_code == 2
    assert "random has no published curve: expected fgd" in none.stderr


@pytest.fixture
def wide(tmp_path: Path) -> OpenbTrace:
    """600 nodes of which a sample has 100.."""
    nodes = "\n".join(f"n{i:03},64000,65536,{8 if i % 5 else 2},T4" for i in range(600))
    pods = "\n".join(f"p{i:03},1000,1024,{(1, 3, 5, 8)[i % 4]},1000," for i in range(300))
    write(tmp_path, nodes, pods)
    return read_openb(tmp_path, "default", 7)


def curve_of(file: Path) -> dict[int, float]:
    rows = csv.DictReader(file.read_text().splitlines())
    return {int(row["arrived_percent"]): float(row["allocated_percent"]) for row in rows}


def test_openb_compares_the_nodes_of_a_sample_only(wide: OpenbTrace, tmp_path: Path) -> None:
    file = tmp_path / "curves.csv"
    words = ("openb", tmp_path, "--seed", 7, "--policy", "firstfit", "--csv", file)
    expected = {
        None: allocated_curve(wide, POLICIES["firstfit"](wide, 7)),
        5: allocated_curve(wide, POLICIES["firstfit"](wide, 7), sample=Sample(5, 600)),
    }
    assert expected[None] != expected[5]
    assert run(*words).exit_code == 0
    assert curve_of(file) == expected[None]
    assert run(*words, "--sample", 5).exit_code == 0
    assert curve_of(file) == expected[5]


def test_a_kept_curve_is_not_taken_for_that_of_another_sample(
    wide: OpenbTrace, tmp_path: Path
) -> None:
    assert wide.arrivals.size
    words = ("openb", tmp_path, "--seed", 7, "--policy", "firstfit", "--resume", tmp_path / "kept")
    told = "firstfit, seed 7: "
    assert told in run(*words).stderr
    assert told not in run(*words).stderr
    assert told in run(*words, "--sample", 5).stderr
    assert told not in run(*words, "--sample", 5).stderr
    assert told in run(*words, "--sample", 0).stderr


def test_published_curves_compare_all_nodes(wide: OpenbTrace, tmp_path: Path) -> None:
    curve = allocated_curve(wide, POLICIES["fgd"](wide, 7))
    write_published(tmp_path, {"FGD": curve})
    words = ("openb", tmp_path, "--seed", 7, "--policy", "fgd", "--check")
    assert run(*words).exit_code == 0
    done = run(*words, "--sample", 100)
    assert done.exit_code == 2
    assert "--check with --sample: the published policies compare all nodes" in done.stderr
