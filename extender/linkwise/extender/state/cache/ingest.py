"""Converts Pods and Nodes of the API server to the records of the cache.

A waiting pod changes several times, and the pods of a job are equal. So the result for equal input
is computed once.
"""

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from sys import intern
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from linkwise.extender.state.actions import PodRef
from linkwise.extender.state.cache.refusals import refusal_of
from linkwise.extender.state.cache.resources import most_pods, node_offers, pod_needs, resource_on
from linkwise.extender.state.membership.membership import Judged, Membership, digest
from linkwise.extender.state.membership.owner_cache import FetchOwner, Found
from linkwise.extender.state.records import (
    NO_DEMAND,
    GangKey,
    NodeRecord,
    PodRecord,
    QueueNote,
    ResourceList,
    Seat,
    Template,
    WrittenPlan,
    name_to_come,
    read_queue_note,
    uid_to_come,
)
from linkwise.extender.state.timers import Agenda
from linkwise.kube.fields import mapping
from linkwise.kube.filters.pod_facts import NO_RULES, PodFacts, PodRules, claims_of, pod_rules
from linkwise.kube.filters.requests import Resized, resized
from linkwise.kube.labels import COMPLETION_INDEX, MIRROR_POD
from linkwise.kube.objects import (
    Affinity,
    Condition,
    Container,
    Node,
    Pod,
    PodClaim,
    PodSpec,
    PodStatus,
    Quantity,
    Toleration,
    TopologySpreadConstraint,
)
from linkwise.kube.objects import Resources as OfPod
from linkwise.kube.pod_conditions import scheduler_error
from linkwise.pods.annotation_faults import faults_of
from linkwise.pods.annotations import (
    NOTHING_SAID,
    PodRequest,
    ask_of,
    demand_of,
    mixed,
    oversize,
    requested_of,
    resource_of,
    shares_of,
)
from linkwise.pods.claims import ClaimAsk
from linkwise.pods.claims import claims_of as claims_said
from linkwise.pods.large_pods import LargePod
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs, RoleToCome
from linkwise.pods.podgrouper.workloads.declared import group_named
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus, read_plan
from linkwise.topology.demand import PodDemand
from linkwise.topology.errors import AnnotationError

_MOST_RULES = 32  # the weight of a pod's; each costs time for each pod of its namespaces
_MOST_WISHES = 1024  # remembered; each some 2 KB
_MOST_FORETOLD = 256  # gangs whose members to come are remembered; each member some 0.5 KB
_MANY_LABELS = 32
_MOST_REMEMBERED = 4096  # bytes of what is read; few pods have more; these are read each time
_MOST_PLAN = 16 * 1024  # characters of the two annotations; the extender's have a tenth of it
# The claims of a StatefulSet's pods differ by their ordinals, and these pods are alike.
_DIGITS = re.compile(r"\d+")
_MOST_ANNOTATIONS = 256 * 1024  # bytes of a pod's, by the API server's validation
_ENDED = frozenset({"Succeeded", "Failed"})
# The kubelet's reasons for pods that it does not admit and so does not run: of its device, CPU and
# memory managers, and of its Topology Manager. OutOf… names the resource that is used up.
_NO_NODES = re.compile(r"0/\d+ nodes are available")  # `FitError` of kube-scheduler
# kube-scheduler spreads their pods over zones and nodes, even if they do not request it.
_SPREAD_OWNERS = frozenset({"ReplicaSet", "StatefulSet", "ReplicationController"})

T = TypeVar("T")


class _TemplateKey(msgspec.Struct, frozen=True):
    namespace: str
    node_selector: dict[str, str]
    affinity: Affinity | None
    tolerations: tuple[Toleration, ...]
    requests: list[tuple[Mapping[str, Quantity], Mapping[str, Quantity]]]
    priority: int
    scheduler: str
    claims: tuple[PodClaim, ...]
    late_claim: str | None  # the template of the claim that is created for planned GPUs
    spread: tuple[TopologySpreadConstraint, ...]
    ports: list[tuple[object, ...]]
    volumes: list[str]


