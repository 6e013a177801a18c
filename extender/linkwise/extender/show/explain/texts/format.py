"""Amounts as text, such as `2 GPUs` or `1.5 GiB`."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from linkwise.drawing.words import gpus_in_words, some
from linkwise.extender.state.records import ResourceList
from linkwise.extender.state.views import ClosedNodes

_GIB = 1 << 30
_MOST_GIB = 999.5  # three digits


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


def closed_in_words(closed: Sequence[ClosedNodes]) -> Iterator[str]:
    """A sentence for each reason, such as `gpu-1, gpu-2 take no new pods: cordoned. 8 GPUs are
    free there.`"""
    for each in closed:
        take = f"{some(each.nodes)} {'takes' if len(each.nodes) == 1 else 'take'} no new pods"
        free = f"{gpus_in_words(each.free)} {'is' if each.free == 1 else 'are'} free there."
        yield f"{take}: {each.reason}.{f' {free}' if each.free else ''}"


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
