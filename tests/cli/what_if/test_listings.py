"""A cluster is read in whatever form kubectl, jq or a person wrote it."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from linkwise.cli.__main__ import main
from linkwise.cli.what_if.given import listing
from tests.cli.what_if.asking import (
    NOW,
    a_list,
    answer,
    cluster,
    job,
    listed,
    nodes_of,
    pod,
    pods_of,
    refusal,
    runs,
    what_if,
)
from tests.extender import claimed
from tests.extender.claimed import claim_of, slice_of, uuids
from tests.extender.cluster import Cluster


def busy() -> Cluster:
    it = cluster("dgx-a100")
    runs(it, "old", 7, "n1")
    return it


FORMS: dict[str, Callable[[Cluster], str]] = {
    "list": lambda it: json.dumps(listed(it)),
    "yaml": lambda it: yaml.safe_dump(listed(it)),
    "documents": lambda it: yaml.safe_dump_all([*nodes_of(it), *pods_of(it)]),
    "lists-in-a-list": lambda it: json.dumps(
        a_list([a_list(nodes_of(it)), a_list([a_list(pods_of(it))])])
    ),
    "lines": lambda it: "\n".join(map(json.dumps, [*nodes_of(it), *pods_of(it)])),
    "values": lambda it: (
        json.dumps(a_list(nodes_of(it)), indent=1) + json.dumps(a_list(pods_of(it)))
    ),
    "kinds-of-the-list": lambda it: "\n".join(
        json.dumps(a_list(({k: v for k, v in o.items() if k != "kind"} for o in objects), kind))
        for kind, objects in (("NodeList", nodes_of(it)), ("PodList", pods_of(it)))
    ),
    "list-without-its-kind": lambda it: json.dumps({"items": [*nodes_of(it), *pods_of(it)]}),
    "nulls": lambda it: json.dumps(
        a_list(
            {**each, "metadata": {"labels": None, "ownerReferences": None, **each["metadata"]}}
            for each in (*nodes_of(it), *pods_of(it))
        )
    ),
    "utf-8-mark": lambda it: "\ufeff" + json.dumps(listed(it)),
}


def test_a_list_in_json_is_read_by_the_fast_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "objects_in", lambda *_: pytest.fail("the slow reader"))
    path = tmp_path / "list.json"
    path.write_text(json.dumps(listed(busy())))
    read = listing.read_listing([str(path)])
    assert (len(read.nodes), len(read.pods)) == (1, 1)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_cluster(form: str, tmp_path: Path) -> None:
    text = FORMS[form](busy())
    assert answer(tmp_path, text, pod("one", 1))[0] == 0
    status, found = answer(tmp_path, text, pod("two", 2))
    assert status == 1
    assert found["cluster"] == {"nodes": 1, "gpus": found["cluster"]["gpus"]}
    assert found["cluster"]["gpus"]["free"] == 1


def test_nodes_alone_are_an_idle_cluster(tmp_path: Path) -> None:
    it = busy()
    for name in it.nodes:
        it.annotate_node(name, "linkwise.dev/in-use", None)
    assert answer(tmp_path, nodes_of(it)[0], pod("new", 8))[0] == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "-f standard input: empty"),
        ("\n ", "-f standard input: empty"),
        (a_list([]), "contains no Node"),
        ([], "expected an object with apiVersion and kind"),
        ("{", "line 1: expected the node content"),
        ({"apiVersion": "v1", "kind": "List", "items": {}}, "items: a mapping: expected a list"),
        (
            a_list([{"kind": "Node", "metadata": {}}]),
            "items[0]: apiVersion: missing: expected a text such as v1",
        ),
        (a_list([{"apiVersion": "v1", "kind": "Node"}]), "items[0]: metadata.name: expected"),
        (
            a_list([{"apiVersion": "v1", "kind": "Node", "metadata": {"labels": 3}}]),
            "items[0]: metadata.labels: Expected `object`, got `int`",
        ),
        ("Error from server (Forbidden): nodes is forbidden", "apiVersion: missing: expected a"),
    ],
)
def test_what_is_no_listing_is_refused_in_one_line(
    given: object, said: str, tmp_path: Path
) -> None:
    assert said in refusal(tmp_path, given, pod("new", 1))


def test_standard_input_can_be_one_of_both(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(listed(busy())))
    text = json.dumps(pod("new", 1))
    told = CliRunner().invoke(main, ["what-if", "--submit", "-", "-f", str(path)], input=text)
    assert told.exit_code == 0, told.output
    refused = CliRunner().invoke(main, ["what-if", "--submit", "-"], input=text)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "standard input can be one of them" in refused.stderr


def test_ended_pods_have_no_gpus(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    it.add_pod("done", 8, node="n1")
    it.set_phase("done", "Succeeded")
    assert answer(tmp_path, listed(it), pod("new", 8))[0] == 0


def test_a_pod_that_is_ending_is_waited_for(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    runs(it, "old", 8, "n1")
    it.now += 300
    it.terminate("old")
    _, found = answer(tmp_path, listed(it), pod("new", 8))
    assert found["parts"][0]["start"]["at"] == pytest.approx(NOW + 300, abs=5)
    assert found["room"][0]["pods"] == []


def test_a_pod_without_a_plan_is_presumed(tmp_path: Path) -> None:
    it = cluster("dgx1-v100")
    it.add_pod("past-us", 3, node="n1")
    status, found = answer(tmp_path, listed(it), pod("new", 5))
    assert (status, found["presumed"]) == (0, ["ml/past-us"])
    assert answer(tmp_path, listed(it), pod("new", 6))[0] == 1


def test_a_job_that_waits_there_already_is_the_one_asked_about(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    runs(it, "old", 8, "n1", expected_duration="1h")
    it.add_pod("mine", 8)
    _, found = answer(tmp_path, listed(it), pod("mine", 8))
    assert found["parts"][0]["start"]["at"] == pytest.approx(NOW + 3600, abs=10)
    assert any("in the cluster already and waits" in note for note in found["notes"])


def test_a_gang_that_waits_there_already_is_the_one_asked_about(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u1"}
    given = listed(it)
    for index in range(2):
        made = pod(f"train-{index}-x7k2p", 4)
        made["metadata"] |= {
            "uid": f"u-{index}",
            "ownerReferences": [{**owner, "controller": True}],
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        }
        given["items"].append(made)
    status, found = answer(tmp_path, given, job("train", 2, 4))
    (part,) = found["parts"]
    assert (status, part["is_gang"], part["size"]) == (0, True, 2)
    assert [place["pod"] for place in part["places"]] == ["train-0-x7k2p", "train-1-x7k2p"]


def test_of_several_jobs_those_that_are_not_there_yet_are_asked_about_too(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u1"}
    given = listed(it)
    for index in range(3):
        made = pod(f"train-{index}-x7k2p", 8)
        made["metadata"] |= {
            "uid": f"u-{index}",
            "ownerReferences": [{**owner, "controller": True}],
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        }
        given["items"].append(made)
    status, found = answer(
        tmp_path, given, a_list([job("train", 3, 8), job("one", 2, 1), pod("bare", 1)])
    )
    parts = {part["name"]: (part["is_gang"], part["state"]) for part in found["parts"]}
    assert parts == {
        "Job.batch/train": (True, "waits"),
        "Job.batch/one": (True, "fits"),
        "bare": (False, "fits"),
    }
    assert status == 1
    (note,) = (note for note in found["notes"] if "already" in note)
    assert note == (
        "Job.batch ml/train is in the cluster already and waits: this is for its 3 pods there, as "
        "old as they are"
    )


def test_a_gang_of_which_some_bare_pods_are_there_is_asked_about_whole(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    pods = [pod(f"g-{rank}", 4, {"gang": "g", "gang-size": "2"}) for rank in range(2)]
    given = listed(it)
    given["items"].append({**pods[0], "metadata": {**pods[0]["metadata"], "uid": "real"}})
    status, found = answer(tmp_path, given, a_list(pods))
    (part,) = found["parts"]
    assert (status, part["state"], len(part["places"])) == (0, "fits", 2)


def test_a_job_that_runs_there_already_is_refused(tmp_path: Path) -> None:
    it = busy()
    text = refusal(tmp_path, listed(it), pod("old", 1))
    assert "in the cluster already, where 1 of its 1 pods have a node" in text


def test_nodes_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    it = cluster("dgx-a100", "dgx-a100")
    it.annotate_node("n2", "linkwise.dev/topology", "{")
    _, found = answer(tmp_path, listed(it), pod("new", 8))
    assert [(left["nodes"]) for left in found["left_out"]] == [["n2"]]
    assert "linkwise.dev/topology" in found["left_out"][0]["because"]


def test_text_is_for_people(tmp_path: Path) -> None:
    it = busy()
    told = what_if(tmp_path, listed(it), pod("new", 1)).stdout.splitlines()
    assert told[0] == "  cluster   8 GPUs on 1 node: 1 free, 7 in use"
    assert "All of it fits now." in told


def test_two_questions_have_one_answer(tmp_path: Path) -> None:
    """The command writes nothing, and nothing depends on chance."""
    it = busy()
    before = dict(it.pods)
    first = what_if(tmp_path, listed(it), job("train", 2, 8)).stdout
    assert what_if(tmp_path, listed(it), job("train", 2, 8)).stdout == first
    assert it.pods == before


def test_gpus_from_claims_are_in_use_and_none_of_them_is_planned(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    devices = [
        {"apiVersion": "resource.k8s.io/v1", "kind": kind, **msgspec.to_builtins(one)}
        for kind, one in (
            ("ResourceSlice", slice_of("n1", uuids(it, "n1"))),
            ("ResourceClaim", claim_of("c", "n1", 0, 1, pods=[it.add_pod("runs", node="n1")])),
        )
    ]
    text = json.dumps(a_list([*nodes_of(it), *pods_of(it), *devices]))
    status, found = answer(tmp_path, text, pod("one", 1))
    assert status == 1
    assert (found["cluster"]["gpus"]["used"], found["cluster"]["gpus"]["free"]) == (2, 6)
    assert "a DRA driver gives out its GPUs" in json.dumps(found)
    of_another_version = text.replace("resource.k8s.io/v1", "resource.k8s.io/v1beta1")
    assert answer(tmp_path, of_another_version, pod("one", 1))[0] == 0


def test_whether_a_job_can_start_on_gpus_from_claims_is_not_known(tmp_path: Path) -> None:
    it = Cluster()
    claimed.add_node(it, "n1")
    devices = [
        {"apiVersion": "resource.k8s.io/v1", "kind": kind, **msgspec.to_builtins(one)}
        for kind, one in (
            ("ResourceSlice", slice_of("n1", uuids(it, "n1"))),
            ("ResourceClaim", claim_of("c", "n1", 0, 1, pods=[claimed.add_pod(it, "a", "n1", 0)])),
        )
    ]
    text = json.dumps(a_list([*nodes_of(it), *pods_of(it), *devices]))
    status, found = answer(tmp_path, text, pod("one", 1))
    assert found["presumed"] == []
    (left,) = found["left_out"]
    assert (status, left["nodes"], found["never"]) == (1, ["n1"], None)
    assert "webhook" in left["because"]


def test_what_is_wrong_in_a_slice_is_named(tmp_path: Path) -> None:
    wrong = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": {"driver": 1}}
    text = json.dumps(a_list([*nodes_of(busy()), wrong]))
    assert "spec.driver" in refusal(tmp_path, text, pod("one", 1))
