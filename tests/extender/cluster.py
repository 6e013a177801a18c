"""A cluster around the core: kube-scheduler and the kubelets act when a test says so.

Pods go by their names, in the namespace `ml`. `from tests.extender.cluster import *` gives a script
that tries something what it needs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from linkwise.extender.core import Core as Core
from linkwise.extender.next.core_settings import CoreSettings as CoreSettings
from linkwise.extender.state.actions import Action, Emit, Evict, NoteQueue, leaving
from linkwise.extender.state.extender_calls import (
    AlreadyBound,
    BindOrder,
    BindRefusal,
    BindWaits,
    FilterAnswer,
    FilterCall,
    Outcome,
    PriorityAnswer,
)
from linkwise.extender.state.extender_calls import (
    BindCall as BindCall,
)
from linkwise.extender.state.membership.owner_cache import Found
from linkwise.kube.device_claims import ResourceSlice
from linkwise.kube.objects import (
    Condition,
    Container,
    Node,
    NodeSpec,
    ObjectMeta,
    Pod,
    PodSpec,
    SchedulingGate,
    Taint,
)
from linkwise.kube.objects import (
    PodDisruptionBudget as PodDisruptionBudget,
)
from linkwise.pods.podgrouper.workloads.answer import Missing, ObjectRef
from linkwise.replay.gpu_objects import GPU as GPU
from linkwise.replay.gpu_objects import container as container
from linkwise.replay.gpu_objects import node_of
from linkwise.replay.in_memory_api_server import (
    InMemoryApiServer,
    answer_in_time,
    bind_call,
)
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology, write_topology
from linkwise.topology.annotations.plan import (
    InUse,
    Plan,
    read_gpus,
    read_plan,
    write_gpus,
    write_in_use,
    write_plan,
)
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine

START = 1_000_000.0
change = msgspec.structs.replace


_read = lru_cache(maxsize=256)(read_topology)  # the laws of days ask at each event


@dataclass
class Cluster(InMemoryApiServer):
    now: float = START
    events: list[Emit] = field(default_factory=list)
    is_asked: bool = True  # whether kube-scheduler has asked about some pod before
    evicted: list[str] = field(default_factory=list)
    spared: set[str] = field(default_factory=set)  # pods that the Eviction API refuses to evict
    # What pods hang on, and what was read of it; None: the API server cannot be asked.
    owners: dict[ObjectRef, Found] | None = field(default_factory=dict)
    reads: list[ObjectRef] = field(default_factory=list)
    made: int = 0  # pods

    def restart(self) -> None:
        super().restart()
        if self.is_asked:
            self.core.filter(FilterCall(Pod(), ()), self.now)

    # Nodes.

    def add_node(
        self,
        name: str,
        machine: str | Machine = "dgx1-v100",
        *,
        cpu: str = "96",
        pods: str = "110",
        labels: Mapping[str, str] | None = None,
    ) -> Node:
        hardware = machine if isinstance(machine, Machine) else recorded_machine(machine, node=name)
        return self.put_node(node_of(name, hardware, cpu=cpu, pods=pods, labels=labels))

    def machine(self, node: str) -> Machine:
        return _read(self.nodes[node].metadata.annotations[names.TOPOLOGY])

    def uuids(self, node: str, *positions: int) -> tuple[str, ...]:
        return tuple(self.machine(node).gpus[position].uuid for position in positions)

    def set_health(self, node: str, *unhealthy: int) -> None:
        machine = self.machine(node)
        gpus = tuple(replace(g, healthy=p not in unhealthy) for p, g in enumerate(machine.gpus))
        self.annotate_node(node, names.TOPOLOGY, write_topology(replace(machine, gpus=gpus)))

    def cordon(self, name: str, *taints: Taint) -> None:
        spec = NodeSpec(unschedulable=not taints, taints=taints)
        self.put_node(change(self.nodes[name], spec=spec))

    def uncordon(self, name: str) -> None:
        self.put_node(change(self.nodes[name], spec=NodeSpec()))

    def set_ready(self, name: str, *, ready: bool) -> None:
        condition = Condition(type="Ready", status="True" if ready else "False")
        node = self.nodes[name]
        self.put_node(change(node, status=change(node.status, conditions=(condition,))))

    def slice_event(self, kind: str, one: ResourceSlice) -> None:
        """What watches of ResourceSlices show."""
        self.core.slice_event(kind, one, self.now)

    # Pods.

    def add_pod(
        self,
        name: str,
        gpus: int = 0,
        *,
        containers: Iterable[Container] = (),
        init: Iterable[Container] = (),
        cpu: str = "1",
        priority: int = 0,
        node: str = "",
        gates: Iterable[str] = (),
        said: Mapping[str, str] | None = None,
        alter: Callable[[Pod], Pod] = lambda pod: pod,
        **words: str,
    ) -> Pod:
        """`gang_size="2"` is the annotation linkwise.dev/gang-size, as is *said* of the same."""
        self.made += 1
        pod = Pod(
            metadata=ObjectMeta(
                name=name,
                namespace="ml",
                uid=f"uid-{self.made}",
                annotations={
                    names.PREFIX + key.replace("_", "-"): text
                    for key, text in {**(said or {}), **words}.items()
                },
                creation_timestamp=datetime.fromtimestamp(self.now, UTC),
            ),
            spec=PodSpec(
                containers=tuple(containers) or (container("main", gpus, cpu=cpu),),
                init_containers=tuple(init),
                priority=priority,
                node_name=node,
                scheduling_gates=tuple(SchedulingGate(name=gate) for gate in gates),
            ),
        )
        return self.put_pod(alter(pod))

    def gates(self, name: str) -> list[str]:
        return [gate.name for gate in self.pod(name).spec.scheduling_gates]

    def lift(self, name: str, gate: str) -> None:
        """Take one gate off, as its owner does."""
        pod = self.pod(name)
        left = tuple(each for each in pod.spec.scheduling_gates if each.name != gate)
        self.put_pod(change(pod, spec=change(pod.spec, scheduling_gates=left)))

    def add_gang(
        self, name: str, size: int, gpus: int = 8, *, gates: Iterable[str] = (), **said: str
    ) -> list[str]:
        gates = tuple(gates)
        members = [f"{name}-{rank}" for rank in range(size)]
        for rank, member in enumerate(members):
            words = {"gang": name, "gang_size": str(size), "rank": str(rank), **said}
            self.add_pod(member, gpus, gates=gates, said=words)
        return members

    def find(self, name: str) -> Pod | None:
        return next((p for p in self.pods.values() if p.metadata.name == name), None)

    def pod(self, name: str) -> Pod:
        found = self.find(name)
        assert found is not None, f"no pod {name}"
        return found

    def set_phase(self, name: str, phase: str) -> None:
        pod = self.pod(name)
        self.put_pod(change(pod, status=change(pod.status, phase=phase)))

    def nominate(self, name: str, node: str) -> None:
        pod = self.pod(name)
        self.put_pod(change(pod, status=change(pod.status, nominated_node_name=node)))

    def annotate(self, name: str, **said: str) -> None:
        pod = self.pod(name)
        words = {names.PREFIX + key.replace("_", "-"): text for key, text in said.items()}
        annotations = {**pod.metadata.annotations, **words}
        self.put_pod(change(pod, metadata=change(pod.metadata, annotations=annotations)))

    def write_plan(self, name: str, plan: Plan, gpus: Mapping[str, tuple[str, ...]]) -> None:
        """A plan for this very pod appears on it, as another leader wrote it."""
        own = change(plan, uid=self.pod(name).metadata.uid)
        self.annotate(name, plan=write_plan(own), gpus=write_gpus(gpus))

    def terminate(self, name: str) -> None:
        """Delete with grace: the pod stays, leaving, until the kubelet is done with it."""
        self.put_pod(leaving(self.pod(name), self.now))

    def delete(self, name: str) -> None:
        self.remove_pod(self.pod(name).metadata.uid)

    # What the extender writes.

    def settle(self, rounds: int = 20) -> list[Action]:
        """Carry out what the core decides until it has nothing more to say."""
        carried: list[Action] = []
        for _ in range(rounds):
            actions, busy = self.decide()
            if not busy:
                return carried
            carried += actions
        raise AssertionError(f"no end of actions: {carried[-3:]}")

    def settle_but_notes(self) -> list[Action]:
        """The same; what is noted of the queue on pods is left out."""
        return [action for action in self.settle() if not isinstance(action, NoteQueue)]

    def is_at_rest(self) -> bool:
        """Whether the core, once all is settled, has nothing to decide until time goes on."""
        for _ in range(20):
            due = self.core.next_due()
            if due is None or due > self.now:
                return True
            self.settle(rounds=60)
        return False

    def read_owner(self, ref: ObjectRef) -> Found | None:
        self.reads.append(ref)
        return None if self.owners is None else self.owners.get(ref, Missing.NOT_FOUND)

    def pass_time(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.settle()

    def carry_out(self, action: Action) -> Outcome:
        if isinstance(action, Emit):
            self.events.append(action)
        return super().carry_out(action)

    def evict(self, pod: Pod, action: Evict) -> Outcome:
        if pod.metadata.name in self.spared:
            return Outcome.REFUSED
        self.evicted.append(pod.metadata.name)
        return super().evict(pod, action)

    # What kube-scheduler does.

    def filter(self, name: str, nodes: Iterable[str] | None = None) -> FilterAnswer:
        asked = tuple(sorted(self.nodes)) if nodes is None else tuple(nodes)
        return answer_in_time(self.core, FilterCall(self.pod(name), asked), self.now)

    def filter_again(self, name: str, nodes: Iterable[str] | None = None) -> FilterAnswer:
        """For a pod that comes again: all nodes that pass, and not only the best one."""
        asked = None if nodes is None else list(nodes)
        self.filter(name, asked)
        return self.filter(name, asked)

    def prioritize(self, name: str) -> PriorityAnswer:
        return self.core.prioritize(FilterCall(self.pod(name), tuple(sorted(self.nodes))), self.now)

    def begin_bind(self, name: str, node: str) -> object:
        """As for a node that `filter` let the pod through to. If the Binding waits for other
        members of a gang, these come too, and their callers have gone when it may go on."""
        order = self.come_to_bind(name, node)
        if not isinstance(order, BindWaits):
            return order
        own = self.plan(name)
        others = [
            (pod.metadata.name, plan.node)
            for pod in list(self.pods.values())
            if pod.metadata.name != name
            and not pod.spec.node_name
            and (plan := self.plan(pod.metadata.name)) is not None
            and own is not None
            and plan.id == own.id
        ]
        came = [self.come_to_bind(*other) for other in others]
        order = self.come_to_bind(name, node)
        for other, answer in zip(others, came, strict=True):
            if isinstance(answer, BindOrder):
                self.core.end_bind(answer, Outcome.REFUSED, self.now)
            elif not isinstance(answer, AlreadyBound):
                self.give_up_bind(*other)
        return order

    def come_to_bind(
        self, name: str, node: str
    ) -> BindOrder | AlreadyBound | BindRefusal | BindWaits:
        """kube-scheduler's call, which may have to wait for others."""
        return self.core.begin_bind(bind_call(self.pod(name), node), self.now)

    def give_up_bind(self, name: str, node: str, *, waited: bool = False) -> None:
        """kube-scheduler gets a refusal, or no longer waits; *waited*: for as long as it may."""
        call = bind_call(self.pod(name), node)
        if waited:
            self.core.bind_gave_up(call, self.now)
        self.core.bind_refused(call)

    def put_bound(self, pod: Pod) -> Pod:
        """The kubelet starts it when a test says so."""
        return self.put_pod(pod)

    def bind(self, name: str, node: str) -> None:
        order = self.begin_bind(name, node)
        assert isinstance(order, BindOrder), order
        self.end_bind(order)

    def schedule(self, name: str) -> str:
        """One attempt, as kube-scheduler makes it; the node, or empty."""
        pod = self.pod(name)
        if pod.spec.scheduling_gates:
            return ""  # it is not tried
        nominated = pod.status.nominated_node_name
        passed = self.filter(name, [nominated]).node_names if nominated in self.nodes else ()
        node = self.best_of(pod, passed or self.filter(name).node_names)
        if not node:
            return ""
        order = self.begin_bind(name, node)
        if isinstance(order, BindRefusal | BindWaits):
            self.give_up_bind(name, node)
            return ""
        assert isinstance(order, BindOrder)
        return node if self.end_bind(order) else ""

    # What the kubelet does.

    def set_in_use(self, node: str, pods: dict[str, dict[str, tuple[str, ...]]]) -> None:
        self.annotate_node(node, names.IN_USE, write_in_use(InUse(pods=pods)))

    def start(self, name: str, gpus: dict[str, tuple[str, ...]] | None = None) -> None:
        """The kubelet gives the pod its GPUs: the planned ones, or *gpus*."""
        pod = self.pod(name)
        given = self.gpus(name) if gpus is None else gpus
        node = pod.spec.node_name
        self.set_in_use(node, {**self.in_use(node).pods, f"{pod.metadata.namespace}/{name}": given})
        self.set_phase(name, "Running")

    def stop(self, name: str, node: str) -> None:
        """The kubelet has its GPUs back."""
        pods = self.in_use(node).pods
        self.set_in_use(node, {k: gpus for k, gpus in pods.items() if k != f"ml/{name}"})

    # What a test looks at.

    def gpus(self, name: str) -> dict[str, tuple[str, ...]]:
        return read_gpus(self.pod(name).metadata.annotations[names.GPUS])

    def plan(self, name: str) -> Plan | None:
        """The plan that the pod carries for itself, without its uid."""
        pod = self.pod(name)
        text = pod.metadata.annotations.get(names.PLAN)
        plan = None if text is None else read_plan(text)
        return change(plan, uid="") if plan and plan.uid == pod.metadata.uid else None

    def places(self, *names: str) -> list[str]:
        """The planned node of each pod, or an empty name."""
        plans = [self.plan(name) for name in names]
        return ["" if plan is None else plan.node for plan in plans]

    def indices(self, name: str) -> tuple[int, ...]:
        """The GPU indices that the pod's annotation names, on its node or planned node."""
        plan = self.plan(name)
        assert plan is not None
        machine = self.machine(plan.node)
        uuids = [uuid for share in self.gpus(name).values() for uuid in share]
        return machine.indices_of(machine.mask_of(uuids))

    def free(self, node: str) -> int:
        return next(view.free for view in self.core.nodes(self.now) if view.name == node)

    def phase(self, gang: str) -> str:
        return next((g.phase for g in self.core.gangs(self.now) if g.name == gang), "")

    def sound(self) -> bool:
        found = self.core.audit()
        assert found == [], found
        return True
