"""`linkwise what-if --replay`: a cluster's own past, from its pods."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from linkwise.cli.__main__ import main
from tests.cli.what_if.asking import a_list, cluster, listed, nodes_of, runs
from tests.cli.what_if.past_listing import a_job, past, past_pod, time
from tests.cli.what_if.past_replay import (
    LINKWISE,
    STOCK,
    WAS,
    gang,
    invoke,
    only,
    refusal,
    replayed,
)
from tests.pods.podgrouper.pods import Object, template


def test_a_gang_is_worth_what_its_ring_is_as_it_was_and_as_linkwise_places_it() -> None:
    """GPU 0 is busy: NVIDIA's plugin gives 1 to 4 one by one, whose ring is slow; 4 to 7 are
    joined by NVLinks."""
    made, pods = gang("train", 4, 1, 1.01, 20)
    found = replayed(past([past_pod("a", 1, 0, 0.01, 30), *pods], objects=[made]))
    assert (found["jobs"], found["gangs"], found["pods"]) == (2, 1, 5)
    (train,) = (job for job in found["there"] if job["gpus"] == 4)
    assert train["job"] == "ml/Job.batch/train"
    assert train["gbytes_per_s"][WAS] < 30
    assert train["gbytes_per_s"][LINKWISE] == train["best_gbytes_per_s"] == 80.0
    outcome = found["outcomes"]
    assert outcome[LINKWISE]["gbytes_per_s"] == 80.0
    assert outcome[LINKWISE]["of_best"] == 1.0
    assert outcome[WAS]["of_best"] == pytest.approx(train["gbytes_per_s"][WAS] / 80)


def test_the_objects_that_pods_hang_on_say_which_gang_they_were() -> None:
    _, pods = gang("train", 4, 1, 1.01, 20)
    found = replayed(past(pods))
    assert found["gangs"] == 0
    assert any("Job.batch ml/train" in note for note in found["notes"])


def test_a_gang_whose_pods_were_created_again_has_run_twice() -> None:
    made, first = gang("train", 2, 1, 1.01, 5)
    _, second = gang("train", 2, 6, 6.01, 9)
    found = replayed(past([*first, *second], objects=[made]))
    assert [job["job"] for job in found["there"]] == [
        "ml/Job.batch/train",
        "ml/Job.batch/train (run 2)",
    ]


def test_one_member_that_was_created_again_is_a_job_of_its_own() -> None:
    """The others went on, so the core must not wait for them."""
    made, pods = gang("train", 2, 1, 1.01, 30)
    again = past_pod("train-0-again", 1, 10, 10.5, 30, by=made, index=0)
    pods[0]["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = time(9)
    found = replayed(past([*pods, again], objects=[made]))
    assert (found["jobs"], found["outcomes"][LINKWISE]["waiting"]) == (2, 0)


def test_gpus_of_a_claim_are_replayed_as_others_are() -> None:
    entry = {"name": "gpus", "resourceClaimName": "linkwise-" + "0" * 20}
    said = {"gpus": {"claim": entry["resourceClaimName"], "requests": {"main": 4}}}
    claims: Any = {"said": {"claims": json.dumps(said)}, "resourceClaims": [entry]}
    found = replayed(past([past_pod("a", 0, 0.0, 1.0, 2.0, **claims), past_pod("b", 4, 0, 1, 2)]))
    assert found == replayed(past([past_pod("a", 4, 0.0, 1.0, 2.0), past_pod("b", 4, 0, 1, 2)]))


def test_waits_are_from_creation_to_the_node() -> None:
    """One node: `late` could have had it from 4 on, and got it at 7."""
    pods = [past_pod("first", 8, 0, 0, 4), past_pod("late", 8, 1, 7, 9)]
    found = replayed(past(pods))
    (late,) = (job for job in found["there"] if job["job"] == "ml/late")
    assert late["queued_s"] == {WAS: 6 * 3600, STOCK: 3 * 3600, LINKWISE: 3 * 3600}
    outcome = found["outcomes"]
    assert outcome[WAS]["queue_mean_s"] == outcome[WAS]["large_queue_mean_s"] == 3 * 3600
    # From 4 to 7 no pod used the eight GPUs, and it waited.
    assert (outcome[WAS]["waited_hours"], outcome[WAS]["idle_gpu_hours"]) == (6.0, 24.0)
    assert (outcome[LINKWISE]["waited_hours"], outcome[LINKWISE]["idle_gpu_hours"]) == (3.0, 0.0)


def test_the_past_with_the_other_order_of_the_queue() -> None:
    """By age `old` goes first, which runs for six hours; `whole` counts as older by its size."""
    pods = [
        past_pod("first", 8, 0, 0, 4),
        past_pod("old", 2, 1, 4, 10),
        past_pod("whole", 8, 2, 10, 12),
    ]
    waits = {
        order: {job["job"]: job["queued_s"][LINKWISE] / 3600 for job in found["there"]}
        for order in ("age", "multifactor")
        for found in [replayed(past(pods), "--queue-order", order)]
    }
    assert waits["age"] == {"ml/first": 0, "ml/old": 3, "ml/whole": 8}
    assert waits["multifactor"] == {"ml/first": 0, "ml/old": 5, "ml/whole": 2}


def test_what_waits_counts_till_the_listing_and_what_runs_keeps_its_gpus() -> None:
    pods = [past_pod("runs", 8, 0, 0), past_pod("waits", 8, 160)]
    found = replayed(past(pods))
    for outcome in found["outcomes"].values():
        assert (outcome["waiting"], outcome["queue_longest_s"]) == (1, 8 * 3600)
    assert found["running"] == 1


@pytest.mark.parametrize(
    ("status", "queued"),
    [
        ({"phase": "Succeeded", "startTime": time(2)}, 2.0),
        ({"phase": "Succeeded"}, 3.0),
        (
            {
                "phase": "Failed",  # evicted: its containers have no end
                "reason": "Evicted",
                "startTime": time(2),
                "containerStatuses": [],
                "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": time(9)}],
            },
            2.0,
        ),
    ],
    ids=["startTime", "startedAt", "evicted"],
)
def test_times_are_read_from_what_the_pod_has(status: Object, queued: float) -> None:
    pod = past_pod("one", 2, 0, 3, 9)
    pod["status"] = {**pod["status"], "conditions": [], **status}
    job = only(replayed(past([pod])))
    assert job["queued_s"][WAS] == queued * 3600


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"status": {"phase": "Failed"}, "spec": {"nodeName": ""}}, "gone before it got a node"),
        ({"status": {"phase": "Running"}}, "nothing says when it got its node"),
        ({"status": {"phase": "Failed", "startTime": time(1)}}, "nothing says when it ended"),
        ({"metadata": {"creationTimestamp": None}}, "no creationTimestamp"),
    ],
)
def test_a_pod_that_says_too_little_is_ignored_and_said_so(change: Object, because: str) -> None:
    odd = past_pod("odd", 1, 0, 1, 2)
    for key, fields in change.items():
        odd[key] = fields if key == "status" else {**odd[key], **fields}
    found = replayed(past([odd, past_pod("good", 1, 0, 1, 2)]))
    assert found["ignored"] == [{"because": because, "pods": ["ml/odd"]}]
    assert found["jobs"] == 1


def test_a_gang_that_never_had_all_its_pods_is_ignored_and_said_so() -> None:
    said = {"gang": "g", "gang-size": "2"}
    pods = [past_pod("g-0", 1, 1, said=said), past_pod("a", 1, 0, 0.01, 3)]
    found = replayed(past(pods))
    assert found["ignored"] == [
        {"because": "too few of its gang's pods are known, and none has run", "pods": ["ml/g-0"]}
    ]
    assert found["jobs"] == 1


def test_a_gang_whose_other_pod_cannot_be_replayed_is_ignored_with_it() -> None:
    said = {"gang": "g", "gang-size": "2"}
    pods = [past_pod(f"g-{rank}", 1, 1, said=said) for rank in range(2)]
    del pods[1]["metadata"]["creationTimestamp"]
    found = replayed(past([*pods, past_pod("a", 1, 0, 0.01, 3)]))
    assert found["jobs"] == 1
    assert sorted(pod for each in found["ignored"] for pod in each["pods"]) == ["ml/g-0", "ml/g-1"]


def test_members_that_replace_each_other_before_the_gang_was_whole_are_ignored() -> None:
    it = a_job("train", 4)
    pods = [past_pod(f"train-0-{at}", 1, at, by=it, index=0) for at in (1, 2)]
    found = replayed(past([*pods, past_pod("a", 1, 0, 0.01, 3)], objects=[it]))
    assert (found["jobs"], found["gangs"]) == (1, 0)


def test_a_gang_that_may_start_without_its_last_pod_is_replayed() -> None:
    said = {"gang": "g", "gang-size": "3", "gang-min": "2"}
    pods = [past_pod(f"g-{rank}", 1, 1, said=said) for rank in range(2)]
    found = replayed(past([*pods, past_pod("a", 1, 0, 0.01, 3)]))
    assert (found["ignored"], found["jobs"], found["gangs"]) == ([], 2, 1)


def test_a_member_that_was_created_again_and_waits_is_replayed() -> None:
    made, pods = gang("train", 2, 1, 1.01, 30)
    pods[0]["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = time(9)
    again = past_pod("train-0-again", 1, 10, by=made, index=0)
    found = replayed(past([*pods, again], objects=[made]))
    assert (found["ignored"], found["jobs"]) == ([], 2)


def test_a_job_that_could_never_start_is_ignored() -> None:
    pods = [past_pod("good", 1, 0, 1, 2), past_pod("huge", 16, 0, 1, 2, node="gone")]
    (ignored,) = replayed(past(pods))["ignored"]
    assert ignored["pods"] == ["ml/huge"]
    assert "not even when they are idle" in ignored["because"]


def test_the_plan_says_which_gpus_a_pod_had_else_they_are_presumed() -> None:
    it = cluster("dgx1-v100")
    runs(it, "planned", 2, "n1")
    given = listed(it)
    for made in given["items"]:
        if made["kind"] == "Pod":
            made["metadata"]["creationTimestamp"] = time(0)
            made["status"]["startTime"] = time(0)
    given["items"].append(past_pod("other", 2, 1, 1, 5))
    found = replayed(given)
    assert found["presumed"] == ["ml/other"]
    assert {job["job"]: job["presumed"] for job in found["there"]} == {
        "ml/planned": False,
        "ml/other": True,
    }


def test_the_gpus_that_the_plugin_names_are_those_that_a_running_pod_has() -> None:
    """The plugin names 0 and 5, which no NVLink joins; NVIDIA's choice would be 0 and 3."""
    it = cluster("dgx1-v100")
    uuids = it.uuids("n1", 0, 5)
    said = json.dumps({"v": 1, "pods": {"ml/run": {"main": uuids}}})
    it.annotate_node("n1", "linkwise.dev/in-use", said)
    found = replayed(a_list([*nodes_of(it), past_pod("run", 2, 0, 0)]))
    job = only(found)
    assert (job["presumed"], found["presumed"]) == (False, [])
    assert job["gbytes_per_s"][WAS] < job["gbytes_per_s"][STOCK]


