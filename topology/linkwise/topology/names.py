"""Every annotation, label and resource name that Linkwise writes or reads."""

import re

from linkwise.topology.vendors.known import vendor_of_resource
from linkwise.topology.vendors.nvidia import NVIDIA

PREFIX = "linkwise.dev/"
DEFAULT_RESOURCE = "nvidia.com/gpu"
DEFAULT_RESOURCES = (DEFAULT_RESOURCE,)
RESOURCE_NAME = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    r"/[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
)
"""Kubernetes' pattern for the name of an extended resource: domain/name."""
_SHARED = ".shared"


def is_share(resource: str, managed: str) -> bool:
    """Whether containers get parts of GPUs under this name, where whole GPUs are *managed*.

    The names are those that the vendor's plugin uses if its configuration names no others: beside
    nvidia.com/gpu these are nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb and
    nvidia.com/mig-1g.10gb.shared, beside amd.com/gpu amd.com/cpx_nps4.
    """
    domain, _, name = resource.partition("/")
    part = (vendor_of_resource(managed) or NVIDIA).part
    return resource == managed + _SHARED or (
        domain == managed.partition("/")[0] and part.fullmatch(name) is not None
    )


# On the Node, written by the plugin.
TOPOLOGY = PREFIX + "topology"
IN_USE = PREFIX + "in-use"
ACTIVITY = PREFIX + "activity"
OWN_LABELS = PREFIX + "own-labels"  # the label keys that the plugin wrote, separated by commas
BY_PLUGIN = (TOPOLOGY, IN_USE, ACTIVITY, OWN_LABELS)

# On the Node, written by people.
EMPTY = PREFIX + "empty"

# On the Pod, written by its author (docs/annotations.md).
GANG = PREFIX + "gang"
GANG_SIZE = PREFIX + "gang-size"
GANG_MIN = PREFIX + "gang-min"
GANG_TIMEOUT = PREFIX + "gang-timeout"
GANG_TO_COME = PREFIX + "gang-to-come"
RANK = PREFIX + "rank"
REQUIRE_LINK = PREFIX + "require-link"
PREFER_LINK = PREFIX + "prefer-link"
REQUIRE_SPAN = PREFIX + "require-span"
PREFER_SPAN = PREFIX + "prefer-span"
COMMUNICATOR = PREFIX + "communicator"
GPU_MODEL = PREFIX + "gpu-model"
GPU_MEMORY = PREFIX + "gpu-memory"
PREEMPTIBLE = PREFIX + "preemptible"
EXPECTED_DURATION = PREFIX + "expected-duration"
SHARE = PREFIX + "share"
RECLAIM = PREFIX + "reclaim-when-idle"
MOVABLE = PREFIX + "movable"
MOVE_COST = PREFIX + "move-cost"

# A scheduling gate of the Pod. Its author or the webhook sets it; the extender removes it.
GATE = PREFIX + "plan"

# On the Pod, written by the extender.
GPUS = PREFIX + "gpus"
PLAN = PREFIX + "plan"
STARTED = PREFIX + "gang-started"
QUEUE = PREFIX + "queue"
BY_EXTENDER = (GPUS, PLAN, STARTED, QUEUE)

# The key of the taint of devices that Linkwise alone gives out.
CLOSED = PREFIX + "closed"

# On a ResourceClaim that the extender creates: the edition of the plan whose GPUs it names.
EDITION = PREFIX + "plan-edition"

# On the Pod, written by the webhook as the Pod is created.
CLAIMS = PREFIX + "claims"
BY_LINKWISE = (*BY_EXTENDER, CLAIMS)
