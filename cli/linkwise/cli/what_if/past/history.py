"""The pods of all that was given: listings, of which each is of its own day, and CSV files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from linkwise.cli.errors import BadInputError
from linkwise.cli.what_if.given.listing import Listing, expect_nodes, read_file
from linkwise.cli.what_if.past.history_csv import read_history
from linkwise.cli.what_if.past.lives import Life, PastPod, Useless, further, life_of, newest


@dataclass(frozen=True, slots=True)
class History:
    listing: Listing  # the nodes and objects of all; of equal names the last one given
    lives: tuple[Life, ...]  # by creation
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
    pods: dict[str, PastPod] = {}
    for day in (*days, *(read_history(path, resource) for path in files)):
        for pod in day:
            uid = pod.metadata.uid
            pods[uid] = further(pods[uid], pod) if uid in pods else pod
    found = [life_of(pod, resource, vanished.get(uid)) for uid, pod in pods.items()]
    lives = sorted(
        (_as_at(life, at) for life in found if isinstance(life, Life) and life.created <= at),
        key=lambda life: (life.created, life.key, life.pod.metadata.uid),
    )
    if not any(life.bound is not None for life in lives):
        given = ", ".join((*paths, *files))
        raise BadInputError(f"-f {given}: no pod there has had {resource} by then")
    seen_end = {
        life.pod.metadata.uid for life in lives if life.ended == vanished.get(life.pod.metadata.uid)
    }
    return History(
        whole,
        tuple(lives),
        tuple(each for each in found if isinstance(each, Useless)),
        tuple(life.key for life in lives if life.pod.metadata.uid in seen_end & vanished.keys()),
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
