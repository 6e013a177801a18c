"""Pods that wait for GPUs of a claim: what the webhook makes of them, and what it refuses."""

import json
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from linkwise.kube.objects import Pod
from linkwise.pods.annotations import demand_of
from linkwise.pods.claims import claims_of
from linkwise.topology import names
from linkwise.webhook.answers import Answers, new_claim_name
from linkwise.webhook.claims import ClaimTemplate
from linkwise.webhook.patch import Gating, Rules
from tests.pods.podgrouper.pods import GPU, owner, pod, reference, template
from tests.webhook.reviews import Object, ask_of, patched_by, refusal, review, steps_of

NAME = "linkwise-0123456789abcdef0123"
GATE = [{"name": names.GATE}]
RULES = Rules(gpus_from_claims=True, gate=Gating.NONE)
ENTRY = {"name": "linkwise-gpus", "resourceClaimName": NAME}


class Server:
    """The API server's templates, and what was read of it."""

    def __init__(self, **templates: Object) -> None:
        self.templates, self.read = templates, list[tuple[str, str]]()

    def answers(self, rules: Rules = RULES) -> Answers:
        return Answers(rules, new_name=lambda: NAME, read_template=self._read)

    def _read(self, namespace: str, name: str) -> ClaimTemplate | None:
        self.read.append((namespace, name))
        found = self.templates.get(name)
        return None if found is None else msgspec.convert(found, ClaimTemplate)


def after(made: Object, rules: Rules = RULES, **templates: Object) -> Object:
    return patched_by(Server(**templates).answers(rules), made)


def claims(made: Object) -> Any:
    return json.loads(made["metadata"]["annotations"][names.CLAIMS])


def container(name: str, gpus: int = 0, **more: Any) -> Object:
    resources = {"limits": {GPU: str(gpus)}, "requests": {GPU: str(gpus)}} if gpus else {}
    return {"name": name, "resources": resources, **more}


def sidecar(name: str, gpus: int) -> Object:
    return container(name, gpus, restartPolicy="Always")


def several(containers: list[Object], init: list[Object] | None = None, **spec: Any) -> Object:
    made = pod("several", **spec)
    made["spec"]["containers"] = containers
    made["spec"] |= {"initContainers": init} if init else {}
    return made


def used(made: Object) -> dict[str, list[str]]:
    """The requests that the containers refer to."""
    spec = made["spec"]
    return {
        each["name"]: [use["request"] for use in each["resources"].get("claims", [])]
        for each in (*spec.get("initContainers", []), *spec["containers"])
    }


def test_a_pod_with_the_resource_waits_for_a_claim_instead() -> None:
    made = pod("train-0", gpus=8, tolerations=[{"operator": "Exists"}])
    made["spec"]["containers"][0]["resources"] = {
        "limits": {GPU: "8", "cpu": "4"},
        "requests": {GPU: "8", "memory": "1Gi"},
    }
    wanted = deepcopy(made)
    wanted["spec"]["containers"][0]["resources"] = {
        "limits": {"cpu": "4"},
        "requests": {"memory": "1Gi"},
        "claims": [{"name": "linkwise-gpus", "request": "main"}],
    }
    wanted["spec"] |= {"resourceClaims": [ENTRY], "schedulingGates": GATE}
    said = f'{{"linkwise-gpus":{{"claim":"{NAME}","requests":{{"main":8}}}}}}'
    wanted["metadata"]["annotations"] = {names.CLAIMS: said}
    assert after(made) == wanted


def test_what_is_stored_has_the_demand_that_was_asked_for() -> None:
    made = several([container("a", 4), container("web"), container("b", 2)], [sidecar("s", 1)])
    found = msgspec.convert(after(made), Pod)
    demand = demand_of(found, GPU)
    assert [(c.name, c.gpus) for c in demand.containers] == [("s", 1), ("a", 4), ("b", 2)]
    assert demand.gpus == demand_of(msgspec.convert(made, Pod), GPU).gpus == 7


