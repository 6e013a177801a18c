"""The webhook with a real API server, the real extender and the real kube-scheduler."""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from linkwise.pods.podgrouper.workloads.kinds import JOB_SET
from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane, KubectlError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF, GPU
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, NODES, SchedulingWorld
from tests.cluster.support.scheduling.webhook import Webhook
from tests.cluster.support.scheduling.workload_pods import define, wait_defined

SAID = {names.GANG: "train", names.GANG_SIZE: "4"}


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[tuple[SchedulingWorld, Webhook]]:
    directory = run_directory / "webhook"
    control = ControlPlane(directory, controllers=False, disable_admission=ADMISSION_OFF)
    control.start()
    world, webhook = SchedulingWorld(control), Webhook(control)
    try:
        world.start()
        # The tests are about the answers, on a busy machine too.
        webhook.register(timeoutSeconds=30)
        webhook.start()
        webhook.wait_asked()
        yield world, webhook
    finally:
        webhook.process.stop()
        world.extender.process.stop()
        control.stop()
    shutil.rmtree(directory, ignore_errors=True)  # if it did not start, the logs are kept


@pytest.fixture
def world(started: tuple[SchedulingWorld, Webhook]) -> Iterator[SchedulingWorld]:
    world, webhook = started
    if not webhook.process.alive:
        webhook.start()
        webhook.wait_asked()
    yield world
    world.clear()


@pytest.fixture
def webhook(started: tuple[SchedulingWorld, Webhook]) -> Webhook:
    return started[1]


def job(annotations: Mapping[str, str], pods: int = 4, name: str = "train") -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "8"}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "template": {
                "metadata": {"annotations": dict(annotations)},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


def apply(world: SchedulingWorld, thing: Mapping[str, Any], *flags: str) -> str:
    return world.control.kubectl("apply", "-f=-", *flags, stdin=yaml.safe_dump(thing))


def test_a_gang_is_given_its_gate_planned_let_go_and_bound(world: SchedulingWorld) -> None:
    assert world.scheduler is not None
    world.scheduler.stop()
    gang = [world.create(f"train-{rank}", annotations=SAID) for rank in range(3)]
    assert all(gates_of(world, name) == [names.GATE] for name in gang)

    gang.append(world.create("train-3", annotations=SAID))
    wait_for(lambda: not any(gates_of(world, name) for name in gang), "all are let go")
    planned = {name: world.read(name).status.nominated_node_name for name in gang}
    world.scheduler.start()
    world.wait_bound(gang)

    assert {name: world.node_of(name) for name in planned} == planned
    assert len(set(planned.values())) == 4


def gates_of(world: SchedulingWorld, name: str) -> list[str]:
    return [gate.name for gate in world.read(name).spec.scheduling_gates]


def test_a_single_pod_goes_without_gate(world: SchedulingWorld) -> None:
    assert world.scheduler is not None
    world.scheduler.stop()
    world.create("single")
    assert gates_of(world, "single") == []
    world.scheduler.start()
    world.wait_bound(["single"])


def test_without_the_webhook_a_gang_is_placed_all_the_same(
    world: SchedulingWorld, webhook: Webhook
) -> None:
    assert world.scheduler is not None
    webhook.process.kill()
    world.scheduler.stop()
    gang = world.create_gang("train", 3)
    assert not any(gates_of(world, name) for name in gang)
    world.scheduler.start()
    world.wait_bound(gang)


def indexed(world: SchedulingWorld, name: str, pods: int, at_once: int) -> list[str]:
    """Create an Indexed Job without annotations, and its first pods as its controller does: behind
    the gate, as the extender cannot read their owner so early."""
    made = job({}, pods=pods, name=name)
    made["spec"] |= {"completionMode": "Indexed", "parallelism": at_once, "suspend": True}
    apply(world, made)
    uid = world.control.kubectl(
        "get", "job", name, f"-n={NAMESPACE}", "-o=jsonpath={.metadata.uid}"
    )
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    names_of_pods = []
    for index in range(at_once):
        said = {"batch.kubernetes.io/job-completion-index": str(index)}
        thing = pod(f"{name}-{index}", said, labels=said, ownerReferences=[owner])
        stored = json.loads(apply(world, thing, "-o=json"))
        assert stored["spec"]["schedulingGates"] == [{"name": names.GATE}]
        names_of_pods.append(f"{name}-{index}")
    return names_of_pods


def test_a_gang_that_only_its_owner_tells_waits_and_shards_that_are_none_go_one_by_one(
    world: SchedulingWorld,
) -> None:
    gang = indexed(world, "gang", pods=3, at_once=3)
    world.wait_bound(gang)
    shards = indexed(world, "shards", pods=2, at_once=1)
    world.wait_bound(shards)
    assert sorted(world.node_of(name) for name in (*gang, *shards)) == list(NODES)


SIZE = "linkwise.dev/gang-size: 'four': expected a whole number from 1 to 4096"
WRONG = {**SAID, names.GANG_SIZE: "four"}


def pod(name: str, annotations: Mapping[str, str], **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "8"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": dict(annotations),
            **metadata,
        },
        "spec": {"containers": [container]},
    }


def refusal(world: SchedulingWorld, thing: Mapping[str, Any], *flags: str) -> str:
    """Return kubectl's output."""
    with pytest.raises(KubectlError) as refused:
        apply(world, thing, *flags)
    return str(refused.value)


@pytest.mark.parametrize("flags", [(), ("--dry-run=server",)])
def test_a_wrong_job_is_refused_as_it_is_applied(
    world: SchedulingWorld, flags: tuple[str, ...]
) -> None:
    assert (
        refusal(world, job(WRONG), *flags)
        .strip()
        .endswith(
            'admission webhook "workloads.linkwise.dev" denied the request: '
            f"spec.template.metadata.annotations: {SIZE}"
        )
    )
    told = refusal(world, job(SAID, pods=8), *flags)
    assert (
        "linkwise.dev/gang 'train': linkwise.dev/gang-size is 4, "
        "but Job.batch ml/train runs 8 pods of it (8 worker)"
    ) in told


