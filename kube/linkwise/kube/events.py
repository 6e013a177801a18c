"""Events of the API server, as far as they say why a controller could not create a pod."""

import re
from datetime import datetime

import msgspec

from linkwise.kube.objects import ObjectMeta, ObjectReference


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    """As the API server writes it."""


class InvolvedObject(ObjectReference, frozen=True):
    kind: str = ""


class EventSeries(_Object, frozen=True):
    last_observed_time: datetime | None = None


class Event(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    involved_object: InvolvedObject = InvolvedObject()
    reason: str = ""
    message: str = ""
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: EventSeries | None = None

    @property
    def last(self) -> float:
        """When it was last true, in seconds since 1970; 0.0: it does not say."""
        series = None if self.series is None else self.series.last_observed_time
        times = (self.metadata.creation_timestamp, self.event_time, self.last_timestamp, series)
        return max((each.timestamp() for each in times if each is not None), default=0.0)


class ListMeta(_Object, frozen=True):
    continue_: str = msgspec.field(name="continue", default="")


class Events(_Object, frozen=True):
    items: tuple[Event, ...] | None = None  # Go writes an empty list as null
    metadata: ListMeta = ListMeta()


# Of Kubernetes' controllers, Kubeflow's training operator, and KubeRay.
_REASONS = frozenset(
    {"FailedCreate", "FailedCreatePod", "FailedToCreateHeadPod", "FailedToCreateWorkerPod"}
)
# After several of a kind, the text begins with "(combined from …): ". The pod's name is another one
# each time.
_BEFORE = re.compile(
    r'^.*?(?:Error creating: |failed error: |(?=pods "))(?:pods "[^"]*" is forbidden: )?', re.S
)


def why_not_created(event: Event) -> str:
    """Why the involved object's controller could not create a pod, in the words of who refused it;
    empty: the event is about something else."""
    return _BEFORE.sub("", event.message) if event.reason in _REASONS else ""