def test_a_running_pod_has_all_gpus_of_a_larger_init_container() -> None:
    """The plugin lists no init container, so the plan alone names what the kubelet keeps for it."""
    it = cluster("dgx1-v100")
    four = it.uuids("n1", 0, 3, 4, 7)
    used = {"v": 1, "pods": {"ml/run": {"main": four[1:3]}}}
    it.annotate_node("n1", "linkwise.dev/in-use", json.dumps(used))
    gpus = {"init": four, "main": four}
    said = {"plan": '{"v":1,"uid":"uid-run-0","id":"x","node":"n1"}', "gpus": json.dumps(gpus)}
    (init,) = template(4)["spec"]["containers"]
    pod = past_pod("run", 2, 0, 0, said=said, initContainers=[{**init, "name": "init"}])
    found = replayed(a_list([*nodes_of(it), pod]))
    job = only(found)
    assert (job["gpus"], job["presumed"], found["presumed"]) == (4, False, [])


def test_a_node_that_is_gone_leaves_the_waits_and_takes_the_gbytes() -> None:
    found = replayed(past([past_pod("two", 2, 0, 1, 5, node="gone")]))
    job = only(found)
    assert (job["queued_s"][WAS], job["gbytes_per_s"][WAS]) == (3600, None)
    assert found["judged"] == 0
    assert found["outcomes"][LINKWISE]["gbytes_per_s"] is None
    assert any("ml/two" in note for note in found["notes"])


