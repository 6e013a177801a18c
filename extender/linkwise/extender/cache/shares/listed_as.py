"""Which pod a name in `linkwise.dev/in-use` means: whole GPUs and shares follow the same rule.

A recreated pod with the same name must not be mistaken for its predecessor, whose devices may still
be listed: a listing stays with its pod until the name vanishes or its devices change. But the new
pod may get the same devices before the plugin lists them again, and then neither happens. So if the
predecessor is gone, and no plan says that the new pod gets others, the listing means the new pod.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from linkwise.extender.api.records import PodRecord

Held = TypeVar("Held")


def attributed(
    known: Mapping[str, str],
    before: Mapping[str, Held],
    now: Mapping[str, Held],
    bound: Mapping[str, PodRecord],
    gets_others: Callable[[PodRecord, Held], bool],
) -> dict[str, str]:
    """Each name that is listed *now* -> the uid of its pod. *known* is the result for *before*.
    *gets_others*: whether the pod's plan names other devices than those listed under its name."""
    by_key = {record.key: record for record in bound.values()}
    kept = {
        key: uid
        for key, uid in known.items()
        if key in now
        and now[key] == before.get(key)
        and (uid in bound or key not in by_key or gets_others(by_key[key], now[key]))
    }
    for key in now:
        if key not in kept and key in by_key:
            kept[key] = by_key[key].uid
    return kept
