"""Which pods would have to go elsewhere, so that a job starts at once."""

from pathlib import Path
from typing import Any

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.topology import names
from tests.cli.what_if.asking import (
    NOW,
    a_list,
    answer,
    job,
    pod,
    refusal,
    what_if,
)
from tests.cli.what_if.scattered import BUDGET, cluster, given, two_nodes
from tests.extender.cluster import change
from tests.extender.next.moves.movers import IGNORES, MOVABLE, run
from tests.pods.podgrouper.pods import Object

NO_POLICY = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "owner-of-web", "namespace": "ml", "uid": "uid-of-owner-of-web"},
    "spec": {},
}
POLICY = {**NO_POLICY, "spec": {"podFailurePolicy": {"rules": [IGNORES]}}}


def moves(tmp_path: Path, listing: Object, *options: str, gpus: int = 8) -> dict[str, Any] | None:
    _, found = answer(tmp_path, listing, pod("new", gpus), *options)
    (part,) = found["parts"]
    told: dict[str, Any] | None = part["moves"]
    return told


def paragraph(text: str, begins: str) -> list[str]:
    (found,) = (each for each in text.split("\n\n") if each.startswith(begins))
    return found.splitlines()


def test_it_says_which_pods_go_where_and_what_that_loses(tmp_path: Path) -> None:
    text = what_if(tmp_path, given(two_nodes()), pod("new", 8)).stdout
    assert paragraph(text, "It would start at once") == [
        "It would start at once if this pod moved:",
        "POD     FROM  GPUS  TO  GPUS   COST",
        "ml/web  n1    0-3   n2  4-7   2,400",
        "total                         2,400",
        "COST: GPU seconds of its run that the pod loses.",
        "With --moves=consent, the extender does this once it has waited for 10m.",
    ]


def test_programs_read_the_same(tmp_path: Path) -> None:
    status, found = answer(tmp_path, given(two_nodes()), pod("new", 8))
    (part,) = found["parts"]
    (moved,) = part["moves"].pop("pods")
    assert (status, part["state"], found["fits"]) == (1, "waits", False)
    assert moved == {
        "pod": "ml/web",
        "node": "n1",
        "gpus": [0, 1, 2, 3],
        "target": "n2",
        "target_gpus": [4, 5, 6, 7],
        "lost_gpu_seconds": 2400.0,
    }
    assert part["moves"]["lost_gpu_seconds"] == 2400.0


def test_several_parts_are_named(tmp_path: Path) -> None:
    it = two_nodes()
    asked = a_list([job("train", 2, 4, {"require-span": "node"}), pod("never", 16)])
    text = what_if(tmp_path, given(it), asked).stdout
    assert "gang ml/Job.batch/train would start at once if this pod moved:" in text


@pytest.mark.parametrize("minutes", [8, 12])
def test_the_extender_moves_them_when_the_answer_says(tmp_path: Path, minutes: int) -> None:
    it = two_nodes()
    told = moves(tmp_path, given(it))
    assert told is not None
    assert (told["verdict"], told["after_seconds"]) == ("later", 600.0)
    it.settings = CoreSettings(moves=MovePolicy(Moves.CONSENT))
    it.restart()
    it.add_pod("new", 8, gates=[names.GATE])
    it.settle()
    it.pass_time(minutes * 60)
    assert it.evicted == (["web"] if minutes > 10 else [])


def test_what_fits_moves_nobody(tmp_path: Path) -> None:
    assert moves(tmp_path, given(two_nodes()), gpus=4) is None


@pytest.mark.parametrize("word", ["false", None])
def test_only_pods_that_consent_move(tmp_path: Path, word: str | None) -> None:
    it = two_nodes()
    web = it.pod("web")
    said = {k: v for k, v in web.metadata.annotations.items() if k != names.MOVABLE}
    said |= {names.MOVABLE: word} if word else {}
    it.put_pod(change(web, metadata=change(web.metadata, annotations=said)))
    listing = given(it)
    assert moves(tmp_path, listing) is None
    assert "would start at once" not in what_if(tmp_path, listing, pod("new", 8)).stdout
    told = moves(tmp_path, listing, "--movable-namespace", "ml")
    assert told is not None
    assert [each["pod"] for each in told["pods"]] == ["ml/stays" if word else "ml/web"]
    assert moves(tmp_path, listing, "--movable-namespace", "other") is None


