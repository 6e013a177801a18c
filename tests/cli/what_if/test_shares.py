"""Pods of the managed resource where its name is that of replicas, MIG devices or partitions."""

from pathlib import Path

import pytest

from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.parts import MigProfile, Part
from linkwise.topology.machine.recorded import recorded_machine
from tests.cli.what_if.asking import NOW, a_list, answer, job, listed, pod, what_if
from tests.divided import GPU, cut, divided, replicas
from tests.extender.shares.cluster import ShareCluster
from tests.machines import DGX_1V, HGX_H100

TWO_REPLICAS = replicas(DGX_1V, {0: 2}, GPU)


def nodes(*machines: Machine) -> ShareCluster:
    """Nodes n1, n2, … of these machines."""
    it = ShareCluster(now=NOW)
    for number, machine in enumerate(machines, start=1):
        it.add_divided(f"n{number}", machine)
    return it


def runs(it: ShareCluster, name: str, shares: int, **said: str) -> None:
    """A pod runs with its shares, which the kubelet lists too; `expected_duration="3h"`."""
    it.add_taker(name, {GPU: shares}, **{key.replace("_", "-"): text for key, text in said.items()})
    node = it.try_to_place(name)
    it.put_in_use(node, f"ml/{name}", it.planned_shares(name), ())
    it.set_phase(name, "Running")


def only_divided(machine: Machine) -> Machine:
    return replicas(machine, dict.fromkeys(range(len(machine.gpus)), 2), GPU)


@pytest.mark.parametrize(
    "machine", [TWO_REPLICAS, cut(HGX_H100, 0, GPU, GPU)], ids=["time slicing", "MIG"]
)
def test_a_pod_gets_a_share_where_no_whole_gpu_is_free(machine: Machine, tmp_path: Path) -> None:
    it = nodes(machine)
    it.add_pod("whole", 7)
    assert it.schedule("whole") == "n1"
    status, found = answer(tmp_path, listed(it), pod("new", 1))
    (part,) = found["parts"]
    (place,) = part["places"]
    assert (status, part["state"], place["node"], place["gpus"]) == (0, "fits", "n1", [0])
    (id_,) = place["shares"]
    assert (place["uuids"], place["link"]) == ([], "")
    assert any(id_ in part.ids for part in it.machine("n1").gpus[0].parts or ())


def test_partitions_of_amds_gpus_count_as_their_gpus(tmp_path: Path) -> None:
    mi300x = recorded_machine("mi300x")
    in_two = {
        place: tuple(
            Part(f"xcp-{place}-{number}", "amd.com/gpu", mig=MigProfile("dpx_nps1", 1, 98304))
            for number in range(2)
        )
        for place in range(len(mi300x.gpus))
    }
    it = nodes(divided(mi300x, in_two))
    new = pod("new", 1)
    new["spec"]["containers"][0]["resources"] = {"limits": {"amd.com/gpu": "2"}}
    status, found = answer(tmp_path, listed(it), new, "--resource", "amd.com/gpu")
    (place,) = found["parts"][0]["places"]
    # The parts of one GPU are joined.
    assert (status, place["gpus"], len(place["shares"])) == (0, [0], 2)


def test_whole_gpus_come_first(tmp_path: Path) -> None:
    status, found = answer(tmp_path, listed(nodes(only_divided(DGX_1V), DGX_1V)), pod("new", 1))
    (place,) = found["parts"][0]["places"]
    assert (status, place["node"], place["shares"]) == (0, "n2", [])


def test_the_table_counts_the_shares(tmp_path: Path) -> None:
    text = what_if(tmp_path, listed(nodes(only_divided(DGX_1V))), pod("new", 2)).stdout
    assert "cluster   8 GPUs on 1 node: 8 divided\n" in text
    assert "POD  NODE  GPUS  SHARES  LINK  GB/s\nnew  n1    0,3        2  -        -\n" in text


def test_pods_of_one_job_share_no_share(tmp_path: Path) -> None:
    it = nodes(replicas(DGX_1V, {0: 2}, GPU))
    it.add_pod("whole", 7)
    it.schedule("whole")
    two = a_list([pod("a", 1), pod("b", 1)])
    status, found = answer(tmp_path, listed(it), two)
    assert status == 0
    ids = {id_ for part in found["parts"] for id_ in part["places"][0]["shares"]}
    assert len(ids) == 2
    three = a_list([*two["items"], pod("c", 1)])
    status, found = answer(tmp_path, listed(it), three)
    assert (status, [part["state"] for part in found["parts"]]) == (1, ["fits", "fits", "waits"])


