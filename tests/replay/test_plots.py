"""Plots are small, reproducible, and show what the tables say."""

import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner, Result

from bench.replay import plots, report
from bench.replay.__main__ import command
from bench.replay.measure import Figures
from bench.replay.openb.run import POLICIES, allocated_curve
from bench.replay.plots import Axis, Curve, Dots, curves, points
from bench.replay.traces.openb import read_openb
from tests.replay.made_up import random_jobs, write_csv
from tests.replay.openb_files import write, write_published

SVG = "{http://www.w3.org/2000/svg}"
X, Y = Axis("x"), Axis("y")


def run(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def dots(svg: str, group: str = "line2d_") -> int:
    """Count the markers in the axes."""
    tree = ElementTree.fromstring(svg)
    there = [g for g in tree.iter(f"{SVG}g") if g.get("id", "").startswith(group)]
    return sum(len(list(g.iter(f"{SVG}use"))) for g in there)


def test_a_scheduler_is_a_dot_with_its_name(tmp_path: Path) -> None:
    trace = write_csv(tmp_path / "trace.csv", random_jobs(1, 30))
    file = tmp_path / "plot.svg"
    words = (trace, "--nodes", 3, "--scheduler", "greedy", "--scheduler", "spread")
    done = run(*words, "--plot", file)
    assert done.exit_code == 0, done.output
    first = file.read_bytes()
    assert {
        "greedy",
        "spread",
        "queue, mean seconds",
        "queue of jobs of ≥ 8 GPUs, mean seconds",
    } <= {*texts(first.decode())}
    assert done.stdout == run(*words, "--plot", file).stdout
    assert file.read_bytes() == first
    assert len(first) < 60_000


def test_a_dot_is_the_mean_of_several_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Dots] = []

    def keep(panels: Sequence[Dots]) -> str:
        drawn.extend(panels)
        return "<svg/>"

    monkeypatch.setattr(plots, "points", keep)
    same = msgspec.convert(dict.fromkeys(Figures.__struct_fields__, 1), Figures)

    def figures(queue: float, locality: float | None) -> Figures:
        return msgspec.structs.replace(same, queue_mean_s=queue, locality=locality)

    traces = [
        {1: figures(100, 0.5), 8: figures(1000, 0.5)},
        {1: figures(300, 1.0)},
        {1: figures(200, 0.9), 8: figures(4000, 0.9)},
    ]
    report.as_plot({"a": dict(enumerate(traces)), "b": {0: {1: figures(100, None)}}})

    assert [panel.named for panel in drawn] == [
        {"a": (200.0, pytest.approx(0.8))},
        {"a": (200.0, 2500.0)},
    ]


def test_each_of_one_place_is_drawn_and_named() -> None:
    one, both = (points([Dots(dict.fromkeys(n, (1.0, 2.0)), X, Y)]) for n in ("a", "ab"))
    assert {"a", "b"} <= {*texts(both)}
    assert dots(both) == dots(one) + 2  # in the axes, and in the legend


def test_a_name_looks_the_same_in_every_panel() -> None:
    first = Dots({"a": (1.0, 2.0), "b": (2.0, 2.0)}, X, Y)
    second = Dots({"b": (10.0, 1e4)}, X, Axis("long", is_logarithmic=True))
    svg = points([first, second])
    assert {"x", "y", "long"} <= {*texts(svg)}
    markers = [use.get("style", "") for use in ElementTree.fromstring(svg).iter(f"{SVG}use")]
    of_a, of_b = (next(m for m in markers if f"stroke: {c}" in m) for c in ("#2f81d6", "#d55e00"))
    assert (markers.count(of_a), markers.count(of_b)) == (2, 3)  # once each in the legend


def test_published_points_are_circles_on_the_curve() -> None:
    line = [(80.0, 80.0), (90.0, 89.0)]
    without = curves([Curve("one", line)], X, Y)
    beside = curves([Curve("one", line, line)], X, Y)
    assert "published" not in texts(without)
    assert "published" in texts(beside)
    assert dots(beside) == dots(without) + len(line) + 1  # and the legend's


def test_openb_draws_its_curves_beside_the_published(tmp_path: Path) -> None:
    write(tmp_path, "n0,64000,262144,8,V100M32", "p0,1000,1024,1,1000,\np1,1000,1024,1,500,")
    trace = read_openb(tmp_path, "default", 7)
    curve = allocated_curve(trace, POLICIES["fgd"](trace, 7))
    write_published(tmp_path, {"FGD": {p: share for p, share in curve.items() if p > 80}})
    file = tmp_path / "plot.svg"
    done = run("openb", tmp_path, "--seed", 7, "--policy", "fgd", "--check", "--plot", file)
    assert done.exit_code == 0, done.output
    assert {"fgd", "published"} <= {*texts(file.read_text())}


def test_nothing_hides_the_page_behind_it() -> None:
    """Readers see it on black too."""
    svg = points([Dots({"a": (1.0, 2.0)}, X, Y)])
    assert "fill: #ffffff" not in svg
    assert "fill: #000000" not in svg


def test_where_the_file_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    trace = write_csv(tmp_path / "trace.csv", random_jobs(1, 5))
    done = run(trace, "--nodes", 3, "--scheduler", "fifo", "--plot", tmp_path / "no" / "f.svg")
    assert done.exit_code == 2
    assert "no/f.svg: No such file or directory: expected a file that can be" in done.stderr


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write_csv(tmp_path / "trace.csv", random_jobs(1, 5))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    words = (trace, "--nodes", 3, "--scheduler", "fifo")
    assert run(*words).exit_code == 0
    done = run(*words, "--plot", tmp_path / "plot.svg")
    assert done.exit_code == 2
    assert "pip install matplotlib" in done.stderr
    assert not (tmp_path / "plot.svg").exists()
