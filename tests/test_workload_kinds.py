"""A kind of workload that forms gangs is known wherever Linkwise meets it: in the table of rules,
in the webhook's configurations and templates, and where pods are made from manifests."""

from typing import Any

import pytest

from linkwise.kube.controllers.child import UnknownControllerError
from linkwise.kube.controllers.workload import pods_of
from linkwise.pods.podgrouper.workloads.systems import OWNED, READ, GroupKind
from linkwise.topology.names import GANG
from linkwise.webhook.templates import pods_made
from tests.manifests import DAEMONSET, documents
from tests.pods.podgrouper.pods import Object, owner, template

REPLICA_SET: GroupKind = ("apps", "ReplicaSet")
PLURALS = {(kind.group, kind.kind): kind.plural for kind in READ}
VERSIONS = {(kind.group, kind.kind): kind.versions[0] for kind in READ}


def kinds() -> list[GroupKind]:
    """The kinds of which a person writes objects, and whose pods form gangs by some rule."""
    gangs = [system for system in OWNED if not system.gang.startswith("no")]
    found = {kind for system in gangs for kind in system.owners}
    found |= {(kind.group, kind.kind) for system in gangs for kind in system.reads}
    return sorted(found - {REPLICA_SET})  # a Deployment's: a person writes that


def id_of(kind: GroupKind) -> str:
    return ".".join(reversed(kind))


def spec(kind: GroupKind) -> Object:
    """A spec of this kind whose pods say that they are a gang."""
    made = template(annotations={GANG: "train"})
    if kind[0] == "kubeflow.org":
        return {"xReplicaSpecs": {"Worker": {"replicas": 1, "template": made}}}
    job = {"name": "node", "template": {"spec": {"template": made}}}
    return {
        "template": {**made, "roles": [{"name": "decode", "entryTemplate": made}]},
        "replicatedJobs": [job],
        "tasks": [{"name": "w", "template": made}],
        "leaderWorkerTemplate": {"size": 2, "workerTemplate": made},
        "headGroupSpec": {"template": made},
    }


def an_object(kind: GroupKind) -> Object:
    return owner(f"{kind[0]}/{VERSIONS[kind]} {kind[1]}", "train", spec(kind))


def test_the_kinds_are_those_of_the_table() -> None:
    assert len(kinds()) >= 14
    assert set(kinds()) <= PLURALS.keys()


@pytest.mark.parametrize("kind", kinds(), ids=id_of)
def test_the_pods_of_each_are_known(kind: GroupKind) -> None:
    assert pods_of(an_object(kind), {}).pods


def test_the_pods_of_another_kind_with_a_template_are_not_guessed() -> None:
    made = owner("example.com/v1 Train", "train", spec(("example.com", "Train")))
    with pytest.raises(UnknownControllerError, match=r"Train\.example\.com"):
        pods_of(made, {})


def test_the_api_server_asks_the_webhook_about_each() -> None:
    hooks: list[dict[str, Any]] = [
        hook
        for document in documents(DAEMONSET / "components" / "webhook" / "configurations.yaml")
        for hook in document["webhooks"]
        if hook["name"] == "workloads.linkwise.dev"
    ]
    asked = {
        (group, plural)
        for hook in hooks
        for rule in hook["rules"]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
    }
    assert {(kind[0], PLURALS[kind]) for kind in kinds()} <= asked


@pytest.mark.parametrize("kind", kinds(), ids=id_of)
def test_the_webhook_finds_the_templates_of_each(kind: GroupKind) -> None:
    assert [*pods_made(an_object(kind), "ml")]
