"""What must be true of pods whose GPUs come from claims, in a cluster that lives through days.

- A pod that is let go gets the GPUs that its claim names within BOUND_SECONDS, or loses that claim.
- `linkwise.dev/gpus` of a pod names the GPUs that it has, within BOUND_SECONDS.

Excused: the leader is away, or writes get lost.

- When a pod is let go, each pod that starts with it has a claim of its own, for the GPUs of its
  plan, as far as the extender can know.
"""

from collections.abc import Iterator

from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from tests.liveness.day import Day
from tests.odd_pods import is_honest

BOUND_SECONDS = 60.0


class ClaimLaws:
    def __init__(self, day: Day) -> None:
        self._day = day
        self._since: dict[str, float] = {}  # when each broken law began
        day.before_lift = self._let_go

    def look(self) -> None:
        day, trouble = self._day, self._day.trouble
        if trouble.no_leader or trouble.writes_lost:
            self._since.clear()
            return
        broken = [text for pod in day.pods.values() for text in self._broken(pod)]
        self._since = {text: self._since.get(text, day.now) for text in broken}
        day.failures += [
            f"{text} from {since:.0f} to {day.now:.0f}"
            for text, since in self._since.items()
            if day.now - max(since, day.faults_at) > BOUND_SECONDS
        ]

    def _let_go(self, pod: Pod) -> None:
        day, book = self._day, self._day.core._cache._claims
        if not is_honest(pod) or day.is_touched(pod):
            return
        plan = _plan_of(pod)
        for each in day.pods.values():
            record = day.core._cache.pods.get(each.metadata.uid)
            if not is_honest(each) or record is None or record.claim is None:
                continue
            if record.uid not in day.core._cache.plans:  # its plan was taken back
                continue
            if not (each.spec.scheduling_gates and plan and _plan_of(each) == plan):
                continue
            late = book.late(record)
            asked = () if late is None else day.requests[late.uid]
            if _gpus_of(each) != sorted(u for request in asked for u in request.uuids or ()):
                day.failures.append(
                    f"{pod.metadata.name} is let go and {each.metadata.name} has no claim for its "
                    f"GPUs at {day.now:.0f}"
                )

    def _broken(self, pod: Pod) -> Iterator[str]:
        day, meta = self._day, pod.metadata
        if not pod.is_live or names.CLAIMS not in meta.annotations or not is_honest(pod):
            return
        if day.is_touched(pod):
            return
        claim = day.claim_of(pod)
        if claim is None or pod.spec.scheduling_gates:
            return
        if claim.status.allocation is None:
            yield f"{meta.name} waits for the GPUs of its claim {claim.metadata.uid}"
        elif pod.spec.node_name and _gpus_of(pod) != sorted(day.allocated_to(pod)):
            yield f"{meta.name} has other GPUs than it says"


def _plan_of(pod: Pod) -> str:
    text = pod.metadata.annotations.get(names.PLAN)
    return "" if text is None else read_plan(text).id


def _gpus_of(pod: Pod) -> list[str]:
    said = read_gpus(pod.metadata.annotations.get(names.GPUS, "{}"))
    return sorted(uuid for share in said.values() for uuid in share)
