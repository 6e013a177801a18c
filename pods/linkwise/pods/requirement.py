"""What a pod requires of GPUs: one value, with which each GPU and each part of one is compared.

A new requirement is a field here. All that chooses, counts or explains GPUs asks `accepts`,
`requires` and `in_words`, and uses the whole value as a key, so no other module reads the fields
(docs/extend.md#add-an-annotation).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from linkwise.topology.machine.model import LinkClass

_WORD = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class HardwareRequirement:
    """What each single GPU, or the part of one, must have."""

    models: tuple[tuple[str, ...], ...] = ()  # the words of each model name; empty: any model
    memory_mib: int = 0

    def __bool__(self) -> bool:
        return self != ANY_GPU

    def accepts(self, model: str, memory_mib: int) -> bool:
        """Whether such a GPU, or such a part of a GPU of this model, is good enough."""
        return memory_mib >= self.memory_mib and (
            not self.models or any(is_model(model, wanted) for wanted in self.models)
        )

    def in_words(self) -> Iterator[str]:
        """Each requirement as text, such as `H100 or H200` and `80 GiB or more`."""
        if self.models:
            yield " or ".join(" ".join(words).upper() for words in self.models)
        if self.memory_mib:
            yield f"{self.memory_mib / 1024:g} GiB or more"


ANY_GPU = HardwareRequirement()


@dataclass(frozen=True, slots=True)
class TopologyRequirement:
    """Which GPUs a pod accepts. Equal for very many pods, so it is a key of caches."""

    require: LinkClass = LinkClass.SYS
    prefer: LinkClass = LinkClass.NVLINK
    hardware: HardwareRequirement = ANY_GPU
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.require, self.prefer, self.hardware)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def requires(self) -> bool:
        """Whether any GPU of an unknown machine might not be good enough."""
        return self.require is not LinkClass.SYS or bool(self.hardware)


ANYTHING = TopologyRequirement()


@lru_cache(maxsize=1024)
def words_of(model: str) -> tuple[str, ...]:
    """The words of a GPU model's name: `NVIDIA H100 80GB HBM3` -> (nvidia, h100, 80gb, hbm3)."""
    return tuple(word.lower() for word in _WORD.findall(model))


def is_model(model: str, wanted: tuple[str, ...]) -> bool:
    """Whether *wanted* occurs in the name as whole words, so that A10 does not match A100."""
    words = words_of(model)
    return any(words[start : start + len(wanted)] == wanted for start in range(len(words)))
