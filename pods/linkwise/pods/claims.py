"""GPUs that a pod gets from a ResourceClaim which is created after it, for planned GPUs.

The webhook writes `linkwise.dev/claims`, and the pod names a claim that does not exist yet
(docs/decisions/devices.md#46-late-claims). The annotation says what the claim has to request:
{"linkwise-gpus":{"claim":"linkwise-0f…","requests":{"main":8}}}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import msgspec

from linkwise.kube.objects import PodSpec
from linkwise.topology import names
from linkwise.topology.annotations.annotation_json import decode
from linkwise.topology.errors import AnnotationError
from linkwise.topology.vendors.nvidia import NVIDIA

OBJECT_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""Names of templates. Users write them, and they become parts of URLs."""
DEVICE_CLASS = NVIDIA.dra_driver
MOST_REQUESTS = 32  # of a claim, by the API server's validation
MOST_COUNT = 64  # of one request
_LONGEST = 4096  # characters of the annotation; the webhook writes 3,000 at most
_LIKE = 'JSON like {"linkwise-gpus":{"claim":"linkwise-0f…","requests":{"main":8}}}'

_Label = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")]
_Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)]
_Requests = Annotated[dict[_Label, _Count], msgspec.Meta(min_length=1, max_length=MOST_REQUESTS)]


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    # Drawn at random, so that no pod can name the claim of another pod before it exists. The
    # pattern keeps Linkwise from claims that people create.
    claim: Annotated[str, msgspec.Meta(pattern=r"^linkwise-[a-z0-9]{20}\Z")]
    requests: _Requests
    template: Annotated[str, msgspec.Meta(pattern=rf"^({OBJECT_NAME.pattern})?\Z")] = ""


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """The claim that a pod waits for."""

    entry: str  # the name in the pod's `spec.resourceClaims`
    claim: str  # the ResourceClaim's name
    requests: Mapping[str, int]  # GPUs by the claim's requests
    template: str = ""  # the ResourceClaimTemplate whose spec the claim gets; empty: none


def claims_of(annotations: Mapping[str, str], spec: PodSpec) -> ClaimAsk | None:
    """Return None if the pod waits for no claim of Linkwise's. Raises AnnotationError."""
    said = annotations.get(names.CLAIMS)
    if said is None:
        return None
    if len(said) > _LONGEST:
        raise AnnotationError(names.CLAIMS, said, f"at most {_LONGEST} characters")
    entries = decode(names.CLAIMS, said, dict[_Label, _Entry], _LIKE)
    if len(entries) != 1:
        raise AnnotationError(names.CLAIMS, said, f"one entry, in {_LIKE}")
    ((name, entry),) = entries.items()
    if not any(
        (each.name, each.resource_claim_name) == (name, entry.claim)
        for each in spec.resource_claims
    ):
        wanted = (
            f"spec.resourceClaims with name {name} and resourceClaimName {entry.claim} beside it"
        )
        raise AnnotationError(names.CLAIMS, said, wanted)
    return ClaimAsk(name, entry.claim, _requests(tuple(entry.requests.items())), entry.template)


@lru_cache(maxsize=1024)  # thousands of pods request the same
def _requests(items: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return dict(items)


def write_claims(ask: ClaimAsk) -> str:
    """The annotation's value."""
    entry = _Entry(ask.claim, dict(ask.requests), ask.template)
    return msgspec.json.encode({ask.entry: entry}).decode()