class _SpecKey(msgspec.Struct, frozen=True):
    """All input of `_read_spec`."""

    namespace: str
    node_selector: dict[str, str]
    affinity: Affinity | None
    tolerations: tuple[Toleration, ...]
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...]
    init_containers: tuple[Container, ...]
    containers: tuple[Container, ...]
    overhead: dict[str, Quantity]
    resources: OfPod
    priority: int
    scheduler: str
    claims: tuple[PodClaim, ...]
    # Of a claim to be created: its requests and template; a wrong annotation as it is written.
    asked: tuple[Mapping[str, int], str] | str | None
    volumes: list[str]
    matched: dict[str, str]  # the labels that `matchLabelKeys` name
    resized: Resized


@dataclass(frozen=True, slots=True)
class _OfSpec:
    """What a pod requests, whatever its annotations say."""

    resource: str  # of `demand`
    demand: PodDemand
    shares: tuple[tuple[str, PodDemand], ...]
    invalid: str
    needs: ResourceList
    prefers: bool
    rules: PodRules
    template: bytes  # equal for pods that may have one `Template`


@dataclass(frozen=True, slots=True)
class _Wishes:
    of_spec: _OfSpec
    ask: PodRequest
    invalid: str
    template: Template | None
    claim: ClaimAsk | None

    @property
    def asks_for_members(self) -> bool:
        """Whether the pod's gang matters."""
        return not self.invalid and bool(self.of_spec.demand.gpus or self.ask.gang)