def test_a_wrong_pod_is_refused_as_it_is_applied_and_as_it_is_annotated(
    world: SchedulingWorld,
) -> None:
    told = refusal(world, pod("wrong", {"linkwise.dev/gangsize": "4"}))
    assert 'admission webhook "pods.linkwise.dev" denied the request: ' in told
    assert "linkwise.dev/gangsize: no such annotation: expected linkwise.dev/gang-size" in told

    apply(world, pod("right", {}))
    annotate = ("annotate", "pod", "right", f"--namespace={NAMESPACE}")
    with pytest.raises(KubectlError, match=r"linkwise\.dev/rank: 'first': expected a whole number"):
        world.control.kubectl(*annotate, "linkwise.dev/rank=first")
    world.control.kubectl(*annotate, "linkwise.dev/rank=1")


def test_what_was_wrong_before_the_webhook_came_can_still_be_changed(
    world: SchedulingWorld, webhook: Webhook
) -> None:
    webhook.process.kill()
    apply(world, job(WRONG, name="old"))
    webhook.start()
    webhook.wait_asked()
    world.control.kubectl(
        "patch", "job", "old", f"-n={NAMESPACE}", "-p", '{"spec":{"suspend":true}}'
    )
    world.control.kubectl("label", "job", "old", f"-n={NAMESPACE}", "team=a")
    world.control.kubectl("delete", "job", "old", f"-n={NAMESPACE}")


def test_a_kind_that_somebody_else_defines_is_judged_where_it_is_known(
    world: SchedulingWorld,
) -> None:
    define(world.control, [JOB_SET])
    wait_defined(world.control)
    template = job(WRONG)["spec"]
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "set", "namespace": NAMESPACE},
        "spec": {"replicatedJobs": [{"name": "worker", "template": {"spec": template}}]},
    }
    wait_for(lambda: SIZE in refusal(world, made), "the API server knows the kind")


def test_who_opted_out_is_left_alone(world: SchedulingWorld) -> None:
    out = {"linkwise.dev/webhook": "ignore"}
    own_way = {"name": "own-way", "labels": out}
    apply(world, {"kind": "Namespace", "apiVersion": "v1", "metadata": own_way})
    for namespace, labels in (("kube-system", {}), ("own-way", {}), (NAMESPACE, out)):
        for said in (SAID, WRONG):
            thing = pod("left-alone", said, namespace=namespace, labels=labels)
            told = apply(world, thing, "--dry-run=server", "-o=json")
            assert "schedulingGates" not in json.loads(told)["spec"]


def test_it_is_asked_about_nothing_that_is_none_of_its_business(
    world: SchedulingWorld, webhook: Webhook
) -> None:
    assert world.scheduler is not None
    world.scheduler.stop()
    gang = world.create_gang("train", 2)
    wait_for(lambda: not any(gates_of(world, name) for name in gang), "all are let go")
    world.create("single")
    apply(world, job({}, name="plain"))
    before = webhook.asked()
    # Two pods by /mutate and /validate, one by /mutate alone, a Job by /validate.
    bare = pod("web", {})
    del bare["spec"]["containers"][0]["resources"]
    apply(world, bare)
    apply(world, pod("bound", {}) | {"spec": bare["spec"] | {"nodeName": "n1"}})
    world.control.kubectl("label", "job", "plain", f"-n={NAMESPACE}", "team=a")
    world.control.kubectl("label", "pod", *gang, f"-n={NAMESPACE}", "team=a")
    world.control.kubectl("delete", "job", "plain", f"-n={NAMESPACE}")
    world.scheduler.start()
    world.wait_bound([*gang, "single", "web"])
    assert webhook.asked() == before


def test_certificates_change_while_pods_are_created_and_none_goes_without_its_gate(
    world: SchedulingWorld, webhook: Webhook
) -> None:
    """Certificates live a minute, and two replicas share them. The API server admits nothing
    without an answer, so a missing answer would show."""
    control = world.control
    flags = ("--certificate-lifetime=60s",)
    webhook.process.stop()
    control.kubectl("delete", "secret", "linkwise-webhook", "-n=kube-system")
    asked, other = (Webhook(control, *flags, name=f"linkwise-webhook-{n}") for n in "ab")
    asked.register(timeoutSeconds=30)
    asked.start()
    other.start()
    try:
        asked.wait_asked()
        other.wait_serves()
        asked.register(timeoutSeconds=30, failurePolicy="Fail")
        first = asked.certificate()
        served = {first, other.certificate()}
        assert len(served) == 1
        created = 0
        ends = time.monotonic() + 240
        while asked.certificate() == first or other.certificate() == first:
            made = apply(world, pod(f"p-{created}", SAID), "--dry-run=server", "-o=json")
            assert json.loads(made)["spec"]["schedulingGates"]
            created += 1
            assert time.monotonic() < ends, "no second certificate was served"
        assert asked.certificate() == other.certificate()
        assert asked.certificate() in control.kubectl(
            *("get", "validatingwebhookconfiguration", "linkwise"),
            "-o=go-template={{range .webhooks}}{{.clientConfig.caBundle|base64decode}}{{end}}",
        )
        assert created > 2  # many more on an idle machine
        # Also, the API server must open a new connection:
        asked.process.stop()
        asked.start()
        asked.wait_asked()
        assert asked.certificate() != first
    finally:
        asked.process.stop()
        other.process.stop()
        webhook.register(timeoutSeconds=30)
