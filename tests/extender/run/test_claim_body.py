"""The claim that is created for planned GPUs."""

from typing import Any

import pytest

from linkwise.extender.run.claim_body import claim_body
from linkwise.extender.state.actions import CreateClaim, PodRef
from linkwise.topology import names

ACTION = CreateClaim(
    PodRef("ml", "a", "uid-1"),
    "linkwise-0123456789abcdefghij",
    {"main": ("GPU-1", "GPU-2"), "side": ("GPU-3",)},
    "gpu.nvidia.com",
    "3.2.1f0c77ab",
)
CLOSED = {"key": "linkwise.dev/closed", "operator": "Exists"}
OWN = {"cel": {"expression": "device.attributes['x'].y == 1"}}


def template(*requests: str, **more: Any) -> dict[str, Any]:
    made = [
        {"name": name, "exactly": {"deviceClassName": "big", "count": 9, **more}}
        for name in requests
    ]
    spec = {"devices": {"requests": made, "config": [{"opaque": 1}], "constraints": [{"z": 2}]}}
    meta = {"labels": {"team": "a"}, "annotations": {names.EDITION: "forged", "note": "x"}}
    return {"spec": {"metadata": meta, "spec": spec}}


def requests(body: Any) -> list[Any]:
    found: list[Any] = body["spec"]["devices"]["requests"]
    return found


def test_each_request_is_for_just_its_gpus() -> None:
    main, side = requests(claim_body(ACTION, "gpus", None))
    assert main["name"] == "main"
    assert main["exactly"]["deviceClassName"] == "gpus"
    assert (main["exactly"]["allocationMode"], main["exactly"]["count"]) == ("ExactCount", 2)
    (selector,) = main["exactly"]["selectors"]
    assert selector["cel"]["expression"].endswith('uuid in ["GPU-1", "GPU-2"]')
    assert 'device.driver == "gpu.nvidia.com"' in selector["cel"]["expression"]
    assert main["exactly"]["tolerations"] == [CLOSED]
    assert side["exactly"]["count"] == 1


def test_gpus_of_amd_are_named_by_their_pci_addresses() -> None:
    gpus = {"main": ("0000:05:00.0",)}
    action = CreateClaim(ACTION.pod, ACTION.name, gpus, "gpu.amd.com", "1.1.x")
    (main,) = requests(claim_body(action, "gpu.amd.com", None))
    (selector,) = main["exactly"]["selectors"]
    attribute = 'device.attributes["resource.kubernetes.io"].pciBusID'
    assert selector["cel"]["expression"].endswith(f'{attribute} in ["0000:05:00.0"]')


def test_the_pod_owns_the_claim_and_the_claim_says_for_which_plan_it_is() -> None:
    meta: Any = claim_body(ACTION, "gpus", None)["metadata"]
    (owner,) = meta["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", "uid-1", True)
    assert meta["annotations"] == {names.EDITION: "3.2.1f0c77ab"}
    assert (meta["namespace"], meta["name"]) == ("ml", ACTION.name)


def test_what_a_template_says_holds_too() -> None:
    tolerated = {"key": "mine", "operator": "Exists"}
    action = CreateClaim(ACTION.pod, ACTION.name, ACTION.gpus, ACTION.driver, "1.1.x", "own")
    given = template("main", "side", selectors=[OWN], tolerations=[tolerated])
    body: Any = claim_body(action, "gpus", given)
    main = requests(body)[0]["exactly"]
    assert (main["deviceClassName"], main["count"]) == ("big", 2)
    assert main["selectors"][0] == OWN
    assert main["selectors"][1]["cel"]["expression"].endswith('uuid in ["GPU-1", "GPU-2"]')
    assert main["tolerations"] == [tolerated, CLOSED]
    assert body["spec"]["devices"]["config"] == [{"opaque": 1}]
    assert body["spec"]["devices"]["constraints"] == [{"z": 2}]
    assert body["metadata"]["labels"] == {"team": "a"}
    assert body["metadata"]["annotations"] == {names.EDITION: "1.1.x", "note": "x"}


@pytest.mark.parametrize("now", [("main",), ("side", "main"), ("main", "side", "more"), ()])
def test_a_template_that_has_changed_since_is_refused(now: tuple[str, ...]) -> None:
    action = CreateClaim(ACTION.pod, ACTION.name, ACTION.gpus, ACTION.driver, "1.1.x", "own")
    with pytest.raises(ValueError, match="own: expected the requests main, side"):
        claim_body(action, "gpus", template(*now))
