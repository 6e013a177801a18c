"""What a seed decides: machines, which workloads want what and when, and what goes wrong."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from linkwise.extender.next.core_settings import NO_MOVES, CoreSettings, MovePolicy, Moves, Preempt
from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.kube.objects import OwnerReference, Pod
from tests.liveness.day import Day, Trouble
from tests.liveness.hostile import Hostile
from tests.liveness.hostile_nodes import HostileNodes
from tests.liveness.kube_scheduler import ClaimQueue, LazyQueue
from tests.liveness.movables import Movables
from tests.liveness.strangers import Strangers
from tests.liveness.waves import Waves
from tests.other_filters import drawn_filters

MACHINES = ("hgx-h100", "dgx1-v100", "a100-pcie-8-bridged", "dgx-a100")
MODELS = ("H100", "V100", "A100")
NAMESPACES = ("red", "blue", "green")
HOUR = 3600.0
MOVES = MovePolicy(Moves.CONSENT, cost_seconds=60.0, again_seconds=HOUR)  # they fit in a day
_MOST_WAITING = 16
_CALM_HOURS = 0.3
_MOST_BESIDE = 12  # beside a hostile tenant, where none of them is left out
_MOST_BESIDE_MOVABLES = 8  # so that GPUs are free here and there
_MOST_BESIDE_WAVES = 8


@dataclass
class Job:
    """Pods that run to their end; those that die before are made again."""

    name: str
    namespace: str
    size: int
    gpus: int
    seconds: float
    said: dict[str, str]
    priority: int
    gated: bool
    asked: float  # when it came
    done: set[int] = field(default_factory=set)
    bound: set[int] = field(default_factory=set)  # ever
    started: float | None = None  # when its minimum was bound

    @property
    def is_over(self) -> bool:
        return len(self.done) == self.size


@dataclass(frozen=True, slots=True)
class Plain:
    """A day beside which a hostile one is judged."""

    pods: Mapping[str, int] = field(default_factory=dict)  # of the tenant, with their priorities
    is_closed: bool = False  # whether what would be hostile nodes takes no pods


@dataclass(frozen=True, slots=True)
class With:
    """What a day has that others have not."""

    order: QueueOrder = QueueOrder.AGE
    other_filters: bool = False  # kube-scheduler has some that Linkwise does not know
    # A hostile tenant, or one or two hostile nodes. Then what the others do depends on the seed
    # alone, and in every other seed nothing goes wrong.
    hostile: bool = False
    hostile_nodes: bool = False
    moves: bool = False  # some pods may be moved
    claims: bool = False  # the GPUs of some or all nodes come from claims
    waves: bool = False  # some owners create pods only after others run
    lazy: bool = False  # kube-scheduler wakes no pod that did not fit


class Fate:
    def __init__(
        self, seed: int, days: float, has: With | None = None, plain: Plain | None = None
    ) -> None:
        """*plain*: with nothing hostile, to compare."""
        has = has or With()
        self.seed, self.draw = seed, Random(seed)
        self.seconds = days * 24 * HOUR
        draw = self.draw
        self.settings = CoreSettings(
            gang_timeout_seconds=600.0,
            reserve_share=draw.choice([0.3, 0.5, 0.5, 1.0]),
            reserve_limit_seconds=draw.choice([1800.0, 7200.0, 6 * HOUR]),
            preempt=draw.choice(list(Preempt)),
            queue_order=has.order,
            moves=replace(MOVES, whole_nodes=Random(f"whole {seed}").choice([0, 0, 1, 2]))
            if has.moves
            else NO_MOVES,
        )
        self.nodes = draw.randint(3, 6)
        sample = draw.choice([1 << 30, 2])
        self.day = Day(
            settings=self.settings,
            seed=seed,
            sample=sample,
            queue=LazyQueue if has.lazy else ClaimQueue,
        )
        self.jobs: dict[str, Job] = {}
        self.day.on_end = self._ended
        self.longest_hours = draw.choice([0.3, 2.0, 6.0])
        self.is_beside = has.hostile or has.hostile_nodes
        self.is_calm = self.is_beside and seed % 2 == 0
        if self.is_calm:  # where many wait for hours, one that comes first changes who is next
            self.longest_hours = min(self.longest_hours, _CALM_HOURS)
        # Where nothing else happens, nothing else wakes a pod that was forgotten.
        self.how_many = draw.choice([8, 25, 40])
        model = draw.choice(MACHINES)
        by_claims = Random(f"claims {seed}")
        share = by_claims.choice([0.5, 0.7, 1.0, 1.0]) if has.claims else 0.0
        for number in range(self.nodes):
            machine = model if draw.random() < 0.7 else draw.choice(MACHINES)
            # Where both ways are there, each has a node at least.
            is_mixed = 0 < share < 1
            is_by_claims = number == 0 if is_mixed and number < 2 else by_claims.random() < share
            add = self.day.add_node_by_claims if is_by_claims else self.day.add_node
            add(f"n{number}", machine)
        self.day.claims_for = lambda name: Random(f"{name} {seed}").random() < share
        # Strangers take what claims are about to name, so no place is kept from them.
        has_strangers = has.claims and not has.waves
        self.strangers = Strangers(self.day, seed, self.seconds) if has_strangers else None
        self.day.on_bind = self._bound_one
        self.plain = plain
        self.hostile = (
            Hostile(self.day, seed, self.seconds, through_queue=self.is_calm)
            if has.hostile
            else None
        )
        self.hostile_nodes = (
            HostileNodes(self.day, seed, self.seconds) if has.hostile_nodes else None
        )
        self.movables = Movables(self.day, seed, self.seconds, NAMESPACES) if has.moves else None
        self.waves = Waves(self.day, seed, self.seconds, NAMESPACES) if has.waves else None
        if has.other_filters:
            self.day.other_filters += drawn_filters(
                seed, sorted(self.day.nodes), self.day.now, self.seconds
            )

    def begin(self) -> None:
        draw, day = self.draw, self.day
        for number in range(min(self.how_many, self._most())):
            at = draw.uniform(0, self.seconds * 0.8)
            for twin in range(draw.choice([1, 1, 2, 4])):  # they come at the same time
                day.at(day.now + at, partial(self._submit, f"j{number}x{twin}"))
        # Whole-cluster gangs wait for as long as a server runs: which one is evicted is chance.
        for number in range(0 if self.is_calm else draw.choice([0, 0, 1, 2])):
            day.at(day.now + draw.uniform(0, self.seconds), partial(self._serve, number))
        if self.hostile is not None:
            self.hostile.begin(None if self.plain is None else self.plain.pods)
        if self.hostile_nodes is not None and (self.plain is None or self.plain.is_closed):
            (self.hostile_nodes.begin if self.plain is None else self.hostile_nodes.close)()
        if self.movables is not None:
            self.movables.begin()
        if self.waves is not None:
            self.waves.begin()
        if self.is_calm:
            return
        if self.strangers is not None:
            self.strangers.begin()
        day.trouble.deaths = draw.choice([0.0, 0.05, 0.2])
        self._begin_to_strike()

    def _most(self) -> int:
        if self.movables is not None:
            return _MOST_BESIDE_MOVABLES
        if self.waves is not None:
            return _MOST_BESIDE_WAVES
        return _MOST_BESIDE if self.is_beside else self.how_many

    def _begin_to_strike(self) -> None:
        draw, day = self.draw, self.day
        for _ in range(draw.choice([5, 15, 40])):
            day.at(day.now + draw.uniform(0, self.seconds), self._strike)
        day.trouble.calls_lost = draw.choice([0.0, 0.0, 0.05, 0.2])
        day.trouble.watch_late = draw.choice([0.0, 0.0, 0.5, 2.0])

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self.seconds = 0.0
        self.day.trouble = Trouble()
        self.day.stuck.clear()
        if self.hostile_nodes is not None:
            self.hostile_nodes.end()
        if self.movables is not None:
            self.movables.fill()
        for node in sorted(self.day.no_plugin):
            self.day.set_plugin(node, there=True)
        self.day.faults_at = self.day.now

    # Which workloads want what.

    def _draw_of(self, name: str) -> Random:
        """What is drawn for one job, pod or server, whatever has become of others."""
        return Random(f"{name} {self.seed}") if self.is_beside else self.draw

    def _submit(self, name: str) -> None:
        draw = self._draw_of(name)
        waiting = sum(not pod.spec.node_name for pod in self.day.pods.values())
        if not self.is_beside and waiting > _MOST_WAITING:
            return  # each event has all of them tried again: more cost much and show nothing new
        nodes = self._nodes_for(name)
        size = draw.choice([1, 1, 1, 2, 2, 3, 4, self.nodes])
        if self.strangers is not None:
            size = min(size, len(nodes))
        gpus = draw.choice([1, 2, 4, 8, 8]) if size > 1 else draw.choice([1, 1, 2, 4, 8])
        seconds = 60.0 * (60 * self.longest_hours) ** draw.random()
        job = Job(
            name,
            draw.choice(NAMESPACES),
            size,
            gpus,
            seconds,
            self._said(draw, seconds, nodes),
            draw.choice([0, 0, 0, 0, 1, 2]),
            gated=draw.random() < 0.2,
            asked=self.day.now,
        )
        if size > 1:
            job.said |= {"gang": job.name, "gang-size": str(size)}
            if draw.random() < 0.2:
                job.said["gang-min"] = str(draw.randint(1, size))
        self.jobs[job.name] = job
        for rank in range(size):
            late = draw.uniform(0, 3) if draw.random() < 0.2 else 0.0
            self.day.after(late, partial(self._make, job, rank))

    def _nodes_for(self, name: str) -> list[str]:
        """Those that give GPUs in the way in which these pods get them."""
        is_by_claims = self.day.claims_for(name)
        return [
            node for node in sorted(self.day.nodes) if (node in self.day.by_claims) is is_by_claims
        ]

    def _said(self, draw: Random, seconds: float, nodes: list[str]) -> dict[str, str]:
        said: dict[str, str] = {}
        if draw.random() < 0.4:
            honest = seconds * draw.choice([1.0, 1.2, 1.2, 0.5])
            said["expected-duration"] = f"{max(int(honest), 1)}s"
        if draw.random() < 0.5:
            said["preemptible"] = "true"
        if draw.random() < 0.15:
            said["require-link"] = "nvlink"
        if draw.random() < 0.3:
            model = self.day.machine(draw.choice(nodes)).gpus[0].model
            said["gpu-model"] = next(word for word in MODELS if word in model)
        return said

    def _make(self, job: Job, rank: int) -> None:
        name = f"{job.name}-{rank}"
        if job.is_over or rank in job.done or self.day.find(name) is not None:
            return
        said = {**job.said, "rank": str(rank)} if job.size > 1 else job.said
        pod = self.day.make(
            name,
            job.gpus,
            namespace=job.namespace,
            said=said,
            priority=job.priority,
            gated=job.gated,
        )
        share = self._draw_of(name).uniform(0.95, 1.05)
        self.day.runs_for[pod.metadata.uid] = job.seconds * share

    def _bound_one(self, pod: Pod) -> None:
        name, _, rank = pod.metadata.name.partition("-")
        job = self.jobs.get(name)
        if job is not None:
            job.bound.add(int(rank))
            if job.started is None and len(job.bound) >= int(job.said.get("gang-min", job.size)):
                job.started = self.day.now

    def started(self) -> set[str]:
        """The jobs that started."""
        return {job.name for job in self.jobs.values() if job.started is not None}

    def waits(self, names: Collection[str]) -> float:
        """For how long these jobs waited, or wait, in the mean."""
        now, jobs = self.day.now, [self.jobs[name] for name in sorted(names)]
        waits = [(now if job.started is None else job.started) - job.asked for job in jobs]
        return sum(waits) / len(waits) if waits else 0.0

    def _ended(self, pod: Pod) -> None:
        name, day = pod.metadata.name, self.day
        if self.movables is not None:
            self.movables.ended(pod)
        if self.waves is not None:
            self.waves.ended(pod)
        job = self.jobs.get(name.partition("-")[0])
        if job is None:
            if name.startswith("web") and pod.metadata.uid not in day.pods:
                day.after(self.draw.uniform(1, 5), partial(self._make_server, name))
            return
        rank = int(name.rpartition("-")[2])
        if pod.status.phase == "Succeeded":
            job.done.add(rank)
        if pod.metadata.uid in day.pods:
            day.after(self.draw.uniform(1, 60), partial(day.clean_up, pod.metadata.uid))
        if pod.status.phase != "Succeeded" or pod.metadata.uid not in day.pods:
            day.after(self.draw.uniform(61, 90), partial(self._make, job, rank))

    def _serve(self, number: int) -> None:
        self._make_server(f"web{number}")

    def _make_server(self, name: str) -> None:
        draw = self._draw_of(name)
        if self.day.find(name) is None:
            self.day.make(
                name,
                draw.choice([1, 1, 2]),
                namespace=draw.choice(NAMESPACES),
                said={},
                owner=OwnerReference("ReplicaSet", "o", "o", controller=True),
            )

    # What goes wrong.

    def _strike(self) -> None:
        if not self.seconds:
            return  # the cluster is healed
        draw = self.draw
        strikes: list[Callable[[], object]] = [
            partial(self._for_a_while, "calls_lost", draw.choice([0.3, 0.7, 1.0]), 1200.0),
            partial(self._for_a_while, "writes_lost", draw.choice([0.3, 0.7]), 1200.0),
            partial(self._for_a_while, "watch_late", draw.uniform(0.1, 3.0), 7200.0),
            partial(self._for_a_while, "evictions_refused", True, 3600.0),
            partial(self._for_a_while, "no_leader", True, 90.0),
            self._another_leads,
            self._another_leads,
            self._get_stuck,
            self._get_stuck,
            self._lose_plugin,
            self._lose_plugin,
            self._cordon,
            self._break_gpus,
            self._kill,
        ]
        if self.strangers is not None:
            strikes += [self.day.list_claims_again] * 2
        draw.choice(strikes)()
        self.day.faults_at = self.day.now

    def _for_a_while(self, what: str, value: object, most: float) -> None:
        trouble = self.day.trouble
        before = getattr(trouble, what)
        setattr(trouble, what, value)

        def end() -> None:
            setattr(trouble, what, before)
            self.day.faults_at = self.day.now
            if what == "no_leader":
                self._another_leads()

        self.day.after(self.draw.uniform(1.0, most), end)

    def _another_leads(self) -> None:
        self.draw.choice([self.day.restart, self.day.hand_over])()

    def _bound(self) -> list[Pod]:
        pods = self.day.pods.values()
        return sorted(
            (pod for pod in pods if pod.spec.node_name and pod.status.phase == "Running"),
            key=lambda pod: pod.metadata.name,
        )

    def _get_stuck(self) -> None:
        running = self._bound()
        if not running:
            return
        name = self.draw.choice(running).metadata.name
        self.day.stuck.add(name)
        if self.draw.random() < 0.7:
            self.day.terminate(name)
        hours = self.draw.uniform(0.1, 12.0)
        self.day.after(hours * HOUR, lambda: self.day.stuck.discard(name))

    def _lose_plugin(self) -> None:
        node = self._any_node()
        self.day.set_plugin(node, there=False)
        back = partial(self.day.set_plugin, node, there=True)
        self.day.after(self.draw.uniform(2.0, 900.0), back)

    def _cordon(self) -> None:
        node = self._any_node()
        self.day.cordon(node)
        self.day.after(self.draw.uniform(10.0, 2 * HOUR), partial(self.day.uncordon, node))

    def _break_gpus(self) -> None:
        node = self._any_node()
        gpus = self.draw.sample(range(8), self.draw.randint(1, 3))
        self.day.set_health(node, *gpus)
        mended = partial(self.day.set_health, node)
        self.day.after(self.draw.uniform(10.0, 4 * HOUR), mended)

    def _kill(self) -> None:
        pods = sorted(pod.metadata.name for pod in self.day.pods.values())
        if pods:
            self.day.terminate(self.draw.choice(pods))

    def _any_node(self) -> str:
        return self.draw.choice(sorted(self.day.nodes.keys() - self.day.taken.keys()))
