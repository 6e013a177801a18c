"""Why one GPU set was chosen over another: the first step of the choice's order at which the two
differ (docs/topology.md has the order)."""

from typing import TYPE_CHECKING

from linkwise.topology.machine.model import LINK_WORDS, LinkClass, Machine
from linkwise.topology.sets.choose import Choice
from linkwise.topology.sets.tables import table_of

if TYPE_CHECKING:  # the extender's modules take a tenth of a second to load
    from linkwise.extender.placement.judgement import Difference

_WORDS = {link: word for word, link in LINK_WORDS.items()}


def word_for(link: LinkClass) -> str:
    """Return the word with which a pod asks for this class: PIX counts as `switch`."""
    return _WORDS.get(link, _WORDS[LinkClass.PXB])


def why_not(machine: Machine, taken: Choice, other: Choice, prefer: LinkClass) -> str:
    """Say why *other*, the runner-up, lost against *taken*."""
    if taken.ring_class >= prefer > other.ring_class:
        return f"its link is {other.ring_class.name}, and {word_for(prefer)} or closer is preferred"
    # If a pod prefers less than NVLink and the class holds, speed does not count.
    speed_counts = prefer is LinkClass.NVLINK or taken.ring_class < prefer
    if speed_counts and other.gbytes_per_s < taken.gbytes_per_s:
        return f"it is slower: {other.gbytes_per_s:.1f} GB/s against {taken.gbytes_per_s:.1f}"
    table = table_of(machine)
    mixed, pure = table.models[other.gpus], table.models[taken.gpus]
    if mixed > pure:
        return f"as fast, but of {mixed} GPU models against {pure}"
    if speed_counts and other.ring_class < taken.ring_class:
        far, near = other.ring_class.name, taken.ring_class.name
        return f"as fast, but linked less closely: {far} against {near}"
    if other.remaining_value < taken.remaining_value:
        so_far = "equally fast" if speed_counts else "good enough"
        return (
            f"{so_far}, but what it leaves free is worth less: "
            f"{other.remaining_value:.3f} of the idle machine against {taken.remaining_value:.3f}"
        )
    more, fewest = table.nvlinks[other.gpus], table.nvlinks[taken.gpus]
    if more > fewest:
        return (
            f"as good, but it has more NVLinks, which later jobs may use: {more} against {fewest}"
        )
    spread, least = table.numa_nodes[other.gpus], table.numa_nodes[taken.gpus]
    if spread > least:
        return f"as good, but spread over {spread} NUMA nodes against {least}"
    there, here = table.nic_classes[other.gpus], table.nic_classes[taken.gpus]
    if there < here:
        far, near = LinkClass(int(there)).name, LinkClass(int(here)).name
        return f"as good, but its closest common NIC is {far} away against {near}"
    return "as good in everything; the lower indices win"


_OF_GANGS = {
    "preferred link": "it does not keep to the preferred link",
    "worth": "it is slower: {lost} GB/s against {won}",
    "GPU models": "about as fast, but of {lost} GPU models against {won}",
    "slowest pod's ring": "about as fast, but the ring of its slowest member has {lost} GB/s "
    "against {won}",
    "damage": "as good, but later jobs lose more: {lost} GB/s against {won}",
    "NUMA nodes": "as good, but spread over {lost} NUMA nodes against {won}",
    "nearest NIC": "as good, but its closest common NIC is {lost} away against {won}",
    "lowest indices": "as good in everything; the lower indices win",
}


def why_not_for_gang(difference: "Difference") -> str:
    """Say why the runner-up of a gang, the second of the two that differ, lost."""
    won, lost = difference.values
    return _OF_GANGS[difference.criterion].format(won=won, lost=lost)
