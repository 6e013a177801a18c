"""What may be odd about a pod that a tenant writes. The API server accepts all of it.

Left out is what would harm others in any cluster, whatever places the pods: anti-affinity to the
pods of other namespaces, and more CPUs than a node has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import (
    Affinity,
    Container,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Requirement,
    Resources,
    SchedulingGate,
    Toleration,
    TopologySpreadConstraint,
)
from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, write_gpus, write_plan
from tests.extender.cluster import GPU, container

change = msgspec.structs.replace

NAMESPACE = "hostile"  # the tenant's
_HOSTNAME = "kubernetes.io/hostname"
ODD_TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "1",
    "4096",
    "4097",
    "2147483648",
    "9223372036854775808",
    "1e9",
    "0x10",
    "NaN",
    "inf",
    "null",
    "[]",
    "{}",
    "true",
    "١٢",
    "²",
    "j1x0\n\x00\x1b]0;title\a",
    "\u202egang",
    "gäng 😀",
    "x" * 253,
    "x" * 1025,
    "9" * 5000,
)
_DURATIONS = ("1ms", "1s", "10s", "8760h", "8761h", "999999999h", "0s", "-1s", "1.5h", "1h1h")
_NUMBERS = ("9999999999", "-9223372036854775808", "one", "")
_AMOUNTS = ("0", "65", "128", "2147483648", "9223372036854775807", "1k", "8E")
_BY_PODS = (
    names.GANG,
    names.GANG_SIZE,
    names.GANG_MIN,
    names.GANG_TO_COME,
    names.GANG_TIMEOUT,
    names.RANK,
    names.REQUIRE_LINK,
    names.PREFER_LINK,
    names.REQUIRE_SPAN,
    names.PREFER_SPAN,
    names.COMMUNICATOR,
    names.GPU_MODEL,
    names.GPU_MEMORY,
    names.PREEMPTIBLE,
    names.EXPECTED_DURATION,
    names.SHARE,
    names.RECLAIM,
    names.MOVABLE,
    names.MOVE_COST,
    names.CLAIMS,  # which only the webhook writes
    names.PREFIX + "priority",  # there is no such annotation
)


@dataclass(frozen=True, slots=True)
class Sight:
    """What the tenant sees of the cluster."""

    nodes: Mapping[str, Sequence[str]]  # the UUIDs of their GPUs
    pods: Sequence[Pod]  # of all tenants
    now: float  # s, of the API server's clock


Oddity = Callable[[Random, Sight, Pod], Pod]


def is_honest(pod: Pod) -> bool:
    """Whether neither the hostile tenant nor the kubelet of a hostile node created it."""
    return pod.metadata.namespace != NAMESPACE and MIRROR_POD not in pod.metadata.annotations


def _says(pod: Pod, **said: str) -> Pod:
    own = {names.PREFIX + key.replace("_", "-"): text for key, text in said.items()}
    return _annotated(pod, own)


def _annotated(pod: Pod, said: dict[str, str]) -> Pod:
    meta = pod.metadata
    return change(pod, metadata=change(meta, annotations={**meta.annotations, **said}))


def odd_annotations(draw: Random, sight: Sight, pod: Pod) -> Pod:  # noqa: ARG001
    keys = draw.sample(_BY_PODS, draw.randint(1, 4))
    return _annotated(pod, {key: draw.choice(ODD_TEXTS + _DURATIONS) for key in keys})


def gang_of_others(draw: Random, sight: Sight, pod: Pod) -> Pod:
    gangs = [pod.metadata.annotations.get(names.GANG) for pod in sight.pods if is_honest(pod)]
    name = draw.choice(sorted({gang for gang in gangs if gang}) or ["j0x0"])
    return _says(pod, gang=name, gang_size=draw.choice(["1", "2", "3", "4096"]), gang_min="1")


def _members_missing(draw: Random, sight: Sight, pod: Pod) -> Pod:  # noqa: ARG001
    gang, size = pod.metadata.name.partition("-")[0], draw.choice(["2", "9", "4096"])
    return _says(pod, gang=gang, gang_size=size, gang_min=draw.choice(["1", "2", size]))


def odd_timeout(draw: Random, sight: Sight, pod: Pod) -> Pod:  # noqa: ARG001
    gang = pod.metadata.name.partition("-")[0]
    said = pod.metadata.annotations.get(names.GANG_SIZE, "2")
    return _says(pod, gang=gang, gang_size=said, gang_timeout=draw.choice(["1ms", "8760h"]))


def lie(draw: Random, sight: Sight, pod: Pod) -> Pod:  # noqa: ARG001
    return _says(pod, expected_duration=draw.choice(_DURATIONS[:4]))


def _odd_amount(draw: Random, sight: Sight, pod: Pod) -> Pod:  # noqa: ARG001
    amount = draw.choice(_AMOUNTS)
    return _with_containers(pod, _taking("main", {GPU: amount}))


def _many_containers(draw: Random, sight: Sight, pod: Pod) -> Pod:  # noqa: ARG001
    limits = draw.choice([{GPU: "1"}, {f"{GPU}.shared": "3"}, {"nvidia.com/mig-1g.10gb": "2"}])
    many = draw.choice([2, 8, 13, 64, 100])
    return _with_containers(pod, *(_taking(f"c{number}", limits) for number in range(many)))


def _taking(name: str, limits: dict[str, str]) -> Container:
    resources = Resources(limits={**limits}, requests={"cpu": "10m", **limits})
    return change(container(name, 0), resources=resources)


def _with_containers(pod: Pod, *containers: Container) -> Pod:
    return change(pod, spec=change(pod.spec, containers=containers))


def _many_terms(draw: Random, sight: Sight, pod: Pod) -> Pod:
    nodes = tuple(sight.nodes)
    most = draw.choice([1, 40, 600])
    terms = tuple(
        NodeSelectorTerm(
            match_expressions=(
                draw.choice(
                    [
                        Requirement(_HOSTNAME, "In", (*nodes, *map(str, range(number % 100)))),
                        Requirement(f"label-{number}", "Gt", (draw.choice(_NUMBERS),)),
                        Requirement(f"label-{number}", "DoesNotExist"),
                    ]
                ),
            )
        )
        for number in range(most)
    )
    affinity = Affinity(
        node_affinity=NodeAffinity(NodeSelector(terms)),
        pod_affinity=PodAffinity(_pod_terms(draw, most // 20)),
        pod_anti_affinity=PodAffinity(_pod_terms(draw, most // 20)),
    )
    spread = tuple(
        TopologySpreadConstraint(topology_key=f"label-{number}", when_unsatisfiable=how)
        for number, how in enumerate(draw.choices(["DoNotSchedule", "ScheduleAnyway"], k=most // 9))
    )
    tolerations = tuple(Toleration(key=f"taint-{number}") for number in range(most))
    return change(
        pod,
        spec=change(
            pod.spec,
            affinity=affinity if draw.random() < 0.7 else None,
            tolerations=tolerations,
            topology_spread_constraints=spread if draw.random() < 0.3 else (),
            node_selector={_HOSTNAME: draw.choice(nodes)} if draw.random() < 0.3 else {},
        ),
    )


def _pod_terms(draw: Random, most: int) -> tuple[PodAffinityTerm, ...]:
    """Of its own namespace."""
    return tuple(
        PodAffinityTerm(
            topology_key=draw.choice([_HOSTNAME, "zone", f"label-{number}"]),
            label_selector=LabelSelector(
                match_labels={f"label-{number}": draw.choice(["", "a", "x" * 63])}
            ),
        )
        for number in range(most)
    )


def _forged(draw: Random, sight: Sight, pod: Pod) -> Pod:
    """Decisions that the pod is created with: of others, or made up. Its uid is not known yet."""
    ours = [
        {key: text for key, text in p.metadata.annotations.items() if key in names.BY_EXTENDER}
        for p in sight.pods
    ]
    node = draw.choice(sorted(sight.nodes))
    uuids = sight.nodes[node][: draw.choice([1, 4, 8])]
    plan = Plan(id="p", node=node, uid=draw.choice(["", "*"]), made=sight.now)
    if draw.random() < 0.5:  # for as long as it waits
        pod = change(pod, spec=change(pod.spec, scheduling_gates=(SchedulingGate("a.b/c"),)))
    return _annotated(
        pod,
        draw.choice(
            [
                draw.choice([each for each in ours if each] or [{}]),
                {names.PLAN: write_plan(plan), names.GPUS: write_gpus({"main": tuple(uuids)})},
                dict.fromkeys(names.BY_EXTENDER, draw.choice(ODD_TEXTS)),
                {names.STARTED: "true", names.QUEUE: '{"v":1,"uid":"","since":-1e300}'},
            ]
        ),
    )


def _odd_priority(draw: Random, sight: Sight, pod: Pod) -> Pod:  # noqa: ARG001
    """One important pod beside unimportant ones; its quota is of one."""
    is_first = pod.metadata.name.endswith("-0")
    return change(pod, spec=change(pod.spec, priority=2 if is_first else -(2**31)))


ODDITIES: tuple[Oddity, ...] = (
    odd_annotations,
    gang_of_others,
    _members_missing,
    odd_timeout,
    lie,
    _odd_amount,
    _many_containers,
    _many_terms,
    _forged,
    _odd_priority,
)
