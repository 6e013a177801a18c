"""A row of the table, and what a place has to be able to do."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Row:
    """The answer to *given*, put into *place*, is exactly *says*."""

    place: str
    name: str
    given: Any
    says: str


class Place(Protocol):
    """Somewhere that bad input can go in, with a good neighbour beside it."""

    def give(self, given: Any) -> str:
        """Put it in; the whole text that comes back, or what was done in its place."""

    def neighbour_goes_on(self) -> None:
        """A good request to the same program, or the other half of the same input, still works."""