def test_the_cost_is_what_the_pod_says_else_the_flags(tmp_path: Path) -> None:
    listing = given(two_nodes())
    for options, lost in (((), 2400), (("--move-cost", "5m"), 1200)):
        told = moves(tmp_path, listing, *options)
        assert told is not None
        assert told["lost_gpu_seconds"] == lost
    told = moves(tmp_path, given(two_nodes(move_cost="1m")), "--move-cost", "5m")
    assert told is not None
    assert told["lost_gpu_seconds"] == 240


def test_a_pod_that_has_run_for_less_than_ten_times_its_cost_stays(tmp_path: Path) -> None:
    assert moves(tmp_path, given(two_nodes(hours=1.5))) is None
    assert moves(tmp_path, given(two_nodes(hours=1.5)), "--move-cost", "5m") is not None


def test_nothing_moves_for_a_less_important_job(tmp_path: Path) -> None:
    it = cluster("hgx-h100", "hgx-h100")
    run(it, "web", 4, "n1", priority=5, said=MOVABLE)
    run(it, "stays", 4, "n2")
    it.now = NOW
    assert moves(tmp_path, given(it)) is None
    _, found = answer(tmp_path, given(it), pod("new", 8, priority=5))
    assert found["parts"][0]["moves"] is not None


def test_a_budget_protects_its_pods_and_without_any_a_note_says_so(tmp_path: Path) -> None:
    it = two_nodes()
    note = "PodDisruptionBudgets were not given: none is counted"
    assert moves(tmp_path, given(it, BUDGET)) is None
    allows = {**BUDGET, "status": {"disruptionsAllowed": 1}}
    _, found = answer(tmp_path, given(it, allows), pod("new", 8))
    assert found["parts"][0]["moves"] is not None
    assert note not in found["notes"]
    _, found = answer(tmp_path, given(it), pod("new", 8))
    assert note in found["notes"]


def test_of_a_job_the_policy_is_read(tmp_path: Path) -> None:
    it = two_nodes("Job")
    assert moves(tmp_path, given(it, NO_POLICY)) is None
    assert moves(tmp_path, given(it, POLICY)) is not None


def test_a_note_names_the_jobs_that_were_not_given(tmp_path: Path) -> None:
    it = two_nodes("Job")
    _, found = answer(tmp_path, given(it), pod("new", 8))
    assert found["parts"][0]["moves"] is None
    assert found["notes"] == [
        "pods that consent to moves stay, as their Jobs were not given, which say whether an "
        "eviction counts as a failure: Job.batch ml/owner-of-web"
    ]
    _, found = answer(tmp_path, given(it), pod("new", 4))
    assert found["notes"] == [], "it fits"


def test_a_job_that_was_not_given_is_named_for_its_pods_that_wait_too(tmp_path: Path) -> None:
    it = two_nodes("Job")
    owner = it.pod("web").metadata.owner_references
    it.add_pod(
        "waits",
        8,
        alter=lambda pod: change(pod, metadata=change(pod.metadata, owner_references=owner)),
    )
    _, found = answer(tmp_path, given(it), pod("new", 8))
    assert [note.count("Job.batch ml/owner-of-web") for note in found["notes"]] == [1, 1]


def test_a_job_of_which_all_pods_wait_is_no_mover(tmp_path: Path) -> None:
    it = two_nodes()
    run(it, "other", 1, "n1", kind="Job")
    owner = it.pod("other").metadata.owner_references
    it.add_pod(
        "waits",
        8,
        said=MOVABLE,
        alter=lambda pod: change(pod, metadata=change(pod.metadata, owner_references=owner)),
    )
    _, found = answer(tmp_path, given(it), pod("new", 8))
    assert not [note for note in found["notes"] if "consent to moves" in note]


