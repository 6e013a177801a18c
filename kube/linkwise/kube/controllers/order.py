"""In which order a controller creates objects: what has to be there before the next one comes.

Each `Child` says what it comes after. The simulator's controllers wait for that, and so does
`linkwise what-if`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from linkwise.kube.objects import Pod


class Reached(Enum):
    """What has become of a pod."""

    SCHEDULED = "have a node"
    READY = "are ready"
    COMPLETE = "have ended"


@dataclass(frozen=True, slots=True)
class After:
    """So many *pods* must have reached *state*: of those with these *names*, or of these *jobs*.

    All are in the namespace of the object that waits.
    """

    state: Reached
    pods: int
    names: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()

    def __str__(self) -> str:
        named = sorted(self.jobs or self.names)
        what = "Job" if self.jobs else "pod"
        which = f"{what} {named[0]}" if len(named) == 1 else f"{len(named)} {what}s"
        if len(named) > 1:
            which += f" {named[0]} to {named[-1]}"
        who = f"the pods of {which}" if self.jobs else which
        is_one = len(named) == 1 and not self.jobs
        states = {"have a node": "has a node", "are ready": "is ready", "have ended": "has ended"}
        return f"{who} {states[self.state.value] if is_one else self.state.value}"


class SeenPods:
    """The pods that exist, as far as an order may depend on them."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], Pod] = {}
        self._of_jobs: dict[tuple[str, str], dict[str, Pod]] = {}  # by the name of the pod

    def put(self, pod: Pod) -> None:
        meta = pod.metadata
        self._named[meta.namespace, meta.name] = pod
        job = _job_of(pod)
        if job:
            self._of_jobs.setdefault((meta.namespace, job), {})[meta.name] = pod

    def drop(self, pod: Pod) -> None:
        """Forget the pod, unless there is a newer one of its name."""
        meta = pod.metadata
        key = meta.namespace, meta.name
        if key in self._named and self._named[key].metadata.uid == meta.uid:
            del self._named[key]
            self._of_jobs.get((meta.namespace, _job_of(pod)), {}).pop(meta.name, None)

    def of(self, after: After, namespace: str) -> list[Pod]:
        """Return the pods of which it speaks that exist."""
        found = [self._named.get((namespace, name)) for name in after.names]
        for job in after.jobs:
            found += self._of_jobs.get((namespace, job), {}).values()
        return [pod for pod in found if pod is not None]

    def meet(self, after: After, namespace: str) -> bool:
        there = self.of(after, namespace)
        return sum(has_reached(pod, after.state) for pod in there) >= after.pods

    def meet_all(self, order: Iterable[After], namespace: str) -> bool:
        return all(self.meet(after, namespace) for after in order)


def has_reached(pod: Pod, state: Reached) -> bool:
    """A pod that has succeeded was ready before. One without a condition `Ready` is ready as soon
    as it runs."""
    phase = pod.status.phase
    match state:
        case Reached.SCHEDULED:
            return bool(pod.spec.node_name)
        case Reached.READY:
            is_unready = any(
                c.type == "Ready" and c.status != "True" for c in pod.status.conditions
            )
            return phase == "Succeeded" or (phase == "Running" and not is_unready)
        case Reached.COMPLETE:
            return phase == "Succeeded"


def _job_of(pod: Pod) -> str:
    owners = (each for each in pod.metadata.owner_references if each.controller)
    return next((each.name for each in owners if each.kind == "Job"), "")
