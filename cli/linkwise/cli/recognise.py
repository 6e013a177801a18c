"""`linkwise recognise`: to which gang the extender assigns a pod, and by which rule.

It calls the same function as the extender, so its answer is the extender's. Exit status: 0 all pods
are understood; 1 some are not, or need an object that is missing, or it is unknown which pods a
workload creates; 2 bad input.
"""

import sys
from collections.abc import Sequence

import click
import msgspec

from linkwise.cli.pod_source import Manifests, read_manifests
from linkwise.cli.printed import say
from linkwise.cli.table import aligned
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import (
    Answer,
    IndexedJobs,
    NeedsOwner,
    NoGang,
    Recognised,
    Refused,
)
from linkwise.topology import names

_HEADER = ("POD", "GANG", "SIZE", "MIN", "WAVES", "ROLE", "RANK", "RULE", "WHY")
_FIGURES = (2, 3, 4, 6)
_Told = Sequence[tuple[Pod, Answer]]


@click.command(
    name="recognise",
    epilog="FILE is YAML or JSON: manifests of pods and workloads, or what `kubectl get pods,jobs "
    "-o yaml` prints; - is standard input. A workload stands for the pods that its controller "
    "creates. What a pod's size has to be read from belongs into one of the files too.",
)
@click.option("-f", "--filename", "paths", metavar="FILE", multiple=True, required=True)
@click.option(
    "--resource",
    default=names.DEFAULT_RESOURCE,
    show_default=True,
    help="The extended resource that counts as a GPU.",
)
@click.option(
    "--indexed-jobs",
    type=click.Choice([mode.value for mode in IndexedJobs]),
    default=IndexedJobs.ALL.value,
    show_default=True,
    help="Which Indexed Jobs that run all their pods at once are gangs: all, those whose pods have "
    "a subdomain, or none.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def recognise_command(
    paths: tuple[str, ...], resource: str, indexed_jobs: str, output: str
) -> None:
    """Say which gangs pods are in, by their operators' marks or their own annotations."""
    manifests = read_manifests(paths)
    told = _recognise(manifests, resource, IndexedJobs(indexed_jobs))
    say(_json(told, manifests) if output == "json" else _text(told))
    for each in (*manifests.unknown, *manifests.left_out):
        say(f"linkwise: {each}", err=True, nl=True)
    unclear = any(isinstance(answer, NeedsOwner | Refused) for _, answer in told)
    sys.exit(1 if unclear or manifests.unknown else 0)


def _recognise(manifests: Manifests, resource: str, indexed_jobs: IndexedJobs) -> _Told:
    return [
        (
            pod,
            recognise(pod, manifests.objects, resource=resource, indexed_jobs=indexed_jobs),
        )
        for pod in manifests.pods
    ]


def _text(told: _Told) -> str:
    if not told:
        return ""
    return aligned([_HEADER, *(_row(pod, answer) for pod, answer in told)], _FIGURES)


def _row(pod: Pod, answer: Answer) -> tuple[str, ...]:
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if isinstance(answer, Recognised):
        member = answer.member
        more = "+" if answer.open_ended else ""
        waves = "+".join(map(str, answer.waves)) if len(answer.waves) > 1 else "-"
        size = (f"{answer.size}{more}", str(answer.minimum), waves)
        return (
            name,
            str(answer.gang),
            *size,
            member.role or "-",
            "-" if member.rank is None else str(member.rank),
            answer.rule,
            answer.because,
        )
    if isinstance(answer, NoGang):
        return name, "-", "1", "1", "-", answer.member.role, "-", answer.rule, answer.because
    word = "refused" if isinstance(answer, Refused) else "?"
    return name, word, "-", "-", "-", "-", "-", answer.rule, _why(answer)


def _why(answer: Answer) -> str:
    if isinstance(answer, NeedsOwner):
        return f"needs {answer.owner}, which is in none of the files"
    return answer.because


class _PodJson(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    name: str
    answer: str
    rule: str
    because: str
    gang: str | None = None
    uid: str | None = None  # of the object that stands for the gang
    size: int | None = None
    minimum: int | None = None
    gpu_size: int | None = None
    gpu_minimum: int | None = None
    waves: tuple[int, ...] = ()  # of its pods, by when they are created; if there are several
    done: int = 0
    open_ended: bool = False
    basis: str | None = None
    role: str | None = None
    index: int | None = None
    rank: int | None = None
    subgroup: str = ""
    queue: str = ""
    priority_class: str = ""
    needs: str | None = None


class _PodsJson(msgspec.Struct, frozen=True):
    pods: list[_PodJson]
    left_out: tuple[str, ...]


def _json(told: _Told, manifests: Manifests) -> str:
    """`answer` is gang, none, needs-owner or refused; empty fields are left out."""
    pods = [_pod_json(pod, answer) for pod, answer in told]
    written = _PodsJson(pods, (*manifests.unknown, *manifests.left_out))
    return msgspec.json.format(msgspec.json.encode(written), indent=2).decode() + "\n"


def _pod_json(pod: Pod, answer: Answer) -> _PodJson:
    known = _PodJson(
        pod.metadata.namespace, pod.metadata.name, "refused", answer.rule, _why(answer)
    )
    replace = msgspec.structs.replace
    if isinstance(answer, NeedsOwner):
        return replace(known, answer="needs-owner", needs=str(answer.owner))
    if isinstance(answer, Refused):
        return known
    member = answer.member
    known = replace(
        known,
        answer="none",
        role=member.role,
        index=member.index,
        rank=member.rank,
        subgroup=member.subgroup,
        queue=member.queue,
        priority_class=member.priority_class,
    )
    if isinstance(answer, NoGang):
        return known
    return replace(
        known,
        answer="gang",
        gang=str(answer.gang),
        uid=answer.gang.uid,
        size=answer.size,
        minimum=answer.minimum,
        gpu_size=answer.gpu_size,
        gpu_minimum=answer.gpu_minimum,
        waves=answer.waves if len(answer.waves) > 1 else (),
        done=answer.done,
        open_ended=answer.open_ended,
        basis=answer.basis.value,
    )