class Ingest:
    """Reads pods and nodes; keeps one `Template` per distinct content."""

    def __init__(
        self,
        resources: tuple[str, ...],
        agenda: Agenda,
        indexed_jobs: IndexedJobs = IndexedJobs.ALL,
        namespaces: Collection[str] = (),
        ahead_from: int = 2,
        awaited: Set[str] = frozenset(),
        may_be_evicted: Callable[[str, PodRequest], bool] = lambda _, ask: ask.preemptible,
    ) -> None:
        """*resources*: those that are GPUs. *namespaces*: the pods of all others are left alone;
        empty: those of none are. An unschedulable pod of *ahead_from* GPUs or more is planned
        ahead, and so are new ones that are *awaited*, by their own uid or their owner's.
        *may_be_evicted*: whether a pod of this namespace consents to its eviction."""
        self._resources, self._ahead_from, self._awaited = resources, ahead_from, awaited
        self._namespaces = frozenset(namespaces)
        self._membership = Membership(resources, agenda, indexed_jobs, may_be_evicted)
        self._numbers = count()
        self._specs: dict[bytes, _OfSpec] = {}
        self._asks: dict[bytes, tuple[PodRequest, str]] = {}
        self._foretold: dict[Hashable, tuple[tuple[RoleToCome, ...], tuple[PodRecord, ...]]] = {}
        # Only pods hold references, so a template is freed with the last pod made from it.
        self._templates: WeakValueDictionary[bytes, Template] = WeakValueDictionary()

    def pod(self, pod: Pod) -> PodRecord:
        """Read a pod that a caller sent, maybe before the watch shows it. Never raises: the record
        keeps a parse error as `invalid`, and calls about the pod report it."""
        wishes = self._wishes(pod)
        if self._leaves_alone(pod):
            return _left_alone(self._record(pod, wishes, Judged(NOTHING_SAID)))
        if not wishes.asks_for_members:
            return self._record(pod, wishes, Judged(wishes.ask, wishes.invalid))
        judged = self._membership.judged(pod, wishes.ask, wishes.of_spec.demand.gpus)
        return self._record(pod, wishes, judged)

    def _record(self, pod: Pod, wishes: "_Wishes", judged: Judged) -> PodRecord:
        record = self._record_of(pod, wishes, judged)
        if not judged.to_come or record.gang is None or not record.live:
            return record
        try:
            to_come = self._to_come(record, judged.to_come)
        except (AnnotationError, msgspec.ValidationError, ValueError) as error:
            return replace(record, invalid=f"the template of members that come later: {error}")
        ready = any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
        return replace(record, to_come=to_come, ready=ready)

    def _record_of(self, pod: Pod, wishes: "_Wishes", judged: Judged) -> PodRecord:
        return _record(pod, wishes, judged, self._ahead_from, self._awaited)

    def _to_come(self, record: PodRecord, roles: tuple[RoleToCome, ...]) -> tuple[PodRecord, ...]:
        """The members of the gang of *record* that its owner creates later: one tuple for all
        members. Raises AnnotationError and ValueError."""
        alike = (
            record.gang,
            record.ask.gang,
            record.priority,
            record.scheduler,
            record.claim is None,
        )
        known = self._foretold.get(alike)
        if known is not None and known[0] == roles:
            return known[1]
        found = tuple(each for role in roles for each in self._foretell(record, role))
        if len(self._foretold) >= _MOST_FORETOLD:
            self._foretold.clear()
        self._foretold[alike] = roles, found
        return found

    def _foretell(self, record: PodRecord, role: RoleToCome) -> Iterator[PodRecord]:
        said = {
            "namespace": record.ref.namespace,
            "labels": mapping(role.template, "metadata.labels"),
            "annotations": mapping(role.template, "metadata.annotations"),
        }
        body = {"metadata": said, "spec": mapping(role.template, "spec")}
        pod = msgspec.convert(body, Pod)
        wishes = self._wishes(pod)
        if wishes.invalid:
            raise ValueError(wishes.invalid)
        ask = replace(wishes.ask, gang=record.ask.gang)
        like = self._record_of(pod, wishes, Judged(ask))
        template = like.template
        if record.claim is not None:  # the webhook has its GPUs come from a claim too
            words = digest(b"by claim" + wishes.of_spec.template)
            template = self._template(words, pod.spec, wishes.of_spec, by_claim=True)
        key = record.gang
        assert key is not None, "it has members to come"
        for number, member in enumerate(role.members):
            seat: Seat = (
                f"{member.role or 'member'} {number}" if member.rank is None else member.rank
            )
            name = name_to_come(key.name, seat)
            yield replace(
                like,
                ref=PodRef(key.namespace, name, uid_to_come(key, seat)),
                created=math.inf,
                priority=record.priority,
                scheduler=record.scheduler,
                template=template,
                owner_kind=record.owner_kind,
                gang=key,
                coming=True,
                ask=replace(ask, rank=member.rank, role=member.role, subgroup=member.subgroup),
            )

    def follow(self, pod: Pod, now: float) -> PodRecord:
        """Read a pod from the watch; the objects that it depends on are read until `forget`."""
        wishes = self._wishes(pod)
        if self._leaves_alone(pod):
            self._membership.forget(pod.metadata.uid)
            return _left_alone(self._record(pod, wishes, Judged(NOTHING_SAID)))
        in_group = not wishes.invalid and group_named(pod) is not None
        if not (wishes.asks_for_members or in_group):
            self._membership.forget(pod.metadata.uid)
            return self._record(pod, wishes, Judged(wishes.ask, wishes.invalid))
        judged = self._membership.follow(pod, wishes.ask, wishes.of_spec.demand.gpus, now)
        return self._record(pod, wishes, judged)

    def forget(self, uid: str) -> None:
        self._membership.forget(uid)

    @property
    def any_due(self) -> bool:
        """See `Membership`."""
        return self._membership.any_due

    def take_reads(self, now: float) -> tuple[FetchOwner, ...]:
        return self._membership.take_reads(now)

    def owner_read(self, read: FetchOwner, found: Found | None, now: float) -> Mapping[str, bool]:
        """The result of a read; None: the API server did not respond. Return `Answered.ended`."""
        return self._membership.owner_read(read, found, now)

    @property
    def steps_to_rejudge(self) -> int:
        """See `Membership`."""
        return self._membership.steps_to_rejudge

    def take_to_rejudge(self, now: float) -> list[PodRecord]:
        """The next few pods that a read affects."""
        return [self.follow(pod, now) for pod in self._membership.take_to_rejudge()]

    def node(self, node: Node) -> NodeRecord:
        ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        resource = resource_on(node, self._resources)
        return NodeRecord(
            name=node.metadata.name,
            ready=ready,
            unschedulable=node.spec.unschedulable,
            taints=node.spec.taints,
            labels=_interned(node.metadata.labels.items()),  # nodes have most of theirs in common
            offers=node_offers(node, resource),
            max_pods=most_pods(node),
            topology=node.metadata.annotations.get(names.TOPOLOGY),
            in_use=node.metadata.annotations.get(names.IN_USE),
            emptied=node.metadata.annotations.get(names.EMPTY) == "true",
            resource=resource,
        )

    def _leaves_alone(self, pod: Pod) -> bool:
        outside = bool(self._namespaces) and pod.metadata.namespace not in self._namespaces
        return outside or _is_static(pod)

    def _wishes(self, pod: Pod) -> "_Wishes":
        """A waiting pod changes several times, and the pods of a job are equal: the result for
        equal input is computed once."""
        claim = _claim_of(pod)
        of_spec, (ask, wrong) = self._of_spec(pod, claim), self._ask(pod)
        invalid = of_spec.invalid or wrong
        if isinstance(pod, LargePod) and (of_spec.demand.gpus or of_spec.shares):
            invalid = pod.refusal
        template = None
        if of_spec.demand.gpus or of_spec.shares or ask.gang or invalid:
            by_claim = claim is not None
            template = self._template(of_spec.template, pod.spec, of_spec, by_claim=by_claim)
            if why := _too_long(pod.metadata.annotations):
                ask, invalid = NOTHING_SAID, invalid or why
        return _Wishes(of_spec, ask, invalid, template, claim)

    def _ask(self, pod: Pod) -> tuple[PodRequest, str]:
        """What the pod's annotations say, or what is wrong with them."""
        meta = pod.metadata
        said = {k: v for k, v in meta.annotations.items() if k.startswith(names.PREFIX)}
        for ours in names.BY_LINKWISE:
            said.pop(ours, None)
        index = meta.annotations.get(COMPLETION_INDEX) or meta.labels.get(COMPLETION_INDEX)
        words = msgspec.json.encode((said, index), order="deterministic")
        return _once(self._asks, words, lambda: _read_ask(pod))

    def _of_spec(self, pod: Pod, claim: ClaimAsk | None) -> _OfSpec:
        spec, meta = pod.spec, pod.metadata
        words = _SpecKey(
            meta.namespace,
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            spec.init_containers,
            spec.containers,
            spec.overhead,
            spec.resources,
            spec.priority,
            spec.scheduler_name,
            _others_claims(spec, claim),
            meta.annotations.get(names.CLAIMS)
            if claim is None
            else (claim.requests, claim.template),
            [_DIGITS.sub("0", claim.name) for claim in claims_of(pod)],
            {
                key: meta.labels[key]
                for constraint in spec.topology_spread_constraints
                for key in constraint.match_label_keys
                if key in meta.labels
            },
            resized(pod),
        )
        encoded = msgspec.json.encode(words, order="deterministic")
        return _once(
            self._specs, encoded, lambda: _read_spec(pod, claim, self._resources, words.volumes)
        )

    def _template(self, key: bytes, spec: PodSpec, of_spec: _OfSpec, *, by_claim: bool) -> Template:
        found = self._templates.get(key)
        if found is None:
            found = Template(
                next(self._numbers),
                spec.node_selector,
                spec.affinity,
                spec.tolerations,
                by_claim=by_claim,
                resource=of_spec.resource if of_spec.demand.gpus or of_spec.shares else "",
            )
            self._templates[key] = found
        return found