@pytest.mark.parametrize(
    ("containers", "init", "requests", "uses"),
    [
        (
            [container("a", 4), container("b", 2), container("web")],
            [],
            {"a": 4, "b": 2},
            {"a": ["a"], "b": ["b"], "web": []},
        ),
        (  # a request without a limit, and a limit of 0
            [
                {"name": "a", "resources": {"requests": {GPU: 2}}},
                {"name": "b", "resources": {"limits": {GPU: 0}}},
            ],
            [],
            {"a": 2},
            {"a": ["a"], "b": []},
        ),
        (  # init containers reuse, and the first that is large enough is taken
            [container("a", 1), container("b", 4), container("c", 8)],
            [container("warm", 2), container("check", 1)],
            {"a": 1, "b": 4, "c": 8},
            {"warm": ["b"], "check": ["a"], "a": ["a"], "b": ["b"], "c": ["c"]},
        ),
        (  # a larger one has a request of its own, and shares it with no other init container
            [container("a", 2)],
            [container("check", 1), container("warm", 8), container("more", 4)],
            {"warm": 8, "more": 4, "a": 2},
            {"check": ["a"], "warm": ["warm"], "more": ["more"], "a": ["a"]},
        ),
        (  # a sidecar before it runs beside it; one after it does not
            [container("a", 1)],
            [sidecar("early", 4), container("warm", 2), sidecar("late", 2)],
            {"early": 4, "late": 2, "a": 1},
            {"early": ["early"], "warm": ["late"], "late": ["late"], "a": ["a"]},
        ),
        (  # only an init container takes GPUs
            [container("web")],
            [container("warm", 1)],
            {"warm": 1},
            {"warm": ["warm"], "web": []},
        ),
    ],
)
def test_each_container_refers_to_a_request(
    containers: list[Object],
    init: list[Object],
    requests: dict[str, int],
    uses: dict[str, list[str]],
) -> None:
    made = after(several(containers, init))
    assert claims(made) == {"linkwise-gpus": {"claim": NAME, "requests": requests}}
    assert used(made) == uses
    assert GPU not in json.dumps(made["spec"])


def test_claims_and_annotations_of_others_stay() -> None:
    nic = {"name": "nic", "resourceClaimTemplateName": "rdma"}
    made = pod("a", annotations={"other.example/x": "y"}, resourceClaims=[nic])
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    server = Server(rdma=claim_template(request()))
    found = patched_by(server.answers(), made)
    assert server.read == []
    assert found["spec"]["resourceClaims"] == [nic, ENTRY]
    assert found["spec"]["containers"][0]["resources"]["claims"] == [
        {"name": "nic"},
        {"name": "linkwise-gpus", "request": "main"},
    ]
    assert found["metadata"]["annotations"].keys() == {"other.example/x", names.CLAIMS}


def test_a_pod_without_annotations_gets_some() -> None:
    made = pod("a")
    del made["metadata"]["annotations"]
    assert after(made)["metadata"]["annotations"].keys() == {names.CLAIMS}


@pytest.mark.parametrize("gate", Gating)
def test_the_gate_is_there_whatever_the_flag_says_and_once(gate: Gating) -> None:
    rules = Rules(gpus_from_claims=True, gate=gate, scheduler="linkwise-scheduler")
    kueue = {"name": "kueue.x-k8s.io/admission"}
    found = after(pod("a", schedulingGates=[kueue]), rules)
    assert found["spec"]["schedulingGates"] == [kueue, *GATE]
    assert found["spec"]["schedulerName"] == "linkwise-scheduler"
    assert after(pod("b", schedulingGates=GATE), rules)["spec"]["schedulingGates"] == GATE


def test_names_are_random_and_can_be_read() -> None:
    some = {new_claim_name() for _ in range(100)}
    assert len(some) == 100
    for name in some:
        entry = {"linkwise-gpus": {"claim": name, "requests": {"main": 1}}}
        spec = {"resourceClaims": [{"name": "linkwise-gpus", "resourceClaimName": name}]}
        found = msgspec.convert({"spec": spec}, Pod)
        assert claims_of({names.CLAIMS: json.dumps(entry)}, found.spec) is not None


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(pod("many", gpus=65), id="more than a request may have"),
        pytest.param(several([container(f"c{n}", 1) for n in range(33)]), id="too many requests"),
        pytest.param(
            pod("same", resourceClaims=[{"name": "linkwise-gpus", "resourceClaimName": "x"}]),
            id="an entry of that name",
        ),
    ],
)
def test_what_a_claim_cannot_say_is_patched_as_without_claims(made: Object) -> None:
    rules = Rules(gpus_from_claims=True, gate=Gating.ALL, scheduler="linkwise-scheduler")
    without = Rules(gate=Gating.ALL, scheduler="linkwise-scheduler")
    assert after(made, rules) == after(made, without) != made


# Templates


def request(name: str = "gpus", count: int | None = None, **exactly: Any) -> Object:
    asked: Object = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount"}
    asked |= {"count": count} if count is not None else {}
    return {"name": name, "exactly": asked | exactly}


