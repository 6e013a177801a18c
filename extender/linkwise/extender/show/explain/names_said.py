"""Which gang or pod is meant by a name that a user says.

A gang that pods name has that name. A recognised gang has its owner's kind in front, such as
`Job.batch/train`, and users say `train` or `job/train`.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice

from linkwise.extender.next.gangs.gang import Phase
from linkwise.extender.show.explain.snapshot import GangState, Snapshot
from linkwise.pods.podgrouper.explicit import RULE

_MOST = 3  # names of others that an answer suggests
_NEAR = 0.75  # difflib's ratio: `vison` is near to `vision`, `train` is not near to `brain-2`
_MOST_COMPARED = 5_000  # names
_LONGEST = 253  # letters of a name


def gang_said(snapshot: Snapshot, namespace: str, said: str) -> GangState | None:
    """The gang; None if there is none, or if the name may mean several."""
    gangs = [gang for gang in snapshot.gangs if not gang.alone and gang.key.namespace == namespace]
    names = _meant(snapshot, namespace, said)
    if len(names) != 1:
        return None
    found = [gang for gang in gangs if gang.key.name in names]
    # A recreated job may have the name of its predecessor.
    return min(found, key=lambda gang: (gang.phase is Phase.RELEASED, -gang.found.since, gang.key))


def why_unknown(snapshot: Snapshot, kind: str, namespace: str, said: str) -> str:
    """That no gang or pod (*kind*) has that name, or several, and which names are like it."""
    several = sorted(_meant(snapshot, namespace, said)) if kind == "gang" else []
    if several:
        return f"{namespace}/{said} may be {' or '.join(f'gang/{name}' for name in several)}"
    _, _, word = said.rpartition("/")
    like = tuple(islice(_like(snapshot, namespace, word), _MOST + 1)) if word else ()
    like = like or _misspelt(snapshot, kind, namespace, word)
    text = f"no {kind} {namespace}/{said} is known"
    if not like:
        return text
    return f"{text}; there is {', '.join(like[:_MOST])}{', …' if len(like) > _MOST else ''}"


def _meant(snapshot: Snapshot, namespace: str, said: str) -> set[str]:
    return gangs_meant(names_of_gangs(snapshot, namespace), said)


def names_of_gangs(snapshot: Snapshot, namespace: str) -> set[str]:
    return {
        gang.key.name
        for gang in snapshot.gangs
        if not gang.alone and gang.key.namespace == namespace
    }


def gangs_meant(names: set[str], said: str) -> set[str]:
    """Those of *names* that *said* may mean."""
    return {said} if said in names else {name for name in names if _means(said, name)}


def _means(said: str, name: str) -> bool:
    """Whether a user who says *said* may mean the gang *name*."""
    said_kind, _, said_name = said.rpartition("/")
    kind, _, own = name.rpartition("/")
    if said_name not in (own, own.partition("#")[0]):  # behind the # is which gang of one owner
        return False
    word, dot, group = kind.partition(".")
    spelled = {"", kind, word, f"{word}s", f"{word}s{dot}{group}"} if kind else {"", RULE}
    return said_kind.lower() in {each.lower() for each in spelled}


def _misspelt(snapshot: Snapshot, kind: str, namespace: str, word: str) -> tuple[str, ...]:
    """The gangs and pods of the namespace that a mistyped *word* may mean, those of *kind*
    first."""
    own_names = {
        name.rpartition("/")[2]: name for name in sorted(names_of_gangs(snapshot, namespace))
    }
    pod_names = (
        record.ref.name
        for record in snapshot.pods
        if record.ref.namespace == namespace and (record.demand.gpus or record.shares)
    )
    gangs = [f"gang/{own_names[own]}" for own in nearest(word, own_names)]
    pods = [f"pod/{name}" for name in nearest(word, pod_names)]
    return tuple([*gangs, *pods] if kind == "gang" else [*pods, *gangs])[:_MOST]


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Return up to three of *names* that are spelled nearly like *word*, in any case, the nearest
    first. Of very many names only the first are compared."""
    by_lower = {name.lower(): name for name in islice(names, _MOST_COMPARED)}
    near = get_close_matches(word.lower()[:_LONGEST], by_lower, n=_MOST, cutoff=_NEAR)
    return [by_lower[each] for each in near]


def _like(snapshot: Snapshot, namespace: str, word: str) -> Iterator[str]:
    elsewhere: list[str] = []
    for gang in snapshot.gangs:
        space, name = gang.key.namespace, gang.key.name
        if not gang.alone and word in name:
            if space == namespace:
                yield f"gang/{name}"
            elif _means(word, name):
                elsewhere.append(f"gang/{name} in namespace {space}")
    for record in snapshot.pods:
        ref = record.ref
        if word in ref.name and (record.demand.gpus or record.shares):
            if ref.namespace == namespace:
                yield f"pod/{ref.name}"
            elif ref.name == word:
                elsewhere.append(f"pod/{ref.name} in namespace {ref.namespace}")
    yield from elsewhere