def _once(known: dict[bytes, T], words: bytes, read: Callable[[], T]) -> T:
    """The result for these words, read once while it is remembered."""
    if len(words) > _MOST_REMEMBERED:
        return read()
    key = digest(words)
    found = known.get(key)
    if found is None:
        found = read()
        if len(known) >= _MOST_WISHES:
            known.clear()
        known[key] = found
    return found


def _claim_of(pod: Pod) -> ClaimAsk | None:
    """None if the annotation is wrong, too: `_read_spec` says so."""
    if names.CLAIMS not in pod.metadata.annotations:
        return None
    try:
        return claims_said(pod.metadata.annotations, pod.spec)
    except AnnotationError:
        return None


def _others_claims(spec: PodSpec, ours: ClaimAsk | None) -> tuple[PodClaim, ...]:
    """Without the one that is created for planned GPUs: its name is drawn at random, and pods that
    differ in that alone are alike."""
    if ours is None:
        return spec.resource_claims
    return tuple(each for each in spec.resource_claims if each.name != ours.entry)


def _read_ask(pod: Pod) -> tuple[PodRequest, str]:
    try:
        return ask_of(pod.metadata.annotations, pod.metadata.labels), ""
    except AnnotationError:
        faults = faults_of(pod.metadata.annotations, pod.metadata.labels)
        return NOTHING_SAID, "; ".join(faults)