def test_of_very_many_parts_the_first_are_tried(tmp_path: Path) -> None:
    listing = given(two_nodes())
    for others in (19, 20):
        parts = [*(pod(f"never-{number}", 16) for number in range(others)), pod("new", 8)]
        _, found = answer(tmp_path, listing, a_list(parts))
        assert (found["parts"][-1]["moves"] is not None) == (others == 19)


def test_nobody_moves_for_a_job_for_which_pods_are_evicted(tmp_path: Path) -> None:
    it = cluster("hgx-h100", "hgx-h100", "hgx-h100")
    run(it, "web", 4, "n1", said=MOVABLE)
    run(it, "cheap", 4, "n2", said={"preemptible": "true"})
    run(it, "stays", 4, "n3")
    it.now = NOW
    asked = job("train", 2, 4, {"require-span": "node"})
    asked["spec"]["template"]["spec"]["priority"] = 9
    _, found = answer(tmp_path, given(it), asked)
    (part,) = found["parts"]
    assert (part["evicts"], part["moves"]) == (["ml/cheap"], None)
    _, found = answer(tmp_path, given(it), asked, "--preempt", "never")
    assert found["parts"][0]["moves"] is not None


# Whether the extender would do it.


def ending(minutes: float, **said: str) -> Object:
    """`stays` ends in so many minutes."""
    it = cluster("hgx-h100", "hgx-h100")
    run(it, "web", 4, "n1", said={**MOVABLE, **said})
    run(it, "stays", 4, "n2", said={"expected_duration": f"{5 * 60 + minutes}m"})
    it.now = NOW
    return given(it)


def last_line(tmp_path: Path, listing: Object) -> str:
    text = what_if(tmp_path, listing, pod("new", 8)).stdout
    return paragraph(text, "It would start at once")[-1]


def test_moves_that_save_more_than_they_lose_are_worth_it(tmp_path: Path) -> None:
    line = last_line(tmp_path, ending(60))
    assert line.startswith("With --moves=consent, the extender does this: the wait that it saves")


def test_moves_that_lose_more_than_they_save_are_shown_and_said_to_be(tmp_path: Path) -> None:
    line = last_line(tmp_path, ending(12, move_cost="25m"))
    assert line.startswith("The extender would not do this: the wait that it saves is 5,")
    assert line.endswith(" GPU seconds, less than it loses.")


def test_nor_would_it_for_a_short_wait(tmp_path: Path) -> None:
    assert last_line(tmp_path, ending(8)) == (
        "The extender would not do this: it expects room within --move-cost."
    )


def test_if_servers_alone_are_in_the_way_it_does(tmp_path: Path) -> None:
    it = cluster("hgx-h100", "hgx-h100")
    run(it, "web", 4, "n1", said=MOVABLE, server=True)
    run(it, "stays", 4, "n2", server=True)
    it.now = NOW
    assert last_line(tmp_path, given(it)) == (
        "With --moves=consent, the extender does this: only the end of servers would make room too."
    )


def test_nor_would_it_for_what_is_not_among_the_first(tmp_path: Path) -> None:
    it = cluster(*["hgx-h100"] * 8)
    for number in range(1, 9):
        run(it, f"web-{number}", 4, f"n{number}", said=MOVABLE)
    it.now = NOW
    for number in range(4):
        it.add_pod(f"first-{number}", 8)
    it.now += 60
    assert last_line(tmp_path, given(it)) == (
        "The extender would not do this now: it is not among the first in the queue."
    )


def test_later_is_once_it_has_waited_for_what_the_moves_lose(tmp_path: Path) -> None:
    assert last_line(tmp_path, given(two_nodes(move_cost="25m"))) == (
        "With --moves=consent, the extender does this once it has waited for 12m."
    )


@pytest.mark.parametrize("word", ["10", "-5m", "", "soon"])
def test_a_cost_that_is_no_duration_is_refused(tmp_path: Path, word: str) -> None:
    wrong = refusal(tmp_path, given(two_nodes()), pod("new", 8), "--move-cost", word)
    assert wrong.startswith(f"linkwise: --move-cost {word!r}: expected a duration like")
