"""What the doctor finds of Linkwise's own pods, and of settings that several programs share."""

from dataclasses import replace

import msgspec
import pytest

from linkwise.cli.doctor.diagnosis import findings
from linkwise.cli.doctor.facts import SchedulerConfig, SeenPod
from tests.cli.doctor.cluster_facts import (
    NOW,
    STATE,
    WELL,
    node,
    only,
    plugin,
    pod,
    problems,
    program,
    refusal,
    with_pods,
)

PLUGIN, EXTENDER = "linkwise-plugin", "linkwise-extender"
SCHEDULER, WEBHOOK = "linkwise-scheduler", "linkwise-webhook"
SECURITY = (
    'violates PodSecurity "baseline:latest": hostPath '
    'volumes (volumes "device-plugins", "pod-resources")'
)
# As after an installation of which the API server takes no plugin pod.
NO_PLUGIN = replace(WELL, pods=WELL.pods[2:], nodes=(node("n1", topology=None, gpus=0),))


@pytest.mark.parametrize(
    ("message", "todo"),
    [
        (SECURITY, "pod-security.kubernetes.io/enforce=privileged"),
        (
            'pod rejected: RuntimeClass "nvidia" not found',
            "create that runtime class",
        ),
        (
            "insufficient quota to match these scopes: [{PriorityClass In [system-node-critical]}]",
            "set other priority classes",
        ),
        (
            'admission webhook "validate.kyverno.svc-fail" denied the request: memory-limits',
            "change what refuses them",
        ),
    ],
)
def test_why_no_pod_of_the_plugin_is_created_instead_of_a_label(message: str, todo: str) -> None:
    facts = replace(NO_PLUGIN, events=(refusal(PLUGIN, message),))
    refused, nowhere = findings(facts)
    assert (refused.where, refused.what) == ((PLUGIN,), f"its pods are not created: {message}")
    assert todo in refused.todo
    assert "label" not in nowhere.todo
    with_gpus = replace(facts, nodes=(node("n1", topology=None),))
    assert [each.where for each in findings(with_gpus)] == [(PLUGIN,), ("n1",)]
    assert "label the node" not in findings(with_gpus)[1].todo
    assert "label the node" in findings(replace(with_gpus, events=()))[0].todo


def test_the_last_refusal_counts_and_none_of_which_a_pod_was_created_since() -> None:
    earlier, last = refusal(PLUGIN, "quota", ago=90), refusal(PLUGIN, SECURITY, ago=30)
    for events in ((earlier, last), (last, earlier)):
        facts = replace(NO_PLUGIN, events=events)
        assert problems(facts)[0] == ((PLUGIN,), f"its pods are not created: {SECURITY}")
    assert findings(replace(WELL, events=(refusal(PLUGIN, SECURITY, ago=7200),))) == ()
    again = replace(WELL, events=(refusal(PLUGIN, SECURITY, ago=30),))  # on a node that came later
    assert problems(again) == [((PLUGIN,), f"its pods are not created: {SECURITY}")]


def test_a_refusal_that_came_many_times_is_told_as_one() -> None:
    """Kubernetes' recorder combines events that differ in the names of pods."""
    once = refusal(PLUGIN, SECURITY)
    often = msgspec.structs.replace(once, message=f"(combined from similar events): {once.message}")
    for event in (once, often):
        found = problems(replace(NO_PLUGIN, events=(event,)))
        assert found[0] == ((PLUGIN,), f"its pods are not created: {SECURITY}")


@pytest.mark.parametrize("of", [EXTENDER, SCHEDULER, WEBHOOK])
def test_pods_of_deployments_are_refused_too(of: str) -> None:
    facts = replace(WELL, events=(refusal(f"{of}-7d9c5", "exceeded quota: team"),))
    assert problems(facts) == [((of,), "its pods are not created: exceeded quota: team")]


def test_events_of_others_and_other_events_say_nothing() -> None:
    others = refusal("web-7d9c5", SECURITY), refusal(PLUGIN, "x", reason="SuccessfulCreate")
    assert findings(replace(WELL, events=others)) == ()


def test_a_pod_of_the_plugin_that_gets_no_node() -> None:
    labels = {"app.kubernetes.io/name": PLUGIN}
    why = "0/2 nodes are available: 1 Insufficient memory."
    waits = pod("linkwise-plugin-n2", namespace="kube-system", labels=labels, message=why)
    found = only(with_pods(waits))
    assert (found.where, found.what) == (
        (PLUGIN,),
        f"kube-system/linkwise-plugin-n2 has no node: {why}",
    )


GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
CONDITION = "object.spec.?nodeName.orValue('') == ''", f"c, '{GPU}' in c || '{SHARED}' in c"
CONFIG = SchedulerConfig(frozenset({SCHEDULER}), frozenset({GPU, SHARED}))
NAMED = f"--scheduler-name={SCHEDULER}"
SHARES = with_pods(
    program(WEBHOOK, NAMED, f"--shared-resource={SHARED}"),
    facts=replace(WELL, scheduler=CONFIG, conditions=CONDITION),
)


def webhook(*args: str, **env: str) -> tuple[SeenPod, ...]:
    return (*SHARES.pods[:-1], program(WEBHOOK, *args, env=env))


def test_settings_that_agree() -> None:
    assert findings(SHARES) == ()
    apart = webhook("--scheduler-name", SCHEDULER, "--shared-resource", SHARED)
    assert findings(replace(SHARES, pods=apart)) == ()
    variables = webhook(
        LINKWISE_WEBHOOK_SCHEDULER_NAME=SCHEDULER, LINKWISE_WEBHOOK_SHARED_RESOURCE=SHARED
    )
    assert findings(replace(SHARES, pods=variables)) == ()


def test_shares_of_which_not_all_programs_know() -> None:
    name = "they differ in the resources whose pods Linkwise plans: "
    calls = "mutatingwebhookconfiguration linkwise"
    found = only(replace(SHARES, pods=webhook(NAMED)))
    assert found.where == (WEBHOOK, calls, SCHEDULER)
    both = f"{GPU} and {SHARED}"
    assert found.what == (f"{name}{WEBHOOK} has {GPU}; {calls} has {both}; {SCHEDULER} has {both}")
    assert found.passing  # an update changes one program after the other
    no_call = only(replace(SHARES, conditions=(f"'{GPU}' in c",)))
    assert f"{calls} has {GPU};" in no_call.what
    not_asked = replace(CONFIG, managed=frozenset({GPU}))
    assert f"{SCHEDULER} has {GPU}" in only(replace(SHARES, scheduler=not_asked)).what
    # Without conditions, the API server calls about every pod; without a second scheduler, the
    # file of the cluster's own cannot be read.
    assert findings(replace(SHARES, conditions=(), scheduler=None)) == ()


def test_another_scheduler_than_the_one_that_the_webhook_names() -> None:
    other = replace(SHARES, pods=webhook(f"--shared-resource={SHARED}"))
    assert findings(other) == ()  # default-scheduler has called, too
    found = only(replace(other, state=replace(STATE, calls={SCHEDULER: NOW})))
    assert found.where == (WEBHOOK, SCHEDULER)
    assert "the scheduler that calls Linkwise: linkwise-webhook has default-sche" in found.what
    quotes = "!(object.metadata.?labels['kueue.x-k8s.io/queue-name'].hasValue())"
    assert findings(replace(SHARES, conditions=(*CONDITION, quotes))) == ()
    more = replace(CONFIG, names=frozenset({SCHEDULER, "other"}))
    assert findings(replace(SHARES, scheduler=more)) == ()


@pytest.mark.parametrize(
    ("flag", "value", "what"),
    [
        ("indexed-jobs", "none", "Indexed Jobs"),
        ("device-class", "gpu.example", "the class of devices that are GPUs"),
    ],
)
def test_what_extender_and_webhook_have_to_know_alike(flag: str, value: str, what: str) -> None:
    told = f"--{flag}={value}"
    apart = with_pods(program(WEBHOOK, told))
    assert only(apart).what.startswith(f"they differ in {what}: {EXTENDER} has ")
    together = (*WELL.pods[:2], program(EXTENDER, told), program(WEBHOOK, told))
    assert findings(replace(WELL, pods=together)) == ()


def test_a_plugin_that_offers_gpus_under_another_name_than_the_extenders() -> None:
    extender = program(EXTENDER, "--resource-name=amd.com/gpu")
    found = problems(replace(WELL, pods=(*WELL.pods[:2], extender)))
    what = f"they differ in the resource that is a GPU: {PLUGIN} has {GPU}; {EXTENDER} has amd.com"
    assert found[0][0] == (PLUGIN, EXTENDER)
    assert found[0][1].startswith(what)
    ended = pod("old", "n1", labels={"app.kubernetes.io/name": EXTENDER}, phase="Succeeded")
    assert findings(with_pods(ended, plugin("n3"))) == ()