def _read_spec(
    pod: Pod, claim: ClaimAsk | None, resources: tuple[str, ...], volumes: list[str]
) -> _OfSpec:
    demand, invalid, resource = NO_DEMAND, "", resource_of(pod, resources)
    shares: tuple[tuple[str, PodDemand], ...] = ()
    try:
        demand = demand_of(pod, resource)
        shares = shares_of(pod, resource)
    except ValueError as error:
        invalid = f"{resource}: {error}"
        with suppress(ValueError):  # it has these even if it says nonsense of a claim
            demand = requested_of(pod, resource)
    else:
        invalid = mixed(pod, resources) or oversize(pod, demand, shares, resource)
    rules = pod_rules(pod)
    template = _template_key(pod, claim, rules, volumes)
    if rules.weight > _MOST_RULES:
        rules = NO_RULES  # kube-scheduler keeps them
    needs = pod_needs(pod, demand, resource)
    return _OfSpec(resource, demand, shares, invalid, needs, _prefers(pod.spec), rules, template)


def _template_key(pod: Pod, claim: ClaimAsk | None, rules: PodRules, volumes: list[str]) -> bytes:
    spec = pod.spec
    words = _TemplateKey(
        pod.metadata.namespace,
        spec.node_selector,
        spec.affinity,
        spec.tolerations,
        [
            (asked.requests, asked.limits)
            for asked in (
                spec.resources,
                *(c.resources for c in (*spec.init_containers, *spec.containers)),
            )
        ],
        spec.priority,
        spec.scheduler_name,
        _others_claims(spec, claim),
        None if claim is None else claim.template,
        spec.topology_spread_constraints,
        [tuple(port) for port in rules.ports],
        volumes,
    )
    return digest(msgspec.json.encode(words, order="deterministic"))


