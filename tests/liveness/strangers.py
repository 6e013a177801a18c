"""What else happens to GPUs that come from claims: pods with ordinary claims, of which Linkwise
decides nothing, and persons who delete claims. Some of the pods take a GPU just after it was
planned for another."""

from functools import partial
from itertools import count
from random import Random

from linkwise.extender.state.actions import CreateClaim, LiftGate, WritePlan
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus
from tests.extender.device_cluster import Request
from tests.liveness.day import Day

NAMESPACE = "strangers"


class Strangers:
    def __init__(self, day: Day, seed: int, seconds: float) -> None:
        self._day, self._seconds = day, seconds
        self._ends = day.now + seconds
        self._draw = Random(f"strangers {seed}")
        self._faster = self._draw.choice([0.0, 0.05, 0.2])  # of plans that lose a GPU to one
        self._numbers = count()
        day.on_step = self._step

    def begin(self) -> None:
        draw, day = self._draw, self._day
        for _ in range(draw.choice([0, 6, 20])):
            asked = Request(draw.choice([1, 1, 2, 4, 8]))
            day.at(day.now + draw.uniform(0, self._seconds * 0.8), partial(self._come, asked))
        for _ in range(draw.choice([0, 3, 10])):
            day.at(day.now + draw.uniform(0, self._seconds), self._delete_a_claim)

    def _step(self, action: WritePlan | CreateClaim | LiftGate) -> None:
        pod = self._day.pods.get(action.pod.uid)
        is_faster = self._draw.random() < self._faster and self._day.now < self._ends
        if not is_faster or pod is None:
            return
        said = action if isinstance(action, WritePlan) else pod.metadata
        given = read_gpus(said.annotations.get(names.GPUS, "{}"))
        gpus = [uuid for share in given.values() for uuid in share]
        if gpus:
            self._come(Request(self._draw.randint(1, len(gpus)), frozenset(gpus)), priority=3)

    def _come(self, asked: Request, priority: int = 0) -> None:
        name = f"x{next(self._numbers)}"
        self._day.make_with_claim(name, asked, namespace=NAMESPACE, priority=priority)
        seconds = 10.0 * 360 ** self._draw.random()
        self._day.after(seconds, partial(self._day.terminate, name))

    def _delete_a_claim(self) -> None:
        """Of those that are allocated, the API server keeps what is deleted until its pod ends."""
        claims = self._day.claims
        mine = [key for key in claims if names.EDITION in claims[key].metadata.annotations]
        waiting = sorted(key for key in mine if claims[key].status.allocation is None)
        if waiting:
            self._day.remove_claim(*self._draw.choice(waiting))
