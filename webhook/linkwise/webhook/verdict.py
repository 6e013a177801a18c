"""Faults in annotations, refused at `kubectl apply` rather than found out from a waiting pod.

The webhook and the extender use the same parser, so both always agree. On an update, the webhook
refuses only new faults: an old fault must not block an unrelated change.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from linkwise.kube.fields import Fields, controller_of, mapping
from linkwise.kube.objects import Pod
from linkwise.kube.quoted import few_lines, one_line
from linkwise.pods.annotation_faults import faults_of, misplaced, near_misses
from linkwise.pods.annotations import demand_of, mixed, oversize, resource_of, shares_of
from linkwise.pods.large_pods import size_of, too_large
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.explicit import RULE
from linkwise.pods.podgrouper.recreated import (
    COUNTS_AS_FAILURE,
    consent_in,
    ignores_disruptions,
)
from linkwise.pods.podgrouper.workloads.answer import Refused
from linkwise.topology import names
from linkwise.webhook.patch import Rules, takes_gpus
from linkwise.webhook.templates import Site, job_specs, ours, pods_made, sites, templates_of

_LONGEST_PATH = 256  # a client determines the depth
_BY_WEBHOOK = "only Linkwise's webhook writes this"


@dataclass(frozen=True, slots=True)
class Verdict:
    refused: tuple[str, ...] = ()  # why; empty: it is allowed
    warnings: tuple[str, ...] = ()

    def warning(self, more: Iterable[str]) -> "Verdict":
        return Verdict(self.refused, (*self.warnings, *more))

    @property
    def bounded(self) -> "Verdict":
        """As it is logged and answered: an object may have thousands of faults."""
        return Verdict(few_lines(self.refused), few_lines(self.warnings))


def judge_pod(pod: Pod, before: Pod | None, rules: Rules) -> Verdict:
    """*before* is the pod before an update; None at its creation.

    A controller's pod that takes no GPUs gets warnings only: it runs with any annotation, and its
    controller may have created hundreds of such pods before the webhook was installed. A pod that
    names a claim for its GPUs takes some, whatever is wrong with that.
    """
    known = _faults_of_pod(before, rules) if before is not None else ()
    found = _faults_of_pod(pod, rules)
    missed = near_misses(pod.metadata.annotations, pod.metadata.labels)
    made = any(owner.controller for owner in pod.metadata.owner_references)
    if made and not (takes_gpus(pod, rules) or names.CLAIMS in pod.metadata.annotations):
        return Verdict(warnings=(*found, *missed))
    return _new(found, known).warning(missed)


def judge_workload(fields: Fields, before: Fields | None, namespace: str, rules: Rules) -> Verdict:
    """Judge an object from which pods are created. If a controller created the object, it gets
    warnings only: the webhook has judged its source, and judges its pods."""
    found = _faults(fields, namespace, rules)
    if controller_of(fields):
        return Verdict(warnings=found)
    missed = tuple(
        f"{one_line(path, _LONGEST_PATH)}: {miss}"
        for path, annotations, labels in templates_of(fields)
        for miss in near_misses(annotations, labels)
    )
    known = _faults(before, namespace, rules) if before is not None else ()
    judged = _new(found, known)
    changed = frozenset(() if before is None else _failing_jobs(before))
    failing = (each for each in _failing_jobs(fields) if each not in changed)
    return judged.warning((*misplaced(fields), *missed, *failing))


def _new(found: tuple[str, ...], known: tuple[str, ...]) -> Verdict:
    before = frozenset(known)
    return Verdict(
        refused=tuple(fault for fault in found if fault not in before),
        warnings=tuple(fault for fault in found if fault in before),
    )


def _faults_of_pod(pod: Pod, rules: Rules) -> tuple[str, ...]:
    """The faults of the pod's own annotations, and of its size. A
    ValidatingAdmissionPolicy refuses clients that write the extender's annotations, so these are
    not checked here."""
    if size := _oversize(pod, rules):
        return (size,)
    if not ours(pod.metadata.annotations):
        return ()
    if claims := _wrong_claims(pod, rules):
        return (claims,)
    if wrong := faults_of(pod.metadata.annotations, pod.metadata.labels):
        return wrong
    answer = recognise(pod, {}, resources=rules.resources, indexed_jobs=rules.indexed_jobs)
    return (answer.because,) if isinstance(answer, Refused) and answer.rule == RULE else ()


def _wrong_claims(pod: Pod, rules: Rules) -> str:
    if names.CLAIMS not in pod.metadata.annotations:
        return ""
    if not rules.gpus_from_claims:
        return f"{names.CLAIMS}: {_BY_WEBHOOK}, with --gpus-from-claims; remove it"
    try:
        demand_of(pod, resource_of(pod, rules.resources))
    except ValueError as error:
        return str(error)
    return ""


def _faults(fields: Fields, namespace: str, rules: Rules) -> tuple[str, ...]:
    wrong: dict[str, tuple[str, ...]] = {}  # by path
    for site in sites(fields):
        if faults := _faults_at(site):
            wrong[site.path] = faults
    for made in pods_made(fields, namespace):
        if made.path in wrong:
            continue
        if size := _oversize(made.pod, rules):
            wrong[made.path] = (size,)
            continue
        answer = recognise(
            made.pod, made.objects, resources=rules.resources, indexed_jobs=rules.indexed_jobs
        )
        if isinstance(answer, Refused) and answer.rule == RULE:
            wrong[made.path] = (answer.because,)
    return tuple(
        f"{one_line(path, _LONGEST_PATH)}: {fault}"
        for path, faults in wrong.items()
        for fault in faults
    )


def _oversize(pod: Pod, rules: Rules) -> str:
    if why := mixed(pod, rules.resources):
        return why
    resource = resource_of(pod, rules.resources)
    try:
        demand, shares = demand_of(pod, resource), shares_of(pod, resource)
    except ValueError:  # the API server refuses such a pod
        return ""
    if (demand.gpus or shares) and (why := too_large(pod, size_of(pod))):
        return why
    return oversize(pod, demand, shares, resource)


def _faults_at(site: Site) -> tuple[str, ...]:
    said: dict[str, str] = {}
    found: list[str] = []
    for key, value in site.said.items():
        if key in names.BY_EXTENDER:
            found.append(f"{key}: only Linkwise's extender decides this, for each pod; remove it")
        elif key == names.CLAIMS:
            found.append(f"{key}: {_BY_WEBHOOK}, for each pod; remove it")
        elif not isinstance(value, str):
            found.append(f"{key}: {value!r:.60}: expected a string, in quotes")
        else:
            said[key] = value
    # A value that is no string may be the one that others need beside them.
    return tuple(found) if len(said) < len(site.said) else faults_of(said, {})


def _failing_jobs(fields: Fields) -> tuple[str, ...]:
    """The Jobs whose pods consent to an eviction that their Job counts as a failure."""
    return tuple(
        f"{path}.podFailurePolicy: {consent}: {COUNTS_AS_FAILURE}; add a rule with action: Ignore"
        for path, spec in job_specs(fields)
        if (consent := consent_in(mapping(spec, "template.metadata.annotations")))
        and not ignores_disruptions(spec)
    )
