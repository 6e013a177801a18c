"""The terminal report, to the letter: every line fits, and no information is in colour alone."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from linkwise.drawing.times import PodTimes
from linkwise.simulator.report.as_json import render_json
from linkwise.simulator.report.build_report import report_of
from linkwise.simulator.report.html import render_html
from linkwise.simulator.report.model import (
    MovedPod,
    NodeReport,
    Report,
    Rival,
    SeenPod,
    WaitingMember,
)
from linkwise.simulator.report.text import picture, render
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from tests.parsed_page import ParsedPage
from tests.simulator.report.small_report import NODES, OURS, off, on, small_report, uuids

ALL_OF_IT = """\
      Linkwise                      alone, NVIDIA's choice, draw 1 of 1
      node     GPUs  link     GB/s  node     GPUs  link     GB/s
 A  train  gang of 2 runs; together 13.9 GB/s; alone: 13.9 GB/s
  A0  bridged  0-1   NVLINK  210.0  bridged  0,2   SYS      13.9
  A1  bridged  2-3   NVLINK  210.0  bridged  1,3   SYS      13.9
 B  lone  pod runs; alone: runs
  B   odd      0                    odd      2
 C  done  pod has ended; alone: runs
  C   odd      1                    odd      0
 D  big  gang of 2 waits; alone: waits
  D0  waits                         waits
  D1  waits                         waits

bridged  4x A100 PCIe, two bridges  (0 free)
╭ NVLink NV12 ╮ ╭ NVLink NV12 ╮
│ 0   1       │ │ 2   3       │
│ A0  A0      │ │ A1  A1      │
│ NUMA 0      │ │ NUMA 1      │
╰─────────────╯ ╰─────────────╯

odd  5 GPUs of several models  (3 free)
┌ PCIe/PHB/NODE ╌┐ ┌╌ PCIe ╌┐
╎ 1   2   3   4  ╎ ╎   0    ╎
╎ ·   ·   ·   ×  ╎ ╎   B    ╎
╎     NUMA 0     ╎ ╎ NUMA 1 ╎
└╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┘ └╌╌╌╌╌╌╌╌┘

Who:  A  train   B  lone  · free  × unhealthy
Boxes: ╭─╮ GPUs joined by NVLink, ┌╌┐ GPUs without; ┆ between NUMA nodes.

Why pods wait
  big (2 of 2 pods): No node has 9 GPUs.

Pods in time
  train  2 of 2 bound 0.38 s after the last of these was created
  lone   bound 0.25 s after it was created
  done   bound 0.25 s after it was created
  big    2 of 2 wait still
Times: the moments at which the simulator's own watch saw each change, because
the API's times have whole seconds only.

Gain: 1.0× the GB/s of the scheduler alone, geometric mean of 1 workload; 0 of 1
workloads have more GB/s than alone; 1.0× to 1.0× from the worst, train, to the
best, train.

Alone: the same manifests on the same cluster, one draw (seed 7), with the
simulator's kube-scheduler without extender, on nodes that choose GPUs as
NVIDIA's device plugin does (go-gpuallocator, best effort). Places, and GB/s
beside them, are those of draw 1.

