"""Which rows of the node table changed, in order, for readers that keep something per row."""

from collections.abc import Iterable, Iterator
from itertools import islice

LONGEST = 100_000


class RowLog:
    """A log that forgets its beginning; `generation` never repeats."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._forgotten = 0

    def __len__(self) -> int:
        """The rows that the log remembers."""
        return len(self._rows)

    @property
    def generation(self) -> int:
        """Rises with each change. A reader that remembers it can ask what came `since`."""
        return self._forgotten + len(self._rows)

    def append(self, row: int) -> None:
        self._rows.append(row)

    def since(self, generation: int, count: int) -> Iterable[int]:
        """The rows that changed since *generation*, some more than once; all of *count* rows if
        the log has forgotten them."""
        if generation < self._forgotten:
            return range(count)
        return self._from(generation - self._forgotten)

    def _from(self, place: int) -> Iterator[int]:
        return islice(self._rows, place, None)

    def trim(self) -> None:
        """Forget all rows once there are many."""
        if len(self._rows) > LONGEST:
            self._forgotten += len(self._rows)
            self._rows.clear()
