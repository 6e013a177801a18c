"""Pods that consent to planned moves, of controllers that recreate them, without kubelets: the test
runs them, and ends those that are evicted."""

import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from linkwise.kube.client import STRATEGIC_PATCH
from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_plan
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    NODES,
    PATIENCE_SECONDS,
    PODS,
    SchedulingWorld,
    maybe_gone,
)
from tests.cluster.support.scheduling.workload_pods import free, pod_template

# The extender learns from pods of earlier tests, which ran for seconds, that such pods end soon:
# then it waits for them.
_EXPECTED = {"expected_duration": "1h"}
_MOVABLE = {"movable": "true"}
CONSENT, COSTLIER = _MOVABLE | {"move_cost": "100ms"}, _MOVABLE | {"move_cost": "200ms"}
RUN_SECONDS = 2.0  # ten times the higher cost: a pod that has run for less does not move
ENDED_BY_SIGNAL = 143  # the exit code after SIGTERM
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"


def is_empty(world: SchedulingWorld) -> bool:
    for pod in world.pods():
        with maybe_gone():
            free(world, pod.metadata.name)
    return not world.taken()


# Workloads. Each has one pod, which is created on a node of the test's choice and may go anywhere.


def template(world: SchedulingWorld, app: str, node: str, **said: str) -> dict[str, Any]:
    """Return a template whose pods may run only on *node*, until `run` opens the others."""
    label_nodes(world, app, [node])
    made = pod_template(app, 2, **_EXPECTED | said)
    made["spec"]["nodeSelector"] = {app: "welcome"}
    return made


def label_nodes(world: SchedulingWorld, app: str, welcome: Collection[str]) -> None:
    for node in NODES:
        labels = {app: "welcome" if node in welcome else None}
        world.client.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})


def create_deployment(world: SchedulingWorld, app: str, node: str, **said: str) -> None:
    selector = {"matchLabels": {"app": app}}
    spec = {"replicas": 1, "selector": selector, "template": template(world, app, node, **said)}
    world.client.post(f"{APPS}/deployments", {"metadata": {"name": app}, "spec": spec})


# What kubelets do


def wait_while_played(
    world: SchedulingWorld, so: Callable[[], object], what: str, spare: Collection[str] = ()
) -> None:
    """Wait while pods run and end as on kubelets, except for those that *spare* names by their app:
    they take long to end."""

    def seen() -> object:
        play_kubelets(world, spare)
        return so()

    wait_for(seen, what, PATIENCE_SECONDS)


def play_kubelets(
    world: SchedulingWorld, spare: Collection[str] = (), unready: Collection[str] = ()
) -> None:
    """Let pods run and end, except those that *spare* names by their app. Pods of the apps
    *unready* run and are not ready."""
    for pod in world.pods():
        if not pod.spec.node_name:
            continue
        with maybe_gone():
            if not pod.is_leaving:
                ready = str(pod.metadata.labels.get("app") not in unready)
                if pod.status.phase == "Pending" or (
                    pod.status.phase == "Running" and readiness(pod) != ready
                ):
                    say(world, pod, "Running", {"running": {}}, ready=ready)
            elif pod.metadata.labels.get("app") not in spare:
                if pod.status.phase == "Running":
                    ended = {"terminated": {"exitCode": ENDED_BY_SIGNAL}}
                    say(world, pod, "Failed", ended, ready="False")
                world.delete(pod.metadata.name)


def readiness(pod: Pod) -> str:
    return next((each.status for each in pod.status.conditions if each.type == "Ready"), "")


def say(
    world: SchedulingWorld, pod: Pod, phase: str, state: Mapping[str, object], *, ready: str
) -> None:
    container = {
        "name": pod.spec.containers[0].name,
        "image": "none",
        "imageID": "",
        "ready": ready == "True",
        "restartCount": 0,
        "state": state,
    }
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": ready}],
        "containerStatuses": [container],
    }
    # Else the condition DisruptionTarget would be lost.
    world.client.patch(
        f"{PODS}/{pod.metadata.name}/status", {"status": status}, content_type=STRATEGIC_PATCH
    )


def run(world: SchedulingWorld, apps: Mapping[str, str]) -> dict[str, str]:
    """Wait until each app's pod has run on its node for long enough, and let new ones go anywhere.
    Return the uids of the pods."""
    wait_while_played(
        world,
        lambda: all(
            {(pod.spec.node_name, pod.status.phase) for pod in of(world, app)}
            == {(node, "Running")}
            for app, node in apps.items()
        ),
        "each runs",
    )
    for app in apps:
        label_nodes(world, app, NODES)
    began = time.monotonic()
    wait_for(lambda: time.monotonic() > began + RUN_SECONDS, "they have run for long enough")
    return {app: pod.metadata.uid for app in apps for pod in of(world, app)}


# What became of them


def of(world: SchedulingWorld, app: str) -> list[Pod]:
    """Return the app's pods that are not on their way out."""
    return [
        pod for pod in world.pods() if pod.metadata.labels.get("app") == app and not pod.is_leaving
    ]


def terminating(world: SchedulingWorld) -> set[str]:
    """Return the apps of the pods on their way out."""
    pods = world.pods()
    return {p.metadata.labels.get("app", "") for p in pods if p.is_leaving}


def moved(world: SchedulingWorld, before: Mapping[str, str]) -> dict[str, str]:
    """Return the messages of the Events `Moved`, by the app whose pod had that uid."""
    said = said_moved(world)
    return {app: said[uid] for app, uid in before.items() if uid in said}


def said_moved(world: SchedulingWorld) -> dict[str, str]:
    """Return the messages of the Events `Moved` of all tests so far, by the uid of the pod."""
    path = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=reason%3DMoved"
    events = world.client.get(path, dict[str, Any])["items"]
    return {event["involvedObject"]["uid"]: event["message"] for event in events}


def was_moved(pod: Pod) -> bool:
    """Whether the pod has got a target."""
    return bool(read_plan(pod.metadata.annotations[names.PLAN]).moved)


def reserved(world: SchedulingWorld, node: str) -> set[str]:
    """Return the UUIDs of the GPUs there that are reserved."""
    views = json.loads(world.asked("/nodes"))
    gpus = next(view["gpus"] for view in views if view["name"] == node)
    return {gpu["uuid"] for gpu in gpus if gpu["state"] == "reserved"}


def runs(world: SchedulingWorld, app: str) -> bool:
    return [pod.status.phase for pod in of(world, app)] == ["Running"]