def _record(
    pod: Pod,
    wishes: _Wishes,
    judged: Judged,
    least: int,
    awaited: Set[str],
) -> PodRecord:
    meta, spec, status, of_spec = pod.metadata, pod.spec, pod.status, wishes.of_spec
    resource = of_spec.resource
    conditions = status.conditions
    written = None
    if wishes.template is not None and names.PLAN in meta.annotations:
        written = _plan_of(pod)
    size, created = of_spec.demand.gpus, meta.creation_timestamp
    ref = PodRef(meta.namespace, meta.name, meta.uid)
    gates = {gate.name for gate in spec.scheduling_gates}
    ended, gated = status.phase in _ENDED, names.GATE in gates
    nominated = status.nominated_node_name
    # A pod that was moved keeps its target, whatever becomes of its nomination.
    planned = written is not None and (
        nominated == written.plan.node or bool(judged.awaits) or bool(written.plan.moved)
    )
    open_ = bool(size or of_spec.shares) and not (judged.invalid or ended or spec.node_name)
    unschedulable = open_ and _is_unschedulable(pod)
    # A nominated pod is about to be tried on its node, or others are evicted there for it. And if a
    # pod waits for something else, such as a volume, a plan would reserve GPUs for nothing.
    in_line = unschedulable and not nominated and size >= least and _lacks_gpus(pod, resource)
    # Between the lift of its gate and kube-scheduler's verdict it keeps its place in the queue.
    queue = _queue(pod)
    keeps_place = queue is not None and not unschedulable and size >= least
    # Shares are chosen at the bind, so a single pod that takes some is not planned ahead.
    owner = next((owner for owner in meta.owner_references if owner.controller), None)
    is_awaited = meta.uid in awaited or (owner is not None and owner.uid in awaited)
    claim = None if judged.invalid else wishes.claim
    ahead = gated or planned or in_line or keeps_place or is_awaited or claim is not None
    gang = _gang_of(ref, judged.ask, ahead=ahead and open_ and not of_spec.shares)
    owner_kind = "" if owner is None else owner.kind
    leaving_until = meta.deletion_timestamp
    labels = _shared_labels(tuple(meta.labels.items()))
    return PodRecord(
        ref=ref,
        node=spec.node_name,
        ended=ended,
        failed=status.phase == "Failed",
        leaving=leaving_until is not None,
        priority=spec.priority,
        created=0.0 if created is None else created.timestamp(),
        needs=of_spec.needs,
        prefers=of_spec.prefers or any(o.kind in _SPREAD_OWNERS for o in meta.owner_references),
        demand=of_spec.demand,
        resource=resource,
        shares=of_spec.shares,
        ask=judged.ask,
        invalid=judged.invalid,
        awaits=judged.awaits,
        template=wishes.template,
        nominated=nominated,
        gated=gated,
        held_back=len(gates) > gated or bool(judged.awaits and not spec.node_name),
        written=written,
        started=_is_marked(pod),
        scheduler=spec.scheduler_name,
        asked=_was_asked_about(pod) or _had_a_turn(judged.ask, written, queue, gated=gated),
        unschedulable=unschedulable and (gang is None or not of_spec.demand.gpus),
        fits_nowhere=_fits_nowhere(pod) if open_ else "",
        broken_off=scheduler_error(conditions) if open_ else "",
        preempts=spec.preemption_policy != "Never",
        running=status.phase == "Running",
        admitted=_is_admitted(status),
        refusal=refusal_of(status, of_spec.demand.gpus, resource),
        endless=spec.restart_policy == "Always" and not owner_kind.endswith("Job"),
        owner_kind=owner_kind,
        owner_uid="" if owner is None else owner.uid,
        owner_name="" if owner is None else owner.name,
        queue=queue,
        leaving_until=leaving_until.timestamp() if leaving_until is not None else 0.0,
        disrupted=any(map(_is_for_others, conditions)),
        labels=labels if of_spec.demand.gpus or of_spec.shares else {},
        facts=None if ended else _facts(pod, labels, of_spec.rules),
        has_claims=bool(spec.resource_claims),
        claim=claim,
        static=_is_static(pod),
        gang=gang,
    )


def _is_for_others(condition: Condition) -> bool:
    """Whether the pod leaves because its GPUs or its node are wanted for something else. A program
    that evicts it through the API closes the node first, if that is for the node; and the extender
    knows which pods it evicts itself."""
    is_disrupted = condition.type == "DisruptionTarget" and condition.status == "True"
    return is_disrupted and condition.reason != "EvictionByEvictionAPI"


def _too_long(annotations: Mapping[str, str]) -> str:
    """Why the extender's annotations would not fit beside these; empty: they do."""
    length = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
    ours = (names.PLAN, names.GPUS)
    length -= sum(len(annotations.get(key, "")) for key in ours)
    if length <= _MOST_ANNOTATIONS - _MOST_PLAN:
        return ""
    most = (_MOST_ANNOTATIONS - _MOST_PLAN) >> 10
    return f"annotations of {length >> 10} KiB: expected {most} KiB at most, as the plan is one too"


def _facts(pod: Pod, labels: Mapping[str, str], rules: PodRules) -> PodFacts:
    claims = claims_of(pod) if pod.spec.volumes else ()
    return PodFacts(pod.metadata.namespace, labels, rules, claims)


