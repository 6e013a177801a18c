"""What one node's word and the pods of one namespace may cost the extender."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from linkwise.extender.state.cache.machine_kind import kind_key
from linkwise.extender.state.records import NodeRecord
from linkwise.extender.state.timers import Agenda, Timers
from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import Pod
from linkwise.pods.large_pods import too_large
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.machine.model import Machine

FREE_BYTES = 4096  # of each pod
MOST_BYTES_OF_NAMESPACE = 8 << 20


class PodBytes:
    """What the pods of each namespace say beyond a few KiB each, and who may say more.

    What the extender keeps of a pod takes up to eighteen times its size, and nothing else bounds
    how many pods there are.
    """

    def __init__(self) -> None:
        self._of_pod: dict[str, tuple[str, int]] = {}  # uid -> namespace, bytes; of larger pods
        self._of_namespace: Counter[str] = Counter()

    def too_large(self, pod: Pod, size: int) -> str:
        """Why nothing of the pod is kept but what it requests; empty: all of it is."""
        if why := too_large(pod, size):
            return why
        if size <= FREE_BYTES:
            return ""
        if MIRROR_POD in pod.metadata.annotations:  # a kubelet may create some in any namespace
            return f"a mirror pod of more than {FREE_BYTES >> 10} KiB"
        namespace, (_, own) = pod.metadata.namespace, self._of_pod.get(pod.metadata.uid, ("", 0))
        others = self._of_namespace[namespace] - own
        # Pods come in another order to the next leader, which must not lose members of a gang that
        # this one has placed. They are bounded by its bytes, so all have room beside as many.
        is_planned = pod.metadata.uid in pod.metadata.annotations.get(names.PLAN, "")
        if others + size <= MOST_BYTES_OF_NAMESPACE * (2 if is_planned else 1):
            return ""
        return (
            f"labels, owners and spec of {size >> 10} KiB: expected {FREE_BYTES >> 10} KiB at "
            f"most, as larger pods of {namespace} have {MOST_BYTES_OF_NAMESPACE >> 20} MiB together"
        )

    def put(self, pod: Pod, size: int) -> None:
        """So many bytes of the pod are kept."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        self.drop(uid)
        if size > FREE_BYTES:
            self._of_pod[uid] = namespace, size
            self._of_namespace[namespace] += size

    def drop(self, uid: str) -> None:
        namespace, size = self._of_pod.pop(uid, ("", 0))
        if size:
            self._of_namespace[namespace] -= size
            if not self._of_namespace[namespace]:
                del self._of_namespace[namespace]


AT_ONCE, EVERY_SECONDS = 5.0, 60.0
_TOO_OFTEN = "changed too often: the last one is read within a minute"


@dataclass(slots=True)
class _Turns:
    left: float  # at the time *at*
    at: float
    waits: NodeRecord | None = None  # what is read next

    def at_time(self, now: float) -> float:
        passed = max(now - self.at, 0.0)  # clocks are set back
        return min(self.left + passed / EVERY_SECONDS, AT_ONCE)


class KindTurns:
    """How often a node may become another kind of machine.

    A kind costs up to a second of work and 5 MiB, and the word of one node makes one. So a node
    changes its kind five times at once, and then once a minute. What it publishes in between is not
    read, and nothing is placed there.
    """

    def __init__(self) -> None:
        self._turns: dict[str, _Turns] = {}
        self._agenda = Agenda()
        self._timers = Timers[str](self._agenda)

    def read(
        self, record: NodeRecord, before: NodeRecord | None, known: Machine | None, now: float
    ) -> NodeRecord:
        """Return the record, or one whose topology cannot be read until the node's turn. *before*
        and *known*: its record and its machine until now."""
        name, turns = record.name, self._turns.get(record.name)
        if turns is not None:
            turns.waits = None
            self._timers.drop(name)
        if before is None or before.topology == record.topology:
            return record
        return self.read_again(record, now) if _is_another(record.topology, known) else record

    def read_again(self, record: NodeRecord, now: float) -> NodeRecord:
        """As `read`, of a node that is another kind, maybe as its partitions have changed."""
        name = record.name
        turns = self._turns.setdefault(name, _Turns(AT_ONCE, now))
        turns.left, turns.at = turns.at_time(now), now
        if turns.left >= 1.0:
            turns.left -= 1.0
            return record
        turns.waits = record
        self._timers[name] = now + (1.0 - turns.left) * EVERY_SECONDS
        return replace(record, topology=_TOO_OFTEN)

    def is_next(self, name: str, now: float) -> bool:
        """Whether the node's next kind is read at once."""
        turns = self._turns.get(name)
        return turns is None or turns.at_time(now) >= 1.0

    def due(self, now: float) -> list[NodeRecord]:
        """What is to be read now."""
        waiting = (self._turns[name].waits for name in self._timers.take(now))
        return [record for record in waiting if record is not None]

    def drop(self, name: str) -> None:
        """The node is gone."""
        self._turns.pop(name, None)
        self._timers.drop(name)

    def times(self) -> Iterable[float]:
        return self._agenda.times()


def _is_another(text: str | None, known: Machine | None) -> bool:
    if text is None:
        return False
    try:
        machine = read_topology(text)
    except LinkwiseError:
        return False
    if known is None:
        return True
    # What a DRA driver says of its partitions is not in the annotation.
    return kind_key(replace(machine, partitions=known.partitions)) != kind_key(known)
