"""What the extender decided and carried out, as the log and `kubectl linkwise history` tell it.

Names and reasons come from tenants, so all texts are bounded: thousands of decisions are kept.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count

from linkwise.drawing.words import gpus_in_words, some
from linkwise.extender.state.actions import (
    Action,
    Correct,
    Evict,
    LiftGate,
    WithdrawPlan,
    WritePlan,
)
from linkwise.extender.state.extender_calls import BindOrder
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.kube.quoted import one_line
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus

MOST = 4000  # that a leader keeps
_MOST_NODES = 16


class What(Enum):
    PLANNED = "planned"
    WITHDRAWN = "plan withdrawn"
    GATE_LIFTED = "gate lifted"
    BOUND = "bound"
    CORRECTED = "GPUs corrected"
    EVICTED = "evicted"
    RESERVED = "reserved"
    MOVED = "reservation moved"
    GIVEN_UP = "reservation given up"


@dataclass(frozen=True, slots=True)
class Decision:
    at: float  # seconds since 1970
    what: What
    pod: str = ""  # namespace/name; empty: it is about the gang as a whole
    gang: str = ""  # namespace/name; empty: the pod is in none
    nodes: tuple[str, ...] = ()  # the first of them
    more_nodes: int = 0  # left out of *nodes*
    uid: str = ""  # the pod's
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # container -> uuids
    count: int = 0  # of GPUs
    why: str = ""
    for_whom: str = ""  # `GangKey.title` of who gets the room
    priority: int | None = None
    for_priority: int | None = None  # of who gets the room
    from_annotation: bool = False  # an earlier leader made this plan, as the pod says

    @property
    def who(self) -> str:
        return self.pod or f"gang {self.gang}"

    @property
    def namespace(self) -> str:
        return (self.pod or self.gang).partition("/")[0]

    @property
    def where(self) -> str:
        """Such as `gpu-1, gpu-2 and 3 more`."""
        return some(self.nodes, _MOST_NODES, left_out=self.more_nodes)

    @property
    def reason(self) -> str:
        """Why, with the priorities if they are known."""
        if self.priority is None or self.for_priority is None:
            return self.why
        return f"{self.why} (priority {self.priority}, for priority {self.for_priority})"

    @property
    def sentence(self) -> str:
        """The line of the log."""
        told = self._told()
        return f"{told}: {self.reason}" if self.why else told

    def _told(self) -> str:
        amount = f"{gpus_in_words(self.count)} on {self.where}"
        match self.what:
            case What.PLANNED:
                return f"planned {self.who} on {self.where}"
            case What.WITHDRAWN:
                return f"withdrew the plan of {self.who}"
            case What.GATE_LIFTED:
                return f"lifted the gate of {self.who}"
            case What.BOUND:
                return f"bound {self.who} to {self.where}"
            case What.CORRECTED:
                return f"corrected the GPUs of {self.who}"
            case What.EVICTED:
                return f"evicted {self.who}"
            case What.RESERVED:
                return f"reserved {amount} for {self.for_whom}"
            case What.MOVED:
                return f"moved the reservation of {self.for_whom} to {amount}"
            case What.GIVEN_UP:
                return f"gave up the reservation of {self.for_whom}"

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        texts = (self.pod, self.gang, *self.nodes, self.why, self.for_whom)
        uuids = sum(len(uuid) for share in self.gpus.values() for uuid in share)
        return 500 + sum(map(len, texts)) + uuids


def of_action(action: Action, record: PodRecord | None, at: float) -> Decision | None:
    """What has been decided if *action* has been carried out; None: nothing to tell of. *record*
    is the pod's, if it is still there."""
    gang, bound_to = ("", "") if record is None else (record.gang_name, record.node)
    about = Decision(at, What.PLANNED, str(action.pod), gang, uid=action.pod.uid)
    match action:
        case WritePlan() if not action.again:
            why = f"the plan before was withdrawn: {action.instead}" if action.instead else ""
            return replace(_with_gpus(about, action.node, action.annotations), why=one_line(why))
        case WithdrawPlan() if action.annotations:
            why, nodes = one_line(action.why), _named(action.node)
            return replace(about, what=What.WITHDRAWN, nodes=nodes, why=why)
        case LiftGate():
            return replace(about, what=What.GATE_LIFTED)
        case Correct():
            return replace(_with_gpus(about, bound_to, action.annotations), what=What.CORRECTED)
        case Evict():
            to = action.for_whom
            return replace(
                about,
                what=What.EVICTED,
                gang=action.gang,
                nodes=_named(action.node),
                why=one_line(action.why),
                for_whom="" if to is None else to.title,
                priority=action.priority,
                for_priority=None if to is None else to.priority,
            )
        case _:
            return None


