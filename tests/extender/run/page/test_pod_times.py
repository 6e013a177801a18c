"""When pods were bound and began to run, from the API server's stand-in."""

from datetime import UTC, datetime

from linkwise.drawing.times import PodTimes
from linkwise.extender.run.page.pod_times import PodTimesReader
from linkwise.extender.state.records import PodRecord
from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Pod
from linkwise.simulator.api_server import ApiServer
from tests.extender.cluster import Cluster, change

PODS = "/api/v1/namespaces/ml/pods"
BOUND, RAN, ENDED = "2026-01-02T03:04:05Z", "2026-01-02T03:04:09Z", "2026-01-02T03:04:30Z"
SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": BOUND}


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).astimezone(UTC).timestamp()


def record(client: KubeClient, name: str = "a", phase: str = "Pending") -> PodRecord:
    """As the cache has it, of the pod that the API server has."""
    pod = client.get(f"{PODS}/{name}", Pod)
    spec = change(pod.spec, node_name="n1")
    cluster = Cluster()
    cluster.put_pod(change(pod, spec=spec, status=change(pod.status, phase=phase)))
    (found,) = cluster.core.snapshot(0).pods
    return found


def create(client: KubeClient, name: str = "a") -> None:
    spec = {"containers": [{"name": "main", "image": "x"}]}
    client.post(PODS, {"metadata": {"name": name}, "spec": spec})


def put_status(client: KubeClient, *states: object, name: str = "a") -> None:
    containers = [{"name": f"c{number}", "state": state} for number, state in enumerate(states)]
    status = {"conditions": [SCHEDULED], "containerStatuses": containers}
    client.patch(f"{PODS}/{name}/status", {"status": status})


def test_a_pod_has_its_times_as_it_gets_further(client: KubeClient) -> None:
    create(client)
    read = PodTimesReader(client)
    put_status(client, {"waiting": {"reason": "ContainerCreating"}})
    pod = record(client)
    assert read([pod]) == {pod.uid: PodTimes(pod.created, seconds(BOUND))}
    put_status(client, {"running": {"startedAt": RAN}}, {"running": {"startedAt": BOUND}})
    pod = record(client, phase="Running")
    assert read([pod]) == {pod.uid: PodTimes(pod.created, seconds(BOUND), seconds(RAN))}
    put_status(client, {"terminated": {"startedAt": RAN, "finishedAt": ENDED}})
    pod = record(client, phase="Succeeded")
    assert read([pod]) == {
        pod.uid: PodTimes(pod.created, seconds(BOUND), seconds(RAN), seconds(ENDED))
    }


def test_a_pod_is_read_once_until_it_gets_further(client: KubeClient) -> None:
    create(client)
    put_status(client, {"running": {"startedAt": RAN}})
    read, pod = PodTimesReader(client), record(client, phase="Running")
    first = read([pod])
    client.delete(f"{PODS}/a", grace_seconds=0)
    assert read([pod]) == first
    assert PodTimesReader(client)([pod]) == {}


def test_another_pod_of_the_same_name_lends_no_times(client: KubeClient) -> None:
    create(client)
    put_status(client, {"running": {"startedAt": RAN}})
    pod = record(client, phase="Running")
    client.delete(f"{PODS}/a", grace_seconds=0)
    create(client)
    put_status(client, {"running": {"startedAt": RAN}})
    assert PodTimesReader(client)([pod]) == {}


def test_without_an_api_server_the_times_are_not_known_and_it_is_not_asked_again_at_once(
    server: ApiServer, client: KubeClient
) -> None:
    create(client)
    put_status(client, {"running": {"startedAt": RAN}})
    now = [0.0]
    read, pod = PodTimesReader(client, clock=lambda: now[0]), record(client, phase="Running")
    server.pause()
    assert read([pod]) == {}
    server.resume()
    assert read([pod]) == {}  # it rests
    now[0] += 11
    assert set(read([pod])) == {pod.uid}


def test_a_status_that_is_none_is_no_time(client: KubeClient) -> None:
    create(client)
    client.patch(f"{PODS}/a/status", {"status": {"containerStatuses": [{"name": "x"}]}})
    pod = record(client)
    assert PodTimesReader(client)([pod]) == {pod.uid: PodTimes(pod.created)}