def test_both_replays_go_where_the_pod_may_go() -> None:
    """The H100s are faster, but its selector names the V100s."""
    nodes = nodes_of(cluster("dgx1-v100", "hgx-h100", n1={"pool": "old"}))
    pod = past_pod("two", 2, 0, 1, 5, nodeSelector={"pool": "old"})
    job = only(replayed(a_list([*nodes, pod])))
    assert job["gbytes_per_s"][STOCK] == job["gbytes_per_s"][LINKWISE] < 100
    assert job["best_gbytes_per_s"] < 100


def test_the_more_important_goes_first_in_both_replays() -> None:
    pods = [
        past_pod("first", 8, 0, 0, 4),
        past_pod("older", 8, 1, 4, 8),
        past_pod("urgent", 8, 2, 8, 10, priority=1000),
    ]
    found = {job["job"]: job["queued_s"] for job in replayed(past(pods))["there"]}
    assert found["ml/urgent"] == {WAS: 6 * 3600, STOCK: 2 * 3600, LINKWISE: 2 * 3600}


def write(tmp_path: Path, name: str, given: object) -> str:
    path = tmp_path / name
    path.write_text(given if isinstance(given, str) else json.dumps(given))
    return str(path)


def test_listings_of_several_days_are_one_history(tmp_path: Path) -> None:
    """`long` ran in the first listing and has ended in the second; `gone` was deleted in between;
    two pods of a StatefulSet may have had one name."""
    first = past(
        [past_pod("long", 2, 0, 1), past_pod("gone", 2, 0, 1), past_pod("web-0", 2, 0, 1, 3)]
    )
    second = past([past_pod("long", 2, 0, 1, 30), past_pod("web-0", 2, 25, 26, 40)])
    files = [write(tmp_path, "1.json", first), write(tmp_path, "2.json", second)]
    for order in (files, files[::-1]):
        found = replayed("", *(word for file in order for word in ("-f", file)))
        assert found["jobs"] == 4
        assert found["running"] == 0
        assert any("ml/gone" in note for note in found["notes"])


