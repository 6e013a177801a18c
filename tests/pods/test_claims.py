"""What a pod waits for that gets its GPUs from a claim, and what of it is refused."""

import json
from typing import Any

import pytest

from linkwise.kube.objects import Container, ObjectMeta, Pod, PodClaim, PodSpec, Resources
from linkwise.pods.annotations import ask_of, demand_of, oversize, shares_of
from linkwise.pods.claims import MOST_COUNT, MOST_REQUESTS, ClaimAsk, claims_of, write_claims
from linkwise.pods.large_pods import shortened
from linkwise.topology import names
from linkwise.topology.demand import ContainerDemand, Role
from linkwise.topology.errors import AnnotationError

GPU = "nvidia.com/gpu"
CLAIM = "linkwise-0123456789abcdef0123"
ASK = ClaimAsk("linkwise-gpus", CLAIM, {"main": 4, "log": 1}, "whole-gpus")


def spec(*claims: PodClaim, **more: Any) -> PodSpec:
    own = PodClaim(name="linkwise-gpus", resource_claim_name=CLAIM)
    return PodSpec(resource_claims=claims or (own,), **more)


def text(**changes: object) -> str:
    entry = {"claim": CLAIM, "requests": {"main": 4}}
    return json.dumps({"linkwise-gpus": entry | changes})


def read(said: str, of: PodSpec | None = None) -> ClaimAsk | None:
    return claims_of({names.CLAIMS: said}, of or spec())


def test_what_is_written_is_read_again() -> None:
    assert read(write_claims(ASK)) == ASK
    assert write_claims(ClaimAsk("gpus", CLAIM, {"m": 1})) == (
        f'{{"gpus":{{"claim":"{CLAIM}","requests":{{"m":1}}}}}}'
    )


def test_most_pods_wait_for_no_claim() -> None:
    assert claims_of({}, spec()) is None
    assert claims_of({names.GANG: "train"}, PodSpec()) is None


def test_pods_that_request_the_same_share_that() -> None:
    one, other = read(text()), read(text())
    assert one is not None
    assert other is not None
    assert one.requests is other.requests


def test_a_field_that_is_not_known_yet_is_passed_over() -> None:
    assert read(text(shared=True)) == ClaimAsk("linkwise-gpus", CLAIM, {"main": 4})


def test_the_entry_is_found_among_others() -> None:
    nic = PodClaim(name="nic", resource_claim_template_name="rdma")
    assert read(text(), spec(nic, *spec().resource_claims)) is not None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", 'JSON like {"linkwise-gpus":'),
        ("{", "JSON like"),
        ("[]", "Expected `object`, got `array`"),
        ("[" * 4000, "JSON like"),
        ("{}", "one entry, in JSON like"),
        (text()[:-1] + ", " + text().replace("linkwise-gpus", "more")[1:], "one entry, in JSON"),
        (text(claim=7), "Expected `str`, got `int` - at `$[...].claim`"),
        (text(claim="theirs"), "at `$[...].claim`"),
        (text(claim=CLAIM + "\n"), "at `$[...].claim`"),
        (text(claim="linkwise-0123456789abcdef01234"), "at `$[...].claim`"),
        (text(template="../../secrets/x"), "at `$[...].template`"),
        (text(requests={}), "length >= 1 - at `$[...].requests`"),
        (text(requests={"main": 0}), "`int` >= 1 - at `$[...].requests[...]`"),
        (text(requests={"main": -1}), "`int` >= 1 - at `$[...].requests[...]`"),
        (text(requests={"main": MOST_COUNT + 1}), "`int` <= 64 - at `$[...].requests[...]`"),
        (text(requests={"main": 2**70}), "at `$[...].requests[...]`"),
        (text(requests={"main": "4"}), "Expected `int`, got `str` - at `$[...].requests[...]`"),
        (text(requests={"main": True}), "Expected `int`, got `bool` - at `$[...].requests[...]`"),
        (text(requests={"Main": 1}), "at `key` in `$[...].requests`"),
        (
            text(requests={f"c{number}": 1 for number in range(MOST_REQUESTS + 1)}),
            "length <= 32 - at `$[...].requests`",
        ),
        (text() + " " * 4096, "at most 4096 characters"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_field(said: str, expected: str) -> None:
    with pytest.raises(AnnotationError) as refused:
        read(said)
    assert str(refused.value).startswith("linkwise.dev/claims: ")
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    "claims",
    [
        (PodClaim(name="nic", resource_claim_name=CLAIM),),
        (PodClaim(name="linkwise-gpus", resource_claim_name="linkwise-another"),),
        (PodClaim(name="linkwise-gpus", resource_claim_template_name=CLAIM),),
    ],
)
def test_the_pod_has_to_name_the_claim(claims: tuple[PodClaim, ...]) -> None:
    wanted = f"spec.resourceClaims with name linkwise-gpus and resourceClaimName {CLAIM} beside it"
    with pytest.raises(AnnotationError, match=wanted):
        read(text(), spec(*claims))


def pod(said: str, of: PodSpec) -> Pod:
    return Pod(metadata=ObjectMeta(annotations={names.CLAIMS: said}), spec=of)


def test_the_demand_is_the_requests_which_run_together() -> None:
    containers = tuple(Container(name=name) for name in ("main", "log", "web"))
    made = pod(write_claims(ASK), spec(containers=containers))
    demand = demand_of(made, GPU)
    assert demand.containers == (
        ContainerDemand("main", Role.MAIN, 4),
        ContainerDemand("log", Role.MAIN, 1),
    )
    assert demand.gpus == 5
    assert shares_of(made, GPU) == ()
    assert oversize(made, demand, (), GPU) == ""


def test_a_claim_that_cannot_be_read_is_a_demand_that_cannot_be_read() -> None:
    with pytest.raises(ValueError, match=r"linkwise.dev/claims: '\{': expected JSON like"):
        demand_of(pod("{", spec()), GPU)


def test_gpus_come_from_the_claim_or_from_the_resource_and_never_from_both() -> None:
    taking = Container(name="more", resources=Resources(limits={GPU: 1}))
    with pytest.raises(ValueError, match=r"more requests nvidia.com/gpu beside the claim"):
        demand_of(pod(text(), spec(init_containers=(taking,))), GPU)
    none = Container(name="none", resources=Resources(limits={GPU: 0}))
    assert demand_of(pod(text(), spec(containers=(none,))), GPU).gpus == 4


def test_the_annotation_is_no_mistake_of_the_pods_author() -> None:
    assert ask_of({names.CLAIMS: text()}, {}) == ask_of({}, {})


def test_a_pod_that_is_too_large_keeps_its_claim() -> None:
    kept = shortened(pod(text(), spec()), "too large", (GPU,))
    assert demand_of(kept, GPU).gpus == 4
