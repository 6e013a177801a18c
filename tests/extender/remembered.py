"""What the core remembers, found by following its objects."""

from collections.abc import Iterator, Mapping
from types import ModuleType

from linkwise.extender.next.queue.run_times import RunningPods
from linkwise.extender.state.decisions import History

# They keep so many decisions, and what each node had at the last look.
_OF_BOUNDED = type | ModuleType | History | RunningPods


def remembered(root: object) -> int:
    """How many things are in all dicts and sets that Linkwise's objects lead to from *root*."""
    seen: set[int] = set()
    total, left = 0, [root]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | ModuleType):
            continue
        if isinstance(each, History):  # keeps a fixed number of decisions
            continue
        seen.add(id(each))
        if isinstance(each, dict | set | frozenset):
            total += len(each)
        left += _inside(each)
    return total


def _inside(each: object) -> Iterator[object]:
    if isinstance(each, Mapping):
        yield from each.values()
    elif isinstance(each, list | tuple | set | frozenset):
        yield from each
    elif type(each).__module__.startswith("linkwise."):
        slots = (slot for kind in type(each).__mro__ for slot in getattr(kind, "__slots__", ()))
        yield from (getattr(each, slot, None) for slot in slots)
        yield from getattr(each, "__dict__", {}).values()


def strings(root: object) -> set[str]:
    """All that dicts, sets and lists hold that Linkwise's objects lead to, in keys too."""
    seen: set[int] = set()
    found: set[str] = set()
    left = [root]
    while left:
        each = left.pop()
        if isinstance(each, str):
            found.add(each)
        if id(each) in seen or isinstance(each, _OF_BOUNDED):
            continue
        seen.add(id(each))
        if isinstance(each, Mapping):
            left += each.keys()
        left += _inside(each)
    return found