def test_a_namespace_that_a_listing_leaves_out_is_not_gone(tmp_path: Path) -> None:
    other = past_pod("else", 1, 50, 51)
    other["metadata"]["namespace"] = "other"
    files = [
        write(tmp_path, "1.json", past([past_pod("runs", 2, 0, 1)])),
        write(tmp_path, "2.json", past([other])),
    ]
    found = replayed("", *(word for file in files for word in ("-f", file)))
    assert (found["running"], found["notes"]) == (2, [])


HISTORY = f"""namespace,pod,gpus,created,bound,ended,node,gang,priority,node_selector
ml,first,8,{time(0)},{time(0)},{time(4)},n1,,,
ml,a,4,{time(1)},{time(7)},{time(9)},n1,pair,1000,kubernetes.io/hostname=n1
ml,b,4,{time(1)},{time(7)},{time(9)},n1,pair,1000,
ml,waits,8,{time(8)},,,,,,
"""


def test_a_history_file_tells_the_same_as_pods(tmp_path: Path) -> None:
    both: dict[str, Any] = {"priority": 1000, "said": {"gang": "pair", "gang-size": "2"}}
    pods = [
        past_pod("first", 8, 0, 0, 4),
        past_pod("a", 4, 1, 7, 9, **both, nodeSelector={"kubernetes.io/hostname": "n1"}),
        past_pod("b", 4, 1, 7, 9, **both),
        past_pod("waits", 8, 8),
    ]
    file = write(tmp_path, "history.csv", HISTORY)
    assert replayed(past([]), "--history", file) == replayed(past(pods))


