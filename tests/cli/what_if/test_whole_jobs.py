"""A job is more than its pods with GPUs: members without any count, and some come after others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cli.what_if.asking import answer, cluster, listed, manifest, pod, runs, what_if
from tests.pods.podgrouper.pods import Object, template


def pods(gpus: int = 0, cpu: str = "", **spec: Any) -> Object:
    found = template(gpus)
    if cpu:
        found["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    found["spec"].update(spec)
    return found


def ray(head: Object, worker: Object, workers: int = 1) -> Object:
    group = {"groupName": "g", "replicas": workers, "template": worker}
    return manifest(
        "ray.io/v1 RayCluster",
        "ray",
        {"headGroupSpec": {"template": head}, "workerGroupSpecs": [group]},
    )


def mpi(launcher: Object, worker: Object, workers: int = 1, **spec: Any) -> Object:
    specs = {
        "Launcher": {"template": launcher},
        "Worker": {"replicas": workers, "template": worker},
    }
    return manifest("kubeflow.org/v2beta1 MPIJob", "mpi", {**spec, "mpiReplicaSpecs": specs})


def job_set(*replicated: Mapping[str, Any], **spec: Any) -> Object:
    jobs = [
        {**item, "template": {"spec": {"parallelism": 1, "template": item["template"]}}}
        for item in replicated
    ]
    return manifest("jobset.x-k8s.io/v1alpha2 JobSet", "set", {**spec, "replicatedJobs": jobs})


def test_a_head_that_no_node_can_take_is_named(tmp_path: Path) -> None:
    """Found: "All of it fits now." of a RayCluster whose head never runs."""
    given, asked = listed(cluster("dgx-a100")), ray(pods(cpu="400"), pods(8))
    status, found = answer(tmp_path, given, asked)
    (head,) = found["without_gpus"]
    assert (status, found["fits"], found["never"], found["room"]) == (1, False, {"why": []}, [])
    assert (head["pod"], head["node"], head["never"]) == ("ml/ray-head", "", True)
    assert head["lacks"] == ["400 CPUs, and no node has more than 96 CPUs"]
    assert head["reasons"] == {"Insufficient cpu": 1}
    assert [part["never"] for part in found["parts"]] == [False]
    text = what_if(tmp_path, given, asked).stdout
    assert "It can never run whole on these nodes: no room for pod ml/ray-head, even" in text


def test_it_is_named_whatever_the_kind_is_and_whatever_keeps_it_out(tmp_path: Path) -> None:
    elsewhere = pods(nodeSelector={"pool": "cpu"})
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), mpi(elsewhere, pods(8)))
    (launcher,) = found["without_gpus"]
    assert (status, launcher["never"], launcher["lacks"]) == (1, True, [])
    assert launcher["pod"].startswith("ml/mpi-launcher-")
    (reason,) = launcher["reasons"]
    assert "affinity/selector" in reason


def test_a_head_takes_its_room_from_the_pods_with_gpus(tmp_path: Path) -> None:
    asked = ray(pods(cpu="8"), pods(8, cpu="90"), workers=2)
    status, found = answer(tmp_path, listed(cluster("dgx-a100", "dgx-a100")), asked)
    assert (status, found["parts"][0]["state"]) == (1, "waits")
    assert found["without_gpus"][0]["node"]
    status, found = answer(tmp_path, listed(cluster("dgx-a100", "dgx-a100", "dgx-a100")), asked)
    places = {place["node"] for place in found["parts"][0]["places"]}
    assert (status, len(places)) == (0, 2)
    assert found["without_gpus"][0]["node"] not in places


def test_pods_with_and_without_gpus_that_never_fit_together_never_start(tmp_path: Path) -> None:
    """Each of them fits alone."""
    asked = ray(pods(cpu="60"), pods(8, cpu="60"))
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), asked)
    assert (status, found["room"]) == (1, [])
    assert found["never"] is not None
    assert [each["never"] for each in found["without_gpus"]] == [False]


def test_where_a_head_goes_is_shown(tmp_path: Path) -> None:
    text = what_if(tmp_path, listed(cluster("dgx-a100")), ray(pods(cpu="4"), pods(8))).stdout
    assert "All of it fits now." in text
    assert "Without GPUs: ml/ray-head on n1." in text


def test_a_head_waits_for_the_pods_that_have_the_cpus(tmp_path: Path) -> None:
    it = cluster("dgx-a100", "dgx-a100")
    runs(it, "busy", 1, "n1")
    it.add_pod("cpus", cpu="60", node="n1")
    it.add_pod("more", cpu="60", node="n2")
    status, found = answer(tmp_path, listed(it), ray(pods(cpu="50"), pods(4)))
    (head,) = found["without_gpus"]
    assert (status, head["node"], head["never"]) == (1, "", False)
    (room,) = found["room"]
    assert (len(room["pods"]), room["fewest"]) == (1, True)
    assert room["pods"][0]["pod"] in ("ml/cpus", "ml/more")


def test_of_a_gang_the_members_are_named_that_no_node_can_take(tmp_path: Path) -> None:
    specs = {
        "Master": {"template": pods(2)},
        "Worker": {"replicas": 2, "template": pods(16)},
    }
    asked = manifest("kubeflow.org/v1 PyTorchJob", "train", {"pytorchReplicaSpecs": specs})
    given = listed(cluster("dgx-a100"))
    (part,) = answer(tmp_path, given, asked)[1]["parts"]
    assert part["hopeless"] == ["ml/train-worker-0", "ml/train-worker-1"]
    text = what_if(tmp_path, given, asked).stdout
    assert "no room for pod ml/train-worker-0, pod ml/train-worker-1, even" in text


def test_jobs_in_order_come_one_after_the_other(tmp_path: Path) -> None:
    replicated = [{"name": name, "template": pods(8)} for name in ("a", "b", "c")]
    asked = job_set(*replicated, startupPolicy={"startupPolicyOrder": "InOrder"})
    status, found = answer(tmp_path, listed(cluster("dgx-a100", "dgx-a100", "dgx-a100")), asked)
    assert (status, found["fits"], found["to_come"]) == (0, True, [])
    assert {place["node"] for place in found["parts"][0]["places"]} == {"n1", "n2", "n3"}


def test_jobs_in_order_of_which_the_last_have_no_room_do_not_begin(tmp_path: Path) -> None:
    replicated = [{"name": name, "template": pods(8)} for name in ("a", "b", "c")]
    asked = job_set(*replicated, startupPolicy={"startupPolicyOrder": "InOrder"})
    status, found = answer(tmp_path, listed(cluster("dgx-a100", "dgx-a100")), asked)
    (part,) = found["parts"]
    assert (status, part["state"], part["size"], part["never"]) == (1, "waits", 3, True)
    assert [place["node"] for place in part["places"]] == [""]
    assert [each["wanted"] for each in found["to_come"]] == [8, 8]
    assert not [note for note in found["notes"] if "more pods in the cluster" in note]


def test_room_for_jobs_in_order_is_room_for_all_of_them(tmp_path: Path) -> None:
    it = cluster("dgx-a100", "dgx-a100", "dgx-a100")
    runs(it, "old", 4, "n1", expected_duration="1h")
    replicated = [{"name": name, "template": pods(8)} for name in ("a", "b", "c")]
    asked = job_set(*replicated, startupPolicy={"startupPolicyOrder": "InOrder"})
    _, found = answer(tmp_path, listed(it), asked)
    assert [each["pod"] for each in found["room"][0]["pods"]] == ["ml/old"]
    (part,) = found["parts"]
    assert {place["node"] for place in part["start"]["places"]} == {"n1", "n2", "n3"}


def test_a_leader_and_its_workers_share_their_exclusive_domain(tmp_path: Path) -> None:
    racks = {f"n{n}": {"rack": rack} for n, rack in ((1, "a"), (2, "b"), (3, "b"))}
    spec = {"leaderWorkerTemplate": {"size": 2, "workerTemplate": pods(8)}}
    said = {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}
    kind = "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet"
    asked = manifest(kind, "serve", spec, annotations=said)
    given = listed(cluster("dgx-a100", "dgx-a100", "dgx-a100", **racks))
    status, found = answer(tmp_path, given, asked)
    assert (status, found["fits"], found["to_come"]) == (0, True, [])
    assert {place["node"] for place in found["parts"][0]["places"]} == {"n2", "n3"}


def test_what_comes_after_a_pod_that_does_not_run_is_not_created(tmp_path: Path) -> None:
    asked = manifest("apps/v1 StatefulSet", "db", {"replicas": 3, "template": pods(8)})
    given = listed(cluster("dgx-a100"))
    status, found = answer(tmp_path, given, asked)
    assert (status, [part["state"] for part in found["parts"]]) == (1, ["fits", "waits"])
    (last,) = found["to_come"]
    assert last == {"pod": "ml/db-2", "wanted": 8, "after": "pod db-1 is ready"}
    text = what_if(tmp_path, given, asked).stdout
    assert "\nNot created until pod db-1 is ready: ml/db-2\n" in text


def test_workers_do_not_come_where_their_leader_never_runs(tmp_path: Path) -> None:
    spec = {
        "startupPolicy": "LeaderReady",
        "leaderWorkerTemplate": {
            "size": 2,
            "leaderTemplate": pods(cpu="400"),
            "workerTemplate": pods(8),
        },
    }
    asked = manifest("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", "serve", spec)
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), asked)
    assert (status, found["parts"]) == (1, [])
    assert [each["pod"] for each in found["to_come"]] == ["ml/serve-0-1"]
    assert [each["never"] for each in found["without_gpus"]] == [True]


def test_a_leader_that_waits_for_room_does_not_hide_its_workers(tmp_path: Path) -> None:
    it = cluster("dgx-a100")
    it.add_pod("cpus", cpu="90", node="n1")
    spec = {
        "startupPolicy": "LeaderReady",
        "leaderWorkerTemplate": {
            "size": 2,
            "leaderTemplate": pods(cpu="20"),
            "workerTemplate": pods(8),
        },
    }
    asked = manifest("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", "serve", spec)
    status, found = answer(tmp_path, listed(it), asked)
    assert status == 1
    assert [each["pod"] for each in found["room"][0]["pods"]] == ["ml/cpus"]


def test_a_launcher_comes_when_its_workers_are_ready(tmp_path: Path) -> None:
    in_order = {"launcherCreationPolicy": "WaitForWorkersReady"}
    asked = mpi(pods(cpu="4"), pods(8), workers=2, **in_order)
    status, found = answer(tmp_path, listed(cluster("dgx-a100", "dgx-a100")), asked)
    assert (status, [bool(each["node"]) for each in found["without_gpus"]]) == (0, [True])
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), asked)
    (later,) = found["to_come"]
    assert (status, later["after"]) == (1, "2 pods mpi-worker-0 to mpi-worker-1 are ready")


def test_what_comes_after_an_end_counts_as_if_that_was_at_once(tmp_path: Path) -> None:
    """The pods that have ended give their GPUs back."""
    after = {"name": "data", "status": "Complete"}
    asked = job_set(
        {"name": "data", "template": pods(4)},
        {"name": "train", "template": pods(8), "dependsOn": [after]},
    )
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), asked)
    assert (status, found["fits"]) == (0, True)
    (note,) = (each for each in found["notes"] if "ended at once" in each)
    assert "ml/set-data-0-0-" in note


def test_the_end_of_a_job_that_runs_some_pods_after_others_is_waited_for_too(
    tmp_path: Path,
) -> None:
    data = {"parallelism": 1, "completions": 3, "template": pods(4)}
    train = {"parallelism": 1, "completions": 1, "template": pods(8)}
    replicated = [
        {"name": "data", "template": {"spec": data}},
        {
            "name": "train",
            "template": {"spec": train},
            "dependsOn": [{"name": "data", "status": "Complete"}],
        },
    ]
    asked = manifest("jobset.x-k8s.io/v1alpha2 JobSet", "set", {"replicatedJobs": replicated})
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), asked)
    assert (status, found["to_come"]) == (0, [])


def test_no_moves_are_named_for_a_job_that_never_runs_whole(tmp_path: Path) -> None:
    it = cluster("dgx-a100", "dgx-a100")
    for number in (1, 2):
        runs(it, f"chat-{number}", 2, f"n{number}", movable="true")
    status, found = answer(tmp_path, listed(it), ray(pods(cpu="400"), pods(8)))
    assert (status, [part["moves"] for part in found["parts"]]) == (1, [None])


def test_a_pod_with_other_devices_counts_as_one_without_gpus(tmp_path: Path) -> None:
    head = pods(cpu="400")
    head["spec"]["containers"][0]["resources"]["limits"] = {"rdma/hca": "1"}
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), ray(head, pods(8)))
    assert (status, [each["never"] for each in found["without_gpus"]]) == (1, [True])


def test_a_lone_pod_without_gpus_is_still_no_job(tmp_path: Path) -> None:
    result = what_if(tmp_path, listed(cluster("dgx-a100")), pod("web", 0))
    assert (result.exit_code, result.stderr.count("no pod there takes")) == (2, 1)