def of_bind(order: BindOrder, record: PodRecord | None, at: float) -> Decision:
    gang = "" if record is None else record.gang_name
    about = Decision(at, What.BOUND, f"{order.namespace}/{order.name}", gang, uid=order.uid)
    return _with_gpus(about, order.node, order.annotations)


def of_reservation(
    what: What,
    key: GangKey,
    at: float,
    why: str,
    gpus: Mapping[str, int],
) -> Decision:
    """*gpus*: node -> bitmask, of those that are reserved, or were."""
    named = sorted(gpus)
    return Decision(
        at,
        what,
        f"{key.namespace}/{key.name}" if key.uid else "",
        "" if key.uid else f"{key.namespace}/{key.name}",
        tuple(named[:_MOST_NODES]),
        max(len(named) - _MOST_NODES, 0),
        count=sum(mask.bit_count() for mask in gpus.values()),
        why=one_line(why),
        for_whom=key.title,
    )


def _with_gpus(decision: Decision, node: str, annotations: Mapping[str, str]) -> Decision:
    text = annotations.get(names.GPUS)
    gpus = read_gpus(text) if text else {}
    count = len(frozenset().union(*gpus.values()))  # containers share an init container's GPUs
    return replace(decision, nodes=_named(node), gpus=gpus, count=count)


def _named(node: str) -> tuple[str, ...]:
    return (node,) if node else ()


MOST_BYTES = 4 << 20


class History:
    """The last decisions of this leader, bounded in number and in memory: tenants write their
    texts.

    The namespace whose decisions take the most memory loses its oldest one. So no namespace makes
    the leader forget those about the others, however many it causes.
    """

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._decisions: dict[int, Decision] = {}  # by number; the oldest first
        self._numbers = count()
        self._of: dict[str, deque[int]] = {}  # by namespace
        self._bytes: Counter[str] = Counter()  # by namespace
        self._all_bytes = 0
        self._untold: deque[Decision] = deque(maxlen=most)
        self.dropped = 0  # decisions of this term that it no longer has

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The oldest first."""
        return tuple(self._decisions.values())

    def add(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            number = next(self._numbers)
            self._decisions[number] = decision
            self._of.setdefault(decision.namespace, deque()).append(number)
            self._untold.append(decision)
            self._count_bytes(decision, 1)
            while len(self._decisions) > self._most or self._all_bytes > self._most_bytes:
                self._drop_one()

    def _drop_one(self) -> None:
        most = max(self._bytes, key=self._bytes.__getitem__)
        self._count_bytes(self._decisions.pop(self._of[most].popleft()), -1)
        if not self._of[most]:
            del self._of[most], self._bytes[most]
        self.dropped += 1

    def _count_bytes(self, decision: Decision, sign: int) -> None:
        self._bytes[decision.namespace] += sign * decision.bytes
        self._all_bytes += sign * decision.bytes

    def take_untold(self) -> tuple[Decision, ...]:
        """Those since the last call, for the log."""
        untold = tuple(self._untold)
        self._untold.clear()
        return untold
