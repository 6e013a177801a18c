"""Amounts as text, such as `2 GPUs` or `1.5 GiB`."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from linkwise.extender.api.records import ResourceList
from linkwise.extender.api.views import ClosedNodes

_GIB = 1 << 30
_MOST_GIB = 999.5  # three digits
_MOST_NODES = 8


def needs_in_words(needs: ResourceList) -> str:
    parts = [*resources_in_words(needs.milli_cpu, needs.memory, needs.others)]
    parts.append("a place for one more pod")
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def resources_in_words(
    milli_cpu: int, memory: int, others: Iterable[tuple[str, int]]
) -> Iterator[str]:
    if milli_cpu:
        yield cpus_in_words(milli_cpu)
    if memory:
        yield memory_in_words(memory)
    for name, amount in others:
        yield amount_in_words(name, amount)


def amount_in_words(name: str, amount: int) -> str:
    """Of a resource that is neither CPU nor memory."""
    return f"{gib_in_words(amount)} of {name}" if in_bytes(name) else f"{amount} {name}"


def in_bytes(resource: str) -> bool:
    return resource == "ephemeral-storage" or resource.startswith("hugepages-")


def gpus_in_words(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def closed_in_words(closed: Sequence[ClosedNodes]) -> Iterator[str]:
    """A sentence for each reason, such as `gpu-1, gpu-2 take no new pods: cordoned. 8 GPUs are
    free there.`"""
    for each in closed:
        more = len(each.nodes) - _MOST_NODES
        names = ", ".join(each.nodes[:_MOST_NODES]) + (f" and {more} more" if more > 0 else "")
        take = "takes" if len(each.nodes) == 1 else "take"
        free = f"{gpus_in_words(each.free)} {'is' if each.free == 1 else 'are'} free there."
        yield f"{names} {take} no new pods: {each.reason}.{f' {free}' if each.free else ''}"


def pods_in_words(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


def cpus_in_words(milli_cpu: int) -> str:
    return f"{milli_cpu / 1000:g} CPU{'' if milli_cpu == 1000 else 's'}"


def left_in_words(left: int, in_words: Callable[[int], str]) -> str:
    """Pods may request more than their node has: it was made smaller, or the kubelet runs some of
    its own."""
    if left >= 0:
        return f"{in_words(left)} left"
    return f"its pods request {in_words(-left)} more than it has"


def memory_in_words(memory: int) -> str:
    return f"{gib_in_words(memory)} of memory"


def gib_in_words(memory: int) -> str:
    gib = max(memory, 0) / _GIB
    return f"{gib:.3g} GiB" if gib < _MOST_GIB else f"{gib / 1024:.3g} TiB"


def idle_for(since: float, at: float, *, at_least: bool) -> str:
    return f"{'at least ' if at_least else ''}{duration(at - since)}"


def busy_share(percent: int | None) -> str:
    """*percent*: at most so much of a day's time; None: unknown."""
    if percent is None:
        return "-"
    return f"{percent} % or less" if percent else "0 %"


def evicted_if_needed(begins: float | None, at: float) -> str:
    """When an idle pod may be evicted for others, from *begins* on; None: never."""
    if begins is None:
        return "never"
    return f"in {duration(begins - at)}" if begins > at else "now"


def duration(seconds: float) -> str:
    """As kubectl shows ages: 45s, 4m58s, 12m, 3h10m, 5d4h."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 10 and whole % 60:
        return f"{minutes}m{whole % 60}s"
    if minutes < 60:
        return f"{minutes}m"
    if hours < 24:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