def test_seconds_since_1970_are_times_too(tmp_path: Path) -> None:
    file = write(
        tmp_path, "h.csv", "namespace,pod,gpus,created,bound\nml,a,2,1772000000,1772000060.5\n"
    )
    assert only(replayed(past([]), "--history", file))["queued_s"][WAS] == 60.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: no column namespace in: nothing"),
        ("namespace,pod,gpus\n", "line 1: no column created in: namespace, pod, gpus"),
        ("namespace,pod,gpus,created\nml,a,x,1\n", "line 2: gpus: 'x': expected a whole number"),
        ("namespace,pod,gpus,created\nml,a,0,1\n", "line 2: gpus: '0': expected 1 to"),
        ("namespace,pod,gpus,created\nml,a,1,soon\n", "line 2: created: 'soon': expected a time"),
        ("namespace,pod,gpus,created\nml,a,1,1e999\n", "line 2: created: '1e999': expected a"),
        ("namespace,pod,gpus,created\nml,a,1," + "9" * 40 + "\n", "line 2: created: '999"),
        ("namespace,pod,gpus,created\nml,a,1,\n", "line 2: created: '': expected a time"),
        ("namespace,pod,gpus,created\nml,,1,1\n", "line 2: pod: '': expected a name"),
        ("namespace,pod,gpus,created,ended\nml,a,1,1,2\n", "line 2: bound: '' with ended '2'"),
        ("namespace,pod,gpus,created,gang\nml,a,1,1," + "x" * 2000, "line 2: gang: "),
        ("namespace,pod,gpus,created,gang,gang_size\nml,a,1,1,g,0\n", "gang_size: '0': expected 1"),
        (
            "namespace,pod,gpus,created,node_selector\nml,a,1,1,x\n",
            "line 2: node_selector: 'x': expected key=value;key=value",
        ),
        ("namespace,pod,gpus,created\nml,a,1,1\nml,a,1,1\n", "line 3: uid: 'ml/a/1' stands in"),
        ('namespace,pod,gpus,created\nml,"a,1,1\n', "unexpected end of data"),
    ],
)
def test_a_wrong_history_file_is_one_line_with_its_place(
    text: str, said: str, tmp_path: Path
) -> None:
    file = write(tmp_path, "h.csv", text)
    line = refusal(past([past_pod("a", 1, 0, 1, 2)]), "--history", file)
    assert line.startswith(f"linkwise: --history {file}: ")
    assert said in line


def test_a_history_file_that_is_not_there_is_one_line() -> None:
    assert "--history no.csv: No such file" in refusal(past([]), "--history", "no.csv")


@pytest.mark.parametrize(
    ("pods", "options", "said"),
    [
        ([], (), "no pod there has had nvidia.com/gpu"),
        ([past_pod("a", 1, 0)], (), "no pod there has had nvidia.com/gpu"),
        ([past_pod("a", 1, 0, 1, 2)], ("--resource", "amd.com/gpu"), "has had amd.com/gpu"),
        ([past_pod("a", 1, 0, 1, 2)], ("--at", "2026-01-01"), "no pod there has had"),
        ([past_pod("a", 99, 0, 1, 2)], (), "no job there fits these nodes"),
        (
            [past_pod("a", 1, 0, 1, 2)],
            ("--submit", "x.yaml"),
            "--submit FILE, --replay or --moves N",
        ),
        ([past_pod("a", 1, 0, 1, 2)], ("--history", "-"), "standard input can be one of them"),
    ],
)
def test_a_past_that_cannot_be_replayed_is_one_line(
    pods: Sequence[Object], options: Sequence[str], said: str
) -> None:
    assert said in refusal(past(pods), *options)