OK: 3 of 3 pods hold exactly the GPUs of their plan; no GPU held twice, no gang
runs half.
"""


def shown(report: Report) -> str:
    """Return it as in a CI log: no terminal, so no colours, and eighty columns."""
    out = StringIO()
    Console(file=out, width=80, highlight=False).print(render(report))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def test_everything_that_is_said_after_a_run() -> None:
    assert shown(small_report()) == ALL_OF_IT


def test_links_have_the_words_of_their_vendor_in_every_form_of_the_report() -> None:
    frontier = NodeReport("amd", "8 of MI250X", recorded_machine("mi250x-frontier"))
    gpus = {"c": uuids(frontier.machine, 0, 1)}
    pod = SeenPod("default/a", "a", 0, "0", node="amd", planned=gpus, held=gpus)
    report = report_of([frontier], [pod], (), seed=7)
    page = ParsedPage(render_html(report)).text
    assert "amd 0-1 XGMI 144.0" in page
    assert "arcs: xGMI links, thicker for more" in page
    assert "Boxes: ╭─╮ GPUs joined by xGMI, ┌╌┐" in shown(report)
    assert '"link": "XGMI"' in render_json(report)
    assert not any("nvlink" in text.lower() for text in (page, shown(report), render_json(report)))
    both = report_of([NODES[0], frontier], [pod], (), seed=7)
    assert "joined by NVLink or xGMI," in shown(both)
    assert "arcs: NVLinks or xGMI links, thicker" in ParsedPage(render_html(both)).text


def test_nothing_is_said_of_a_baseline_that_was_not_drawn() -> None:
    text = shown(small_report(baseline=False))

    assert "lone" in text
    assert "kube-scheduler" not in text
    assert "alone:" not in text


def test_faults_are_said_instead_of_all_is_well() -> None:
    report = replace(small_report(), faults=("gang train: 1 of 2 members run",))

    assert shown(report).endswith("FAILED\n  gang train: 1 of 2 members run\n")


def test_members_that_wait_for_the_same_say_it_once() -> None:
    waits = ("No node has 9 GPUs.", "No node has 9 GPUs.", "Not tried yet.")
    members = [
        off(pod=f"p{n}", workload="w", member=str(n), waits=words) for n, words in enumerate(waits)
    ]

    assert "  w (3 of 3 pods): No node has 9 GPUs.\n    Not tried yet.\n" in shown(
        report_of(NODES, members, [], seed=1)
    )


def test_a_gang_of_which_part_runs_is_not_said_to_run() -> None:
    half = [OURS[0], off(pod="train-y", workload="train", member="1", needed=2)]
    text = shown(report_of(NODES, half, [], seed=1))

    assert "gang of 2 runs 1 of them" in text
    assert text.endswith("FAILED\n  gang train: 1 of 2 members run\n")


def test_members_without_gpus_that_wait_are_named_and_what_is_to_come() -> None:
    head = WaitingMember("default/head", "train", "2 Insufficient cpu.")
    text = shown(
        report_of(NODES, OURS[:2], [], seed=1, without_gpus=[head], to_come=["db: db-1, later"])
    )
    assert (
        "Why pods wait\n"
        "  train, default/head, without GPUs: 2 Insufficient cpu.\n"
        "  db: db-1, later\n"
    ) in text
    assert "FAILED\n  train: 2 pods have GPUs, and default/head, which takes none" in text


def test_a_pod_that_failed_is_not_said_to_wait() -> None:
    why = "Failed on bridged: Pod was rejected: no such device"
    refused = replace(
        off(pod="train-y", workload="train", member="1", waits=why),
        times=PodTimes(100.0, 100.5, None, 101.0),
    )
    text = shown(report_of(NODES, [OURS[0], refused], [], seed=1))
    assert "gang of 2: 1 run, 1 failed" in text
    assert re.search(r"^  A1 +failed$", text, re.M)
    assert "Why pods wait" not in text
    assert f"FAILED\n  gang train: 1 of 2 members run\n  default/train-y: {why}\n" in text
    alone = replace(refused, workload="eval")
    assert "eval  pod has failed\n" in shown(report_of(NODES, [OURS[2], alone], [], seed=1))


def test_what_half_ran_alone_is_said_so() -> None:
    alone = on("bridged", 0, 2, pod="t", workload="train", member="0", needed=2)

    text = shown(report_of(NODES, OURS[:2], [(alone,), ()], seed=1))
    assert "alone: only 1 of 2 run\n" in text
    assert re.search(r"^  train +13\.9 +- +- +- +0 of 2$", text, re.M)


def test_numbers_of_one_draw_and_of_all_draws_stand_apart() -> None:
    """Beside the places is what draw 1 gave; the mean of both has a table of its own."""
    alone = [
        tuple(
            on("bridged", *gpus, pod=f"t{number}", workload="train", member=str(number), needed=2)
            for number, gpus in enumerate(both)
        )
        for both in (((0, 2), (1, 3)), ((0, 1), (2, 3)))
    ]
    one, two = alone[0], (alone[1][0],)
    text = shown(report_of(NODES, OURS[:2], [one, two, one], seed=1, rival=Rival.RANDOM))
    above, _, below = text.partition("All 3 draws alone, GB/s")
    assert "alone, random GPUs, draw 1 of 3" in above
    assert "alone: 13.9 GB/s" in above
    assert "mean" not in above
    assert re.search(r"^  train +13\.9 +13\.9 +13\.9 +13\.9 +2 of 3$", below, re.M)
    assert "of a plugin without a preference" in " ".join(below.split())


def test_without_pods_nothing_is_said_of_times() -> None:
    assert "Pods in time" not in shown(report_of(NODES, [], [], seed=1))


def test_one_draw_has_no_table_of_means() -> None:
    assert "draws alone" not in shown(small_report())


@pytest.mark.parametrize("name", machine_names())
def test_every_picture_is_as_wide_in_all_its_lines_and_names_every_gpu(name: str) -> None:
    machine = recorded_machine(name)
    lines = [line.plain for line in picture(machine, {}, {})]
    boxes = {len(line.rstrip()) for line in lines}

    assert max(boxes) <= 79
    assert len(boxes) == 1, "\n".join(lines)
    named = [int(word) for line in lines for word in line.split() if word.isdecimal()]
    assert set(named) >= {gpu.index for gpu in machine.gpus}
    between = {tuple(at for at, sign in enumerate(line) if sign == "┆") for line in lines}
    assert len(between - {()}) <= 1, "\n".join(lines)


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    pods = [off(pod="p", workload="[red]w[/red]", member="0", waits="[bold]no[/bold]")]

    text = shown(report_of(NODES, pods, [], seed=1))
    assert " A  [red]w[/red]  pod waits\n" in text
    assert "[red]w[/red] (1 of 1 pods): [bold]no[/bold]\n" in text


def test_a_member_with_a_long_number_keeps_its_distance() -> None:
    pods = [
        replace(OURS[0], member="100", workload="w", needed=0),
        off(pod="p", workload="w", member="1"),
    ]

    assert "  A100 bridged  0-1" in shown(report_of(NODES, pods, [], seed=1))


def test_long_names_of_nodes_are_cut_in_the_table_and_whole_in_the_picture() -> None:
    name = "a-node-with-a-very-long-name.rack-17.example.org"
    pod = replace(OURS[0], node=name, needed=0)
    node = replace(NODES[0], name=name, title="4 GPUs")
    report = report_of([node], [pod], [[pod]], seed=1)

    row = "a-node-…le.org  0-1   NVLINK  210.0"
    assert f"  A   {row}  {row}\n" in shown(report)
    assert f"{name}  4 GPUs  (2 free)\n" in shown(report)


def test_the_state_of_a_pod_is_whole_beside_short_names_of_nodes() -> None:
    waits = off(pod="big-u", workload="big", member="0", waits="No node has 9 GPUs.")
    said = shown(report_of([replace(NODES[0], name="a")], [waits], (), seed=7))
    assert ["A", "waits"] in [line.split() for line in said.splitlines()]


def test_each_reason_for_a_place_stands_once_with_the_first_member_that_has_it() -> None:
    report = small_report()
    train = report.workloads[0]
    long = "next best odd, GPUs 1-2: loses by worth: 210.0 against 13.9 GB/s, as far as is known"
    pods = tuple(
        replace(pod, chosen=reason) for pod, reason in zip(train.pods, (long, "other"), strict=True)
    )
    both = replace(report, workloads=(replace(train, pods=pods), *report.workloads[1:]))
    assert """\
Why pods are where they are
  train
    A0: next best odd, GPUs 1-2: loses by worth: 210.0 against 13.9 GB/s, as
      far as is known
    A1: other

Why pods wait
""" in shown(both)
    same = tuple(replace(pod, chosen="other") for pod in train.pods)
    one = replace(report, workloads=(replace(train, pods=same), *report.workloads[1:]))
    assert "  train\n    other\n" in shown(one)


def test_it_says_which_pods_were_moved_where_they_were_and_why() -> None:
    moved = MovedPod("ml/web", "odd", (0, 1), "evicted to make room for pod ml/big")
    text = render(replace(small_report(baseline=False), moved=(moved,))).plain
    assert (
        """
Pods that were moved
  ml/web was on odd, GPUs 0-1
    evicted to make room for pod ml/big

Why pods wait
"""
        in text
    )
