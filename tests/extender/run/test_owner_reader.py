"""What pods hang on is read from the API server: found, missing, of an unknown kind, forbidden."""

import logging
from typing import Any

import pytest

from linkwise.extender.run.metrics import ExtenderMetrics
from linkwise.extender.run.reads import MOST_BYTES, OwnerReads
from linkwise.extender.state.membership.owner_cache import FetchOwner
from linkwise.kube.client import KubeClient
from linkwise.kube.errors import ApiError
from linkwise.pods.podgrouper.workloads.answer import Missing, ObjectRef
from linkwise.pods.podgrouper.workloads.kinds import JOB, MPI_JOB, OwnerKind
from linkwise.pods.podgrouper.workloads.systems import READ
from linkwise.simulator.api_server.kinds import KINDS

# Of MPIJobs the stand-in has two versions, as two kinds; here one will do.
SERVED = tuple(
    f"{kind.root}/namespaces/ml/{kind.plural}/"
    for kind in KINDS
    if kind.api_version != "kubeflow.org/v2beta1"
)


def fetch(kind: OwnerKind, name: str = "train", *paths: str, room: int = MOST_BYTES) -> FetchOwner:
    ref = ObjectRef(kind.group, kind.kind, "ml", name)
    return FetchOwner(ref, paths or kind.paths("ml", name), step=1, room=room)


def made(api_version: str, kind: str) -> dict[str, Any]:
    metadata = {"name": "train", "namespace": "ml"}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": {"replicas": 4}}


@pytest.mark.parametrize("kind", READ, ids=lambda kind: f"{kind.kind}.{kind.group}")
def test_every_kind_is_found_at_one_of_its_paths(client: KubeClient, kind: OwnerKind) -> None:
    """The stand-in serves one version of each, which need not be the first that is tried."""
    assert OwnerReads(client, ExtenderMetrics()).read(fetch(kind)) is Missing.NOT_FOUND
    (served,) = {path for path in kind.paths("ml", "train") if path.startswith(SERVED)}
    version = served.removeprefix("/apis/").partition("/namespaces/")[0]
    client.post(served.removesuffix("/train"), made(version, kind.kind))
    found = OwnerReads(client, ExtenderMetrics()).read(fetch(kind))
    assert not isinstance(found, Missing)
    assert found is not None
    assert found["spec"] == {"replicas": 4}


def test_a_kind_that_nobody_serves_is_not_the_same_as_an_object_that_is_not_there(
    client: KubeClient,
) -> None:
    unknown = OwnerKind("example.com", "Job", "jobs", ("v1", "v2"))
    assert OwnerReads(client, ExtenderMetrics()).read(fetch(unknown)) is Missing.NOT_SERVED
    paths = (*unknown.paths("ml", "train"), *MPI_JOB.paths("ml", "train"))
    assert (
        OwnerReads(client, ExtenderMetrics()).read(fetch(MPI_JOB, "train", *paths))
        is Missing.NOT_FOUND
    )


@pytest.mark.parametrize(("containers", "is_read"), [(100, True), (1000, False)])
def test_of_an_object_with_very_many_containers_only_that_is_known(
    client: KubeClient, containers: int, is_read: bool
) -> None:
    large = made("batch/v1", "Job")
    one = {"image": "x" * 90, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [{"name": f"c{number}", **one} for number in range(containers)]}
    large["spec"] = {"template": {"spec": spec}}
    client.post("/apis/batch/v1/namespaces/ml/jobs", large)
    found = OwnerReads(client, ExtenderMetrics()).read(fetch(JOB))
    assert (found is not Missing.TOO_LARGE) is is_read


def test_an_object_for_which_its_namespace_has_no_room_is_not_kept(client: KubeClient) -> None:
    client.post("/apis/batch/v1/namespaces/ml/jobs", made("batch/v1", "Job"))
    metrics = ExtenderMetrics()
    reads = OwnerReads(client, metrics)
    assert reads.read(fetch(JOB, room=100)) is Missing.NAMESPACE_FULL
    assert not isinstance(reads.read(fetch(JOB, room=1000)), Missing)
    counted = {"kind": "Job.batch", "result": "namespace-full"}
    assert metrics.registry.get_sample_value("linkwise_extender_owner_reads_total", counted) == 1


class _Refusing(KubeClient):
    """Refuses every caller with the same error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self._error = ApiError(status, reason, message)

    def get(self, *_: object, **__: object) -> Any:
        raise self._error


def test_what_may_not_be_read_is_told_once_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ExtenderMetrics()
    reads = OwnerReads(_Refusing(403, "Forbidden", "User cannot get resource"), metrics)
    with caplog.at_level(logging.WARNING):
        for kind in (JOB, MPI_JOB, JOB):
            assert reads.read(fetch(kind)) is Missing.FORBIDDEN
    told = [record.message for record in caplog.records]
    assert len(told) == 2
    counted = {"kind": "Job.batch", "result": "forbidden"}
    assert metrics.registry.get_sample_value("linkwise_extender_owner_reads_total", counted) == 2
    assert told[0].startswith("no right to read Job.batch: its pods count as single pods")


@pytest.mark.parametrize(
    ("status", "reason"), [(0, "Unreachable"), (429, "TooManyRequests"), (503, "Unavailable")]
)
def test_where_no_answer_comes_nothing_is_known(status: int, reason: str) -> None:
    assert (
        OwnerReads(_Refusing(status, reason, "later"), ExtenderMetrics()).read(fetch(JOB)) is None
    )


def test_the_bare_text_of_a_real_api_server_says_that_the_kind_is_not_served() -> None:
    reads = OwnerReads(_Refusing(404, "Unknown", "404 page not found"), ExtenderMetrics())
    assert reads.read(fetch(JOB)) is Missing.NOT_SERVED
