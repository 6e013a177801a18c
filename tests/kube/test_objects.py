"""Pods and Nodes as the API server writes them, decoded into the fields that Linkwise uses."""

from datetime import UTC, datetime

import msgspec
import pytest

from linkwise.kube.objects import LARGEST, CSINode, Node, Pod, milli, whole

POD = b"""{"kind":"Pod","apiVersion":"v1","metadata":{"name":"w-0","namespace":"ml","uid":"u1",
"resourceVersion":"17","creationTimestamp":"2026-01-02T03:04:05Z","managedFields":[{"a":1}],
"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"w","uid":"j1","controller":true,
"blockOwnerDeletion":true}]},
"spec":{"containers":[{"name":"main","image":"x","resources":{"limits":{"nvidia.com/gpu":"8"}}}],
"initContainers":[{"name":"side","restartPolicy":"Always","resources":{}}],
"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":
[{"matchExpressions":[{"key":"pool","operator":"In","values":["a","b"]}]}]}}},
"schedulingGates":[{"name":"linkwise.dev/plan"}],"priority":1000},
"status":{"phase":"Pending","nominatedNodeName":"n1","qosClass":"Burstable"}}"""


def test_a_pod_is_read_with_the_fields_we_use() -> None:
    pod = msgspec.json.decode(POD, type=Pod)
    assert (pod.metadata.name, pod.metadata.resource_version) == ("w-0", "17")
    assert pod.metadata.creation_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert pod.metadata.owner_references[0].controller
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "8"}
    assert pod.spec.init_containers[0].restart_policy == "Always"
    assert pod.spec.affinity is not None
    assert pod.spec.affinity.node_affinity is not None
    required = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    assert required is not None
    assert required.node_selector_terms[0].match_expressions[0].values == ("a", "b")
    assert pod.spec.scheduling_gates[0].name == "linkwise.dev/plan"
    assert pod.status.nominated_node_name == "n1"


def test_a_node_without_csi_drivers_has_null_for_them() -> None:
    text = b'{"metadata":{"name":"n1"},"spec":{"drivers":null}}'
    assert not msgspec.json.decode(text, type=CSINode).spec.drivers


def test_what_is_written_back_has_the_api_s_own_names() -> None:
    pod = msgspec.json.decode(POD, type=Pod)
    written = msgspec.to_builtins(pod)
    assert written["status"]["nominatedNodeName"] == "n1"
    assert written["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"


def test_a_wrong_type_is_refused_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.taints\[0\]"):
        msgspec.json.decode(b'{"spec":{"taints":[{"key":"gpu"}]}}', type=Node)


@pytest.mark.parametrize(
    ("quantity", "thousandths"), [("500m", 500), ("2", 2000), (1.5, 1500), ("0.0001", 1)]
)
def test_cpu_is_counted_in_thousandths_rounded_up(quantity: str | float, thousandths: int) -> None:
    assert milli(quantity) == thousandths


@pytest.mark.parametrize(
    ("quantity", "units"), [("64Gi", 64 << 30), ("1k", 1000), (8, 8), ("1500m", 2), ("1e3", 1000)]
)
def test_memory_and_devices_are_counted_in_units_rounded_up(
    quantity: str | int, units: int
) -> None:
    assert whole(quantity) == units


@pytest.mark.parametrize(
    "text", ["", "much", "nan", "inf", "1Zi", "1_0", " 1", "1 ", "１", "1e", "1K", "."]
)
def test_what_is_no_quantity_is_refused_and_shown(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}': expected a quantity"):
        whole(text)


@pytest.mark.parametrize("text", ["1e30", "16Ei", "1e999999"])
def test_a_quantity_beyond_all_measure_is_capped_as_kubernetes_does(text: str) -> None:
    assert whole(text) == LARGEST
    assert LARGEST - 1000 < milli(text) <= LARGEST
    assert whole(f"-{text}") == -LARGEST


def test_an_exponent_beyond_all_numbers_is_no_quantity() -> None:
    with pytest.raises(ValueError, match="'1e9999999Ki': expected a quantity"):
        whole("1e9999999Ki")
