"""What is refused as it is applied, so that nobody has to find it out from a pod that waits.

The same reader as the extender's judges it, so both always agree. What was wrong before is no
reason to refuse what somebody else changes about an object now: only what is new is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from linkwise.extender.api.annotations import ask_of
from linkwise.extender.podgrouper.decide import recognise
from linkwise.extender.podgrouper.explicit import RULE
from linkwise.extender.podgrouper.workloads.answer import Refused
from linkwise.extender.podgrouper.workloads.case import controller_of
from linkwise.extender.podgrouper.workloads.fields import Fields, mapping, text
from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.errors import AnnotationError
from linkwise.webhook.patch import Rules, takes_gpus
from linkwise.webhook.templates import Site, ours, pods_made, sites

# Of these no controller copies the object's own annotations to its pods.
_KEPT_TO_ITSELF = ("apps/", "batch/", "jobset.x-k8s.io/")


@dataclass(frozen=True, slots=True)
class Verdict:
    refused: tuple[str, ...] = ()  # why; empty: it is let in
    warnings: tuple[str, ...] = ()


def judge_pod(pod: Pod, before: Pod | None, rules: Rules) -> Verdict:
    """*before* is what it was, of a pod that is changed.

    A pod that takes no GPUs runs well with any annotation, and its controller may have made
    hundreds like it before there was a webhook: to refuse the next one would stop what works.
    """
    known = _faults_of_pod(before, rules) if before is not None else ()
    found = _faults_of_pod(pod, rules)
    made = any(owner.controller for owner in pod.metadata.owner_references)
    if made and not takes_gpus(pod, rules):
        return Verdict(warnings=found)
    return _new(found, known)


def judge_workload(fields: Fields, before: Fields | None, namespace: str, rules: Rules) -> Verdict:
    """An object that pods are made from. What a controller has made of what somebody applied is
    let in, as that was judged, and the pods will be."""
    found = _faults(fields, namespace, rules)
    if controller_of(fields):
        return Verdict(warnings=found)
    known = _faults(before, namespace, rules) if before is not None else ()
    judged = _new(found, known)
    return Verdict(judged.refused, (*judged.warnings, *_misplaced(fields)))


def _new(found: tuple[str, ...], known: tuple[str, ...]) -> Verdict:
    return Verdict(
        refused=tuple(fault for fault in found if fault not in known),
        warnings=tuple(fault for fault in found if fault in known),
    )


def _faults_of_pod(pod: Pod, rules: Rules) -> tuple[str, ...]:
    """Whoever may not write what the extender decides is refused by a policy, with its reason."""
    if not ours(pod.metadata.annotations):
        return ()
    answer = recognise(pod, {}, resource=rules.resource, indexed_jobs=rules.indexed_jobs)
    return (answer.because,) if isinstance(answer, Refused) and answer.rule == RULE else ()


def _faults(fields: Fields, namespace: str, rules: Rules) -> tuple[str, ...]:
    wrong: dict[str, str] = {}  # by path: the first fault there
    for site in sites(fields):
        fault = _fault(site)
        if fault:
            wrong[site.path] = fault
    for made in pods_made(fields, namespace):
        if made.path in wrong:
            continue
        answer = recognise(
            made.pod, made.objects, resource=rules.resource, indexed_jobs=rules.indexed_jobs
        )
        if isinstance(answer, Refused) and answer.rule == RULE:
            wrong[made.path] = answer.because
    return tuple(f"{path}: {fault}" for path, fault in wrong.items())


def _fault(site: Site) -> str:
    said: dict[str, str] = {}
    for key, value in site.said.items():
        if key in names.BY_EXTENDER:
            return f"{key}: only Linkwise's extender decides this, of each pod alone; leave it out"
        if not isinstance(value, str):
            return f"{key}: {value!r:.60}: expected a text, so in quotes"
        said[key] = value
    try:
        ask_of(said, {})
    except AnnotationError as error:
        return str(error)
    return ""


def _misplaced(fields: Fields) -> tuple[str, ...]:
    if not text(fields, "apiVersion").startswith(_KEPT_TO_ITSELF):
        return ()
    said: Mapping[str, object] = ours(mapping(fields, "metadata").get("annotations"))
    return tuple(
        f"metadata.annotations: {key}: counts on the pod template, and does nothing here"
        for key in sorted(said)
    )
