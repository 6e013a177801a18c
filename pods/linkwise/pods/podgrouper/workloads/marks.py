"""What systems write on their pods, for rules of others too: one row a system, by its rule.

Kueue's queue stands on the pods of any Job, and a group's pods may have the index of their owner.
So rules read the keys of all systems, in the order of the rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from linkwise.kube.labels import COMPLETION_INDEX, LWS, TRAINING
from linkwise.kube.objects import ObjectMeta

KUEUE = "kueue.x-k8s.io/"
KOORDINATOR = "gang.scheduling.koordinator.sh/"
COSCHEDULING = "scheduling.x-k8s.io/pod-group"
OLD_COSCHEDULING = "pod-group.scheduling.sigs.k8s.io"
YUNIKORN = "yunikorn.apache.org/"
GROVE = "grove.io/"


class Place(NamedTuple):
    key: str
    is_label: bool = True  # False: an annotation


@dataclass(frozen=True, slots=True)
class Marks:
    """The keys of one system. Those of `index`, `queues` and `priority` are labels or annotations,
    whichever the pod has."""

    group: tuple[Place, ...] = ()  # names the pod's group, all of whose pods count
    index: str = ""
    queues: tuple[str, ...] = ()
    priority: str = ""


def _annotation(key: str) -> tuple[Place, ...]:
    return (Place(key, is_label=False),)


def _either(key: str) -> tuple[Place, ...]:
    return Place(key), *_annotation(key)


MARKS = {
    "job": Marks(index=COMPLETION_INDEX),
    "kueue": Marks(
        _either(KUEUE + "pod-group-name"),
        index=KUEUE + "pod-group-pod-index",
        queues=(KUEUE + "queue-name",),
        priority=KUEUE + "priority-class",
    ),
    "koordinator": Marks(_annotation(KOORDINATOR + "name")),
    "coscheduling-labels": Marks((Place(f"{OLD_COSCHEDULING}/name"),)),
    # RoleBasedGroup (sgl-project/rbg, pkg/scheduler) gives its pods the last of these alone.
    "coscheduling": Marks(
        (Place(COSCHEDULING), Place(OLD_COSCHEDULING), Place(f"{OLD_COSCHEDULING}/name"))
    ),
    "leaderworkerset": Marks(index=LWS + "worker-index"),
    "tfjob": Marks(index=TRAINING + "replica-index"),  # and the other jobs of its operator
    "volcano-job": Marks(index="volcano.sh/task-index"),
    "volcano-pod-group": Marks(
        _either("scheduling.k8s.io/group-name") + _either("scheduling.volcano.sh/group-name"),
        queues=("volcano.sh/queue-name", "scheduling.volcano.sh/queue-name"),
    ),
    "kai": Marks(_annotation("pod-group-name"), queues=("kai.scheduler/queue",)),
    # Its task groups say which of their pods take GPUs.
    "yunikorn": Marks(queues=(YUNIKORN + "queue",)),
    "grove": Marks((Place(GROVE + "podgang"),)),
    "raycluster": Marks(priority="ray.io/priority-class-name"),
    "statefulset": Marks(index="apps.kubernetes.io/pod-index"),
}
GROUPS = tuple(dict.fromkeys(place for marks in MARKS.values() for place in marks.group))
INDICES = tuple(marks.index for marks in MARKS.values() if marks.index)
QUEUES = tuple(queue for marks in MARKS.values() for queue in marks.queues)
PRIORITIES = tuple(marks.priority for marks in MARKS.values() if marks.priority)


def first_at(places: Iterable[Place], metadata: ObjectMeta) -> tuple[str, str] | None:
    """The first of these that a pod has: its key and its value."""
    for key, is_label in places:
        value = (metadata.labels if is_label else metadata.annotations).get(key)
        if value:
            return key, value
    return None
