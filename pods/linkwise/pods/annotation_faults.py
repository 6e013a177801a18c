"""All that is wrong with a pod's annotations, and what looks like one and does nothing.

`ask_of` raises the first fault. A person who mends a manifest wants to know all of them at once. A
near miss is no fault, because others may use any key: `linkwise.io/gang-size`, or a label of the
annotation's name. Without a word about it, a gang would start partially.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from linkwise.kube.fields import mapping, text
from linkwise.pods.annotations import BY_PODS, MAX_GANG, ask_of
from linkwise.topology import names
from linkwise.topology.errors import AnnotationError

MOST = 16
"""Faults and near misses that are named; an object may have thousands."""

_NEAR = 0.85  # difflib's ratio; a label gpu-node is not near to gpu-model
_LONGEST_KEY = 317  # of an annotation: a domain, a slash, a name
# What stands before the word: linkwise.io/gang, linkwise/gang, linkwise.dev.gang, linkwise-gang.
_HEAD = re.compile(r"^.*[/.]|^linkwise[-_]")
_WORDS = {name.removeprefix(names.PREFIX): name for name in BY_PODS}
_DOMAIN = names.PREFIX.partition(".")[0]
# API groups whose controllers do not copy an object's own annotations to its pods.
_KEPT_TO_ITSELF = ("apps/", "batch/", "jobset.x-k8s.io/")
_OF_GANGS = (names.GANG, names.GANG_SIZE, names.GANG_MIN, names.GANG_TIMEOUT, names.GANG_TO_COME)
_ANY_GANG = {names.GANG: "any", names.GANG_SIZE: str(MAX_GANG)}


def faults_of(annotations: Mapping[str, str], labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is wrong with each annotation, at most MOST; nothing if `ask_of` raises nothing.
    A fault that only follows from another one is left out."""
    left = dict(annotations)
    found: list[str] = []
    while len(found) < MOST:
        try:
            ask_of(left, labels)
            break
        except AnnotationError as error:
            found.append(str(error))
            del left[error.key]
            # The others are judged beside a gang that is right. `gang-sise` is meant for one of it.
            if error.key in _OF_GANGS or error.expected in _OF_GANGS:
                left |= {key: value for key, value in _ANY_GANG.items() if key not in left}
    return tuple(found)


def near_misses(annotations: Mapping[str, object], labels: Mapping[str, object]) -> tuple[str, ...]:
    """Return what each key that is nearly an annotation of Linkwise should be, at most MOST."""
    found = [
        f"annotation {key} has no effect: write {instead}"
        for key in annotations
        if not key.startswith(names.PREFIX) and (instead := meant(key))
    ]
    found += [
        f"label {key} has no effect: write it as an annotation"
        + ("" if key == instead else f", {instead}")
        for key in labels
        if (instead := meant(key))
    ]
    return tuple(found[:MOST])


def near_misses_in(item: Mapping[str, object]) -> tuple[str, ...]:
    """Those of an object's, or a template's, own metadata."""
    annotations, labels = (mapping(item, f"metadata.{each}") for each in ("annotations", "labels"))
    return tuple(f"metadata: {each}" for each in near_misses(annotations, labels))


def misplaced(item: Mapping[str, object]) -> tuple[str, ...]:
    """Return what to do with each annotation of Linkwise that a workload has and its pods will not
    have."""
    if not text(item, "apiVersion").startswith(_KEPT_TO_ITSELF):
        return ()
    return tuple(
        f"metadata.annotations: {key}: has no effect here; it belongs on the pod template"
        for key in sorted(mapping(item, "metadata.annotations"))
        if key.startswith(names.PREFIX)
    )


def meant(key: str) -> str:
    """Return the annotation that *key* is, or is near to; empty if there is none."""
    if _DOMAIN not in key[:_LONGEST_KEY].lower():
        return ""
    word = _HEAD.sub("", key[:_LONGEST_KEY].lower()).replace("_", "-")
    near = get_close_matches(word, _WORDS, n=1, cutoff=_NEAR)
    return _WORDS[near[0]] if near else ""
