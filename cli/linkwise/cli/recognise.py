"""`linkwise recognise`: to which gang the extender assigns a pod, and by which rule.

It calls the same function as the extender, so its answer is the extender's. Exit status: 0 all pods
are understood; 1 some are not, or need an object that is missing, or it is unknown which pods a
workload creates; 2 bad input.
"""

import sys
from collections.abc import Mapping, Sequence

import click

from linkwise.cli.errors import BadInputError
from linkwise.cli.pod_source import Manifests, read_manifests
from linkwise.cli.printed import in_json, output_option, say, terminal_width
from linkwise.drawing.tables import Heading, Table
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
_ANSWERS = {
    Recognised: "gang",
    NoGang: "none",
    NeedsOwner: "needs-owner",
    Refused: "refused",
}
_Told = Sequence[tuple[Pod, Answer]]


@click.command(
    name="recognise",
    short_help="Which gangs the pods of a manifest are in, and why.",
    epilog="FILE is YAML or JSON: manifests of pods and workloads, or what `kubectl get pods,jobs "
    "-o yaml` prints; - is standard input. A workload stands for the pods that its controller "
    "creates. What a pod's size has to be read from belongs in one of the files too.\n\n"
    "\b\nExample:\n  kubectl get pods,jobs -o yaml | linkwise recognise -f -",
)
@click.option("-f", "--filename", "paths", metavar="FILE", multiple=True, required=True)
@click.option(
    "--resource",
    "resources",
    multiple=True,
    default=names.DEFAULT_RESOURCES,
    show_default=True,
    help="The extended resource that counts as a GPU; once for each, where nodes have different "
    "ones.",
)
@click.option(
    "--indexed-jobs",
    type=click.Choice([mode.value for mode in IndexedJobs]),
    default=IndexedJobs.ALL.value,
    show_default=True,
    help="Which Indexed Jobs that run all their pods at once are gangs: all, those whose pods have "
    "a subdomain, or none.",
)
@output_option
def recognise_command(
    paths: tuple[str, ...], resources: tuple[str, ...], indexed_jobs: str, output: str
) -> None:
    """Say which gangs pods are in, by their operators' marks or their own annotations."""
    manifests = read_manifests("-f", paths)
    if not manifests.pods and not manifests.unknown:
        raise BadInputError(
            f"-f {', '.join(paths)}: no pod there, and no workload that creates one: "
            "`kubectl get pods -o yaml`"
        )
    told = _recognise(manifests, resources, IndexedJobs(indexed_jobs))
    say(_json(told, manifests) if output == "json" else _text(told))
    for each in (*manifests.unknown, *manifests.left_out, *manifests.near_misses):
        say(f"linkwise: {each}", err=True, nl=True)
    unclear = any(isinstance(answer, NeedsOwner | Refused) for _, answer in told)
    sys.exit(1 if unclear or manifests.unknown else 0)


def _recognise(
    manifests: Manifests, resources: tuple[str, ...], indexed_jobs: IndexedJobs
) -> _Told:
    return [
        (
            each.pod,
            recognise(each.pod, manifests.objects, resources=resources, indexed_jobs=indexed_jobs),
        )
        for each in manifests.pods
    ]


def _text(told: _Told) -> str:
    if not told:
        return ""
    headings = tuple(Heading(text, place in _FIGURES, "") for place, text in enumerate(_HEADER))
    table = Table(headings, tuple(_row(pod, answer) for pod, answer in told))
    return table.fitted(terminal_width())


def _row(pod: Pod, answer: Answer) -> tuple[str, ...]:
    name = pod.key
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


def _json(told: _Told, manifests: Manifests) -> str:
    """`answer` is gang, none, needs-owner or refused; what is empty is left out."""
    written = {
        "pods": [_pod_json(pod, answer) for pod, answer in told],
        "left_out": tuple(map(str, (*manifests.unknown, *manifests.left_out))),
        "near_misses": manifests.near_misses,
    }
    return in_json(written)


def _pod_json(pod: Pod, answer: Answer) -> Mapping[str, object]:
    fields: dict[str, object] = {
        "namespace": pod.metadata.namespace,
        "name": pod.metadata.name,
        "answer": _ANSWERS[type(answer)],
        "rule": answer.rule,
        "because": _why(answer),
    }
    if isinstance(answer, Recognised):
        fields |= {
            "gang": str(answer.gang),
            "uid": answer.gang.uid,  # of the object that stands for the gang
            "size": answer.size,
            "minimum": answer.minimum,
            "gpu_size": answer.gpu_size,
            "gpu_minimum": answer.gpu_minimum,
            # Of its pods, by when they are created.
            "waves": answer.waves if len(answer.waves) > 1 else None,
            "done": answer.done or None,
            "open_ended": answer.open_ended or None,
            "basis": answer.basis.value,
        }
    if isinstance(answer, Recognised | NoGang):
        member = answer.member
        fields |= {
            "role": member.role,
            "index": member.index,
            "rank": member.rank,
            "subgroup": member.subgroup or None,
            "queue": member.queue or None,
            "priority_class": member.priority_class or None,
        }
    if isinstance(answer, NeedsOwner):
        fields["needs"] = str(answer.owner)
    return {name: value for name, value in fields.items() if value is not None}