def _shared_labels(items: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """The pods of a DaemonSet or Deployment have equal labels. A pod may have any number."""
    return _interned(items) if len(items) > _MANY_LABELS else _few_labels(items)


def _interned(labels: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    return {intern(key): intern(value) for key, value in labels}


_few_labels = lru_cache(maxsize=1024)(_interned)


def _is_static(pod: Pod) -> bool:
    """A kubelet may create pods of this mark in any namespace, and no others. The API server takes
    it only of a pod that has its node as it is created, and it cannot be added or removed later."""
    return MIRROR_POD in pod.metadata.annotations


def _left_alone(record: PodRecord) -> PodRecord:
    """A pod that kube-scheduler alone places: only its use of the node counts."""
    return replace(record, gang=None, unschedulable=False, queue=None, left_alone=True)


def _was_asked_about(pod: Pod) -> bool:
    """kube-scheduler writes an extender's reasons into the pod's condition."""
    return any(
        condition.type == "PodScheduled" and "linkwise: " in condition.message
        for condition in pod.status.conditions
    )


def _had_a_turn(
    ask: PodRequest, written: WrittenPlan | None, queue: QueueNote | None, *, gated: bool
) -> bool:
    """Whether an extender has planned a gang that it recognised, or put it into its queue. It does
    that only if the gang's scheduler calls. Pods that ask for a plan themselves, by the gate or by
    the gang's name, get one whatever their scheduler is, so theirs shows nothing."""
    recognised = ask.gang is not None and bool(ask.gang.source)
    return recognised and not gated and (written is not None or queue is not None)


def _is_admitted(status: PodStatus) -> bool:
    """Only a kubelet says that a pod runs or succeeded, or what its containers do. It says so once
    it has admitted the pod, which stays Pending while its init containers run. Failed is also what
    becomes of pods that no kubelet has admitted."""
    if status.phase == "Failed":
        return False
    containers = status.container_statuses or status.init_container_statuses
    return bool(containers) or status.phase in ("Running", "Succeeded")


def _is_unschedulable(pod: Pod) -> bool:
    return any(
        condition.type == "PodScheduled" and condition.reason == "Unschedulable"
        for condition in pod.status.conditions
    )


def _fits_nowhere(pod: Pod) -> str:
    """What kube-scheduler's own filters say if they left no node for the pod. Of a pod of a native
    gang it may also say that the group waits, which is about no node."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
            said = condition.message
            return said if _NO_NODES.match(said) and "linkwise: " not in said else ""
    return ""


def _lacks_gpus(pod: Pod, resource: str) -> bool:
    """Whether kube-scheduler's reasons count nodes with too few free GPUs, or nodes that the
    extender refused."""
    return _was_asked_about(pod) or any(
        condition.type == "PodScheduled" and f"Insufficient {resource}" in condition.message
        for condition in pod.status.conditions
    )


def _gang_of(ref: PodRef, ask: PodRequest, *, ahead: bool) -> GangKey | None:
    if ask.gang is not None:
        return GangKey(ref.namespace, ask.gang.name, source=ask.gang.source)
    return GangKey(ref.namespace, ref.name, ref.uid) if ahead else None


def _plan_of(pod: Pod) -> WrittenPlan | None:
    """The plan on a pod. A malformed one, or one that another pod was given, counts as none, as the
    plugin treats it."""
    said = pod.metadata.annotations
    plan, gpus = said[names.PLAN], said.get(names.GPUS, "")
    if len(plan) + len(gpus) > _MOST_PLAN:
        return None
    uid, written = _written(plan, gpus)
    return written if uid == pod.metadata.uid else None


@lru_cache(maxsize=1024)  # each is read on several events, and again at its bind
def _written(plan: str, gpus: str) -> tuple[str, WrittenPlan | None]:
    """The uid of the pod that a plan names, and the plan without it; None if it is malformed."""
    try:
        read = read_plan(plan)
        return read.uid, WrittenPlan(msgspec.structs.replace(read, uid=""), read_gpus(gpus))
    except AnnotationError:
        return "", None


def _is_marked(pod: Pod) -> bool:
    """Whether this pod's own mark says that its gang has started."""
    return pod.metadata.annotations.get(names.STARTED, "") == pod.metadata.uid


def _queue(pod: Pod) -> QueueNote | None:
    """The note of its gang's state in the queue; a malformed or copied note counts as none."""
    text = pod.metadata.annotations.get(names.QUEUE, "")
    if not text:
        return None
    try:
        note = read_queue_note(text)
        note.places()
        if not all(move.owner and (int(move.gpus, 16) or move.shares) for move in note.moves):
            return None
    except (AnnotationError, ValueError):
        return None
    if note.uid != pod.metadata.uid:
        return None
    return msgspec.structs.replace(note, spots=()) if pod.spec.node_name else note


def _prefers(spec: PodSpec) -> bool:
    affinity = spec.affinity or Affinity()
    softly = (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
    if any(each and each.preferred_during_scheduling_ignored_during_execution for each in softly):
        return True
    return any(c.when_unsatisfiable != "DoNotSchedule" for c in spec.topology_spread_constraints)