def test_a_time_that_is_none_is_named_with_its_place() -> None:
    pod = past_pod("a", 1, 0, 1, 2)
    pod["status"]["startTime"] = "yesterday"
    line = refusal(past([pod]))
    assert "document 1: items[1]: status.startTime: " in line


def test_nothing_known_of_the_machines_is_one_line() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    assert "no node there whose GPUs are known" in refusal(a_list([node, past_pod("a", 1, 0, 1)]))


def test_history_is_for_the_replay_alone(tmp_path: Path) -> None:
    job = write(tmp_path, "job.yaml", past_pod("new", 1, 0))
    arguments = ["what-if", "--submit", job, "--history", "h.csv"]
    result = CliRunner().invoke(main, arguments, input=json.dumps(past([])))
    assert (result.exit_code, "--history: expected --replay" in result.stderr) == (2, True)


def test_the_same_past_is_the_same_answer_byte_for_byte() -> None:
    made, pods = gang("train", 4, 1, 1.5, 20)
    given = past([past_pod("a", 1, 0, 0.01, 30), *pods], objects=[made])
    assert invoke(given).stdout == invoke(given).stdout


def test_a_history_file_needs_no_tolerations(tmp_path: Path) -> None:
    (node,) = nodes_of(cluster("dgx1-v100"))
    node["spec"] = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    text = f"namespace,pod,gpus,created,bound,ended,node\nml,a,2,{time(0)},{time(1)},{time(2)},n1\n"
    assert replayed(a_list([node]), "--history", write(tmp_path, "h.csv", text))["jobs"] == 1


def test_times_without_a_zone_are_of_utc() -> None:
    pod = past_pod("one", 2, 0, 3, 9)
    (condition,) = pod["status"]["conditions"]
    condition["lastTransitionTime"] = condition["lastTransitionTime"].removesuffix("Z")
    assert only(replayed(past([pod])))["queued_s"][WAS] == 3 * 3600


def test_a_pod_may_be_called_as_the_second_run_of_another(tmp_path: Path) -> None:
    rows = "".join(
        f"ml,{name},2,{time(n)},{time(n)},{time(9)},n1,u{n}\n"
        for n, name in enumerate(("a", "a (run 2)", "a"))
    )
    text = f"namespace,pod,gpus,created,bound,ended,node,uid\n{rows}"
    found = replayed(past([]), "--history", write(tmp_path, "h.csv", text))
    assert [job["job"] for job in found["there"]] == ["ml/a", "ml/a (run 2)", "ml/a (run 3)"]


def test_a_job_that_was_submitted_again_under_its_name_is_another(tmp_path: Path) -> None:
    """Each listing has the Job that was there on its day."""
    first, pods = gang("train", 2, 1, 1.01, 5)
    second, later = gang("train", 4, 30, 30.01, 40)
    second["metadata"]["uid"] = "another"
    for pod in later:
        pod["metadata"]["ownerReferences"][0]["uid"] = "another"
    files = [
        write(tmp_path, "1.json", past(pods, objects=[first])),
        write(tmp_path, "2.json", past(later, objects=[second])),
    ]
    for order in (files, files[::-1]):
        found = replayed("", *(word for file in order for word in ("-f", file)))
        assert [(job["job"], job["pods"]) for job in found["there"]] == [
            ("ml/Job.batch/train", 2),
            ("ml/Job.batch/train (run 2)", 4),
        ]


def test_jobs_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    made, pods = gang("train", 2, 1, 1.01, 5)
    files = [write(tmp_path, "1.json", past(pods)), write(tmp_path, "2.json", a_list([made]))]
    assert replayed("", "-f", files[0], "-f", files[1])["gangs"] == 1