def claim_template(*requests: Object, **devices: Any) -> Object:
    return {"spec": {"spec": {"devices": {"requests": list(requests), **devices}}}}


def with_template(name: str = "whole", **spec: Any) -> Object:
    made = pod(
        "dra-0", gpus=0, resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": name}]
    )
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    made["spec"] |= spec
    return made


def test_a_pod_with_a_template_waits_for_a_claim_that_is_planned() -> None:
    whole = claim_template(request(count=4), request("more"), constraints=[{"requests": []}])
    server = Server(whole=whole)
    made = with_template()
    wanted = deepcopy(made)
    wanted["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": NAME}]
    wanted["spec"]["schedulingGates"] = GATE
    found = patched_by(server.answers(), made)
    assert claims(found) == {
        "gpus": {"claim": NAME, "requests": {"gpus": 4, "more": 1}, "template": "whole"}
    }
    del found["metadata"]["annotations"][names.CLAIMS]
    assert found == wanted
    assert server.read == [("ml", "whole")]


def test_the_class_of_whole_gpus_can_be_chosen() -> None:
    whole = claim_template(request(deviceClassName="h100.example"))
    rules = Rules(gpus_from_claims=True, device_class="h100.example")
    assert after(with_template(), whole=whole) == with_template()
    assert names.CLAIMS in after(with_template(), rules, whole=whole)["metadata"]["annotations"]


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(claim_template(), id="no request"),
        pytest.param(claim_template(request(deviceClassName="mig.nvidia.com")), id="class"),
        pytest.param(
            claim_template(request(), request("nic", deviceClassName="rdma")), id="one other class"
        ),
        pytest.param(claim_template(request(allocationMode="All")), id="all of a node"),
        pytest.param(claim_template(request(adminAccess=True)), id="admin access"),
        pytest.param(
            claim_template(request(capacity={"requests": {"memory": "10Gi"}})), id="a part"
        ),
        pytest.param(
            claim_template({"name": "gpus", "firstAvailable": [{"name": "x"}]}), id="alternatives"
        ),
        pytest.param(claim_template(request(count=65)), id="too many"),
        pytest.param(claim_template(request(count=0)), id="none"),
        pytest.param({}, id="empty"),
    ],
)
def test_templates_of_anything_else_are_left_to_kube_scheduler(whole: Object) -> None:
    assert after(with_template(), whole=whole) == with_template()


def test_a_pod_whose_template_cannot_be_read_is_left_alone() -> None:
    assert after(with_template()) == with_template()


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(pod("web", gpus=0), id="no claim"),
        pytest.param(with_template("../../../secrets/x"), id="no name"),
        pytest.param(with_template("x" * 254), id="too long a name"),
        pytest.param(
            with_template(resourceClaims=[{"name": "gpus", "resourceClaimName": "mine"}]),
            id="a claim that exists",
        ),
        pytest.param(
            with_template(
                resourceClaims=[
                    {"name": "a", "resourceClaimTemplateName": "whole"},
                    {"name": "b", "resourceClaimTemplateName": "whole"},
                ]
            ),
            id="two claims",
        ),
        pytest.param(
            with_template(
                resourceClaims=[
                    {
                        "name": "a",
                        "resourceClaimName": "mine",
                        "resourceClaimTemplateName": "whole",
                    }
                ]
            ),
            id="both, which the API server refuses",
        ),
        pytest.param(with_template(nodeName="n1"), id="bound"),
        pytest.param(with_template(schedulerName="volcano"), id="another's scheduler"),
        pytest.param(pod("bound", nodeName="n1"), id="resource, bound"),
        pytest.param(pod("theirs", schedulerName="volcano"), id="resource, another's scheduler"),
        pytest.param(several([container("a", 0)]), id="no resources"),
        pytest.param(several([{"name": "a", "resources": {"limits": {GPU: "0"}}}]), id="zero GPUs"),
        pytest.param(
            several([{"name": "a", "resources": {"limits": {GPU: "two"}}}]), id="no quantity"
        ),
        pytest.param(
            pod("debugged", gpus=0, ephemeralContainers=[container("e", 1)]), id="ephemeral"
        ),
    ],
)
def test_who_is_left_alone_and_nothing_is_read_for_it(made: Object) -> None:
    server = Server(whole=claim_template(request()))
    assert patched_by(server.answers(), made) == made
    assert server.read == []


