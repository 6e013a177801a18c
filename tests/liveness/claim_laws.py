"""What must be true of pods whose GPUs come from claims, in a cluster that lives through days.

- A pod that is let go gets the GPUs that its claim names within BOUND_SECONDS, or loses that claim.
- `linkwise.dev/gpus` of a pod names the GPUs that it has, within BOUND_SECONDS.

Excused: the leader is away, or writes get lost.
"""

from collections.abc import Iterator

from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus
from tests.liveness.day import Day
from tests.odd_pods import is_honest

BOUND_SECONDS = 60.0


class ClaimLaws:
    def __init__(self, day: Day) -> None:
        self._day = day
        self._since: dict[str, float] = {}  # when each broken law began

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

    def _broken(self, pod: Pod) -> Iterator[str]:
        day, meta = self._day, pod.metadata
        leaves = meta.deletion_timestamp is not None or pod.status.phase in ("Succeeded", "Failed")
        if leaves or names.CLAIMS not in meta.annotations or not is_honest(pod):
            return
        if day.is_touched(pod):
            return
        claim = day.claim_of(pod)
        if claim is None or pod.spec.scheduling_gates:
            return
        if claim.status.allocation is None:
            yield f"{meta.name} waits for the GPUs of its claim {claim.metadata.uid}"
        elif pod.spec.node_name:
            said = read_gpus(meta.annotations.get(names.GPUS, "{}"))
            gpus = sorted(uuid for share in said.values() for uuid in share)
            if gpus != sorted(day.allocated_to(pod)):
                yield f"{meta.name} has other GPUs than it says"
