"""The extender stores only those fields of an owner that some rule reads."""

import json
from typing import Any

import msgspec
import pytest

from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.essence import essence
from tests.pods.podgrouper.pods import ref_of
from tests.pods.podgrouper.workload_cases import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_it_tells_the_table_what_the_whole_object_does(case: dict[str, Any]) -> None:
    whole = {ref_of(made): made for made in case["objects"]}
    kept = {ref: essence(made) for ref, made in whole.items()}
    for row in case["pods"]:
        pod = msgspec.convert(row["pod"], Pod)
        assert recognise(pod, kept) == recognise(pod, whole)


def test_what_no_rule_reads_is_left_out_however_deep_it_lies() -> None:
    noise, endless = "x" * 300, "y" * 5000
    container = {
        "name": "main",
        "env": [{"name": "A", "value": noise}],
        "resources": {"limits": {}},
    }
    template = {
        "metadata": {
            "labels": {"a": endless},
            "annotations": {"b": noise, "linkwise.dev/gang": "g"},
        },
        "spec": {"containers": [container], "volumes": [{"name": noise}], "subdomain": "s"},
    }
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "set", "uid": "u", "managedFields": [noise], "labels": {"c": noise}},
        "spec": {
            "replicatedJobs": [{"name": "w", "template": {"spec": {"template": template}}}],
            "note": endless,
        },
        "status": {"conditions": [{"message": noise}], "succeeded": 3, "active": 5},
    }
    kept = essence(made)
    assert noise not in json.dumps(kept)
    assert endless not in json.dumps(kept)
    assert "linkwise.dev/gang" in json.dumps(kept)
    assert '"subdomain": "s"' in json.dumps(kept)
    assert '"labels": {"a": ""}' in json.dumps(kept)
    again = {**made, "status": {"succeeded": 3, "active": 4}}
    assert essence(again) == kept


def test_where_pods_may_run_is_kept_of_owners_that_may_create_them_late() -> None:
    spec = {
        "containers": [{"name": "main", "ports": [{"hostPort": 80}, {"containerPort": 8080}]}],
        "nodeSelector": {"pool": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "b", "emptyDir": {}},
        ],
        "hostAliases": [{"ip": "10.0.0.1"}],
    }
    template = {"metadata": {"labels": {"app": "lm"}}, "spec": spec}
    kept = essence({"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"template": template}})
    assert kept["spec"] == {
        "template": {
            "metadata": {"annotations": {}, "labels": {"app": "lm"}},
            "spec": {
                "containers": [{"name": "main", "ports": [{"hostPort": 80}]}],
                "nodeSelector": {"pool": "h100"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}],
            },
        }
    }
    job = essence({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template}})
    assert "h100" not in json.dumps(job)


def test_an_object_nested_without_end_is_cut_off() -> None:
    spec: dict[str, Any] = {}
    for _ in range(900):
        spec = {"x": [spec]}
    assert len(json.dumps(essence({"kind": "K", "spec": spec}))) < 500
