"""The pods of all inputs: listings, each of its own day, and CSV files."""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from linkwise.cli.documents import Fields
from linkwise.cli.errors import BadInputError
from linkwise.cli.what_if.given.listing import Listing, expect_nodes, read_file
from linkwise.cli.what_if.past.history_csv import read_history
from linkwise.cli.what_if.past.lives import Life, PastPod, Useless, further, life_of, newest
from linkwise.kube.objects import Node
from linkwise.pods.podgrouper.workloads.answer import ObjectRef

Objects = MutableMapping[ObjectRef, Fields]


@dataclass(frozen=True, slots=True)
class History:
    nodes: tuple[Node, ...]  # the last one given, for equal names
    lives: tuple[Life, ...]  # by creation
    objects: Mapping[str, Objects]  # by uid of a pod: the objects listed with it, else all
    useless: tuple[Useless, ...]
    vanished: tuple[str, ...]  # pods whose end shows only in a later listing without them


def read_all(
    paths: Sequence[str], files: Sequence[str], resources: tuple[str, ...], at: float
) -> History:
    """Read everything as of *at*; what came later is left out. Raises BadInputError with file,
    document and field."""
    listings = [read_file(path, PastPod) for path in paths]
    whole = Listing()
    for listing in listings:
        whole.nodes.update(listing.nodes)
        whole.objects.update(listing.objects)
    expect_nodes(whole, paths)
    days = [_pods(listing) for listing in listings]
    vanished = _vanished(days)
    # A job may have been submitted again under its name, so pods use the one of their own day.
    around: list[Objects] = [ChainMap(each.objects, whole.objects) for each in listings]
    pods: dict[str, PastPod] = {}
    objects: dict[str, Objects] = {}
    given = [*zip(days, around, strict=True)]
    given += [(read_history(path, resources[0]), whole.objects) for path in files]
    for day, its in given:
        for pod in day:
            uid = pod.metadata.uid
            if uid not in pods or further(pods[uid], pod) is pod:
                pods[uid], objects[uid] = pod, its
    found = [life_of(pod, resources, vanished.get(uid)) for uid, pod in pods.items()]
    lives = sorted(
        (_as_at(life, at) for life in found if isinstance(life, Life) and life.created <= at),
        key=lambda life: (life.created, life.key, life.pod.metadata.uid),
    )
    if not any(life.bound is not None for life in lives):
        sources = ", ".join((*paths, *files))
        raise BadInputError(f"-f {sources}: no pod there has had {' or '.join(resources)} by then")
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
    """Return uid -> time of the last listing with the pod, if a later listing of its namespace
    lacks it."""
    in_order = sorted((day for day in days if day), key=newest)
    last = {pod.metadata.uid: (number, pod) for number, day in enumerate(in_order) for pod in day}
    listed = {
        pod.metadata.namespace: number for number, day in enumerate(in_order) for pod in day
    }  # namespace -> its last listing
    return {
        uid: newest(in_order[number])
        for uid, (number, pod) in last.items()
        if listed[pod.metadata.namespace] > number
    }
