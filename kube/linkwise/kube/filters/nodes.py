"""What the filters read of a node, and arrays over many nodes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from linkwise.kube.objects import Taint

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
NO_DOMAIN = -1


class NodeFacts(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def taints(self) -> Sequence[Taint]: ...
    @property
    def unschedulable(self) -> bool: ...


def domains_of(key: str, labels: Sequence[Mapping[str, str]]) -> Ints:
    """[rows] a number for each value of the label *key*; NO_DOMAIN without the label."""
    numbers: dict[str | None, int] = {None: NO_DOMAIN}
    return np.fromiter(
        (numbers.setdefault(each.get(key), len(numbers) - 1) for each in labels),
        np.int64,
        len(labels),
    )


def per_domain(domain: Ints, amounts: Ints) -> Ints:
    """[domains] the sum of the rows' *amounts*; rows without a domain count nowhere."""
    inside = domain != NO_DOMAIN
    size = int(domain.max(initial=NO_DOMAIN)) + 1
    return np.bincount(domain[inside], amounts[inside], size).astype(np.int64)


def in_all(masks: Iterable[Bools]) -> Bools:
    """[rows] whether all masks have the row; there is at least one mask."""
    first, *others = masks
    for mask in others:
        first = first & mask
    return first


def at_rows(domain: Ints, values: Ints, otherwise: int = 0) -> Ints:
    """[rows] the value of each row's domain; *otherwise* without a domain."""
    return np.append(values, otherwise)[domain]
