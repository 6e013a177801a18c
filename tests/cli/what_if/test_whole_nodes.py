"""`linkwise what-if --moves N`: which moves would give N whole nodes."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from linkwise.cli.__main__ import main
from linkwise.kube.objects import Taint
from linkwise.topology import names
from tests.cli.what_if.asking import NOW
from tests.cli.what_if.scattered import BUDGET, cluster, given, two_nodes
from tests.extender.cluster import Cluster
from tests.extender.next.moves.movers import MOVABLE, run
from tests.pods.podgrouper.pods import Object

AT = ("--at", "2026-03-01T08:00:00Z")


def asked(listing: Object, *options: str) -> Result:
    result = CliRunner().invoke(main, ["what-if", *options, *AT], input=json.dumps(listing))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def answer(listing: Object, wanted: int, *options: str) -> tuple[int, dict[str, Any]]:
    result = asked(listing, "--moves", str(wanted), *options, "-o", "json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["wanted"], found["given"]) == (wanted, result.exit_code == 0)
    return result.exit_code, found


def moved(size: dict[str, Any]) -> dict[str, str]:
    return {each["pod"]: each["target"] for each in size["moves"]}


def half_full(nodes: int, *, movable: int) -> Cluster:
    """Four of eight GPUs are free on each node; on the first ones the pod could leave."""
    it = cluster(*["hgx-h100"] * nodes)
    for number in range(1, nodes + 1):
        said = MOVABLE if number <= movable else None
        run(it, f"p{number}", 4, f"n{number}", said=said)
    it.now = NOW
    return it


def test_it_says_which_moves_give_as_many() -> None:
    result = asked(given(two_nodes()), "--moves", "1")
    assert result.exit_code == 0
    assert result.stdout.split("\n\n", 1)[1] == (
        "Of 2 nodes with 8 GPUs, 0 are whole now.\n"
        "1 would be whole if this pod moved:\n"
        "POD     FROM  GPUS  TO  GPUS   COST\n"
        "ml/web  n1    0-3   n2  4-7   2,400\n"
        "total                         2,400\n"
        "\n"
        "COST: GPU seconds of its run that the pod loses.\n"
    )


def test_those_that_are_whole_already_count() -> None:
    it = half_full(4, movable=4)
    it.add_node("n5")
    status, found = answer(given(it), 1)
    (size,) = found["sizes"]
    assert (status, size["whole"], size["moves"]) == (0, ["n5"], [])
    status, found = answer(given(it), 3)
    (size,) = found["sizes"]
    assert (status, size["whole"], len(size["emptied"]), len(size["moves"])) == (0, ["n5"], 2, 2)
    assert size["lost_gpu_seconds"] == 2 * 4 * 600
    text = asked(given(it), "--moves", "1").stdout
    assert text.endswith("Of 5 nodes with 8 GPUs, 1 is whole now: n5.\n")


def test_the_most_that_is_found_is_told() -> None:
    it = half_full(8, movable=3)
    for wanted in (4, 5, 8, 1000):
        status, found = answer(given(it), wanted)
        (size,) = found["sizes"]
        assert (status, sorted(size["emptied"])) == (1, ["n1", "n2", "n3"])
    text = asked(given(it), "--moves", "8").stdout
    assert "No moves were found that give 8; 3 is the most that was found." in text
    assert "3 would be whole if these 3 pods moved:" in text


def test_if_no_pod_consents_none_is_found() -> None:
    result = asked(given(half_full(2, movable=0)), "--moves", "1")
    assert result.exit_code == 1
    assert result.stdout.split("\n\n", 1)[1] == (
        "Of 2 nodes with 8 GPUs, 0 are whole now.\n"
        "No moves were found that give 1; 0 is the most that was found.\n"
    )
    assert answer(given(half_full(2, movable=0)), 1, "--movable-namespace", "ml")[0] == 0


def test_each_number_of_gpus_of_a_node_counts_by_itself() -> None:
    it = cluster("hgx-h100", "hgx-h100", "l40s-4", "l40s-4", "l40s-4")
    for name, gpus, node in (("a", 4, "n1"), ("b", 4, "n2"), ("c", 2, "n3"), ("d", 2, "n4")):
        run(it, name, gpus, node, said=MOVABLE)
    it.now = NOW
    status, found = answer(given(it), 2)
    eights, fours = found["sizes"]
    assert (eights["gpus"], eights["nodes"], fours["gpus"], fours["nodes"]) == (8, 2, 4, 3)
    assert (status, len(fours["whole"]), len(fours["emptied"])) == (0, 1, 1)
    assert (eights["whole"], len(eights["emptied"])) == ([], 1)


def test_pods_that_wait_are_left_aside() -> None:
    it = two_nodes()
    it.add_pod("waits", 8)
    it.add_pod("small", 4, gates=["linkwise.dev/plan"])
    _, found = answer(given(it), 1)
    assert moved(found["sizes"][0]) == {"ml/web": "n2"}


def test_a_pod_with_a_plan_keeps_its_gpus() -> None:
    it = two_nodes()
    it.add_pod("planned", 4, gates=["linkwise.dev/plan"])
    it.settle()
    assert "linkwise.dev/plan" in it.pod("planned").metadata.annotations
    status, _ = answer(given(it), 1)
    assert status == 1


def test_priority_protects_nobody_who_consents() -> None:
    it = cluster("hgx-h100", "hgx-h100")
    run(it, "web", 4, "n1", priority=5, said=MOVABLE)
    run(it, "stays", 4, "n2", priority=1, said={"preemptible": "true"})
    it.now = NOW
    _, found = answer(given(it), 1, "--preempt", "lower-priority")
    assert moved(found["sizes"][0]) == {"ml/web": "n2"}


def test_tainted_nodes_count_and_cordoned_ones_do_not() -> None:
    it = two_nodes()
    it.cordon("n1", Taint("team", "NoSchedule", "a"))
    assert answer(given(it), 1)[0] == 0
    it.cordon("n1", Taint("node.kubernetes.io/unschedulable", "NoSchedule"))
    assert answer(given(it), 1)[0] == 1
    it.cordon("n1")
    status, found = answer(given(it), 1)
    assert (status, found["sizes"][0]["nodes"]) == (1, 1)


def test_a_node_with_an_ill_gpu_is_not_whole() -> None:
    it = cluster("hgx-h100")
    assert answer(given(it), 1)[0] == 0
    it.set_health("n1", 3)
    status, found = answer(given(it), 1)
    assert (status, found["sizes"][0]["whole"]) == (1, [])


def test_budgets_count_and_a_note_says_if_none_were_given() -> None:
    it = two_nodes()
    assert answer(given(it, BUDGET), 1)[0] == 1
    _, found = answer(given(it), 1)
    assert found["notes"] == ["PodDisruptionBudgets were not given: none is counted"]


def test_a_note_names_the_jobs_that_were_not_given() -> None:
    _, found = answer(given(two_nodes("Job")), 1)
    assert found["sizes"][0]["moves"] == []
    assert "Job.batch ml/owner-of-web" in found["notes"][0]
    assert "  note      pods that consent" in asked(given(two_nodes("Job")), "--moves", "1").stdout


def test_a_cluster_without_gpus_has_no_whole_nodes() -> None:
    it = cluster("hgx-h100")
    it.annotate_node("n1", names.TOPOLOGY, None)
    result = asked(given(it), "--moves", "1")
    assert result.exit_code == 1
    assert "There is no node with GPUs that pods can use." in result.stdout


@pytest.mark.parametrize("word", ["-1", "0", "two", "1.5", "", "9" * 5000])
def test_what_is_no_number_of_nodes_is_refused(word: str) -> None:
    result = asked(given(two_nodes()), "--moves", word)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"linkwise: --moves {word}: expected a number of nodes, like 4\n"


@pytest.mark.parametrize("more", [("--replay",), ("--submit", "job.yaml"), ()])
def test_one_question_at_a_time(more: tuple[str, ...]) -> None:
    result = asked(given(two_nodes()), *(("--moves", "1", *more) if more else ()))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--submit FILE, --replay or --moves N: expected one of them" in result.stderr