@pytest.mark.parametrize("made", [pod("a"), with_template()])
def test_asked_again_nothing_is_left_to_change(made: Object) -> None:
    """The API server asks again if another webhook changed the pod after this one."""
    server = Server(whole=claim_template(request()))
    once = patched_by(server.answers(), made)
    read = list(server.read)
    more = deepcopy(once)
    more["spec"]["containers"].append(container("injected", 1))
    for asked in (once, more):
        answers = Answers(RULES, new_name=lambda: "linkwise-" + "9" * 20)
        assert patched_by(answers, asked) == asked
    assert server.read == read


@pytest.mark.parametrize("changes", [{"operation": "UPDATE"}, {"subResource": "resize"}])
def test_only_a_creation_is_patched(changes: Object) -> None:
    server = Server(whole=claim_template(request()))
    for made in (pod("a"), with_template()):
        assert "patch" not in ask_of(server.answers(), "/mutate", review(made, **changes))
    assert server.read == []


@pytest.mark.parametrize("made", [pod("a", gpus=8), with_template()])
def test_without_the_flag_every_byte_is_as_ever(made: Object) -> None:
    server = Server(whole=claim_template(request()))
    rules = Rules(gate=Gating.ALL)
    steps = steps_of(server.answers(rules), made)
    gate = {"op": "add", "path": "/spec/schedulingGates", "value": GATE}
    assert steps == ([gate] if made["metadata"]["name"] == "a" else [])
    assert server.read == []


# What is refused


def forged(changes: Object | None = None, **spec: Any) -> Object:
    entry = {"claim": NAME, "requests": {"main": 1}} | (changes or {})
    said = {names.CLAIMS: json.dumps({"linkwise-gpus": entry})}
    return pod("forged", annotations=said, gpus=0, **({"resourceClaims": [ENTRY]} | spec))


@pytest.mark.parametrize("made", [pod("a"), with_template(), several([container("a", 8)])])
def test_what_the_webhook_makes_is_let_in(made: Object) -> None:
    assert refusal(after(made, whole=claim_template(request())), rules=RULES) == ""
    assert refusal(forged(), rules=RULES) == ""


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (forged(resourceClaims=[]), "spec.resourceClaims with name linkwise-gpus and"),
        (
            forged(resourceClaims=[{"name": "linkwise-gpus", "resourceClaimName": "theirs"}]),
            "spec.resourceClaims with name linkwise-gpus and",
        ),
        (forged({"claim": "theirs"}), "at `$[...].claim`"),
        (forged({"requests": {"main": 65}}), "`int` <= 64 - at `$[...].requests[...]`"),
        (forged({"requests": {"main": 0}}), "`int` >= 1 - at `$[...].requests[...]`"),
        (forged({"requests": {}}), "length >= 1"),
        (
            forged(containers=[container("main", 1)]),
            "main requests nvidia.com/gpu beside the claim",
        ),
        (pod("x", annotations={names.CLAIMS: "{"}), "beside the claim"),
        (pod("x", annotations={names.CLAIMS: "{"}, gpus=0), "expected JSON like"),
    ],
)
def test_a_forged_claim_is_refused_whoever_made_the_pod(made: Object, why: str) -> None:
    assert "linkwise.dev/claims: " in refusal(made, rules=RULES)
    assert why in refusal(made, rules=RULES)
    made = deepcopy(made)
    made["metadata"]["ownerReferences"] = [reference(owner("batch/v1 Job", "train"))]
    assert why in refusal(made, rules=RULES)


def test_without_the_flag_no_pod_may_have_the_annotation() -> None:
    said = "only Linkwise's webhook writes this, with --gpus-from-claims; remove it"
    assert refusal(forged()) == f"linkwise.dev/claims: {said}"
    changed = forged()
    changed["metadata"]["labels"] = {"a": "b"}
    assert refusal(changed, forged()) == ""  # it was let in while the flag was set


@pytest.mark.parametrize("rules", [None, RULES])
def test_in_a_template_nobody_may_write_it(rules: Rules | None) -> None:
    spec = {"template": template(8, annotations={names.CLAIMS: "x"})}
    assert refusal(owner("batch/v1 Job", "train", spec), rules=rules) == (
        "spec.template.metadata.annotations: linkwise.dev/claims: "
        "only Linkwise's webhook writes this, for each pod; remove it"
    )


def test_too_many_gpus_of_a_claim_are_refused() -> None:
    requests = {f"c{number}": 60 for number in range(2)}
    why = "nvidia.com/gpu: 120 in one pod: expected 112 at most"
    assert refusal(forged({"requests": requests}), rules=RULES).startswith(why)
