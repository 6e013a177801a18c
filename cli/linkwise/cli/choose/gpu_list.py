"""GPUs as an operator writes them, `0,2,5-7`: the indices that nvidia-smi prints."""

import re
from collections.abc import Sequence

from linkwise.cli.errors import BadInputError
from linkwise.drawing.words import indices
from linkwise.topology.machine.model import Machine

_PART = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def read_gpus(option: str, text: str, machine: Machine) -> int:
    """Return the set as a bitmask over `machine.gpus`. Raises BadInputError, which names
    *option*."""
    position = {gpu.index: place for place, gpu in enumerate(machine.gpus)}
    mask = 0
    for index in _indices(option, text):
        if index not in position:
            here = write_gpus(machine, machine.all_gpus)
            raise BadInputError(f"{option} {text}: no GPU {index}: the machine has {here}")
        if mask >> position[index] & 1:
            raise BadInputError(f"{option} {text}: GPU {index} is named twice")
        mask |= 1 << position[index]
    return mask


def _indices(option: str, text: str) -> list[int]:
    indices: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise BadInputError(
                f"{option} {text!r}: {part.strip()!r}: expected GPU indices like 0,2,5-7"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadInputError(f"{option} {text}: {part.strip()}: expected {last}-{first}")
        indices += range(first, last + 1)
    return indices


def write_gpus(machine: Machine, mask: int) -> str:
    """Return the shortest form of a set, `0-2,5`; `none` for the empty one."""
    return write_indices(machine.indices_of(mask))


def write_indices(those: Sequence[int]) -> str:
    """Return the same for indices."""
    # Two in a row read better as 0,1 than as 0-1.
    return indices(those, shortest=3) or "none"