def test_a_pod_waits_for_the_known_end_of_one_that_has_shares(tmp_path: Path) -> None:
    it = nodes(replicas(HGX_H100, dict.fromkeys(range(8), 1), GPU))
    runs(it, "old", 3)
    runs(it, "short", 5, expected_duration="1h")
    status, found = answer(tmp_path, listed(it), pod("new", 1))
    (part,) = found["parts"]
    assert (status, part["state"], part["never"]) == (1, "waits", False)
    assert part["start"]["at"] == NOW + 3600
    assert len(part["start"]["places"][0]["shares"]) == 1
    assert part["why"]["summary"] == "No node has a GPU set for the pod now."
    assert (
        "0 of 1  have 1 nvidia.com/gpu free\n"
        in what_if(tmp_path, listed(it), pod("new", 1)).stdout
    )
    (room,) = found["room"]
    assert len(room["pods"]) == 1
    assert room["fewest"]
    assert room["pods"][0]["gpus"] in (3, 5)


def test_who_is_in_the_way_is_no_claim_about_the_fewest_beyond_one(tmp_path: Path) -> None:
    it = nodes(replicas(HGX_H100, dict.fromkeys(range(8), 1), GPU))
    for number in range(8):
        runs(it, f"old-{number}", 1)
    (room,) = answer(tmp_path, listed(it), pod("new", 2))[1]["room"]
    assert (len(room["pods"]), room["fewest"]) == (2, False)


def test_a_pod_that_wants_more_shares_than_there_are_never_starts(tmp_path: Path) -> None:
    given = listed(nodes(only_divided(DGX_1V)))
    assert answer(tmp_path, given, pod("new", 16))[0] == 0
    status, found = answer(tmp_path, given, pod("new", 17))
    assert (status, found["parts"][0]["never"], found["room"]) == (1, True, [])
    status, found = answer(tmp_path, given, a_list([pod("large", 17), pod("small", 1)]))
    assert [(part["state"], part["never"]) for part in found["parts"]] == [
        ("waits", True),
        ("fits", False),
    ]


def test_a_node_that_rejects_the_pod_gives_it_no_shares(tmp_path: Path) -> None:
    given = listed(nodes(only_divided(DGX_1V)))
    status, found = answer(tmp_path, given, pod("new", 1, nodeSelector={"pool": "other"}))
    assert (status, found["parts"][0]["never"]) == (1, True)


def test_a_gang_gets_no_shares(tmp_path: Path) -> None:
    status, found = answer(tmp_path, listed(nodes(only_divided(DGX_1V))), job("train", 2, 1))
    assert (status, found["parts"][0]["never"]) == (1, True)


def test_pods_that_wait_get_shares_before_the_job(tmp_path: Path) -> None:
    it = nodes(replicas(DGX_1V, dict.fromkeys(range(8), 1), GPU))
    runs(it, "old", 7)
    it.pass_time(60)
    it.add_taker("waits", {GPU: 1})
    status, found = answer(tmp_path, listed(it), pod("new", 1))
    assert (status, found["parts"][0]["state"]) == (1, "waits")
    assert any("ml/waits" in note for note in found["notes"])


@pytest.mark.parametrize("running", [(), (1,), (2, 1, 3), (5, 5), (16, 8)])
@pytest.mark.parametrize("shares", [1, 2, 4])
def test_the_shares_are_those_that_the_extender_gives(
    running: tuple[int, ...], shares: int, tmp_path: Path
) -> None:
    it = nodes(only_divided(DGX_1V), only_divided(HGX_H100))
    for number, count in enumerate(running):
        runs(it, f"old-{number}", count)
    (part,) = answer(tmp_path, listed(it), pod("new", shares))[1]["parts"]
    (place,) = part["places"]
    it.add_taker("new", {GPU: shares})
    assert place["node"] == it.try_to_place("new") != ""
    assert sorted(place["shares"]) == sorted(it.ids_of("new"))
