"""The pods of all that was given: listings, of which each is of its own day, and CSV files."""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from linkwise.cli.documents import Fields
from linkwise.cli.errors import BadInputError
from linkwise.cli.what_if.given.listing import Listing, expect_nodes, read_file
from linkwise.cli.what_if.past.history_csv import read_history
from linkwise.cli.what_if.past.lives import Life, PastPod, Useless, further, life_of, newest
from linkwise.extender.podgrouper.workloads.answer import ObjectRef
from linkwise.kube.objects import Node

Objects = MutableMapping[ObjectRef, Fields]


@dataclass(frozen=True, slots=True)
class History:
    nodes: tuple[Node, ...]  # of equal names the last one given
    lives: tuple[Life, ...]  # by creation
    objects: Mapping[str, Objects]  # by uid of a pod: what was listed with it, else at all
    useless: tuple[Useless, ...]
    vanished: tuple[str, ...]  # pods whose end only a later listing without them tells


def read_all(paths: Sequence[str], files: Sequence[str], resource: str, at: float) -> History:
    """As it was at that time: what came later is left out. Raises BadInputError with file,
    document and field."""
    listings = [read_file(path, PastPod) for path in paths]
    whole = Listing()
    for listing in listings:
        whole.nodes.update(listing.nodes)
        whole.objects.update(listing.objects)
    expect_nodes(whole, paths)
    days = [_pods(listing) for listing in listings]
    vanished = _vanished(days)
    # A job may have been submitted again under its name: its pods go by the one of their day.
    around: list[Objects] = [ChainMap(each.objects, whole.objects) for each in listings]
    pods: dict[str, PastPod] = {}
    objects: dict[str, Objects] = {}
    given = [*zip(days, around, strict=True)]
    given += [(read_history(path, resource), whole.objects) for path in files]
    for day, its in given:
        for pod in day:
            uid = pod.metadata.uid
            if uid not in pods or further(pods[uid], pod) is pod:
                pods[uid], objects[uid] = pod, its
    found = [life_of(pod, resource, vanished.get(uid)) for uid, pod in pods.items()]
    lives = sorted(
        (_as_at(life, at) for life in found if isinstance(life, Life) and life.created <= at),
        key=lambda life: (life.created, life.key, life.pod.metadata.uid),
    )
    if not any(life.bound is not None for life in lives):
        sources = ", ".join((*paths, *files))
        raise BadInputError(f"-f {sources}: no pod there has had {resource} by then")
    return History(
        tuple(whole.nodes.values()),
        tuple(lives),
        objects,
        tuple(each for each in found if isinstance(each, Useless)),
        tuple(
            life.key
            for life in lives
            if life.ended is not None and life.ended == vanished.get(life.pod.metadata.uid)
        ),
    )


def _as_at(life: Life, at: float) -> Life:
    bound = life.bound if life.bound is not None and life.bound <= at else None
    ended = life.ended if life.ended is not None and life.ended <= at else None
    return replace(life, bound=bound, ended=ended)


def _pods(listing: Listing) -> list[PastPod]:
    return [pod for pod in listing.pods.values() if isinstance(pod, PastPod)]


def _vanished(days: Sequence[Sequence[PastPod]]) -> dict[str, float]:
    """uid -> the time of the last listing that has the pod, where a later one that lists its
    namespace does not."""
    in_order = sorted((day for day in days if day), key=newest)
    last = {pod.metadata.uid: (number, pod) for number, day in enumerate(in_order) for pod in day}
    listed = {
        pod.metadata.namespace: number for number, day in enumerate(in_order) for pod in day
    }  # namespace -> the last listing of it
    return {
        uid: newest(in_order[number])
        for uid, (number, pod) in last.items()
        if listed[pod.metadata.namespace] > number
    }
