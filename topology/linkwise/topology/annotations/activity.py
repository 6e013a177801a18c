"""The annotation by which the plugin says what the pods of its node do with their GPUs.

On a Node, `linkwise.dev/activity`:
{"v":1,"at":1763876400,"hold":300,
"pods":{"ml/nb":{"since":1763870000,"idle":1763870600,"day":1,"memory":12}}}

It holds what changes seldom: since when a pod does nothing, not for how long. Times are whole
seconds since 1970 by the node's clock. Readers ignore unknown fields.
"""

from typing import Annotated

import msgspec

from linkwise.topology import names
from linkwise.topology.annotations.annotation_json import check_version, decode

VERSION = 1
HEARTBEAT_SECONDS = 600.0
"""While a pod is idle, the plugin writes the annotation again this often at least."""
STALE_SECONDS = 2 * HEARTBEAT_SECONDS
"""A reader does not believe an older annotation: the plugin may be gone."""
DAY_LEVELS = (0, 1, 5, 10, 25, 50, 100)
"""Percent. `day` is the lowest of them that the share does not exceed."""
_LIKE = 'JSON like {"v":1,"at":1763876400,"pods":{"ml/nb":{"since":1763870000}}}'
_Time = Annotated[int, msgspec.Meta(ge=0, le=10**11)]


class PodActivity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one pod does with its GPUs, as far as the plugin has watched it without a break."""

    since: _Time  # when the watch began
    whole: bool = False  # it began with the pod's GPUs: nothing was missed before
    idle: _Time | None = None  # since when none of the GPUs has worked; None: the pod is not idle
    # Percent of its GPUs' time that they worked in the last 24 h, or as long as they were watched;
    # None: for less than an hour.
    day: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    memory: Annotated[int, msgspec.Meta(ge=0, le=10**6)] | None = None  # GiB in use, if it is idle


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """A pod with whole GPUs that is not in `pods` is one of which the driver says nothing."""

    v: int = VERSION
    at: _Time  # when it was written
    # The plugin may keep back news for so many seconds after `at`, because a node writes seldom.
    hold: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 300
    pods: dict[str, PodActivity] = {}  # by namespace/name


def write_activity(activity: Activity) -> str:
    return msgspec.json.encode(activity).decode()


def read_activity(text: str) -> Activity:
    """Raises AnnotationError (VersionError for a newer version)."""
    check_version(names.ACTIVITY, text, VERSION, _LIKE)
    return decode(names.ACTIVITY, text, Activity, _LIKE)
